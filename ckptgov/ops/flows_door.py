"""The service's side of flows that run on other machines.

Whether such a flow's process still lives cannot be seen from here, so it is never judged here: a
silent flow is brought down to its fallback rate and stays counted with that, until its own machine
says that the process ended, or for a day (``flows_arbiter.FORGOTTEN_S``).

``node`` is the only node the caller speaks for, None where it may speak for any.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckptgov.catalog.flowfacts import Beat, FlowOwner, Grant, RegisteredFlow
from ckptgov.catalog.flowfacts import Rates as PlainRates
from ckptgov.errors import LeaseLost, NotAllowed, UsageError
from ckptgov.planning.bandwidth import UNLIMITED, Limits, is_free
from ckptgov.wire import flows as wire

if TYPE_CHECKING:
    from ckptgov.catalog.catalog import Catalog

_ELSEWHERE = "agent:"
"""Before the host's name of a flow that came in here: no machine is called so, and two machines
of one name are not taken for each other."""

_LEASE_S = (2.0, 60.0)
_MAX_TEXT = 4096


def open_flow(catalog: Catalog, limits: Limits, told: wire.OpenFlow, *, node: str | None) -> None:
    """Register a flow. Its budgets are the service's, whatever its own machine knows of them.

    Raises:
        UsageError: an id, a text or a lease that is none.
        NotAllowed: it is another node's.
        LeaseLost: a flow of this id is open in another process.
    """
    request = told.request
    _require_node(request.node, node)
    texts = (request.flow_id, request.node, request.source or "-", request.target or "-")
    if not all(one.isprintable() and 0 < len(one) <= 255 for one in texts):
        raise UsageError("a flow's id, node or tier is none")
    if len(request.what) > _MAX_TEXT or len(request.order) > 16:
        raise UsageError("a flow's words or order are too long")
    if not _LEASE_S[0] <= told.lease_s <= _LEASE_S[1]:
        raise UsageError(f"a flow's lease lasts {_LEASE_S[0]:g} to {_LEASE_S[1]:g} s")
    free: PlainRates | None = UNLIMITED if is_free(request, limits) else None
    now_ns = catalog.now_ns()
    flow = RegisteredFlow(
        request=request,
        owner=_stored(told.owner),
        opened_at_ns=now_ns,
        lease_ns=int(told.lease_s * 1e9),
        granted=free,
        held=free,
        fallback=free,
        waits_for="" if free is not None else "the arbiter's next round",
        beat_at_ns=now_ns,
    )
    try:
        catalog.flows.open(flow)
    except FileExistsError as error:
        standing = [one.owner for one in catalog.flows.registered(flow_ids=[request.flow_id])]
        if standing != [flow.owner]:  # else our answer was lost
            raise LeaseLost(f"flow {request.flow_id} is open in another process") from error


def hear_beats(catalog: Catalog, told: wire.FlowBeats, *, node: str | None) -> wire.FlowAnswers:
    """Count those flows as heard that act on their newest grant, and tell all of them theirs.

    Raises:
        UsageError: too many at once.
        NotAllowed: one of them is another node's.
    """
    if len(told.beats) > wire.MAX_FLOWS:
        raise UsageError(f"{len(told.beats)} flows at once")
    owner = _stored(told.owner)
    told_ids = [one.flow_id for one in told.beats]
    known = {one.request.flow_id: one for one in catalog.flows.registered(flow_ids=told_ids)}
    own = [
        one
        for one in told.beats
        if one.flow_id in known and _is_same(known[one.flow_id].owner, owner)
    ]
    for one in own:
        _require_node(known[one.flow_id].request.node, node)
    grants = catalog.flows.beat([_beat(one, owner) for one in own])
    of_host = catalog.flows.registered(host=owner.host) if told.lists_host else ()
    return wire.FlowAnswers(
        grants={flow_id: _told_grant(grant) for flow_id, grant in grants.items()},
        of_host=_of_host(of_host, node),
    )


def close_flows(catalog: Catalog, told: wire.CloseFlows, *, node: str | None) -> wire.ClosedFlows:
    """Forget flows that ended; those that nobody knows any more are passed over.

    Raises:
        NotAllowed: one of them is another node's.
    """
    ended = {one.flow_id: one.beats for one in told.ended}
    if node is not None:
        named = {*told.flow_ids, *ended}
        for one in catalog.flows.registered(flow_ids=named):
            _require_node(one.request.node, node)
    if told.flow_ids:
        catalog.flows.close(told.flow_ids)
    return wire.ClosedFlows(reaped=catalog.flows.reap(ended.items()) if ended else 0)


def _require_node(of_flow: str, node: str | None) -> None:
    if node is not None and of_flow != node:
        raise NotAllowed(f"this token speaks for node {node}, not for {of_flow}")


def _stored(process: wire.Process) -> FlowOwner:
    return FlowOwner(
        host=_ELSEWHERE + process.host,
        boot=process.boot,
        pid=process.pid,
        started=process.started,
    )


def _is_same(one: FlowOwner, other: FlowOwner) -> bool:
    return (one.boot, one.pid, one.started) == (other.boot, other.pid, other.started)


def _grant_of(flow: RegisteredFlow) -> Grant:
    return Grant(
        seq=flow.grant_seq, rates=flow.granted, fallback=flow.fallback, waits_for=flow.waits_for
    )


def _told_grant(grant: Grant) -> wire.ToldGrant:
    return wire.ToldGrant(
        seq=grant.seq,
        rates=_four(grant.rates),
        fallback=_four(grant.fallback),
        waits_for=grant.waits_for,
    )


def _four(rates: PlainRates | None) -> wire.Rates | None:
    if rates is None:
        return None
    read, write, read_calls, written_calls = rates
    return (read, write, read_calls, written_calls)


def _beat(one: wire.FlowBeat, owner: FlowOwner) -> Beat:
    return Beat(
        flow_id=one.flow_id,
        owner=owner,
        moved_bytes=one.moved_bytes,
        measured_bytes_per_s=one.measured_bytes_per_s,
        wanted=one.wanted,
        read_push_backs=one.read_push_backs,
        write_push_backs=one.write_push_backs,
        acts_on=one.acts_on,
    )


def _of_host(flows: Iterable[RegisteredFlow], node: str | None) -> tuple[wire.ToldFlow, ...]:
    return tuple(_told_flow(one) for one in flows if node in (None, one.request.node))


def _told_flow(flow: RegisteredFlow) -> wire.ToldFlow:
    owner = flow.owner
    return wire.ToldFlow(
        request=flow.request,
        owner=wire.Process(
            host=owner.host.removeprefix(_ELSEWHERE),
            boot=owner.boot,
            pid=owner.pid,
            started=owner.started,
        ),
        beats=flow.beats,
        opened_at_ns=flow.opened_at_ns,
        beat_at_ns=flow.beat_at_ns,
        lease_s=flow.lease_ns / 1e9,
        moved_bytes=flow.moved_bytes,
        measured_bytes_per_s=flow.measured_bytes_per_s,
        grant=_told_grant(_grant_of(flow)),
    )
