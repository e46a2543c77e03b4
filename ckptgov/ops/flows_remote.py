"""Flows of an agent: the service computes their grants, and what it says is told over HTTP.

While the service is silent, flows that were let in go on at their fallback rate, which the service
keeps aside for them, and a new flow takes over the rate of one that ended meanwhile, so that work
goes on in turn. What the service never let in moves nothing, and nothing ever moves faster than it
was heard to say (P7).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.flowfacts import Beat, FlowOwner, Grant, RegisteredFlow
from ckptgov.errors import CkptgovError, CouldNotLook, LeaseLost, UsageError
from ckptgov.model.clock import Clock
from ckptgov.model.pacing import FlowRequest
from ckptgov.model.settings import Settings
from ckptgov.ops.flows import BEAT_S, LEASE_S, FlowDesk
from ckptgov.ops.flows_open import OpenFlow
from ckptgov.ops.flows_pacer import Terms
from ckptgov.ops.processes import has_surely_ended, this_process
from ckptgov.planning.bandwidth import UNLIMITED, Rates
from ckptgov.wire import flows as wire
from ckptgov.wire.documents import text

OPEN, BEAT, CLOSE = "/v1/flows/open", "/v1/flows/beat", "/v1/flows/close"

Post = Callable[[str, Any], Any]
"""(path, document) -> the service's document. Raises CkptgovError; may be called again then."""

T = TypeVar("T", bound=Struct)
_ENDLESS = float("inf")
_NO_ANSWER = "the service's answer"

Way = tuple[str | None, str | None, str, bool]


class RemoteFlowBook:
    """The service's flow book as one process of another machine sees it. Threads may share it.

    A flow counts as heard there once it told that it acts on its newest grant: what ``beat``
    returns is what the next ``beat`` says the flow acts on.
    """

    def __init__(self, post: Post) -> None:
        self._post = post
        self._owner = this_process()
        self._lock = threading.Lock()
        self._acts_on: dict[str, int] = {}

    def open(self, flow: RegisteredFlow) -> None:
        told = wire.OpenFlow(
            request=replace(flow.request, what=text(flow.request.what)),
            owner=_process(flow.owner),
            lease_s=flow.lease_ns / 1e9,
        )
        with self._lock:
            try:
                self._send(OPEN, told)
            except LeaseLost as error:
                raise FileExistsError(error.message) from error
            self._acts_on[flow.request.flow_id] = -1

    def beat(self, beats: Sequence[Beat]) -> dict[str, Grant]:
        with self._lock:
            told = tuple(_beat(one, self._acts_on.get(one.flow_id, -1)) for one in beats)
            answers = self._answers(wire.FlowBeats(owner=_process(self._owner), beats=told))
            heard = {key: _grant(one) for key, one in answers.grants.items()}
            self._acts_on |= {flow_id: grant.seq for flow_id, grant in heard.items()}
        return heard

    def close(self, flow_ids: Iterable[str]) -> None:
        ids = tuple(flow_ids)
        with self._lock:
            self._send(CLOSE, wire.CloseFlows(flow_ids=ids))
            for flow_id in ids:
                self._acts_on.pop(flow_id, None)

    def reap(self, silent: Iterable[tuple[str, int]]) -> int:
        ended = tuple(wire.EndedFlow(flow_id=key, beats=beats) for key, beats in silent)
        if not ended:
            return 0
        with self._lock:
            answer = self._send(CLOSE, wire.CloseFlows(ended=ended))
        return self._decoded(answer, wire.ClosedFlows).reaped

    def registered(self) -> tuple[RegisteredFlow, ...]:
        """Those of this machine; nothing is told of any flow."""
        asked = wire.FlowBeats(owner=_process(self._owner), lists_host=True)
        with self._lock:
            return tuple(_registered(one) for one in self._answers(asked).of_host)

    def _answers(self, told: wire.FlowBeats) -> wire.FlowAnswers:
        return self._decoded(self._send(BEAT, told), wire.FlowAnswers)

    def _send(self, path: str, message: Struct) -> Any:
        return self._post(path, wire.to_document(message))

    def _decoded(self, document: Any, kind: type[T]) -> T:
        try:
            return wire.from_document(document, kind)
        except UsageError as error:
            raise CouldNotLook(f"the service's answer makes no sense: {error.message}") from error


class _Left(Struct, frozen=True):
    """What a flow that ended leaves while the service still counts it."""

    way: Way
    terms: Terms


