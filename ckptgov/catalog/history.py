"""What is only ever added: events, journal records, restart decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select
from sqlmodel import col

from ckptgov.catalog.changes import bump
from ckptgov.catalog.dialect import add_new
from ckptgov.catalog.facts import Decision, EventFacts, EventKind, RecordFacts
from ckptgov.catalog.rows import decoded, detail_of, detail_text
from ckptgov.catalog.tables import BINDING_RECORDS, DecisionRow, EventRow, RecordRow

_EVENTS = (
    select(EventRow)
    .where(col(EventRow.seq) > bindparam("after_seq"))
    .order_by(col(EventRow.seq))
    .limit(bindparam("count"))
)
_EVENTS_OF_RUN = _EVENTS.where(col(EventRow.run_id) == bindparam("run_id"))
_COPY_CHANGES = (
    select(EventRow)
    .where(
        col(EventRow.run_id) == bindparam("run_id"),
        col(EventRow.kind) == EventKind.COPY_STATE.value,
        col(EventRow.content_id).in_(bindparam("content_ids", expanding=True)),
    )
    .order_by(col(EventRow.seq))
)
_MOST_AT_ONCE = 500  # how many values one statement is given
_RECORDS = (
    select(RecordRow)
    .where(col(RecordRow.run_id) == bindparam("run_id"))
    .order_by(col(RecordRow.number), col(RecordRow.record_id))
)
_BINDING = _RECORDS.where(BINDING_RECORDS)
_DECISION = select(DecisionRow).where(
    col(DecisionRow.run_id) == bindparam("run_id"),
    col(DecisionRow.restart_id) == bindparam("restart_id"),
    col(DecisionRow.epoch) == bindparam("epoch"),
)


def write_event(
    connection: Connection,
    kind: EventKind,
    *,
    at_ns: int,
    run_id: str | None = None,
    content_id: str | None = None,
    place: str | None = None,
    detail: Iterable[tuple[str, str]] = (),
) -> None:
    """Add one event to the transaction that changes what it tells of, and note the change."""
    add_event(
        connection,
        kind,
        at_ns=at_ns,
        run_id=run_id,
        content_id=content_id,
        place=place,
        detail=detail,
    )
    bump(connection, run_id)


def add_event(
    connection: Connection,
    kind: EventKind,
    *,
    at_ns: int,
    run_id: str | None = None,
    content_id: str | None = None,
    place: str | None = None,
    detail: Iterable[tuple[str, str]] = (),
) -> None:
    """Add one event that changes no answer."""
    values = {
        "at_ns": at_ns,
        "kind": kind.value,
        "run_id": run_id,
        "content_id": content_id,
        "place": place,
        "detail": detail_text(detail),
    }
    connection.execute(insert(EventRow), values)


def events(
    connection: Connection, after_seq: int, run_id: str | None, limit: int
) -> tuple[EventFacts, ...]:
    if run_id is None:
        rows = connection.execute(_EVENTS, {"after_seq": after_seq, "count": limit})
    else:
        wanted = {"after_seq": after_seq, "count": limit, "run_id": run_id}
        rows = connection.execute(_EVENTS_OF_RUN, wanted)
    return decoded(_event, rows)


def copy_changes(
    connection: Connection, run_id: str, content_ids: Sequence[str]
) -> tuple[EventFacts, ...]:
    found: list[EventFacts] = []
    for start in range(0, len(content_ids), _MOST_AT_ONCE):
        some = {"run_id": run_id, "content_ids": content_ids[start : start + _MOST_AT_ONCE]}
        found += decoded(_event, connection.execute(_COPY_CHANGES, some))
    return tuple(found)


def put_records(connection: Connection, records: Sequence[RecordFacts]) -> None:
    if not records:
        return
    rows = [
        {
            "run_id": each.run_id,
            "record_id": each.record_id,
            "number": each.number,
            "kind": each.kind,
            "at_ns": each.at_ns,
            "raw": each.raw,
        }
        for each in records
    ]
    if add_new(connection, RecordRow, rows):
        for run_id in dict.fromkeys(each.run_id for each in records):
            bump(connection, run_id)


def records(connection: Connection, run_id: str) -> tuple[RecordFacts, ...]:
    return decoded(_record, connection.execute(_RECORDS, {"run_id": run_id}))


def binding_records(connection: Connection, run_id: str) -> tuple[RecordFacts, ...]:
    return decoded(_record, connection.execute(_BINDING, {"run_id": run_id}))


def decide(connection: Connection, wanted: Decision, *, at_ns: int) -> Decision:
    values = {
        "run_id": wanted.run_id,
        "restart_id": wanted.restart_id,
        "epoch": wanted.epoch,
        "content_id": wanted.content_id,
        "fresh": wanted.fresh,
    }
    known = decision(connection, wanted.run_id, wanted.restart_id, wanted.epoch)
    if known is not None:
        return known
    connection.execute(insert(DecisionRow), values)
    write_event(
        connection,
        EventKind.DECIDED,
        at_ns=at_ns,
        run_id=wanted.run_id,
        content_id=wanted.content_id,
        detail=(("restart_id", wanted.restart_id), ("epoch", str(wanted.epoch))),
    )
    return wanted


def decision(connection: Connection, run_id: str, restart_id: str, epoch: int) -> Decision | None:
    wanted = {"run_id": run_id, "restart_id": restart_id, "epoch": epoch}
    found = decoded(_decision, connection.execute(_DECISION, wanted))
    return found[0] if found else None


def _event(row: Any) -> EventFacts:
    return EventFacts(
        seq=row.seq,
        at_ns=row.at_ns,
        kind=EventKind(row.kind),
        run_id=row.run_id,
        content_id=row.content_id,
        place=row.place,
        detail=detail_of(row.detail),
    )


def _record(row: Any) -> RecordFacts:
    return RecordFacts(
        run_id=row.run_id,
        record_id=row.record_id,
        number=row.number,
        kind=row.kind,
        at_ns=row.at_ns,
        raw=row.raw,
    )


def _decision(row: Any) -> Decision:
    return Decision(
        run_id=row.run_id,
        restart_id=row.restart_id,
        epoch=row.epoch,
        content_id=row.content_id,
        fresh=row.fresh,
    )
