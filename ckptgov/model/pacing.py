"""Bandwidth as values: who may move how much, and the seam through which bytes are paced."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from msgspec import Struct


class Pacer(Protocol):
    """Asked before bytes leave; answers by returning late. Threads may share it."""

    def take(self, count_bytes: int, *, requests: int = 0) -> None:
        """Wait until this many bytes, and calls of the store, may leave.

        Raises:
            Stopped work (KeyboardInterrupt, LeaseLost, TimedOut) passes through; bytes taken and
            not sent are lost to the budget, never the other way round.
        """
        ...

    def push_back(self) -> None:
        """The store asked for less (503 SlowDown, 429): the rate of everyone falls for a while."""
        ...


class FlowClass(StrEnum):
    """What bytes are moved for, most urgent first. Each keeps a floor of the rate."""

    EMERGENCY = "emergency"  # a node is dying
    RESTORE = "restore"
    DURABLE = "durable"  # the only copy is not on a shared tier yet
    REPLICATE = "replicate"
    BACKGROUND = "background"  # verify and scrub


class Budget(Struct, frozen=True, kw_only=True):
    """What ckptgov may take from a tier or a node; None is without limit.

    Bytes/s read and written, requests/s to the store, and flows moving at the same time.
    """

    read_bytes_per_s: int | None = None
    write_bytes_per_s: int | None = None
    requests_per_s: int | None = None
    flows: int | None = None


class FlowRequest(Struct, frozen=True, kw_only=True):
    """What a mover wants: bytes from one tier to another (either may be None), for one purpose.

    ``order`` decides inside a class, lower first: flows of one checkpoint share it, so that one
    is finished before the next is begun. A companion belongs to a movement that was admitted
    with another flow (reading back what it wrote, a second source): it gets a rate at once and
    takes no place among ``Budget.flows``, or movements could wait for each other for ever.
    """

    flow_id: str
    what: str  # for people: run and checkpoint
    flow_class: FlowClass
    source: str | None
    target: str | None
    node: str
    bytes: int
    weight: int = 1
    order: tuple[int, ...] = ()
    is_companion: bool = False


class FlowState(StrEnum):
    """Where a flow stands."""

    WAITING = "waiting"
    MOVING = "moving"
    SILENT = "silent"  # its lease ran out; counted at its fallback rate until it surely ended


class FlowFacts(Struct, frozen=True, kw_only=True):
    """One flow as ``ckptgov flows`` shows it."""

    request: FlowRequest
    state: FlowState
    moved_bytes: int
    rate_bytes_per_s: int  # granted now
    measured_bytes_per_s: int
    waits_for: str = ""  # why it waits, in words: "flows of tier s3: 4 of 4"
    eta_s: float | None = None
    started_at_ns: int = 0
