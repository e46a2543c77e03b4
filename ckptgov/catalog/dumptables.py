"""What a dump holds: which tables, and how a column's values are told in JSON.

Left out is what ends with the processes it tells of (flows, grants, paces, claims), tasks and
plans that are over, and what is seen again soon (samples, signs of life).
Bytes, and text that need not be UTF-8, are base64.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Boolean, Column, Float, LargeBinary, Select, Table, select
from sqlalchemy.types import TypeEngine

from ckptgov.catalog.cluster_tables import (
    OPEN_TASKS,
    ActivityRow,
    LeaderRow,
    NodeRow,
    PartRow,
    TaskRow,
    TokenRow,
)
from ckptgov.catalog.columns import DecimalText, PlainText, RawText
from ckptgov.catalog.removal_tables import STANDING_PLANS, PlanRow, RemovalRow
from ckptgov.catalog.tables import (
    AbilitiesRow,
    AllocatorRow,
    ChangeRow,
    CheckpointRow,
    CopyLeaseRow,
    CopyRow,
    DecisionRow,
    EventRow,
    ManifestRow,
    PlaceRow,
    RecordRow,
    Row,
    RunRootRow,
    RunRow,
    SightingRow,
)


def _table(row: type[Row]) -> Table:
    return Row.metadata.tables[str(row.__tablename__)]


EVENTS, CHANGES, TASKS = _table(EventRow), _table(ChangeRow), _table(TaskRow)
PLACES, ABILITIES = _table(PlaceRow), _table(AbilitiesRow)
PLANS = _table(PlanRow)

TABLES: tuple[Table, ...] = (
    # Parents before children.
    *(_table(row) for row in (PlaceRow, RunRow, RunRootRow, CheckpointRow, ManifestRow)),
    *(_table(row) for row in (CopyRow, RemovalRow, SightingRow, RecordRow)),
    EVENTS,
    CHANGES,
    TASKS,
    PLANS,
    *(_table(row) for row in (DecisionRow, AbilitiesRow, CopyLeaseRow, AllocatorRow)),
    *(_table(row) for row in (NodeRow, TokenRow, ActivityRow, LeaderRow, PartRow)),
)
_ROWS_AT_ONCE = {"manifests": 8, "plans": 1}  # of others more: their rows are small
_OPEN = {TASKS: OPEN_TASKS, PLANS: STANDING_PLANS}


def columns(table: Table) -> tuple[Column[Any], ...]:
    """Those that are dumped: tasks and plans are numbered anew."""
    return tuple(each for each in table.columns if table not in _OPEN or each.name != "number")


def rows_at_once(table: Table) -> int:
    """How many rows are held in memory."""
    return _ROWS_AT_ONCE.get(table.name, 500)


def query(table: Table) -> Select[Any]:
    """The rows that are dumped, in the order of their key."""
    found = select(*columns(table)).order_by(*table.primary_key.columns)
    return found.where(_OPEN[table]) if table in _OPEN else found


def told(table: Table, row: Sequence[Any]) -> list[object]:
    """A row as JSON takes it."""
    pairs = zip(columns(table), row, strict=True)
    return [_told(column.type, value) for column, value in pairs]


def untold(table: Table, row: Sequence[object]) -> dict[str, object]:
    """A row's values by column.

    Raises:
        ValueError: it is no row of this table.
    """
    pairs = zip(columns(table), row, strict=True)
    return {column.name: _untold(column, value) for column, value in pairs}


def _told(kind: TypeEngine[Any], value: Any) -> object:
    if value is None:
        return None
    if isinstance(kind, RawText):
        value = value.encode("utf-8", "surrogateescape")
    elif isinstance(kind, DecimalText):
        return str(value)
    return b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _untold(column: Column[Any], value: object) -> object:
    if value is None and column.nullable:
        return None
    kind = column.type
    if not isinstance(value, _json_type(kind)) or isinstance(value, bool) != isinstance(
        kind, Boolean
    ):
        raise ValueError(f"column {column.name} cannot hold {type(value).__name__}")
    if isinstance(kind, DecimalText):
        return int(str(value))
    if not isinstance(kind, RawText | LargeBinary):
        return value
    try:
        raw = b64decode(str(value), validate=True)
    except binascii.Error as error:
        raise ValueError(f"column {column.name}: {error}") from error
    return raw.decode("utf-8", "surrogateescape") if isinstance(kind, RawText) else raw


def _json_type(kind: TypeEngine[Any]) -> type | tuple[type, ...]:
    if isinstance(kind, RawText | LargeBinary | PlainText | DecimalText):
        return str
    return (int, float) if isinstance(kind, Float) else int
