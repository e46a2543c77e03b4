"""The one statement that the two engines spell each in their own words: insert, unless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, TextClause
from sqlalchemy.dialects import sqlite

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

Values = Mapping[str, object]


def add_new(
    connection: Connection,
    table: Any,
    rows: Values | Sequence[Values],
    *,
    key: Sequence[str] | None = None,
    where: TextClause | None = None,
) -> int:
    """Insert rows, save those whose key is taken; how many were inserted.

    ``key`` and ``where`` name a unique index where it is not to be just any.
    """
    # Inline: without the RETURNING that SQLAlchemy adds for numbers the database counts up.
    unless_taken = (
        _insert(connection, table)
        .inline()
        .on_conflict_do_nothing(index_elements=key, index_where=where)
        .execution_options(preserve_rowcount=True)
    )
    return connection.execute(unless_taken, rows).rowcount


def put(connection: Connection, table: Any, key: Values, values: Values) -> None:
    """Insert the row ``key`` with ``values``, or give these to the one that is there."""
    statement = _insert(connection, table).values({**key, **values})
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=dict(values)))


def _insert(connection: Connection, table: Any) -> sqlite.Insert | postgresql.Insert:
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # not what SQLite needs

        return postgresql.insert(table)
    return sqlite.insert(table)
