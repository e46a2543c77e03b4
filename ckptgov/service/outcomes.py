"""What the outcome of a task says of how its activity went."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ckptgov.errors import PartlyDone, RefusedBySafety, VerificationFailed
from ckptgov.model.cluster import TaskFacts, TaskKind, TaskState
from ckptgov.model.removal import Went
from ckptgov.model.retention import PlanState


def trouble(task: TaskFacts) -> str | None:
    """Why a task that ended counts as no success, if so."""
    document: object = None
    with suppress(ValueError):
        document = json.loads(task.outcome or b"{}")
    told = document if isinstance(document, dict) else {}
    error = told.get("error")
    if not isinstance(error, dict):
        return f"{task.task.key}: failed" if task.state is TaskState.FAILED else None
    if _did_what_it_is_for(task.task.kind, str(error.get("kind")), told):
        return None
    return f"{task.task.key}: {error.get('message')}"


def _did_what_it_is_for(kind: TaskKind, error: str, told: Mapping[str, Any]) -> bool:
    """Whether the error is of what was found, and not of how the task went.

    A verification that found bad bytes: the copies' states tell of them. A plan that a person has
    to approve. A plan of which some entries were skipped, being of the past by now.
    """
    match kind:
        case TaskKind.VERIFY:
            return error == VerificationFailed.kind
        case TaskKind.PLAN:
            return error == RefusedBySafety.kind and told.get("state") == PlanState.WAITING
        case TaskKind.APPLY:
            counts = told.get("counts")
            if error != PartlyDone.kind or not isinstance(counts, dict):
                return False
            return Went.RESISTED.value not in counts
        case _:
            return False
