"""What the service asks a node to do about copies on its own disks, and what came of each.

A removal is begun in the service's catalog, where P2 is judged; the node's agent carries it out.
Orders and outcomes may be lost, or come twice: whoever asks again is told what stands.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta

from ckptgov.model.copies import CopyState
from ckptgov.model.retention import Action, Removal
from ckptgov.wire.facts import PostedCopy, PostedRecord
from ckptgov.wire.parts import MAX_PAYLOAD_BYTES
from ckptgov.wire.strict import Strict, decode, encode

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class What(StrEnum):
    """What is to be done with one copy."""

    ASIDE = "aside"  # to the trash; what other copies make good is purged at once
    PURGE = "purge"  # out of the trash
    BACK = "back"  # out of the trash to where it was, compared by digest


class Came(StrEnum):
    """What stands after an order."""

    MOVED = "moved"  # it lies in the trash
    PURGED = "purged"  # nothing of it is left
    BACK = "back"  # it lies where it was
    CHANGED = "changed"  # another thing has its place, or it was brought there anew: left alone
    RESISTED = "resisted"  # storage did not let go, or could not be looked at


class Order(Strict, frozen=True, kw_only=True):
    """One removal, as the service has it. Times are its catalog's clock's."""

    run_id: str
    content_id: str
    place: str
    name: str
    action: Action
    plan_id: str
    condemned_at_ns: _Count
    trash_s: Annotated[float, Meta(ge=0, le=1e12)]
    bytes: _Count
    files: _Count
    what: What
    trash: str = ""


class RemovePayload(Strict, frozen=True, kw_only=True):
    """Of a REMOVE task. ``epoch`` is the catalog's: what an earlier one asked for is void."""

    version: Literal[1] = 1
    epoch: int
    orders: tuple[Order, ...]


class NodeAnswer(Strict, frozen=True, kw_only=True):
    """What came of one order; ``condemned_at_ns`` tells which.

    ``trash``: where it lies, if it was moved. ``text``: what resisted, or else became of it.
    ``copy``: what the node knows of the copy afterwards; None where it knows nothing.
    ``records``: what its journal says of the copy's going and coming back.
    """

    run_id: str
    content_id: str
    place: str
    condemned_at_ns: _Count
    came: Came
    trash: str = ""
    bytes: _Count = 0
    files: _Count = 0
    text: str = ""
    copy: PostedCopy | None = None
    records: tuple[PostedRecord, ...] = ()


class RemoveOutcome(Strict, frozen=True, kw_only=True):
    """Of a REMOVE task that ended: one answer an order."""

    version: Literal[1] = 1
    answers: tuple[NodeAnswer, ...]


def order_of(removal: Removal, what: What) -> Order:
    """A removal for a message."""
    return Order(
        run_id=removal.run_id,
        content_id=removal.content_id,
        place=removal.place,
        name=removal.name,
        action=removal.action,
        plan_id=removal.plan_id,
        condemned_at_ns=removal.condemned_at_ns,
        trash_s=removal.trash_s,
        bytes=removal.bytes,
        files=removal.files,
        what=what,
        trash=removal.trash,
    )


def removal_of(order: Order, state: CopyState) -> Removal:
    """The removal as a node's own catalog keeps it: when it is due, the service tells."""
    return Removal(
        run_id=order.run_id,
        content_id=order.content_id,
        place=order.place,
        name=order.name,
        action=order.action,
        plan_id=order.plan_id,
        state=state,
        condemned_at_ns=order.condemned_at_ns,
        due_at_ns=order.condemned_at_ns,
        trash_s=order.trash_s,
        bytes=order.bytes,
        files=order.files,
        trash=order.trash,
    )


def encode_removals(message: RemovePayload | RemoveOutcome) -> bytes:
    """A task's payload or outcome."""
    return encode(message)


def decode_orders(raw: bytes) -> RemovePayload:
    """Raises Malformed."""
    return decode(raw, RemovePayload, what="remove task", cap_bytes=MAX_PAYLOAD_BYTES)


def decode_came(raw: bytes) -> RemoveOutcome:
    """Raises Malformed."""
    return decode(raw, RemoveOutcome, what="outcome of a remove task")
