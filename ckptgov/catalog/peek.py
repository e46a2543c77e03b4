"""Where a run lies, read without the table classes: what a launcher's question needs.

Importing SQLModel costs more than everything else ``latest RUN`` does, so these few reads go to
SQLite directly, through the same row decoders. A file that is not exactly of this version is left
to ``Catalog``, which migrates it or says what is wrong. Read-only, save for one thing: that a
question was asked.
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
NOTE_TIMEOUT_MS = 20
"""How long a question waits at most for others that write, only to note that it was asked."""

SIGN_EVERY_NS = 3600 * 10**9
_NOTE_ASKED = (
    "INSERT INTO signs (run_id, asked_at_ns) VALUES (?, ?)"
    " ON CONFLICT (run_id) DO UPDATE SET asked_at_ns = excluded.asked_at_ns"
)


class Peek(Closing):
    """A view of a catalog file; every call sees the last committed state."""

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

    def condemned(self, run_id: str) -> tuple[tuple[str, str], ...]:
        """Copies (content id, place) of a run that are to go, or have begun to."""
        rows = self._select(
            "SELECT removals.content_id, removals.place FROM removals JOIN copies"
            " USING (run_id, content_id, place)"
            " WHERE removals.run_id = ? AND copies.state IN ('condemned', 'trashing')",
            [run_id],
        )
        return tuple((row.content_id, row.place) for row in rows)

    def note_asked(self, run_id: str, *, at_ns: int) -> None:
        """Note that a launcher asked for a run, if that was not noted within the hour.

        A sign that the run lives, nothing more: it never fails, and waits for nobody, nor for the
        disk: what a power cut takes of it, the next question says again.
        """
        try:
            known = self._connection.execute(
                "SELECT asked_at_ns FROM signs WHERE run_id = ?", [run_id]
            ).fetchone()
            if known is not None and at_ns - known.asked_at_ns < SIGN_EVERY_NS:
                return
            for pragma in (
                f"busy_timeout={NOTE_TIMEOUT_MS}",
                "synchronous=NORMAL",
                "query_only=OFF",
            ):
                self._connection.execute(f"PRAGMA {pragma}")
            try:
                self._connection.execute(_NOTE_ASKED, [run_id, at_ns])
            finally:
                self._connection.execute("PRAGMA query_only=ON")
                self._connection.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_S * 1000)}")
        except sqlite3.Error:
            pass  # busy, full or read-only: the question is answered all the same

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
