"""What a token that is bound to teams is told of what concerns runs of several teams.

Another team's runs, plans and removals are as if they were not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ckptgov.errors import Interrupted, PartlyDone, RefusedBySafety
from ckptgov.model.access import Caller
from ckptgov.model.removal import WENT_WRONG, Went
from ckptgov.model.retention import StoredPlan
from ckptgov.ops.stored_plans import run_of_scope
from ckptgov.wire.documents import Document, error_document

_OF_ALL_OF_IT = frozenset({RefusedBySafety.kind, Interrupted.kind})
_OF_AN_ERROR = frozenset({"error", "passed_over", "notes"})


def runs_of(stored: StoredPlan) -> frozenset[str]:
    """The runs that a plan names."""
    plan = stored.plan
    named = {one.run for one in plan.entries} | {run for run, _why in plan.failures}
    scope = run_of_scope(stored)
    return frozenset(named if scope is None else named | {scope})


def sees_plan(caller: Caller, stored: StoredPlan, *, sees_every_run: bool) -> bool:
    """Whether a plan exists for the caller: one of a single run that it sees, or it sees all.

    A plan of all runs tells of each of them, named or not: how full tiers are, and how many.
    """
    if not caller.teams or sees_every_run:
        return True
    named = runs_of(stored)
    return stored.plan.runs <= 1 and len(named) == 1 and all(caller.sees(run) for run in named)


def told_to(caller: Caller, document: Document) -> Document:
    """What became of copies (the document of ``apply`` or ``undelete``), for one caller."""
    steps = document.get("steps")
    if not caller.teams or not isinstance(steps, list):
        return document
    mine = [one for one in steps if caller.sees(one["run"])]
    if len(mine) == len(steps):
        return document
    told = {name: each for name, each in document.items() if name not in _OF_AN_ERROR}
    told |= _error_of(document, mine) | {"steps": mine}
    if "counts" in document:
        told["counts"] = dict(sorted(Counter(one["went"] for one in mine).items()))
        purged = [one["bytes"] for one in mine if one["went"] == Went.PURGED.value]
        told["freed_bytes"] = sum(purged)
    return told


def _error_of(document: Document, mine: Sequence[Mapping[str, Any]]) -> Document:
    """The error as it is told; of one about single copies, what concerns the caller's own."""
    kept = {name: document[name] for name in _OF_AN_ERROR if name in document}
    if "error" not in kept or kept["error"]["kind"] in _OF_ALL_OF_IT:
        return kept
    wrong = [one for one in mine if one["went"] in WENT_WRONG]
    if not wrong:
        return {}
    first = wrong[0]
    return error_document(
        PartlyDone(
            f"{len(wrong)} of {len(mine)} copies did not go on; first: {first['run']} "
            f"{first['checkpoint']} on {first['tier']}: {first['text']}"
        )
    )
