"""When to leave a place alone for this time: most of what was tried there resisted.

Robinhood suspends a policy run the same way (``suspend_error_pct``, ``suspend_error_min``). One
entry that resists never holds up the others; a file system that has turned read-only, or a store
that refuses every delete, is not asked thousands of times.
"""

from __future__ import annotations

from collections import Counter

from ckptgov.errors import CkptgovError
from ckptgov.model.removal import RemovalStep, Went

LEAST = 10
"""So many have to resist before a place is left alone; and more than half of those tried."""


class Resisting:
    """What became of the removals of one call, place by place."""

    def __init__(self) -> None:
        self._tried: Counter[str] = Counter()
        self._errors: dict[str, list[CkptgovError]] = {}

    def note(self, step: RemovalStep, errors: list[CkptgovError]) -> None:
        """Count what was tried; ``errors``: those of the call so far."""
        self._tried[step.place] += 1
        if step.went is Went.RESISTED:
            self._errors.setdefault(step.place, []).append(errors[-1])

    def why_not(self, place: str) -> CkptgovError | None:
        """What resists at a place that is left alone for now; None: go on there."""
        errors = self._errors.get(place, [])
        if len(errors) < LEAST or 2 * len(errors) <= self._tried[place]:
            return None
        return errors[-1]
