"""What moving bytes gave, and what takes room: documents back to answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ckptgov.errors import CouldNotLook
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.copies import CopyState
from ckptgov.model.movement import FlushAnswer, FlushedCheckpoint, FlushSkip, FlushState
from ckptgov.model.pacing import FlowClass, FlowFacts, FlowRequest, FlowState
from ckptgov.model.retention import RunLife
from ckptgov.model.usage import (
    Age,
    AgeUsage,
    CopyChange,
    DuAnswer,
    Fate,
    LeftKind,
    Leftover,
    LeftoverKind,
    LeftoverReason,
    LeftUsage,
    Orphan,
    ReconcileAnswer,
    RunUsage,
    StagingLeft,
    StagingReason,
    StateUsage,
    TierReconciled,
    TierUsage,
    TrashLeft,
    TrashReason,
)
from ckptgov.wire.decode import error_beside, failure, findings
from ckptgov.wire.decode_errors import error_of_kind
from ckptgov.wire.documents import Document
from ckptgov.wire.members import Members

T = TypeVar("T")


def flushed(document: Document) -> FlushAnswer:
    """The answer of ``flush``."""
    told = Members(document)
    return FlushAnswer(
        checkpoints=tuple(_flushed(each) for each in told.objects("checkpoints")),
        skips=tuple(_skip(each) for each in told.objects("skipped")),
        error=error_beside(document),
    )


def _flushed(told: Members) -> FlushedCheckpoint:
    error = None
    if told.has("error"):
        said = told.member("error")
        error = error_of_kind(
            said.text("kind"),
            said.path("message"),
            exit_code=said.whole("exit_code"),
            hint=said.maybe(said.text, "hint"),
        )
    return FlushedCheckpoint(
        run=told.text("run"),
        name=told.path("name"),
        step=told.maybe(told.whole, "step"),
        step_kind=told.one_of("step_kind", StepKind),
        content_id=told.text("content_id"),
        source=told.text("source"),
        target=told.text("target"),
        bytes=told.whole("bytes"),
        state=told.one_of("state", FlushState),
        reasons=told.texts("reasons"),
        sent_bytes=told.whole("sent_bytes"),
        resumed_bytes=told.whole("resumed_bytes"),
        took_s=told.number("took_s"),
        missing=told.paths("missing"),
        faults=findings(told, "faults"),
        error=error,
    )


def _skip(told: Members) -> FlushSkip:
    return FlushSkip(
        run=told.text("run"),
        name=told.path("name"),
        step=told.maybe(told.whole, "step"),
        step_kind=told.one_of("step_kind", StepKind),
        target=told.text("target"),
        why_not=told.text("why_not"),
        text=told.path("text"),
    )


def flows(document: Document) -> tuple[FlowFacts, ...]:
    """The answer of ``flows``."""
    return tuple(_flow(each) for each in Members(document).objects("flows"))


def _flow(told: Members) -> FlowFacts:
    return FlowFacts(
        request=FlowRequest(
            flow_id=told.text("flow_id"),
            what=told.path("what"),
            flow_class=told.one_of("class", FlowClass),
            source=told.maybe(told.text, "source"),
            target=told.maybe(told.text, "target"),
            node=told.text("node"),
            bytes=told.whole("bytes"),
        ),
        state=told.one_of("state", FlowState),
        moved_bytes=told.whole("moved_bytes"),
        rate_bytes_per_s=told.whole("granted_bytes_per_s"),
        measured_bytes_per_s=told.whole("measured_bytes_per_s"),
        waits_for=told.maybe(told.text, "waits_for") or "",
        eta_s=told.maybe(told.number, "eta_s"),
        started_at_ns=told.whole("started_at_ns"),
    )


def du(document: Document) -> DuAnswer:
    """The answer of ``du``."""
    told = Members(document)
    return DuAnswer(
        tiers=tuple(_usage(each) for each in told.objects("tiers")),
        runs=_those(told, "runs", _run),
        error=error_beside(document),
    )


def _those(told: Members, name: str, read: Callable[[Members], T]) -> tuple[T, ...]:
    """A list that services of before did not tell."""
    return tuple(read(each) for each in told.objects(name)) if told.has(name) else ()


def _if_told(told: Members, name: str, read: Callable[[str], T]) -> T | None:
    """A member that services of before did not tell."""
    return read(name) if told.has(name) else None


def _run(told: Members) -> RunUsage:
    return RunUsage(
        run=told.text("run"),
        life=told.one_of("life", RunLife),
        owner=told.path("owner"),
        alive_at_ns=told.whole("alive_at_ns"),
        checkpoints=told.whole("checkpoints"),
        bytes=told.whole("bytes"),
        last_step=told.maybe(told.whole, "last_step"),
    )


def _usage(told: Members) -> TierUsage:
    return TierUsage(
        tier=told.text("tier"),
        node=told.maybe(told.text, "node"),
        root=told.path("root"),
        states=tuple(_state(each) for each in told.objects("states")),
        left=tuple(_left(each) for each in told.objects("left")) if told.has("left") else (),
        free_bytes=told.maybe(told.whole, "free_bytes"),
        total_bytes=told.maybe(told.whole, "total_bytes"),
        quota_bytes=told.maybe(told.whole, "quota_bytes"),
        files=_if_told(told, "files", told.whole),
        free_files=_if_told(told, "free_files", told.whole),
        quota_files=_if_told(told, "quota_files", told.whole),
        grows_bytes_per_day=_if_told(told, "grows_bytes_per_day", told.number),
        full_in_days=_if_told(told, "full_in_days", told.number),
        failures=tuple(failure(each, "what") for each in told.objects("failures")),
        error=_unreachable(told),
    )


def _unreachable(told: Members) -> CouldNotLook | None:
    said = told.maybe(told.path, "unreachable")
    return None if said is None else CouldNotLook(said)


def _state(told: Members) -> StateUsage:
    return StateUsage(
        run=told.text("run"),
        state=told.text("state"),
        checkpoints=told.whole("checkpoints"),
        bytes=told.whole("bytes"),
        ages=_those(told, "ages", _age),
    )


def _age(told: Members) -> AgeUsage:
    return AgeUsage(
        age=told.one_of("age", Age),
        checkpoints=told.whole("checkpoints"),
        bytes=told.whole("bytes"),
    )


def _left(told: Members) -> LeftUsage:
    return LeftUsage(
        run=told.maybe(told.text, "run"),
        kind=told.one_of("kind", LeftKind),
        items=told.whole("items"),
        bytes=told.whole("bytes"),
    )


def reconciled(document: Document) -> ReconcileAnswer:
    """The answer of ``reconcile``."""
    told = Members(document)
    return ReconcileAnswer(
        tiers=tuple(_reconciled(each) for each in told.objects("tiers")),
        is_dry_run=told.flag("is_dry_run"),
        error=error_beside(document),
    )


def _reconciled(told: Members) -> TierReconciled:
    return TierReconciled(
        tier=told.text("tier"),
        node=told.maybe(told.text, "node"),
        root=told.path("root"),
        runs=told.whole("runs"),
        changes=tuple(_change(each) for each in told.objects("changes")),
        leftovers=tuple(_leftover(each) for each in told.objects("leftovers")),
        staging=_those(told, "staging", _staging),
        orphans=_those(told, "orphans", _orphan),
        orphans_not_told=_if_told(told, "orphans_not_told", told.whole) or 0,
        trash=_those(told, "trash", _trash),
        failures=tuple(failure(each, "what") for each in told.objects("failures")),
        error=_unreachable(told),
    )


def _change(told: Members) -> CopyChange:
    return CopyChange(
        run=told.text("run"),
        checkpoint=told.path("checkpoint"),
        content_id=told.text("content_id"),
        before=told.one_of("before", CopyState) if told.has("before") else None,
        after=told.one_of("after", CopyState),
        bytes=_if_told(told, "bytes", told.whole) or 0,
        copies_left=_if_told(told, "copies_left", told.whole),
    )


def _leftover(told: Members) -> Leftover:
    return Leftover(
        kind=told.one_of("kind", LeftoverKind),
        path=told.path("path"),
        run=told.maybe(told.path, "run"),
        content_id=told.maybe(told.text, "content_id"),
        checkpoint=told.maybe(told.path, "checkpoint"),
        bytes=told.whole("bytes"),
        age_s=told.number("age_s"),
        fate=told.one_of("fate", Fate),
        reason=told.one_of("reason", LeftoverReason),
        text=told.path("text"),
    )


def _staging(told: Members) -> StagingLeft:
    return StagingLeft(
        path=told.path("path"),
        run=told.maybe(told.path, "run"),
        layout=told.text("layout"),
        files=told.whole("files"),
        bytes=told.whole("bytes"),
        age_s=told.number("age_s"),
        unchanged_s=told.number("unchanged_s"),
        fate=told.one_of("fate", Fate),
        reason=told.one_of("reason", StagingReason),
        text=told.path("text"),
    )


def _orphan(told: Members) -> Orphan:
    return Orphan(
        path=told.path("path"),
        files=told.whole("files"),
        bytes=told.whole("bytes"),
        age_s=told.number("age_s"),
        unchanged_s=told.number("unchanged_s"),
    )


def _trash(told: Members) -> TrashLeft:
    return TrashLeft(
        run=told.path("run"),
        path=told.path("path"),
        content_id=told.maybe(told.text, "content_id"),
        bytes=told.whole("bytes"),
        due_s=told.number("due_s"),
        reason=told.one_of("reason", TrashReason),
        text=told.path("text"),
    )