class RemoteDesk(FlowDesk):
    """Opens flows for one process of an agent. ``post`` reaches the service.

    ``node`` is the name under which budgets know this machine: flows that name its host go under
    it. What this machine's own settings say of budgets decides nothing.
    """

    BOOK = "the service"

    def __init__(
        self,
        post: Post,
        settings: Settings,
        clock: Clock,
        *,
        node: str,
        talk: Callable[[str], None] | None = None,
        beat_s: float = BEAT_S,
        lease_s: float = LEASE_S,
        in_background: bool = True,
    ) -> None:
        self._node = node
        self._free: set[Way] = set()
        self._left: dict[str, _Left] = {}
        self._heirs: dict[str, OpenFlow] = {}
        self._has_reaped = False
        super().__init__(
            None,
            settings,
            clock,
            talk=talk,
            beat_s=beat_s,
            lease_s=lease_s,
            in_background=in_background,
            ledger=RemoteFlowBook(post),
        )

    @contextmanager
    def open(
        self, request: FlowRequest, *, wait_limit_s: float | None = None
    ) -> Iterator[OpenFlow]:
        if request.node == os.uname().nodename:
            request = replace(request, node=self._node)
        with super().open(request, wait_limit_s=wait_limit_s) as flow:
            yield flow

    def _work(self) -> None:
        if self._is_lost or not self._has_reaped:
            self._reap_ended_here()  # and find out whether the service answers again
        super()._work()

    def _tell_and_hear(self) -> None:
        super()._tell_and_hear()
        # What was news counts as heard only once it was told that it is acted on.
        if any(flow.is_registered and flow.is_news for flow in self._open_flows()):
            super()._tell_and_hear()

    def _hear(self, flow: OpenFlow, grant: Grant, asked_at: float) -> None:
        flow.is_news = grant.seq != flow.terms.seq
        if not flow.is_news:
            flow.heard_at = asked_at
        if (grant.rates, grant.fallback) == (UNLIMITED, UNLIMITED):
            self._free.add(_way(flow.request))
        elif grant.rates is not None:
            self._free.discard(_way(flow.request))
        flow.hear(self._terms(grant, flow.heard_at))

    def _first_terms(self, request: FlowRequest) -> Terms:
        """It waits, unless the service said lately that no budget concerns such a flow."""
        free = _way(request) in self._free
        return Terms(
            rates=UNLIMITED if free else None,
            fallback=UNLIMITED if free else None,
            fresh_until=_ENDLESS,
            usable_until=_ENDLESS,
            waits_for="" if free else _NO_ANSWER,
        )

    def _reap_ended_here(self) -> None:
        me = this_process()
        ended = [
            (one.request.flow_id, one.beats)
            for one in self._book.registered()
            if has_surely_ended(one.owner, me)
        ]
        self._book.reap(ended)
        self._has_reaped = True

    def _leave(self, flow: OpenFlow) -> None:
        flow_id = flow.request.flow_id
        with self._lock:
            for old, heir in list(self._heirs.items()):
                if heir is flow:
                    del self._heirs[old]
            if flow.is_registered and flow.terms.rates is not None:
                self._left[flow_id] = _Left(_way(flow.request), flow.terms)
        super()._leave(flow)
        if self._is_lost:
            self._inherit()

    def _forget_ended(self) -> None:
        if self._is_lost:
            return  # a later step does: it finds out first whether anybody listens
        self._disinherit()
        with self._lock:
            self._left.clear()  # whether the service still counts them cannot be known any more
        super()._forget_ended()

    def _lose(self, error: CkptgovError) -> None:
        super()._lose(error)
        self._has_reaped = False
        self._inherit()

    def _inherit(self) -> None:
        """Let flows that wait take over what is still kept aside for those that ended."""
        with self._lock:
            heirs = set(map(id, self._heirs.values()))
            waiting = [one for one in self._flows.values() if self._is_waiting(one, heirs)]
            for flow in waiting:
                left = self._free_share(_way(flow.request))
                if left is not None:
                    self._heirs[left] = flow
                    flow.hear(_inherited(self._left[left].terms))

    def _is_waiting(self, flow: OpenFlow, heirs: set[int]) -> bool:
        return not flow.is_registered and flow.terms.rates is None and id(flow) not in heirs

    def _free_share(self, way: Way) -> str | None:
        for flow_id, left in self._left.items():
            if left.way == way and left.terms.fallback and flow_id not in self._heirs:
                return flow_id
        return None

    def _disinherit(self) -> None:
        """Stop what still acts on another's rate: the service may be about to forget it."""
        with self._lock:
            heirs, self._heirs = list(self._heirs.values()), {}
        for flow in heirs:
            if flow.terms.seq < 0:
                flow.hear(self._first_terms(flow.request))


def _inherited(terms: Terms) -> Terms:
    return Terms(
        rates=terms.fallback,
        fallback=terms.fallback,
        fresh_until=0.0,
        usable_until=terms.usable_until,
    )


def _way(request: FlowRequest) -> Way:
    """What decides which budgets concern a flow, and how large its fallback rate is."""
    return (request.source, request.target, request.node, request.is_companion)


def _process(owner: FlowOwner) -> wire.Process:
    return wire.Process(host=owner.host, boot=owner.boot, pid=owner.pid, started=owner.started)


def _owner(process: wire.Process) -> FlowOwner:
    return FlowOwner(host=process.host, boot=process.boot, pid=process.pid, started=process.started)


def _beat(one: Beat, acts_on: int) -> wire.FlowBeat:
    wanted = None if one.wanted is None else Rates(*one.wanted)
    return wire.FlowBeat(
        flow_id=one.flow_id,
        acts_on=acts_on,
        moved_bytes=one.moved_bytes,
        measured_bytes_per_s=one.measured_bytes_per_s,
        wanted=wanted,
        read_push_backs=one.read_push_backs,
        write_push_backs=one.write_push_backs,
    )


def _grant(told: wire.ToldGrant) -> Grant:
    return Grant(seq=told.seq, rates=told.rates, fallback=told.fallback, waits_for=told.waits_for)


def _registered(told: wire.ToldFlow) -> RegisteredFlow:
    return RegisteredFlow(
        request=told.request,
        owner=_owner(told.owner),
        opened_at_ns=told.opened_at_ns,
        lease_ns=int(told.lease_s * 1e9),
        grant_seq=told.grant.seq,
        granted=told.grant.rates,
        held=told.grant.rates,
        fallback=told.grant.fallback,
        waits_for=told.grant.waits_for,
        beats=told.beats,
        beat_at_ns=told.beat_at_ns,
        moved_bytes=told.moved_bytes,
        measured_bytes_per_s=told.measured_bytes_per_s,
    )
