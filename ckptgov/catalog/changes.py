"""What changed last about which run: told in the transaction that changes it.

One row per run, so that reading what is new costs the same however long the history is. Writers
come one after the other, so numbers are committed in the order in which they are given.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, func, select
from sqlmodel import col

from ckptgov.catalog.dialect import put
from ckptgov.catalog.rows import decoded
from ckptgov.catalog.tables import ChangeRow
from ckptgov.model.cluster import RunChange

MOST_CHANGES = 10_000

_NEWEST = select(func.coalesce(func.max(col(ChangeRow.seq)), 0))
_CHANGES = (
    select(ChangeRow)
    .where(col(ChangeRow.seq) > bindparam("after"))
    .order_by(col(ChangeRow.seq))
    .limit(MOST_CHANGES)
)
_NO_RUN = ""  # of places, nodes or all runs: null would not be one key


def bump(connection: Connection, run_id: str | None) -> None:
    """Note that an answer about this run (None: about any) may be another one from here on."""
    key = {"run_id": _NO_RUN if run_id is None else run_id}
    put(connection, ChangeRow, key, {"seq": newest_change(connection) + 1})


def leap(connection: Connection, by: int) -> None:
    """Note a change of everything, far ahead of whatever number anyone may have been told."""
    put(connection, ChangeRow, {"run_id": _NO_RUN}, {"seq": newest_change(connection) + by})


def newest_change(connection: Connection) -> int:
    return int(connection.execute(_NEWEST).scalar_one())


def changes(connection: Connection, after: int) -> tuple[RunChange, ...]:
    return decoded(_change, connection.execute(_CHANGES, {"after": after}))


def _change(row: Any) -> RunChange:
    return RunChange(seq=row.seq, run_id=row.run_id if row.run_id != _NO_RUN else None)
