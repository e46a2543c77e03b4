"""Copies on their way out, or gone, as a JSON document and from it."""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.model.copies import CopyState
from ckptgov.model.removed import RemovedCopy
from ckptgov.model.retention import Action, Why
from ckptgov.wire.documents import Document, text
from ckptgov.wire.members import Members


def removed(run: str | None, found: Sequence[RemovedCopy]) -> Document:
    """What a service tells of a run's removed copies."""
    return {"run": run, "removals": [removed_copy(one) for one in found]}


def removed_copy(one: RemovedCopy) -> Document:
    """One of ``removals`` in the document of ``explain``."""
    return {
        "content_id": one.content_id,
        "name": text(one.name) or None,
        "step": one.step,
        "place": one.place,
        "tier": one.tier,
        "node": one.node,
        "state": one.state.value,
        "action": None if one.action is None else one.action.value,
        "plan_id": one.plan_id,
        "why": [{"reason": str(each.reason), "text": text(each.text)} for each in one.why],
        "condemned_at_ns": one.condemned_at_ns,
        "moved_at_ns": one.moved_at_ns,
        "purged_at_ns": one.purged_at_ns,
        "next": None if one.next is None else one.next.value,
        "due_at_ns": one.due_at_ns,
        "undo": text(one.undo) or None,
        "error": text(one.error) or None,
    }


def removed_of(document: Document) -> tuple[RemovedCopy, ...]:
    """What a service tells of a run's removed copies.

    Raises:
        Malformed: a member is missing, or of another kind.
    """
    return tuple(_removed_copy(each) for each in Members(document).objects("removals"))


def _removed_copy(told: Members) -> RemovedCopy:
    return RemovedCopy(
        content_id=told.text("content_id"),
        name=told.maybe(told.path, "name") or "",
        step=told.maybe(told.whole, "step"),
        place=told.text("place"),
        tier=told.text("tier"),
        node=told.maybe(told.text, "node"),
        state=told.one_of("state", CopyState),
        action=told.maybe(lambda name: told.one_of(name, Action), "action"),
        plan_id=told.maybe(told.text, "plan_id"),
        why=tuple(Why(each.text("reason"), each.path("text")) for each in told.objects("why")),
        condemned_at_ns=told.maybe(told.whole, "condemned_at_ns"),
        moved_at_ns=told.maybe(told.whole, "moved_at_ns"),
        purged_at_ns=told.maybe(told.whole, "purged_at_ns"),
        next=told.maybe(lambda name: told.one_of(name, CopyState), "next"),
        due_at_ns=told.maybe(told.whole, "due_at_ns"),
        undo=told.maybe(told.path, "undo") or "",
        error=told.maybe(told.path, "error") or "",
    )
