"""A copy that is to go, and a guard with nothing to say against it."""

from __future__ import annotations

from typing import Any

from ckptgov.catalog.guards import Doomed, Guard
from ckptgov.model.retention import Action


def doomed(content_id: str, place: str, **changes: Any) -> Doomed:
    """One that is pruned without a grace or a time in the trash, unless ``changes`` say so."""
    fields: dict[str, Any] = {
        "action": Action.PRUNE,
        "trash_s": 0.0,
        "grace_s": 0.0,
        "bytes": 1,
        "files": 1,
    }
    return Doomed(content_id=content_id, place=place, **(fields | changes))


def guard(**changes: Any) -> Guard:
    """Of a run with one line, of which nothing is pinned, marked bad or within reach."""
    fields: dict[str, Any] = {
        "path": ((1, None),),
        "reachable": frozenset(),
        "min_restorable": 1,
        "min_durable_copies": 1,
        "compared_since_ns": 0,
    }
    return Guard(**(fields | changes))
