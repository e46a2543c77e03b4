"""Pins, metrics and ends of runs in words or JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import assert_never

from ckptgov.model.journal import Finish, Metric, Pin, Record, Retire, Unpin
from ckptgov_cli import output
from ckptgov_cli.render import record as as_document


def claim(record: Record, *, step: int, as_json: bool, dry_run: bool) -> int:
    """What was said of one checkpoint."""
    if as_json:
        return as_document(record, as_json=True, dry_run=dry_run)
    assert isinstance(record, Pin | Unpin | Metric)
    output.line(_told(record, f"step {step} ({record.content_id[:23]})", would=dry_run))
    return 0


def _told(record: Pin | Unpin | Metric, what: str, *, would: bool) -> str:
    match record:
        case Pin():
            word = "would pin" if would else "pinned"
            return f"{word} {what} as {record.pin_name}{_until(record.until_ns)}"
        case Unpin():
            return f"{'would unpin' if would else 'unpinned'} {what}: {record.pin_name}"
        case Metric():
            word = "would tell" if would else "told"
            return f"{word} of {what}: {record.name} = {record.value}"
        case _:
            assert_never(record)


def _until(until_ns: int | None) -> str:
    if until_ns is None:
        return ", until it is unpinned"
    moment = datetime.fromtimestamp(until_ns // 10**9, UTC)
    return f", until {moment:%Y-%m-%dT%H:%M:%SZ}"


def ended(record: Record, *, run: str, as_json: bool, dry_run: bool) -> int:
    """What was said of a run."""
    if as_json:
        return as_document(record, as_json=True, dry_run=dry_run)
    assert isinstance(record, Finish | Retire)
    word = "finished" if isinstance(record, Finish) else "retired"
    output.line(f"{run}: {'would be' if dry_run else 'is'} {word}; a later save lifts it")
    return 0
