"""Answers of the commands that move bytes, as text or JSON, and their exit codes."""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.model.movement import FlushAnswer, FlushedCheckpoint, FlushState, RestoreAnswer
from ckptgov.model.pacing import FlowFacts
from ckptgov.wire import movement
from ckptgov_cli import output
from ckptgov_cli.exits import code_of
from ckptgov_cli.output import size

_FLUSHED = ("STEP", "NAME", "FROM", "TO", "SIZE", "SENT", "RATE", "STATE")
_FLOWS = (
    "WHAT",
    "CLASS",
    "FROM",
    "TO",
    "STATE",
    "MOVED",
    "OF",
    "RATE",
    "GRANTED",
    "ETA",
    "WAITS FOR",
)


def flushed(answer: FlushAnswer, *, as_json: bool, quiet: bool = False) -> int:
    """A pass of flushing; ``quiet`` leaves out what was there already."""
    if as_json:
        output.emit(movement.flushed(answer))
        return code_of(answer.error)
    if answer.checkpoints or not quiet:
        output.table(_FLUSHED, [_flush_row(one) for one in answer.checkpoints])
    for one in answer.checkpoints:
        for fault in one.faults:
            output.talk(f"  {fault.reason.value}: {fault.path}: {fault.evidence}")
        if one.missing:
            output.talk(f"  {one.name}: {len(one.missing)} shards missing, first {one.missing[0]}")
        if one.error is not None:
            output.complain(one.error)
    if not quiet:
        for skip in answer.skips:
            output.talk(f"not flushed to {skip.target}: {skip.name}: {skip.why_not}: {skip.text}")
    if answer.error is not None and not any(one.error for one in answer.checkpoints):
        output.complain(answer.error)
    return code_of(answer.error)


def _flush_row(one: FlushedCheckpoint) -> list[str]:
    took_s = round(one.took_s, 3)  # as a service tells it
    rate = f"{size(int(one.sent_bytes / took_s))}/s" if took_s and one.sent_bytes else "-"
    sent = size(one.sent_bytes)
    if one.resumed_bytes:
        sent += f" (+{size(one.resumed_bytes)} there)"
    return [
        "-" if one.step is None else str(one.step),
        one.name,
        one.source,
        one.target,
        size(one.bytes),
        "-" if one.state is FlushState.WOULD else sent,
        rate,
        one.state.value,
    ]


def restored(answer: RestoreAnswer, *, as_json: bool, dry_run: bool = False) -> int:
    """Where the checkpoint lies now; the path alone is the result."""
    if as_json:
        output.emit(movement.restored(answer))
        return 0
    for source in answer.sources:
        output.talk(
            f"  {source.shards} shards, {size(source.bytes)} from {source.root} "
            f"({source.tier or 'unregistered'})"
        )
    for fault in answer.faults:
        output.talk(f"  passed over: {fault.reason.value}: {fault.path}: {fault.evidence}")
    if answer.matched:
        output.talk(f"{answer.name}: only the shards that match; not a whole checkpoint")
    if dry_run:
        eta = f", about {answer.eta_s:.0f} s" if answer.eta_s is not None else ""
        output.talk(f"would bring {size(answer.bytes)} to {answer.path}{eta}")
    output.line(answer.path)
    return 0


def flows(found: Sequence[FlowFacts], *, as_json: bool) -> int:
    """Who moves what, who waits and why."""
    if as_json:
        output.emit({"flows": [movement.flow(one) for one in found]})
        return 0
    if not found:
        output.talk("nothing moves")
    output.table(_FLOWS, [_flow_row(one) for one in found])
    return 0


def _flow_row(one: FlowFacts) -> list[str]:
    asked = one.request
    return [
        asked.what,
        asked.flow_class.value,
        asked.source or "-",
        asked.target or "-",
        one.state.value,
        size(one.moved_bytes),
        size(asked.bytes),
        f"{size(one.measured_bytes_per_s)}/s",
        f"{size(one.rate_bytes_per_s)}/s" if one.rate_bytes_per_s else "-",
        "-" if one.eta_s is None else f"{one.eta_s:.0f} s",
        one.waits_for or "-",
    ]
