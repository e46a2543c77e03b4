"""Where a run lies, read without the table classes: what a launcher's question needs.

Importing SQLModel costs more than everything else ``latest RUN`` does, so these few reads go to
SQLite directly, through the same row decoders. Read-only; a file that is not exactly of this
version is left to ``Catalog``, which migrates it or says what is wrong.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Self
from urllib.parse import quote

from ckptgov.catalog.facts import SCHEMA_VERSION, PlaceFacts, RunFacts, RunRootFacts, SightingFacts
from ckptgov.catalog.rows import decoded, place_of, root_of, run_of, sighting_of
from ckptgov.errors import StorageError, TransientStorageError
from ckptgov.model.closing import Closing

BUSY_TIMEOUT_S = 10.0


class Peek(Closing):
    """A read-only view of a catalog file; every call sees the last committed state."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection = sqlite3.connect(
            f"file:{quote(os.fsencode(path))}?mode=rw",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
        )
        self._connection.row_factory = _named
        self._connection.execute("PRAGMA query_only=ON")

    @classmethod
    def open(cls, path: str) -> Self | None:
        """The view, or None when the file is absent, damaged or of another version."""
        try:
            peek = cls(path)
        except sqlite3.Error:
            return None
        try:
            rows = peek._select("SELECT value FROM meta WHERE key = 'schema_version'")
            if [row.value for row in rows] == [str(SCHEMA_VERSION)]:
                return peek
        except StorageError:
            pass
        peek.close()
        return None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def run_by_name(self, name: str) -> RunFacts | None:
        """The run of this name."""
        wanted = [name.encode("utf-8", "surrogateescape")]
        found = decoded(run_of, self._select("SELECT * FROM runs WHERE name = ?", wanted))
        return found[0] if found else None

    def places(self) -> tuple[PlaceFacts, ...]:
        """Every place ever met, by tier and node."""
        rows = self._select("SELECT * FROM places ORDER BY tier, node, place")
        return decoded(place_of, rows)

    def place_by_root(self, root: str, *, node: str | None = None) -> PlaceFacts | None:
        """The current place at a tier root; ``node`` for a node's own disk."""
        at_root = (one for one in self.places() if (one.root, one.node) == (root, node))
        return next((one for one in at_root if one.is_current), None)

    def roots_of(self, run_id: str) -> tuple[RunRootFacts, ...]:
        """Where a run lies, by place and path."""
        query = "SELECT * FROM run_roots WHERE run_id = ? ORDER BY place, path"
        return decoded(root_of, self._select(query, [run_id]))

    def sightings(self, run_id: str) -> tuple[SightingFacts, ...]:
        """A run's unsealed candidates by place, name and variant."""
        query = "SELECT * FROM sightings WHERE run_id = ? ORDER BY place, name, variant"
        return decoded(sighting_of, self._select(query, [run_id]))

    def _select(self, query: str, values: Sequence[object] = ()) -> Iterator[Any]:
        try:
            return iter(self._connection.execute(query, values).fetchall())
        except sqlite3.OperationalError as error:
            raise TransientStorageError(f"{self._path}: {error}") from error
        except sqlite3.Error as error:
            raise StorageError(f"{self._path}: {error}") from error


def _named(cursor: sqlite3.Cursor, values: tuple[object, ...]) -> SimpleNamespace:
    """A row by column name, as the table classes give it: bytes there are names (RawText)."""
    row = SimpleNamespace()
    for column, value in zip(cursor.description, values, strict=True):
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        setattr(row, column[0], value)
    return row
