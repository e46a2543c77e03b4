"""Rows of removals, and what they keep others from doing to the copies they belong to."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, insert, select, update
from sqlmodel import col

from ckptgov.catalog.removal_tables import RemovalRow
from ckptgov.catalog.rows import decoded
from ckptgov.catalog.tables import CopyRow
from ckptgov.errors import RefusedBySafety, StaleState
from ckptgov.model.copies import LEAVING, REMOVED, CopyState
from ckptgov.model.retention import Action, Removal

Key = tuple[str, str, str]
"""Of a copy: run, content id, place."""

_OF_COPY = (
    col(CopyRow.run_id) == col(RemovalRow.run_id),
    col(CopyRow.content_id) == col(RemovalRow.content_id),
    col(CopyRow.place) == col(RemovalRow.place),
)
_REMOVALS = (
    select(*RemovalRow.__table__.columns, col(CopyRow.name), col(CopyRow.state))  # type: ignore[attr-defined]
    .where(*_OF_COPY)
    .order_by(
        col(RemovalRow.due_at_ns),
        col(RemovalRow.run_id),
        col(RemovalRow.content_id),
        col(RemovalRow.place),
    )
)
_THIS = (
    col(RemovalRow.run_id) == bindparam("of_run"),
    col(RemovalRow.content_id) == bindparam("of_content"),
    col(RemovalRow.place) == bindparam("of_place"),
)
_REMOVAL = _REMOVALS.where(*_THIS)
_REMOVALS_OF = _REMOVALS.where(*_THIS[:2])
_DELETE = delete(RemovalRow).where(*_THIS)
_UPDATE = update(RemovalRow).where(*_THIS)


def removal(connection: Connection, key: Key) -> Removal | None:
    found = decoded(_removal, connection.execute(_REMOVAL, _named(key)))
    return found[0] if found else None


def removals_of(connection: Connection, run_id: str, content_id: str) -> tuple[Removal, ...]:
    wanted = {"of_run": run_id, "of_content": content_id}
    return decoded(_removal, connection.execute(_REMOVALS_OF, wanted))


def removals(
    connection: Connection,
    *,
    run_id: str | None,
    place: str | None,
    states: Collection[CopyState] | None,
    due_before_ns: int | None,
    limit: int | None,
) -> tuple[Removal, ...]:
    query: Select[Any] = _REMOVALS.limit(limit)
    if run_id is not None:
        query = query.where(col(RemovalRow.run_id) == run_id)
    if place is not None:
        query = query.where(col(RemovalRow.place) == place)
    if states is not None:
        query = query.where(col(CopyRow.state).in_([each.value for each in states]))
    if due_before_ns is not None:
        query = query.where(col(RemovalRow.due_at_ns) <= due_before_ns)
    return decoded(_removal, connection.execute(query))


def add(connection: Connection, one: Removal) -> None:
    values = {
        "run_id": one.run_id,
        "content_id": one.content_id,
        "place": one.place,
        "action": one.action.value,
        "plan_id": one.plan_id,
        "condemned_at_ns": one.condemned_at_ns,
        "due_at_ns": one.due_at_ns,
        "trash_s": one.trash_s,
        "size_bytes": one.bytes,
        "files": one.files,
        "trash": one.trash,
        "error": one.error,
    }
    connection.execute(insert(RemovalRow), values)


def change(connection: Connection, key: Key, **values: object) -> bool:
    """Set columns of a removal; whether there is one."""
    return bool(connection.execute(_UPDATE.values(**values), _named(key)).rowcount)


def drop(connection: Connection, key: Key) -> None:
    connection.execute(_DELETE, _named(key))


def check_own(state: CopyState) -> None:
    """See that nobody makes a copy go without a removal, which asks P2.

    Raises:
        RefusedBySafety: the state is one that only a removal brings a copy to.
    """
    if state in REMOVED:
        raise RefusedBySafety(f"only a removal makes a copy {state.value}")


def let_go(connection: Connection, key: Key, *, expected: CopyState, to: CopyState) -> None:
    """Before somebody else changes a copy: see that no removal of it is left dangling.

    A condemned copy that got lost needs no removal any more. Everything else that becomes of one
    on its way out is told by the removal's own calls.

    Raises:
        StaleState: it is being removed.
    """
    if expected not in LEAVING:
        return
    if (expected, to) == (CopyState.CONDEMNED, CopyState.LOST):
        drop(connection, key)
    elif removal(connection, key) is not None:
        raise StaleState(
            f"the copy of {key[1]} at place {key[2]} is being removed ({expected.value})",
            hint="'ckptgov undelete' brings it back",
        )


def _named(key: Key) -> dict[str, object]:
    return dict(zip(("of_run", "of_content", "of_place"), key, strict=True))


def _removal(row: Any) -> Removal:
    return Removal(
        run_id=row.run_id,
        content_id=row.content_id,
        place=row.place,
        name=row.name,
        action=Action(row.action),
        plan_id=row.plan_id,
        state=CopyState(row.state),
        condemned_at_ns=row.condemned_at_ns,
        due_at_ns=row.due_at_ns,
        trash_s=row.trash_s,
        bytes=row.size_bytes,
        files=row.files,
        trash=row.trash,
        error=row.error,
    )
