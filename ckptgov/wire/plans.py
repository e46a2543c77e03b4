"""Plans and verdicts to JSON documents, and what a fresh plan tells beside what goes.

Sizes are bytes, times nanoseconds and, beside them for people, RFC 3339. A place is its UUID.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from msgspec import structs

from ckptgov.errors import CkptgovError, CouldNotLook, PartlyDone, RefusedBySafety
from ckptgov.model.planned import PlanAnswer
from ckptgov.model.retention import (
    CheckpointVerdict,
    CopyVerdict,
    Plan,
    PlanEntry,
    PlanState,
    RunVerdict,
    StoredPlan,
    TierOutlook,
    Why,
)
from ckptgov.model.usage import RunUsage
from ckptgov.wire.documents import Document, text, with_error


def moment(at_ns: int) -> str:
    """A time for people, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ns // 10**9))


def error_of_plan(stored: StoredPlan) -> CkptgovError | None:
    """What keeps a plan from being carried out as it is, or what it could not see."""
    plan = stored.plan
    if (refusal := refusal_of(stored)) is not None:
        return refusal
    if plan.failures:
        name, why = plan.failures[0]
        words = (
            f"{len(plan.failures)} runs could not be looked at, and nothing of them goes; "
            f"first {text(name)}: {text(why)}"
        )
        return PartlyDone(words) if plan.runs else CouldNotLook(words)
    return None


def refusal_of(stored: StoredPlan) -> RefusedBySafety | None:
    """Why a plan must not be applied, or not before a person approved it."""
    plan = stored.plan
    lasting = [one for one in plan.refusals if not one.is_cap]
    if lasting:
        return RefusedBySafety(
            f"the plan must not be applied: {lasting[0].text}",
            hint="nothing lifts this; change the policy, or the runs it is about",
        )
    if plan.refusals and stored.state in (PlanState.PROPOSED, PlanState.WAITING):
        return RefusedBySafety(
            f"the plan waits for a person: {plan.refusals[0].text}",
            hint=_how_to_approve(stored),
        )
    return None


def _how_to_approve(stored: StoredPlan) -> str:
    short = short_id(stored.plan.plan_id)
    if stored.state is not PlanState.WAITING or not getattr(stored, "is_stored", True):
        return "a plan that was only looked at cannot be approved: make it without --dry-run"
    return (
        f"read it with 'ckptgov plans show {short}', then let it go with "
        f"'ckptgov plans approve {short} --reason TEXT' and 'ckptgov apply {short}'"
    )


def short_id(plan_id: str) -> str:
    """The beginning of a plan's id that people type."""
    return plan_id.removeprefix("sha256:")[:12]


def plan(
    stored: StoredPlan, *, error: CkptgovError | None = None, dry_run: bool = False
) -> Document:
    """The document of ``plan`` and ``plans show``; ``error`` beside it where given."""
    document = {**_heading(stored), **_body(stored.plan), "dry_run": dry_run}
    if isinstance(stored, PlanAnswer):
        document |= {
            "is_stored": stored.is_stored,
            "kept": [structs.asdict(one) for one in stored.kept],
            "quiet_runs": [_quiet(one) for one in stored.quiet],
            "notes": [{"run": text(run), "text": text(words)} for run, words in stored.notes],
        }
    return with_error(document, error)


def plans(found: Sequence[StoredPlan]) -> Document:
    """The document of ``plans``; those that are over are told without their entries."""
    return {"plans": [{**_heading(one), **_body(one.plan)} for one in found]}


def _heading(stored: StoredPlan) -> Document:
    return {
        "plan_id": stored.plan.plan_id,
        "state": stored.state.value,
        "stored_at_ns": stored.stored_at_ns,
        "stored_at": moment(stored.stored_at_ns),
        "changed_at_ns": stored.changed_at_ns,
        "changed_at": moment(stored.changed_at_ns),
        "by": text(stored.by),
        "note": text(stored.note),
    }


def _body(one: Plan) -> Document:
    return {
        "now_ns": one.now_ns,
        "now": moment(one.now_ns),
        "change_seq": one.change_seq,
        "policies": [{"name": name, "digest": digest} for name, digest in one.policies],
        "runs": one.runs,
        "checkpoints": one.checkpoints,
        "freed_bytes": sum(each.bytes for each in one.entries),
        "freed_files": sum(each.files for each in one.entries),
        "entries": [_entry(each) for each in one.entries],
        "tiers": [_outlook(each) for each in one.tiers],
        "refusals": [{"is_cap": each.is_cap, "text": text(each.text)} for each in one.refusals],
        "failures": [{"run": text(name), "why": text(why)} for name, why in one.failures],
    }


def _entry(one: PlanEntry) -> Document:
    return {
        "run_id": one.run_id,
        "run": text(one.run),
        "content_id": one.content_id,
        "checkpoint": text(one.checkpoint),
        "step": one.step,
        "place": one.place,
        "tier": one.tier,
        "node": one.node,
        "action": one.action.value,
        "why": _whys(one.why),
        "freed_bytes": one.bytes,
        "freed_files": one.files,
        "size_bytes": one.size_bytes,
    }


def _outlook(one: TierOutlook) -> Document:
    return structs.asdict(one)


def _quiet(one: RunUsage) -> Document:
    return {
        "run": text(one.run),
        "life": one.life.value,
        "owner": text(one.owner),
        "alive_at_ns": one.alive_at_ns,
        "alive_at": moment(one.alive_at_ns),
        "last_step": one.last_step,
        "checkpoints": one.checkpoints,
        "bytes": one.bytes,
    }


def verdict(one: RunVerdict) -> Document:
    """The document of ``policy explain``: every checkpoint at every tier with every reason."""
    return {
        "run_id": one.run_id,
        "run": text(one.run),
        "policy": one.policy,
        "life": one.life.value,
        "checkpoints": [_checkpoint(each) for each in one.checkpoints],
        "notes": [text(each) for each in one.notes],
    }


def _checkpoint(one: CheckpointVerdict) -> Document:
    return {
        "content_id": one.content_id,
        "name": text(one.name),
        "step": one.step,
        "line": one.line,
        "tiers": [_copies(each) for each in one.tiers],
    }


def _copies(one: CopyVerdict) -> Document:
    return {
        "tier": one.tier,
        "places": list(one.places),
        "action": one.action.value if one.action is not None else None,
        "why": _whys(one.why),
        "bytes": one.bytes,
        "files": one.files,
    }


def _whys(whys: Iterable[Why]) -> list[Document]:
    return [{"reason": str(one.reason), "text": text(one.text)} for one in whys]
