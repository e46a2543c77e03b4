"""Documents back to the answers they were made of, so that one renderer serves both.

What a document does not tell (a checkpoint's extra files, times of its shards) is not there
afterwards either; what a command prints of the answer is.
"""

from __future__ import annotations

from ckptgov.errors import CkptgovError
from ckptgov.model.answers import (
    LatestAnswer,
    RestartAnswer,
    RunListing,
    ScanAnswer,
    ScannedRun,
    SealedCheckpoint,
    VerifiedCheckpoint,
    VerifyAnswer,
)
from ckptgov.model.checkpoint import Evidence, Purpose, StepKind
from ckptgov.model.facts import (
    CheckpointFacts,
    Choice,
    CopyFacts,
    Finding,
    Note,
    Reason,
    ResumeArgs,
    StagingDebris,
    Verdict,
)
from ckptgov.wire.decode_errors import error_of, error_of_kind, is_error
from ckptgov.wire.documents import Document
from ckptgov.wire.members import Members

_NOWHERE = ResumeArgs(path="", parent="", step=None, tag="")


def latest(document: Document) -> LatestAnswer:
    """The answer of ``latest``, an error with its reasons included."""
    told = Members(document)
    verdicts = tuple(_passed_over(each) for each in told.objects("passed_over"))
    listed = tuple(note(each) for each in told.objects("notes"))
    restart = _restart(told.member("restart")) if told.has("restart") else None
    if is_error(document):
        return LatestAnswer(
            run=None,
            choice=Choice(chosen=None, verdicts=verdicts, notes=listed),
            chosen=None,
            restart=restart,
            error=error_of(document),
        )
    chosen = checkpoint(told)
    return LatestAnswer(
        run=told.maybe(told.text, "run"),
        choice=Choice(chosen=chosen, verdicts=verdicts, notes=listed),
        chosen=chosen,
        path=told.path("path"),
        resume=resume(told.member("resume_args")),
        restart=restart,
    )


def _restart(told: Members) -> RestartAnswer:
    return RestartAnswer(
        restart_id=told.text("restart_id"),
        epoch=told.whole("epoch"),
        decided_here=told.flag("decided_here"),
    )


def finding(told: Members) -> Finding:
    """One reason."""
    return Finding(
        reason=told.one_of("reason", Reason),
        path=told.path("path"),
        evidence=told.path("evidence"),
    )


def findings(told: Members, name: str = "findings") -> tuple[Finding, ...]:
    """All reasons under one member."""
    return tuple(finding(each) for each in told.objects(name))


def note(told: Members) -> Note:
    """One note."""
    return Note(kind=told.text("kind"), path=told.path("path"), text=told.path("text"))


def resume(told: Members) -> ResumeArgs:
    """What a framework's loader wants to be told."""
    return ResumeArgs(
        path=told.path("path"),
        parent=told.path("parent"),
        step=told.maybe(told.whole, "step"),
        tag=told.path("tag"),
    )


def _passed_over(told: Members) -> Verdict:
    """Name, step, variant and reasons are all that is told of it."""
    facts = CheckpointFacts(
        name=told.path("name"),
        layout="",
        step=told.maybe(told.whole, "step"),
        step_kind=StepKind.STEP,
        content_id=None,
        purposes=(),
        world_size=None,
        reshardable=None,
        bytes=0,
        line=1,
        evidence=Evidence.NONE,
        findings=(),
        resume=_NOWHERE,
        variant=told.text("variant"),
    )
    return Verdict(checkpoint=facts, findings=findings(told))


def checkpoint(told: Members, *, notes: tuple[Note, ...] = ()) -> CheckpointFacts:
    """The facts that every answer about a checkpoint tells."""
    return CheckpointFacts(
        name=told.path("name"),
        layout=told.text("layout"),
        step=told.maybe(told.whole, "step"),
        step_kind=told.one_of("step_kind", StepKind),
        content_id=told.maybe(told.text, "content_id"),
        purposes=tuple(each for each in Purpose if each.value in told.texts("purposes")),
        world_size=told.maybe(told.whole, "world_size"),
        reshardable=told.maybe(told.flag, "reshardable"),
        bytes=told.whole("bytes"),
        line=told.whole("line"),
        attempt=told.whole("attempt"),
        evidence=told.one_of("evidence", Evidence),
        findings=(),
        notes=notes,
        copies=tuple(_copy(each) for each in told.objects("copies")),
        resume=_NOWHERE,
        variant=told.text("variant"),
    )


