"""Model values to JSON documents. Sizes are integers, paths text (undecodable bytes escaped)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ckptgov.errors import CkptgovError
from ckptgov.model.answers import (
    LatestAnswer,
    RunListing,
    ScanAnswer,
    ScannedRun,
    SealedCheckpoint,
    VerifiedCheckpoint,
    VerifyAnswer,
)
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import (
    CheckpointFacts,
    CopyFacts,
    Finding,
    Note,
    ResumeArgs,
    StagingDebris,
    Verdict,
)

Document = dict[str, Any]


def text(path: str) -> str:
    """A path as valid text: bytes that are not UTF-8 come out as ``\\xNN``."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def error_document(
    error: CkptgovError, *, verdicts: Iterable[Verdict] = (), notes: Iterable[Note] = ()
) -> Document:
    """What every failing command prints with ``--json``."""
    return {
        "error": {
            "kind": error.kind,
            "exit_code": error.exit_code,
            "message": text(error.message),
            "hint": error.hint,
        },
        "passed_over": [passed_over(one) for one in verdicts if not one.is_restorable],
        "notes": [note(one) for one in notes],
    }


def with_error(document: Document, error: CkptgovError | None) -> Document:
    """An answer's document, and before it what was not done, if anything."""
    return document if error is None else {**error_document(error), **document}


def finding(one: Finding) -> Document:
    return {"reason": one.reason.value, "path": text(one.path), "evidence": text(one.evidence)}


def note(one: Note) -> Document:
    return {"kind": one.kind, "path": text(one.path), "text": text(one.text)}


def passed_over(verdict: Verdict) -> Document:
    one = verdict.checkpoint
    return {
        "name": text(one.name),
        "step": one.step,
        "variant": one.variant,
        "findings": [finding(each) for each in verdict.findings],
    }


def copy(one: CopyFacts) -> Document:
    return {
        "place": one.place or None,
        "tier": one.tier or None,
        "node": one.node,
        "root": text(one.root),
        "shards": None if one.shards is None else [text(path) for path in one.shards],
        "evidence": one.evidence.value,
        "verified_at_ns": one.verified_at_ns,
        "findings": [finding(each) for each in one.findings],
    }


def resume(args: ResumeArgs) -> Document:
    return {
        "path": text(args.path),
        "parent": text(args.parent),
        "step": args.step,
        "tag": text(args.tag),
    }


def checkpoint(one: CheckpointFacts) -> Document:
    """The facts of one checkpoint that every answer about it shares."""
    return {
        "name": text(one.name),
        "variant": one.variant,
        "step": one.step,
        "step_kind": one.step_kind.value,
        "layout": one.layout,
        "content_id": one.content_id,
        "evidence": one.evidence.value,
        "purposes": [each.value for each in one.purposes],
        "world_size": one.world_size,
        "reshardable": one.reshardable,
        "bytes": one.bytes,
        "line": one.line,
        "attempt": one.attempt,
        "copies": [copy(each) for each in one.copies],
    }


def latest(answer: LatestAnswer) -> Document:
    """The document of ``latest``: the checkpoint, or the error with all reasons."""
    verdicts = answer.choice.verdicts
    notes = notes_of(answer)
    if answer.error is not None or answer.chosen is None:
        assert answer.error is not None
        return error_document(answer.error, verdicts=verdicts, notes=notes)
    assert answer.resume is not None
    document: Document = {
        "run": answer.run,
        "path": text(answer.path or ""),
        **checkpoint(answer.chosen),
        "resume_args": resume(answer.resume),
        "passed_over": [passed_over(one) for one in _newer(verdicts, answer.chosen)],
        "notes": [note(one) for one in notes],
    }
    if answer.restart is not None:
        document["restart"] = {
            "restart_id": answer.restart.restart_id,
            "epoch": answer.restart.epoch,
            "decided_here": answer.restart.decided_here,
        }
    return document


def _newer(verdicts: Sequence[Verdict], chosen: CheckpointFacts) -> Iterable[Verdict]:
    """Everything not restorable; what merely lies below the answer is no news."""
    for verdict in verdicts:
        if not verdict.is_restorable and verdict.checkpoint is not chosen:
            yield verdict


def notes_of(answer: LatestAnswer) -> list[Note]:
    """Everything noticed about the run and its checkpoints, each once."""
    notes = list(answer.choice.notes)
    if answer.chosen is not None:
        notes += answer.chosen.notes
    for verdict in answer.choice.verdicts:
        notes += verdict.checkpoint.notes
    return list(dict.fromkeys(notes))


def listed(verdict: Verdict) -> Document:
    """One row of ``list``: the checkpoint, its state in one word, and why."""
    one = verdict.checkpoint
    state = "restorable" if verdict.is_restorable else verdict.findings[0].reason.value
    return {
        **checkpoint(one),
        "state": state,
        "findings": [finding(each) for each in verdict.findings],
        "notes": [note(each) for each in one.notes],
    }


def staging(one: StagingDebris) -> Document:
    return {
        "path": text(one.path),
        "layout": one.layout,
        "bytes": one.bytes,
        "newest_mtime_ns": one.newest_mtime_ns,
    }


def listing(one: RunListing) -> Document:
    """The document of ``list`` and ``explain``."""
    return {
        "run": one.run,
        "run_id": one.run_id,
        "root": text(one.root),
        "line": one.active_line,
        "checkpoints": [listed(each) for each in one.verdicts],
        "notes": [note(each) for each in one.notes],
        "staging": [staging(each) for each in one.staging],
    }


def sealed(one: SealedCheckpoint) -> Document:
    return {
        "name": text(one.name),
        "step": one.step,
        "step_kind": one.step_kind.value if one.step is not None else StepKind.NONE.value,
        "content_id": one.content_id,
        "bytes": one.bytes,
        "shards": one.shards,
        "is_new": one.is_new,
    }


def scanned(one: ScannedRun) -> Document:
    return {
        **listing(one.listing),
        "sealed": [sealed(each) for each in one.sealed],
        "failures": [
            {"name": text(name), "kind": error.kind, "message": text(error.message)}
            for name, error in one.failures
        ],
        "lost": [text(name) for name in one.lost],
    }


def scan(answer: ScanAnswer) -> Document:
    """The document of ``scan``."""
    return with_error({"runs": [scanned(one) for one in answer.runs]}, answer.error)


def verified(one: VerifiedCheckpoint) -> Document:
    return {
        "name": text(one.name),
        "variant": one.variant,
        "step": one.step,
        "step_kind": one.step_kind.value,
        "layout": one.layout,
        "content_id": one.content_id,
        "place": one.place or None,
        "bytes": one.bytes,
        "state": one.state,
        "evidence": one.evidence,
        "findings": [finding(each) for each in one.findings],
        "notes": [note(each) for each in one.notes],
    }


def verify(answer: VerifyAnswer) -> Document:
    """The document of ``verify``."""
    document: Document = {
        "checkpoints": [verified(one) for one in answer.checkpoints],
        "notes": [note(one) for one in answer.notes],
    }
    if answer.error is not None:
        document = {**error_document(answer.error, notes=answer.notes), **document}
    return document
