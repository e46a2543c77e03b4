"""What stays, in short: counted by tier and the weightiest reason, while runs stream by."""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.model.planned import Kept
from ckptgov.model.retention import CopyVerdict, KeepReason, PlanEntry, RunVerdict

_PROTECTING = (
    KeepReason.NOT_VERIFIED,
    KeepReason.OTHER_CATALOG,
    KeepReason.UNREACHABLE,
    KeepReason.ADOPTION,
)
"""Reasons that outweigh all others: as long as they hold, no other one matters."""


class Tally:
    """Counts of what stays, and warnings. Holds no run."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], list[int]] = {}
        self.notes: list[tuple[str, str]] = []

    def add(self, verdict: RunVerdict) -> None:
        """Count one run's checkpoints that stay."""
        self.notes += [(verdict.run, words) for words in verdict.notes]
        for one in verdict.checkpoints:
            for at in one.tiers:
                if at.action is None and at.why:
                    self._count(at, 1)

    def leave_out(self, verdict: RunVerdict, entries: Sequence[PlanEntry]) -> None:
        """Count no longer what a limit makes go of a run that was counted."""
        gone = {(one.content_id, one.place) for one in entries if one.run_id == verdict.run_id}
        for one in verdict.checkpoints:
            for at in one.tiers:
                is_gone = any((one.content_id, place) in gone for place in at.places)
                if is_gone and at.action is None and at.why:
                    self._count(at, -1)

    def _count(self, at: CopyVerdict, sign: int) -> None:
        reasons = [each.reason for each in at.why]
        reason = next((each for each in _PROTECTING if each in reasons), reasons[0])
        count = self._counts.setdefault((at.tier, reason), [0, 0])
        count[0] += sign
        count[1] += sign * at.bytes

    @property
    def kept(self) -> tuple[Kept, ...]:
        """By tier, the most bytes first."""
        found = [
            Kept(tier=tier, reason=str(reason), checkpoints=count, bytes=size)
            for (tier, reason), (count, size) in self._counts.items()
            if count
        ]
        return tuple(sorted(found, key=lambda one: (one.tier, -one.bytes, one.reason)))
