"""Nodes' parts of saves, until they are merged into one manifest."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, delete, select
from sqlmodel import col

from ckptgov.catalog.changes import bump
from ckptgov.catalog.cluster_tables import PartRow
from ckptgov.catalog.dialect import put
from ckptgov.catalog.rows import decoded
from ckptgov.model.cluster import PartFacts

_OF_RUN = (
    select(PartRow)
    .where(col(PartRow.run_id) == bindparam("run_id"))
    .order_by(col(PartRow.name), col(PartRow.place))
)
_OF_SAVE = _OF_RUN.where(col(PartRow.name) == bindparam("name"))


def put_part(connection: Connection, part: PartFacts, *, at_ns: int) -> None:
    key = {"run_id": part.run_id, "name": part.name, "place": part.place}
    put(connection, PartRow, key, {"told": part.told, "posted_at_ns": at_ns})
    bump(connection, part.run_id)


def parts(connection: Connection, run_id: str, name: str) -> tuple[PartFacts, ...]:
    return decoded(_part, connection.execute(_OF_SAVE, {"run_id": run_id, "name": name}))


def parts_of(connection: Connection, run_id: str) -> tuple[PartFacts, ...]:
    return decoded(_part, connection.execute(_OF_RUN, {"run_id": run_id}))


def drop_parts(connection: Connection, run_id: str, name: str) -> None:
    these = (col(PartRow.run_id) == run_id, col(PartRow.name) == name)
    if connection.execute(delete(PartRow).where(*these)).rowcount:
        bump(connection, run_id)


def _part(row: Any) -> PartFacts:
    return PartFacts(
        run_id=row.run_id,
        name=row.name,
        place=row.place,
        told=row.told,
        posted_at_ns=row.posted_at_ns,
    )