def _copy(told: Members) -> CopyFacts:
    return CopyFacts(
        place=told.maybe(told.text, "place") or "",
        tier=told.maybe(told.text, "tier") or "",
        node=told.maybe(told.text, "node"),
        root=told.path("root"),
        shards=told.maybe(told.paths, "shards"),
        evidence=told.one_of("evidence", Evidence),
        verified_at_ns=told.maybe(told.whole, "verified_at_ns"),
        findings=findings(told),
    )


def listing(document: Document) -> RunListing:
    """The answer of ``list`` and ``explain``."""
    return _listing(Members(document))


def _listing(told: Members) -> RunListing:
    return RunListing(
        run=told.maybe(told.text, "run"),
        run_id=told.maybe(told.text, "run_id"),
        root=told.path("root"),
        verdicts=tuple(_listed(each) for each in told.objects("checkpoints")),
        notes=tuple(note(each) for each in told.objects("notes")),
        staging=tuple(_staging(each) for each in told.objects("staging")),
        active_line=told.whole("line"),
    )


def _listed(told: Members) -> Verdict:
    notes = tuple(note(each) for each in told.objects("notes"))
    return Verdict(checkpoint=checkpoint(told, notes=notes), findings=findings(told))


def _staging(told: Members) -> StagingDebris:
    return StagingDebris(
        path=told.path("path"),
        layout=told.text("layout"),
        bytes=told.whole("bytes"),
        newest_mtime_ns=told.whole("newest_mtime_ns"),
    )


def sealed(document: Document) -> SealedCheckpoint:
    """The answer of ``commit``."""
    return _sealed(Members(document))


def _sealed(told: Members) -> SealedCheckpoint:
    return SealedCheckpoint(
        name=told.path("name"),
        step=told.maybe(told.whole, "step"),
        step_kind=told.one_of("step_kind", StepKind),
        content_id=told.text("content_id"),
        bytes=told.whole("bytes"),
        shards=told.whole("shards"),
        is_new=told.flag("is_new"),
    )


def error_beside(document: Document) -> CkptgovError | None:
    """The error that an answer tells beside what was done."""
    return error_of(document) if is_error(document) else None


def failure(told: Members, name: str) -> tuple[str, CkptgovError]:
    """What could not be done, called by the member ``name``, and why."""
    return told.path(name), error_of_kind(told.text("kind"), told.path("message"))


def scan(document: Document) -> ScanAnswer:
    """The answer of ``scan``."""
    told = Members(document)
    return ScanAnswer(
        runs=tuple(_scanned(each) for each in told.objects("runs")),
        error=error_beside(document),
    )


def _scanned(told: Members) -> ScannedRun:
    return ScannedRun(
        listing=_listing(told),
        sealed=tuple(_sealed(each) for each in told.objects("sealed")),
        failures=tuple(failure(each, "name") for each in told.objects("failures")),
        lost=told.paths("lost"),
    )


def verify(document: Document) -> VerifyAnswer:
    """The answer of ``verify``."""
    told = Members(document)
    return VerifyAnswer(
        checkpoints=tuple(_verified(each) for each in told.objects("checkpoints")),
        notes=tuple(note(each) for each in told.objects("notes")),
        error=error_beside(document),
    )


def _verified(told: Members) -> VerifiedCheckpoint:
    return VerifiedCheckpoint(
        name=told.path("name"),
        variant=told.text("variant"),
        step=told.maybe(told.whole, "step"),
        step_kind=told.one_of("step_kind", StepKind),
        layout=told.text("layout"),
        content_id=told.maybe(told.text, "content_id"),
        place=told.maybe(told.text, "place") or "",
        bytes=told.whole("bytes"),
        evidence=told.text("evidence"),
        findings=findings(told),
        notes=tuple(note(each) for each in told.objects("notes")),
    )
