"""What applying a plan did and what an undelete brought back, as JSON documents and from them."""

from __future__ import annotations

from collections import Counter

from ckptgov.model.copies import CopyState
from ckptgov.model.removal import ApplyAnswer, RemovalStep, UndeleteAnswer, Went
from ckptgov.model.retention import Action, Removal
from ckptgov.wire.decode import error_beside
from ckptgov.wire.documents import Document, text, with_error
from ckptgov.wire.members import Members


def applied(answer: ApplyAnswer) -> Document:
    """The document of ``apply``. ``counts``: how many copies went how far."""
    counts = Counter(one.went.value for one in answer.steps)
    document: Document = {
        "plan_id": answer.plan_id,
        "is_dry_run": answer.is_dry_run,
        "counts": dict(sorted(counts.items())),
        "freed_bytes": sum(one.bytes for one in answer.steps if one.went is Went.PURGED),
        "steps": [step(one) for one in answer.steps],
    }
    return with_error(document, answer.error)


def undeleted(answer: UndeleteAnswer) -> Document:
    """The document of ``undelete``. ``restored``: those of the steps that came back."""
    document: Document = {
        "is_dry_run": answer.is_dry_run,
        "steps": [step(one) for one in answer.steps],
        "restored": [removal(one) for one in answer.restored],
    }
    return with_error(document, answer.error)


def step(one: RemovalStep) -> Document:
    """What became of one copy."""
    return {
        "run": one.run,
        "checkpoint": text(one.checkpoint),
        "content_id": one.content_id,
        "step": one.step,
        "tier": one.tier,
        "node": one.node,
        "place": one.place,
        "action": one.action.value,
        "went": one.went.value,
        "bytes": one.bytes,
        "files": one.files,
        "text": text(one.text),
        "due_at_ns": one.due_at_ns,
    }


def removal(one: Removal) -> Document:
    """A copy on its way out."""
    return {
        "run_id": one.run_id,
        "content_id": one.content_id,
        "place": one.place,
        "name": text(one.name),
        "action": one.action.value,
        "plan_id": one.plan_id,
        "state": one.state.value,
        "condemned_at_ns": one.condemned_at_ns,
        "due_at_ns": one.due_at_ns,
        "trash_s": one.trash_s,
        "bytes": one.bytes,
        "files": one.files,
        "trash": text(one.trash),
        "error": text(one.error),
    }


def applied_of(document: Document) -> ApplyAnswer:
    """The answer of ``apply``."""
    told = Members(document)
    return ApplyAnswer(
        plan_id=told.maybe(told.text, "plan_id"),
        steps=tuple(step_of(each) for each in told.objects("steps")),
        is_dry_run=told.flag("is_dry_run"),
        error=error_beside(document),
    )


def undeleted_of(document: Document) -> UndeleteAnswer:
    """The answer of ``undelete``."""
    told = Members(document)
    return UndeleteAnswer(
        steps=tuple(step_of(each) for each in told.objects("steps")),
        restored=tuple(removal_of(each) for each in told.objects("restored")),
        is_dry_run=told.flag("is_dry_run"),
        error=error_beside(document),
    )


def step_of(told: Members) -> RemovalStep:
    """One step of either."""
    return RemovalStep(
        run=told.text("run"),
        checkpoint=told.path("checkpoint"),
        content_id=told.text("content_id"),
        step=told.maybe(told.whole, "step"),
        tier=told.text("tier"),
        node=told.maybe(told.text, "node"),
        place=told.text("place"),
        action=told.one_of("action", Action),
        went=told.one_of("went", Went),
        bytes=told.whole("bytes"),
        files=told.whole("files"),
        text=told.path("text"),
        due_at_ns=told.maybe(told.whole, "due_at_ns"),
    )


def removal_of(told: Members) -> Removal:
    """A copy on its way out."""
    return Removal(
        run_id=told.text("run_id"),
        content_id=told.text("content_id"),
        place=told.text("place"),
        name=told.path("name"),
        action=told.one_of("action", Action),
        plan_id=told.text("plan_id"),
        state=told.one_of("state", CopyState),
        condemned_at_ns=told.whole("condemned_at_ns"),
        due_at_ns=told.whole("due_at_ns"),
        trash_s=told.number("trash_s"),
        bytes=told.whole("bytes"),
        files=told.whole("files"),
        trash=told.path("trash"),
        error=told.path("error"),
    )
