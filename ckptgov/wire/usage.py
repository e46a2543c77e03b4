"""Usage and reconciliation to JSON documents. Keys are the field names of the model."""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.errors import CkptgovError
from ckptgov.model.usage import (
    CopyChange,
    DuAnswer,
    Leftover,
    LeftUsage,
    ReconcileAnswer,
    StateUsage,
    TierReconciled,
    TierUsage,
)
from ckptgov.wire.documents import Document, text, with_error


def du(answer: DuAnswer) -> Document:
    """The document of ``du``."""
    return with_error({"tiers": [_tier(one) for one in answer.tiers]}, answer.error)


def reconciled(answer: ReconcileAnswer) -> Document:
    """The document of ``reconcile``."""
    document: Document = {
        "is_dry_run": answer.is_dry_run,
        "tiers": [_tier_reconciled(one) for one in answer.tiers],
    }
    return with_error(document, answer.error)


def _tier(one: TierUsage) -> Document:
    """What is not known is null, never 0."""
    is_seen = one.error is None
    return {
        "tier": one.tier,
        "node": one.node,
        "root": text(one.root),
        "checkpoint_bytes": one.checkpoint_bytes,
        "states": [_state(each) for each in one.states],
        "left": [_left(each) for each in one.left] if is_seen else None,
        "free_bytes": one.free_bytes,
        "total_bytes": one.total_bytes,
        "quota_bytes": one.quota_bytes,
        **_troubles(one.error, one.failures),
    }


def _state(one: StateUsage) -> Document:
    return {
        "run": one.run,
        "state": one.state,
        "checkpoints": one.checkpoints,
        "bytes": one.bytes,
    }


def _left(one: LeftUsage) -> Document:
    return {"run": one.run, "kind": one.kind.value, "items": one.items, "bytes": one.bytes}


def _tier_reconciled(one: TierReconciled) -> Document:
    return {
        "tier": one.tier,
        "node": one.node,
        "root": text(one.root),
        "runs": one.runs,
        "changes": [_change(each) for each in one.changes],
        "leftovers": [_leftover(each) for each in one.leftovers],
        **_troubles(one.error, one.failures),
    }


def _change(one: CopyChange) -> Document:
    return {
        "run": one.run,
        "checkpoint": text(one.checkpoint),
        "content_id": one.content_id,
        "before": None if one.before is None else one.before.value,
        "after": one.after.value,
    }


def _leftover(one: Leftover) -> Document:
    return {
        "kind": one.kind.value,
        "path": text(one.path),
        "run": None if one.run is None else text(one.run),
        "content_id": one.content_id,
        "checkpoint": None if one.checkpoint is None else text(one.checkpoint),
        "bytes": one.bytes,
        "age_s": one.age_s,
        "fate": one.fate.value,
        "reason": one.reason.value,
        "text": text(one.text),
    }


def _troubles(error: CkptgovError | None, failures: Sequence[tuple[str, CkptgovError]]) -> Document:
    """Why a tier, or a part of it, could not be looked at."""
    return {
        "failures": [
            {"what": text(what), "kind": each.kind, "message": text(each.message)}
            for what, each in failures
        ],
        "unreachable": None if error is None else text(error.message),
    }
