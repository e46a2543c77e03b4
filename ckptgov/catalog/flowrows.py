"""Between rows of ``flows`` and frozen values."""

from __future__ import annotations

import json
from typing import Any

from ckptgov.catalog.flowfacts import FlowOwner, Grant, Rates, RegisteredFlow
from ckptgov.model.pacing import FlowClass, FlowRequest


def rates_text(rates: Rates | None) -> str | None:
    return None if rates is None else json.dumps(rates, separators=(",", ":"))


def rates_of(text: str | None) -> Rates | None:
    if text is None:
        return None
    return tuple(None if one is None else int(one) for one in json.loads(text))


def grant_of(row: Any) -> Grant:
    return Grant(
        seq=row.grant_seq,
        rates=rates_of(row.granted),
        fallback=rates_of(row.fallback),
        waits_for=row.waits_for,
    )


def flow_values(flow: RegisteredFlow) -> dict[str, object]:
    """Every column of a flow's row."""
    request, owner = flow.request, flow.owner
    return {
        "flow_id": request.flow_id,
        "what": request.what,
        "flow_class": request.flow_class.value,
        "source": request.source,
        "target": request.target,
        "node": request.node,
        "size_bytes": request.bytes,
        "weight": request.weight,
        "turn": json.dumps(request.order, separators=(",", ":")),
        "is_companion": request.is_companion,
        "host": owner.host,
        "boot": owner.boot,
        "pid": owner.pid,
        "started": owner.started,
        "opened_at_ns": flow.opened_at_ns,
        "lease_ns": flow.lease_ns,
        "grant_seq": flow.grant_seq,
        "granted_at_ns": flow.granted_at_ns,
        "granted": rates_text(flow.granted),
        "held": rates_text(flow.held),
        "fallback": rates_text(flow.fallback),
        "waits_for": flow.waits_for,
        "beats": flow.beats,
        "beat_at_ns": flow.beat_at_ns,
        "moved_bytes": flow.moved_bytes,
        "measured_bytes_per_s": flow.measured_bytes_per_s,
        "wanted": rates_text(flow.wanted),
        "read_push_backs": flow.read_push_backs,
        "write_push_backs": flow.write_push_backs,
    }


def flow_of(row: Any) -> RegisteredFlow:
    return RegisteredFlow(
        request=FlowRequest(
            flow_id=row.flow_id,
            what=row.what,
            flow_class=FlowClass(row.flow_class),
            source=row.source,
            target=row.target,
            node=row.node,
            bytes=row.size_bytes,
            weight=row.weight,
            order=tuple(int(one) for one in json.loads(row.turn)),
            is_companion=bool(row.is_companion),
        ),
        owner=FlowOwner(host=row.host, boot=row.boot, pid=row.pid, started=row.started),
        opened_at_ns=row.opened_at_ns,
        lease_ns=row.lease_ns,
        grant_seq=row.grant_seq,
        granted_at_ns=row.granted_at_ns,
        granted=rates_of(row.granted),
        held=rates_of(row.held),
        fallback=rates_of(row.fallback),
        waits_for=row.waits_for,
        beats=row.beats,
        beat_at_ns=row.beat_at_ns,
        moved_bytes=row.moved_bytes,
        measured_bytes_per_s=row.measured_bytes_per_s,
        wanted=rates_of(row.wanted),
        read_push_backs=row.read_push_backs,
        write_push_backs=row.write_push_backs,
    )
