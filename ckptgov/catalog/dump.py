"""A whole catalog as one stream of bytes, and back, into either engine.

Lines of JSON in one zstandard frame: what it is, then each table's name and columns followed by
its rows, then how many rows there were and the SHA-256 of every line before. Nothing of a stream
counts before that last line was read and agrees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import zstandard
from msgspec import Struct
from sqlalchemy import Connection, Table, insert
from sqlalchemy.exc import DataError, IntegrityError

from ckptgov.catalog.database import Database
from ckptgov.catalog.dumptables import TABLES, columns, query, rows_at_once, told, untold
from ckptgov.catalog.facts import SCHEMA_VERSION, CatalogIdentity
from ckptgov.errors import ConfigError, Malformed

FORMAT, VERSION = "ckptgov.catalog", 1
MOST_LINE_BYTES = 512 * 2**20  # a manifest of the largest size, packed badly, in base64

_PIECE_BYTES, _STEP_BYTES = 2**20, 2**14

Write = Callable[[bytes], object]
Read = Callable[[int], bytes]


class Heading(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: which catalog this is, and of what version."""

    format: str
    version: int
    schema: int
    catalog: str
    epoch: int
    at_ns: int


class _Of(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table: str
    columns: tuple[str, ...]


class _End(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rows: int
    sha256: str


def write(
    database: Database, connection: Connection, identity: CatalogIdentity, out: Write
) -> None:
    """Tell everything that one view sees."""
    lines = _Writer(out)
    lines.add(
        Heading(
            format=FORMAT,
            version=VERSION,
            schema=SCHEMA_VERSION,
            catalog=identity.uuid,
            epoch=identity.epoch,
            at_ns=database.now_ns(connection),
        )
    )
    count = 0
    for table in TABLES:
        lines.add(_of(table))
        streamed = {"yield_per": rows_at_once(table)}
        for row in connection.execute(query(table), execution_options=streamed):
            lines.add(told(table, row))
            count += 1
    lines.end(count)


def read(connection: Connection, source: Read) -> Heading:
    """Fill the tables, which are empty, with what a dump tells.

    Raises:
        Malformed: damaged, cut, or no dump at all; the caller's transaction must be given up.
        ConfigError: it was made by a ckptgov of another version.
    """
    lines = _Reader(source)
    heading = _checked(lines.next(Heading))
    count = sum(_fill(connection, table, lines) for table in TABLES)
    lines.end(count)
    return heading


def _checked(heading: Heading) -> Heading:
    if heading.format != FORMAT:
        raise Malformed(f"a dump of {heading.format!r}, not of a catalog")
    if (heading.version, heading.schema) != (VERSION, SCHEMA_VERSION):
        raise ConfigError(
            f"the dump has version {heading.version} and schema {heading.schema}; this ckptgov "
            f"reads {VERSION} and {SCHEMA_VERSION}",
            hint="load it with the ckptgov that made it, and open the catalog with this one",
        )
    return heading


def _fill(connection: Connection, table: Table, lines: _Reader) -> int:
    if lines.next(_Of) != _of(table):
        raise Malformed(f"the dump does not tell table {table.name} as it is")
    count = 0
    held: list[dict[str, object]] = []
    for row in lines.rows():
        held.append(_row(table, row))
        count += 1
        if len(held) == rows_at_once(table):
            _add(connection, table, held)
            held = []
    _add(connection, table, held)
    return count


def _of(table: Table) -> _Of:
    return _Of(table=str(table.name), columns=tuple(str(each.name) for each in columns(table)))


def _row(table: Table, row: list[object]) -> dict[str, object]:
    try:
        return untold(table, row)
    except ValueError as error:
        raise Malformed(f"the dump is damaged: {error}") from error


def _add(connection: Connection, table: Table, rows: list[dict[str, object]]) -> None:
    if not rows:
        return
    try:
        connection.execute(insert(table), rows)
    except (IntegrityError, DataError, OverflowError, UnicodeEncodeError) as error:
        raise Malformed(f"the dump is damaged: table {table.name} cannot hold its rows") from error


class _Writer:
    def __init__(self, out: Write) -> None:
        self._out = out
        self._frame = zstandard.ZstdCompressor(write_checksum=True).compressobj()
        self._seen = hashlib.sha256()

    def add(self, line: Struct | list[object]) -> None:
        raw = msgspec.json.encode(line) + b"\n"
        self._seen.update(raw)
        self._put(self._frame.compress(raw))

    def end(self, rows: int) -> None:
        self.add(_End(rows=rows, sha256=self._seen.hexdigest()))
        self._put(self._frame.flush())

    def _put(self, packed: bytes) -> None:
        if packed:
            self._out(packed)


class _Reader:
    """Lines one by one. Whatever is wrong with the stream is Malformed."""

    def __init__(self, source: Read) -> None:
        self._lines = _lines(source)
        self._seen = hashlib.sha256()
        self._line: bytes | None = None
        self._advance()

    def next(self, kind: type[Any]) -> Any:
        """The line that comes now, which is to be of this kind."""
        return self._decoded(kind, self._taken())

    def rows(self) -> Iterator[list[object]]:
        """The rows up to the next line that is none."""
        while self._line is not None and self._line.startswith(b"["):
            yield self._decoded(list, self._taken())

    def end(self, rows: int) -> None:
        """Make sure that this was all, and nothing of it was changed."""
        seen = self._seen.hexdigest()
        if self.next(_End) != _End(rows=rows, sha256=seen):
            raise Malformed("the dump is damaged: its checksum is another one")
        if self._line is not None:
            raise Malformed("the dump is damaged: it goes on after its end")

    def _taken(self) -> bytes:
        if self._line is None:
            raise Malformed("the dump is cut off")
        line = self._line
        self._seen.update(line)
        self._advance()
        return line

    def _advance(self) -> None:
        try:
            self._line = next(self._lines, None)
        except (zstandard.ZstdError, MemoryError) as error:
            raise Malformed(f"the dump is damaged: {error}") from error

    def _decoded(self, kind: type[Any], line: bytes) -> Any:
        try:
            return msgspec.json.decode(line, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"the dump is damaged: {error}") from error


def _lines(source: Read) -> Iterator[bytes]:
    held = bytearray()
    for piece in _unpacked(source):
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            yield bytes(held) + piece[start : end + 1]
            held.clear()
            start = end + 1
        held += piece[start:]
        if len(held) > MOST_LINE_BYTES:
            raise Malformed("the dump is damaged: a line without an end")
    if held:
        raise Malformed("the dump is cut off")


def _unpacked(source: Read) -> Iterator[bytes]:
    frame = zstandard.ZstdDecompressor().decompressobj()
    while packed := source(_PIECE_BYTES):
        # In small steps, so that what they unpack to fits into memory.
        for start in range(0, len(packed), _STEP_BYTES):
            if frame.eof:
                raise Malformed("the dump is damaged: it goes on after its end")
            yield frame.decompress(packed[start : start + _STEP_BYTES])
    if frame.unused_data:
        raise Malformed("the dump is damaged: it goes on after its end")
    if not frame.eof:
        raise Malformed("the dump is cut off")
