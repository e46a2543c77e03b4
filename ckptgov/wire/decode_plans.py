"""Documents of plans and verdicts back to what they were made of."""

from __future__ import annotations

from ckptgov.model.planned import Kept, PlanAnswer
from ckptgov.model.retention import (
    Action,
    CheckpointVerdict,
    CopyVerdict,
    Plan,
    PlanEntry,
    PlanRefusal,
    PlanState,
    RunLife,
    RunVerdict,
    StoredPlan,
    TierOutlook,
    Why,
)
from ckptgov.model.usage import RunUsage
from ckptgov.wire.documents import Document
from ckptgov.wire.members import Members


def plan(document: Document) -> StoredPlan:
    """The answer of ``plan`` and ``plans show``; a ``PlanAnswer`` where it was just made."""
    told = Members(document)
    stored = _stored(told, _plan(told))
    if not told.has("is_stored"):
        return stored
    return PlanAnswer(
        plan=stored.plan,
        state=stored.state,
        stored_at_ns=stored.stored_at_ns,
        changed_at_ns=stored.changed_at_ns,
        by=stored.by,
        note=stored.note,
        is_stored=told.flag("is_stored"),
        kept=tuple(_kept(each) for each in told.objects("kept")),
        quiet=tuple(_quiet(each) for each in told.objects("quiet_runs")),
        notes=tuple((each.path("run"), each.path("text")) for each in told.objects("notes")),
    )


def plans(document: Document) -> tuple[StoredPlan, ...]:
    """The answer of ``plans``."""
    return tuple(_stored(each, _plan(each)) for each in Members(document).objects("plans"))


def _stored(told: Members, of: Plan) -> StoredPlan:
    return StoredPlan(
        plan=of,
        state=told.one_of("state", PlanState),
        stored_at_ns=told.whole("stored_at_ns"),
        changed_at_ns=told.whole("changed_at_ns"),
        by=told.path("by"),
        note=told.path("note"),
    )


def _plan(told: Members) -> Plan:
    return Plan(
        plan_id=told.text("plan_id"),
        now_ns=told.whole("now_ns"),
        change_seq=told.whole("change_seq"),
        policies=tuple(
            (each.text("name"), each.text("digest")) for each in told.objects("policies")
        ),
        entries=tuple(_entry(each) for each in told.objects("entries")),
        tiers=tuple(_outlook(each) for each in told.objects("tiers")),
        refusals=tuple(
            PlanRefusal(is_cap=each.flag("is_cap"), text=each.path("text"))
            for each in told.objects("refusals")
        ),
        failures=tuple((each.path("run"), each.path("why")) for each in told.objects("failures")),
        runs=told.whole("runs"),
        checkpoints=told.whole("checkpoints"),
    )


def _entry(told: Members) -> PlanEntry:
    return PlanEntry(
        run_id=told.text("run_id"),
        run=told.path("run"),
        content_id=told.text("content_id"),
        checkpoint=told.path("checkpoint"),
        step=told.maybe(told.whole, "step"),
        place=told.text("place"),
        tier=told.text("tier"),
        node=told.maybe(told.text, "node"),
        action=told.one_of("action", Action),
        why=_whys(told),
        bytes=told.whole("freed_bytes"),
        files=told.whole("freed_files"),
        size_bytes=told.whole("size_bytes"),
    )


def _outlook(told: Members) -> TierOutlook:
    return TierOutlook(
        tier=told.text("tier"),
        node=told.maybe(told.text, "node"),
        used_bytes=told.whole("used_bytes"),
        limit_bytes=told.maybe(told.whole, "limit_bytes"),
        freed_bytes=told.whole("freed_bytes"),
        freed_files=told.whole("freed_files"),
        over_bytes=told.whole("over_bytes"),
        over_files=told.whole("over_files"),
    )


def _kept(told: Members) -> Kept:
    return Kept(
        tier=told.text("tier"),
        reason=told.text("reason"),
        checkpoints=told.whole("checkpoints"),
        bytes=told.whole("bytes"),
    )


def _quiet(told: Members) -> RunUsage:
    return RunUsage(
        run=told.path("run"),
        life=told.one_of("life", RunLife),
        owner=told.path("owner"),
        alive_at_ns=told.whole("alive_at_ns"),
        last_step=told.maybe(told.whole, "last_step"),
        checkpoints=told.whole("checkpoints"),
        bytes=told.whole("bytes"),
    )


def verdict(document: Document) -> RunVerdict:
    """The answer of ``policy explain``."""
    told = Members(document)
    return RunVerdict(
        run_id=told.text("run_id"),
        run=told.path("run"),
        policy=told.maybe(told.text, "policy"),
        life=told.one_of("life", RunLife),
        checkpoints=tuple(_checkpoint(each) for each in told.objects("checkpoints")),
        notes=told.paths("notes"),
    )


def _checkpoint(told: Members) -> CheckpointVerdict:
    return CheckpointVerdict(
        content_id=told.text("content_id"),
        name=told.path("name"),
        step=told.maybe(told.whole, "step"),
        line=told.whole("line"),
        tiers=tuple(_copies(each) for each in told.objects("tiers")),
    )


def _copies(told: Members) -> CopyVerdict:
    return CopyVerdict(
        tier=told.text("tier"),
        places=told.texts("places"),
        action=told.one_of("action", Action) if told.has("action") else None,
        why=_whys(told),
        bytes=told.whole("bytes"),
        files=told.whole("files"),
    )


def _whys(told: Members) -> tuple[Why, ...]:
    return tuple(Why(each.text("reason"), each.path("text")) for each in told.objects("why"))
