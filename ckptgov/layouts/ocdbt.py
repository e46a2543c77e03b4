"""OCDBT as TensorStore writes it: which files and byte ranges a manifest or node refers to.

Pure: bytes in, references out; nothing is opened here. The format is that of the TensorStore
manual, "ocdbt key-value store driver, storage format". Only the newest version's tree matters to
a loader, so older versions are read past and not returned.
"""

from __future__ import annotations

import io
import os

from msgspec import Struct

from ckptgov.layouts.crc32c import crc32c

MANIFEST_MAGIC = b"\x0c\xdb\x3a\x2a"
NODE_MAGIC = b"\x0c\xdb\x20\xde"
_FIXED_BYTES = 12  # magic and the length that follows it
_DECODED_CAP_BYTES = 256 * 2**20
_ZSTD = 1
_OUT_OF_LINE = 1


class OcdbtError(ValueError):
    """The bytes are not what the format demands; the message says what is wrong."""


class Reference(Struct, frozen=True):
    """A byte range of a data file. ``base`` is what paths found inside that range are below."""

    base: str
    path: str  # below the database's directory, ``base`` included
    offset: int
    length: int

    @property
    def end(self) -> int:
        """How many bytes the data file has at least."""
        return self.offset + self.length


class Manifest(Struct, frozen=True):
    """``root`` is None for an empty database, and for one whose versions lie in numbered files."""

    is_numbered: bool
    root: Reference | None


class Node(Struct, frozen=True):
    """``children`` are nodes one level down, ``values`` stored array chunks."""

    children: tuple[Reference, ...]
    values: tuple[Reference, ...]


class _Cursor:
    """Reads the format's numbers one after the other; running out of bytes is an OcdbtError."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._at = 0

    def take(self, count: int) -> bytes:
        taken = self._block[self._at : self._at + count]
        if len(taken) != count:
            raise OcdbtError(f"ends at byte {len(self._block)} in the middle of a record")
        self._at += count
        return taken

    def varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise OcdbtError("a number is longer than 64 bits")

    def varints(self, count: int) -> list[int]:
        return [self.varint() for _ in range(count)]

    def count(self) -> int:
        """A number of records, each of which takes at least one byte."""
        number = self.varint()
        if number > len(self._block) - self._at:
            raise OcdbtError(f"claims {number} records where {len(self._block)} bytes are")
        return number


def _opened(encoded: bytes, magic: bytes, *, check_crc: bool) -> _Cursor:
    """Check the envelope (magic, length, CRC) and unpack the body."""
    if len(encoded) < _FIXED_BYTES + 6:
        raise OcdbtError(f"is too short ({len(encoded)} bytes)")
    if encoded[:4] != magic:
        raise OcdbtError(f"starts with {encoded[:4].hex()} instead of {magic.hex()}")
    length = int.from_bytes(encoded[4:_FIXED_BYTES], "little")
    if length != len(encoded):
        raise OcdbtError(f"has {len(encoded)} bytes where its header says {length}")
    if check_crc and crc32c(encoded[:-4]) != int.from_bytes(encoded[-4:], "little"):
        raise OcdbtError("CRC-32C does not match its bytes")
    body = _Cursor(encoded[_FIXED_BYTES:-4])
    version, compression = body.varint(), body.varint()
    if version != 0 or compression > _ZSTD:
        raise OcdbtError(f"is of format version {version}, compression {compression}: unknown")
    rest = encoded[_FIXED_BYTES + 2 : -4]
    return _Cursor(_unpacked(rest) if compression == _ZSTD else rest)


def _unpacked(body: bytes) -> bytes:
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body)) as stream:
            unpacked = stream.read(_DECODED_CAP_BYTES + 1)
    except zstandard.ZstdError as error:
        raise OcdbtError(f"does not decompress: {error}") from error
    if len(unpacked) > _DECODED_CAP_BYTES:
        raise OcdbtError(f"unpacks to more than {_DECODED_CAP_BYTES} bytes")
    return unpacked


class _DataFile(Struct, frozen=True):
    base: str
    path: str


def _data_files(cursor: _Cursor, above: str) -> list[_DataFile]:
    """The prefix-compressed table of file names that starts a body; ``above`` leads them all."""
    count = cursor.count()
    shared = [0, *cursor.varints(count - 1)] if count else []
    rests = cursor.varints(count)
    bases = cursor.varints(count)
    files: list[_DataFile] = []
    name = b""
    for share, rest, base in zip(shared, rests, bases, strict=True):
        name = name[:share] + cursor.take(rest)
        files.append(_DataFile(above + os.fsdecode(name[:base]), above + os.fsdecode(name)))
    return files


def _references(
    files: list[_DataFile], ids: list[int], offsets: list[int], lengths: list[int]
) -> tuple[Reference, ...]:
    if any(number >= len(files) for number in ids):
        raise OcdbtError("refers to a data file that its table does not list")
    return tuple(
        Reference(files[number].base, files[number].path, offset, length)
        for number, offset, length in zip(ids, offsets, lengths, strict=True)
    )


def read_manifest(encoded: bytes) -> Manifest:
    """Find the root node of the newest version. The CRC is always checked.

    Raises:
        OcdbtError: cut, altered, or of an unknown version.
    """
    cursor = _opened(encoded, MANIFEST_MAGIC, check_crc=True)
    cursor.take(16)  # the database's UUID
    kind = cursor.varint()
    cursor.varints(2)  # limits for inline values and nodes
    cursor.take(1)  # arity of the tree of versions
    if cursor.varint() == _ZSTD:
        cursor.take(4)  # its level
    if kind != 0:
        return Manifest(is_numbered=True, root=None)
    files = _data_files(cursor, "")
    count = cursor.count()
    generations = cursor.varints(count)
    cursor.take(count)  # heights
    roots = [cursor.varints(count) for _ in range(3)]  # file, offset, length
    keys = cursor.varints(count)
    newest = max(range(count), key=lambda number: generations[number], default=None)
    if newest is None or not keys[newest]:
        return Manifest(is_numbered=False, root=None)
    (root,) = _references(files, *([column[newest]] for column in roots))
    return Manifest(is_numbered=False, root=root)


def read_node(encoded: bytes, at: Reference, *, check_crc: bool) -> Node:
    """List what the node at ``at`` refers to; paths come out below the database's directory.

    Raises:
        OcdbtError: cut, altered, or of an unknown version.
    """
    cursor = _opened(encoded, NODE_MAGIC, check_crc=check_crc)
    height = cursor.take(1)[0]
    files = _data_files(cursor, at.base)
    count = cursor.count()
    if not count:
        return Node((), ())
    cursor.varints(count - 1)  # shared key prefixes
    rests = cursor.varints(count)
    if height:
        cursor.varints(count)  # prefixes common to a subtree
    cursor.take(sum(rests))  # the keys
    return _children(cursor, files, count) if height else _values(cursor, files, count)


def _children(cursor: _Cursor, files: list[_DataFile], count: int) -> Node:
    return Node(_references(files, *(cursor.varints(count) for _ in range(3))), ())


def _values(cursor: _Cursor, files: list[_DataFile], count: int) -> Node:
    lengths = cursor.varints(count)
    kinds = cursor.take(count)
    stored = [n for n, kind in zip(lengths, kinds, strict=True) if kind == _OUT_OF_LINE]
    ids, offsets = cursor.varints(len(stored)), cursor.varints(len(stored))
    return Node((), _references(files, ids, offsets, stored))
