"""The flows of all processes, as people look at them."""

from __future__ import annotations

from typing import Protocol

from ckptgov.catalog.flowfacts import Rates, RegisteredFlow
from ckptgov.model.clock import Clock
from ckptgov.model.pacing import FlowClass, FlowFacts, FlowState
from ckptgov.ops.processes import has_surely_ended, this_process


class Registered(Protocol):
    """Whatever tells of registered flows."""

    def registered(self) -> tuple[RegisteredFlow, ...]: ...


def facts_of(book: Registered, clock: Clock) -> tuple[FlowFacts, ...]:
    """Every flow of every process: those that move first, then by class, order and age."""
    me = this_process()
    going = [one for one in book.registered() if not has_surely_ended(one.owner, me)]
    states = {FlowState.MOVING: 0, FlowState.SILENT: 1, FlowState.WAITING: 2}
    ranks = {flow_class: rank for rank, flow_class in enumerate(FlowClass)}
    facts = [_facts(one, clock.now_ns()) for one in going]
    return tuple(
        sorted(
            facts,
            key=lambda one: (
                states[one.state],
                ranks[one.request.flow_class],
                one.request.order,
                one.started_at_ns,
                one.request.flow_id,
            ),
        )
    )


def _facts(one: RegisteredFlow, now_ns: int) -> FlowFacts:
    is_silent = now_ns - one.beat_at_ns > one.lease_ns
    granted = one.fallback if is_silent else one.granted
    rate = _bytes_per_s(granted, one.measured_bytes_per_s)
    state = FlowState.WAITING if one.granted is None else FlowState.MOVING
    speed = one.measured_bytes_per_s or rate
    left_bytes = one.request.bytes - one.moved_bytes
    has_eta = state is FlowState.MOVING and not is_silent and speed > 0 and left_bytes >= 0
    return FlowFacts(
        request=one.request,
        state=FlowState.SILENT if is_silent else state,
        moved_bytes=one.moved_bytes,
        rate_bytes_per_s=0 if one.granted is None else rate,
        measured_bytes_per_s=one.measured_bytes_per_s,
        waits_for="" if one.granted is not None else one.waits_for,
        eta_s=left_bytes / speed if has_eta else None,
        started_at_ns=one.opened_at_ns,
    )


def _bytes_per_s(granted: Rates | None, measured: int) -> int:
    """The rate granted; where nothing limits it, what was measured."""
    limited = [] if granted is None else [rate for rate in granted[:2] if rate is not None]
    return min(limited, default=measured)
