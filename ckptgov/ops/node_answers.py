"""What a node tells of one removal: what came of it, and what its catalog and journal know."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.facts import PlacedCopy
from ckptgov.model.journal import NumberedRecord
from ckptgov.model.retention import Removal
from ckptgov.ops.context import Context
from ckptgov.ops.posting import posted_record
from ckptgov.ops.returning import goings
from ckptgov.ops.standing_run import decoded
from ckptgov.ops.telling_run import posted_copy
from ckptgov.wire.facts import PostedCopy, PostedRecord
from ckptgov.wire.node_removals import Came, NodeAnswer, Order

MOST_FINDINGS = 20
"""So many of one copy are in an answer: a task's outcome has only so much room."""


class Did(Struct, frozen=True, kw_only=True):
    """What came of one order."""

    came: Came
    text: str = ""
    bytes: int = 0
    files: int = 0


def known_removal(context: Context, order: Order) -> Removal | None:
    """The removal of this copy that is under way here; None: none is."""
    return context.catalog.removals.removal(order.run_id, order.content_id, order.place)


def held_copy(context: Context, order: Order) -> PlacedCopy | None:
    """The copy as this node's catalog has it; None: it never knew one."""
    copies = context.catalog.copies_of(order.run_id, [order.content_id])[order.content_id]
    return next((one for one in copies if one.place == order.place), None)


def said_of(context: Context, order: Order) -> Sequence[NumberedRecord]:
    """What the journal says of the copy's going and coming back, oldest first."""
    records = decoded(context.catalog.binding_records(order.run_id))
    return goings(records, order.content_id, order.place)


def answer_of(context: Context, order: Order, did: Did) -> NodeAnswer:
    """The answer to one order, with what this node knows of its copy now."""
    removal, held = known_removal(context, order), held_copy(context, order)
    return NodeAnswer(
        run_id=order.run_id,
        content_id=order.content_id,
        place=order.place,
        condemned_at_ns=order.condemned_at_ns,
        came=did.came,
        trash="" if removal is None else removal.trash,
        bytes=did.bytes,
        files=did.files,
        text=did.text,
        copy=None if held is None else _copy(held, removal),
        records=_records(context, order),
    )


def _copy(held: PlacedCopy, removal: Removal | None) -> PostedCopy:
    """As a post tells it, which brings all findings besides."""
    copy = posted_copy(held, removal)
    return replace(copy, findings=copy.findings[:MOST_FINDINGS])


def _records(context: Context, order: Order) -> tuple[PostedRecord, ...]:
    told = {one.record.stamp.id for one in said_of(context, order)}
    facts = context.catalog.binding_records(order.run_id)
    return tuple(posted_record(one) for one in facts if one.record_id in told)
