"""Which flows may move at all: few at a time per tier, urgent classes first, in order.

A flow that may move owns a fallback rate on every resource it needs, so that it is let in only
where that much is left of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from ckptgov.model.pacing import FlowClass, FlowRequest
from ckptgov.planning.bandwidth_needs import UNLIMITED, Key, Limits, Need, Rates

RANKS = {flow_class: rank for rank, flow_class in enumerate(FlowClass)}


class Silence(StrEnum):
    """When a flow last told that it goes on."""

    HEARD = "heard"
    EXPIRED = "expired"  # its lease ran out less than one more lease ago: may still use its rate
    LOST = "lost"  # by now it uses its fallback rate, or nothing at all


class FlowView(Struct, frozen=True, kw_only=True):
    """One flow as the arbiter sees it.

    ``held`` is the most it may be using until it is heard again: what it was granted when last
    heard, and everything granted since; None when it surely moves nothing. ``granted`` is what it
    will learn when it asks next. ``wanted`` is the most it could make use of.
    """

    request: FlowRequest
    waiting_since_ns: int
    held: Rates | None = None
    granted: Rates | None = None
    fallback: Rates | None = None  # that goes with ``granted``
    silence: Silence = Silence.HEARD
    wanted: Rates = UNLIMITED


class WaitCause(StrEnum):
    """Why a flow waits: a closed set."""

    FLOWS = "flows"
    RATE = "rate"
    ORDER = "order"
    UNHEARD = "unheard"


class Wait(Struct, frozen=True):
    """The cause and its words, such as "flows of tier s3: 4 of 4"."""

    cause: WaitCause
    text: str


ORDER = Wait(WaitCause.ORDER, "an earlier checkpoint of this class goes first")
UNHEARD = Wait(WaitCause.UNHEARD, "nothing was heard of it for too long")


@dataclass(slots=True)
class Candidate:
    """A flow with what it needs. ``least`` are its three fallback rates."""

    view: FlowView
    need: Need
    least: tuple[int, int, int]
    wait: Wait | None = None

    @property
    def rank(self) -> int:
        return RANKS[self.view.request.flow_class]

    @property
    def turn(self) -> tuple[bool, tuple[int, ...], int, str]:
        """Inside a class: who moves already, then the lowest order, then who came first."""
        view = self.view
        return (
            view.held is None,
            view.request.order,
            view.waiting_since_ns,
            view.request.flow_id,
        )

    def least_by_key(self) -> Iterable[tuple[Key, int]]:
        """Its fallback on each resource."""
        for keys, least in zip(self.need.key_sets, self.least, strict=True):
            for key in keys:
                yield key, least


@dataclass(slots=True)
class Gate:
    """Slots and fallback rates that are still free, while one flow after the other is let in."""

    limits: Limits
    room: dict[Key, int]
    holders: dict[str, list[Candidate]] = field(default_factory=lambda: defaultdict(list))

    def obstacle(self, one: Candidate) -> Wait | None:
        """Why this flow cannot be let in; None when it can."""
        for subject in one.need.slots:
            allowed = self.limits.flows_at(subject) or 0
            holders = self.holders[subject]
            if len(holders) >= allowed:
                if holders and all(_goes_before(other, one) for other in holders):
                    return ORDER
                return Wait(WaitCause.FLOWS, f"flows of {subject}: {len(holders)} of {allowed}")
        wanted: dict[Key, int] = defaultdict(int)
        for key, least in one.least_by_key():
            wanted[key] += least
            if self.room[key] < wanted[key]:
                return Wait(WaitCause.RATE, f"rate of {key[0]}")
        return None

    def enter(self, one: Candidate) -> None:
        """Take its slots and its fallback rates."""
        self.take_slots(one)
        for key, least in one.least_by_key():
            self.room[key] -= least

    def take_slots(self, one: Candidate) -> None:
        """Take its slots only."""
        for subject in one.need.slots:
            self.holders[subject].append(one)


def admit(candidates: Sequence[Candidate], gate: Gate) -> list[Candidate]:
    """Let in as many as the gate allows, most urgent first; the others are told why they wait.

    The first flow of each class at each subject goes before the second one of any class: a class
    that could not move at all would have no floor. So do companions, whose movement is under way.
    """
    line = sorted(candidates, key=lambda one: (one.rank, one.turn))
    let_in: list[Candidate] = []
    present: set[tuple[int, str]] = set()
    for one in line:
        places = {(one.rank, subject) for subject in one.need.slots}
        is_first = one.view.request.is_companion or not places <= present
        if is_first and gate.obstacle(one) is None:
            gate.enter(one)
            let_in.append(one)
            present |= places
    early = {one.view.request.flow_id for one in let_in}
    for one in line:
        if one.view.request.flow_id in early:
            continue
        one.wait = gate.obstacle(one)
        if one.wait is None:
            gate.enter(one)
            let_in.append(one)
    return sorted(let_in, key=lambda one: (one.rank, one.turn))


def _goes_before(holder: Candidate, waiting: Candidate) -> bool:
    return holder.rank == waiting.rank and holder.view.request.order < waiting.view.request.order
