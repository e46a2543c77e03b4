"""What agents and the service say to each other about flows. Version 1; JSON.

A grant counts as heard only once the flow told that it acts on it: an answer that is lost must not
make the service believe that a flow takes less by now.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ckptgov.errors import UsageError
from ckptgov.model.pacing import FlowRequest

MAX_FLOWS = 4096
"""Flows told of at once."""

Rates = tuple[int | None, int | None, int | None, int | None]


class Process(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The process a flow belongs to, as its own machine calls it."""

    host: str
    boot: str
    pid: int
    started: int


class OpenFlow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A flow to be registered; opening it again by the same process changes nothing.

    ``lease_s``: for how long it goes on with what it heard.
    """

    request: FlowRequest
    owner: Process
    lease_s: float


class FlowBeat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one flow goes on. ``acts_on``: the ``seq`` of the grant it acts on; -1 before any."""

    flow_id: str
    acts_on: int
    moved_bytes: int
    measured_bytes_per_s: int
    wanted: Rates | None = None
    read_push_backs: int = 0
    write_push_backs: int = 0


class FlowBeats(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Flows of one process. ``lists_host``: tell every flow of its machine as well."""

    owner: Process
    beats: tuple[FlowBeat, ...] = ()
    lists_host: bool = False


class ToldGrant(Struct, frozen=True, kw_only=True):
    """What one flow may take from here on; ``rates`` None: it waits for what the words say."""

    seq: int
    rates: Rates | None
    fallback: Rates | None
    waits_for: str = ""


class ToldFlow(Struct, frozen=True, kw_only=True):
    """A flow as it is registered; ``beats`` says how often it was heard."""

    request: FlowRequest
    owner: Process
    beats: int
    opened_at_ns: int
    beat_at_ns: int
    lease_s: float
    moved_bytes: int
    measured_bytes_per_s: int
    grant: ToldGrant


class FlowAnswers(Struct, frozen=True, kw_only=True):
    """Grants by flow id: where the flow acts on another ``seq`` it was not counted as heard. A
    flow that is missing is not registered: it stops, and may be opened again."""

    grants: dict[str, ToldGrant]
    of_host: tuple[ToldFlow, ...] = ()


class EndedFlow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A flow whose process surely ended, and how often it had been heard when that was seen."""

    flow_id: str
    beats: int


class CloseFlows(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Flows that ended by themselves, and flows whose process did."""

    flow_ids: tuple[str, ...] = ()
    ended: tuple[EndedFlow, ...] = ()


class ClosedFlows(Struct, frozen=True, kw_only=True):
    """How many of ``ended`` were forgotten."""

    reaped: int


T = TypeVar("T", bound=Struct)


def decode(raw: bytes, kind: type[T]) -> T:
    """A message.

    Raises:
        UsageError: it is none; says where.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{kind.__name__}: {error}") from error


def from_document(document: Any, kind: type[T]) -> T:
    """The same of a document that was decoded already."""
    try:
        return msgspec.convert(document, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{kind.__name__}: {error}") from error


def to_document(message: Struct) -> Any:
    """A message as plain values."""
    return msgspec.to_builtins(message)
