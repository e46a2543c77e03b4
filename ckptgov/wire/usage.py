"""Usage and reconciliation to JSON documents. Keys are the field names of the model."""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.errors import CkptgovError
from ckptgov.model.usage import (
    CopyChange,
    DuAnswer,
    Leftover,
    LeftUsage,
    Orphan,
    ReconcileAnswer,
    RunUsage,
    StagingLeft,
    StateUsage,
    TierReconciled,
    TierUsage,
    TrashLeft,
)
from ckptgov.wire.documents import Document, text, with_error


def du(answer: DuAnswer) -> Document:
    """The document of ``du``."""
    # Of a run that no tier tells of, nothing is told: a caller who may not see it learns nothing.
    told = {each.run for one in answer.tiers for each in one.states}
    told |= {each.run for one in answer.tiers for each in one.left if each.run is not None}
    document: Document = {
        "tiers": [_tier(one) for one in answer.tiers],
        "runs": [_run(one) for one in answer.runs if one.run in told],
    }
    return with_error(document, answer.error)


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
        "condemned_bytes": one.condemned_bytes,
        "trash_bytes": one.trash_bytes if is_seen else None,
        "states": [_state(each) for each in one.states],
        "left": [_left(each) for each in one.left] if is_seen else None,
        "free_bytes": one.free_bytes,
        "total_bytes": one.total_bytes,
        "quota_bytes": one.quota_bytes,
        "files": one.files,
        "free_files": one.free_files,
        "quota_files": one.quota_files,
        "grows_bytes_per_day": one.grows_bytes_per_day,
        "full_in_days": one.full_in_days,
        **_troubles(one.error, one.failures),
    }


def _run(one: RunUsage) -> Document:
    return {
        "run": one.run,
        "team": one.team,
        "life": one.life.value,
        "owner": text(one.owner),
        "alive_at_ns": one.alive_at_ns,
        "checkpoints": one.checkpoints,
        "bytes": one.bytes,
        "last_step": one.last_step,
    }


def _state(one: StateUsage) -> Document:
    return {
        "run": one.run,
        "state": one.state,
        "checkpoints": one.checkpoints,
        "bytes": one.bytes,
        "ages": [
            {"age": each.age.value, "checkpoints": each.checkpoints, "bytes": each.bytes}
            for each in one.ages
        ],
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
        "staging": [_staging(each) for each in one.staging],
        "orphans": [_orphan(each) for each in one.orphans],
        "orphans_not_told": one.orphans_not_told,
        "trash": [_trash(each) for each in one.trash],
        **_troubles(one.error, one.failures),
    }


def _change(one: CopyChange) -> Document:
    return {
        "run": one.run,
        "checkpoint": text(one.checkpoint),
        "content_id": one.content_id,
        "before": None if one.before is None else one.before.value,
        "after": one.after.value,
        "bytes": one.bytes,
        "copies_left": one.copies_left,
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


def _staging(one: StagingLeft) -> Document:
    return {
        "path": text(one.path),
        "run": None if one.run is None else text(one.run),
        "layout": one.layout,
        "files": one.files,
        "bytes": one.bytes,
        "age_s": one.age_s,
        "unchanged_s": one.unchanged_s,
        "fate": one.fate.value,
        "reason": one.reason.value,
        "text": text(one.text),
    }


def _orphan(one: Orphan) -> Document:
    return {
        "path": text(one.path),
        "files": one.files,
        "bytes": one.bytes,
        "age_s": one.age_s,
        "unchanged_s": one.unchanged_s,
    }


def _trash(one: TrashLeft) -> Document:
    return {
        "run": text(one.run),
        "path": text(one.path),
        "content_id": one.content_id,
        "bytes": one.bytes,
        "due_s": one.due_s,
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
