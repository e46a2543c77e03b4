"""torch.save files: an uncompressed zip whose trailer, sizes and CRCs prove a lot.

torch writes the records, the central directory, a zip64 end record (56 bytes), its locator (20)
and the end record (22, no comment) and nothing else, so every offset can be checked exactly; a
search backwards for a trailer, as zip readers do, would accept a file with junk behind it. Loading
never checks the CRCs. Entries of a DCP shard are such zips, one behind the other.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from ckptgov.errors import Malformed
from ckptgov.layouts.base import Tree
from ckptgov.layouts.pickles import Stored, TorchPickle
from ckptgov.layouts.told_metrics import spelled
from ckptgov.model.facts import Depth, Finding, Reason
from ckptgov.model.files import OpenFile

MAX_DIRECTORY_BYTES: Final = 256 * 2**20
MAX_PICKLE_BYTES: Final = 256 * 2**20
"""A data.pkl larger than this is not read for facts."""

LEGACY_HEAD = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
"""The pickled magic number that torch.save's older form begins with."""
_STEP_BYTES = 2**20
_SMALL_BYTES = 4 * 2**20

_END = struct.Struct("<4sHHHHIIH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")


_NUMBERS: Final[dict[str, tuple[str, int | None]]] = {
    "DoubleStorage": ("<d", 17),
    "FloatStorage": ("<f", 9),
    "HalfStorage": ("<e", 9),
    "BFloat16Storage": ("<H", 9),
    "LongStorage": ("<q", None),
    "IntStorage": ("<i", None),
}
"""Types of storages: how one element is packed, and how many significant digits tell it."""


class ZipState(StrEnum):
    """What the bytes of a torch.save file prove."""

    WHOLE = "whole"
    EMPTY = "empty"
    CUT = "cut"  # does not end, or does not add up, as torch wrote it
    FOREIGN = "foreign"  # no torch.save file at all
    CORRUPT = "corrupt"  # a record differs from its CRC
    LEGACY = "legacy"  # the format before zip: a cut cannot be seen
    UNVERIFIABLE = "unverifiable"  # adds up, but was written with CRCs switched off


class ZipReport(Struct, frozen=True):
    """The state of one zip with the evidence in words; ``records`` were compared (DEEP only)."""

    state: ZipState
    evidence: str = ""
    records: int = 0


class _Directory(Struct, frozen=True):
    offset: int
    bytes: int
    records: int


class _Record(Struct, frozen=True):
    name: str
    crc: int
    bytes: int
    header: int


class _Bad(Exception):
    def __init__(self, state: ZipState, evidence: str) -> None:
        super().__init__(evidence)
        self.report = ZipReport(state, evidence)


class _Slice:
    """``length`` bytes of a file from ``offset``; a small slice is read at once."""

    def __init__(self, file: OpenFile, offset: int, length: int) -> None:
        self._file = file
        self._offset = offset
        self.length = length
        self._whole = file.read_at(offset, length) if length <= _SMALL_BYTES else None

    def read(self, offset: int, length: int) -> bytes:
        """Exactly these bytes; the file is cut if they are not there."""
        if offset < 0 or length < 0 or offset + length > self.length:
            raise _Bad(ZipState.CUT, "an offset points outside the file")
        if self._whole is not None:
            found = self._whole[offset : offset + length]
        else:
            found = self._file.read_at(self._offset + offset, length)
        if len(found) < length:
            raise _Bad(ZipState.CUT, "ended while it was read")
        return found

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        """The same in steps of 1 MiB."""
        for at in range(offset, offset + length, _STEP_BYTES):
            yield self.read(at, min(_STEP_BYTES, offset + length - at))


def check_torch_zip(
    file: OpenFile, offset: int = 0, length: int | None = None, depth: Depth = Depth.STRUCTURE
) -> ZipReport:
    """Prove ``length`` bytes from ``offset`` (by default the whole file) as one torch.save file.

    STRUCTURE reads the first and last bytes; DEEP walks the central directory and compares every
    record with its CRC. Never raises for what the bytes hold; ``StorageError`` for reading them.
    """
    try:
        part = _Slice(file, offset, file.stat().bytes if length is None else length)
        if part.length == 0:
            return ZipReport(ZipState.EMPTY, "is empty (0 bytes)")
        directory = _directory(part)
        if depth is Depth.STRUCTURE:
            return ZipReport(ZipState.WHOLE)
        return _compare(part, _records(part, directory))
    except _Bad as bad:
        return bad.report


def read_record(file: OpenFile, *, suffix: str, cap_bytes: int, name: str) -> bytes:
    """The record of a torch.save file whose name ends with ``/suffix``, CRC not checked.

    Raises:
        Malformed: the file is no whole torch zip, has no such record, or a larger one.
    """
    try:
        part = _Slice(file, 0, file.stat().bytes)
        for record in _records(part, _directory(part)):
            if record.name.rpartition("/")[2] == suffix:
                if record.bytes > cap_bytes:
                    raise Malformed(f"{name}: {suffix} has {record.bytes} bytes, too many")
                return part.read(_payload(part, record), record.bytes)
    except _Bad as bad:
        raise Malformed(f"{name}: {bad}") from bad
    raise Malformed(f"{name}: a zip without {suffix}")


def torch_facts(
    tree: Tree, path: str, keys: Sequence[str], *, scores_of: str | None = None
) -> TorchPickle:
    """Scalars at dotted ``keys`` of a torch.save file, and its storages; nothing is executed.

    ``scores_of`` as in ``PickleReader.torch_pickle``.

    Raises:
        Malformed: it is no whole torch zip, or its pickle is cut or hostile.
        FileNotFoundError, StorageError: as ``Reader.open``.
    """
    with tree.open(path) as file:
        pickled = read_record(file, suffix="data.pkl", cap_bytes=MAX_PICKLE_BYTES, name=path)
    return tree.pickles.torch_pickle(pickled, name=path, keys=keys, scores_of=scores_of)


def stored_number(tree: Tree, path: str, where: Stored) -> str | None:
    """One number of a tensor in a torch.save file, in the shortest spelling that tells it.

    None for a type that is none of numbers, or an index that its record does not have.

    Raises:
        Malformed: the record is not there, or too large for one that holds a score.
        FileNotFoundError, StorageError: as ``Reader.open``.
    """
    kind = _NUMBERS.get(where.kind)
    if kind is None:
        return None
    form, digits = kind
    with tree.open(path) as file:
        raw = read_record(file, suffix=where.key, cap_bytes=_SMALL_BYTES, name=path)
    at = where.index * struct.calcsize(form)
    if at + struct.calcsize(form) > len(raw):
        return None
    (value,) = struct.unpack_from(form, raw, at)
    if where.kind == "BFloat16Storage":  # the upper half of a float32
        (value,) = struct.unpack("<f", struct.pack("<I", value << 16))
    return str(value) if digits is None else spelled(value, digits=digits)


def finding_of(report: ZipReport, path: str) -> Finding | None:
    """The finding about ``path`` (below the run root) that a report amounts to, if any.

    CRCs that are switched off forbid nothing; say so with a note.
    """
    match report.state:
        case ZipState.WHOLE | ZipState.UNVERIFIABLE:
            return None
        case ZipState.EMPTY | ZipState.CUT | ZipState.FOREIGN:
            return Finding(Reason.TORN, path, report.evidence)
        case ZipState.CORRUPT:
            return Finding(Reason.CORRUPT, path, report.evidence)
        case ZipState.LEGACY:
            return Finding(Reason.UNPROVEN, path, report.evidence)


def _directory(part: _Slice) -> _Directory:
    """Where the central directory lies, after the exact arithmetic of the trailer."""
    head = part.read(0, min(part.length, len(LEGACY_HEAD)))
    if head == LEGACY_HEAD:
        raise _Bad(ZipState.LEGACY, "unverifiable format (torch.save before zip): cuts do not show")
    if not b"PK\x03\x04".startswith(head[:4]):
        raise _Bad(ZipState.FOREIGN, _foreign(head))
    if part.length < _END.size:
        raise _Bad(ZipState.CUT, f"ends inside a record ({part.length} bytes, no zip trailer)")
    end = _END.unpack(part.read(part.length - _END.size, _END.size))
    if end[0] != b"PK\x05\x06" or end[7] != 0:
        raise _Bad(ZipState.CUT, f"ends inside a record ({part.length} bytes, no zip trailer)")
    found, trailer = _end64(part) or (_Directory(end[6], end[5], end[4]), _END.size)
    if found.offset + found.bytes != part.length - trailer:
        raise _Bad(ZipState.CUT, f"its zip directory does not add up to {part.length} bytes")
    return found


def _end64(part: _Slice) -> tuple[_Directory, int] | None:
    """The zip64 trailer, which torch always writes; None for a zip without one."""
    trailer = _END64.size + _LOCATOR.size + _END.size
    start = part.length - trailer
    if start < 0:
        return None
    raw = part.read(start, _END64.size + _LOCATOR.size)
    locator = _LOCATOR.unpack_from(raw, _END64.size)
    if locator[0] != b"PK\x06\x07":
        return None
    end = _END64.unpack_from(raw)
    if end[0] != b"PK\x06\x06" or locator[2] != start:
        raise _Bad(ZipState.CUT, "its zip64 trailer does not add up")
    return _Directory(end[9], end[8], end[7]), trailer


def _foreign(head: bytes) -> str:
    if not any(head):
        return "starts with zeros where torch.save writes a zip header"
    return f"is no torch.save file (starts with {head[:4].hex(' ')})"


def _records(part: _Slice, directory: _Directory) -> list[_Record]:
    """The central directory's entries, each stored as it is and all within the file."""
    if directory.bytes > MAX_DIRECTORY_BYTES:
        raise _Bad(ZipState.CUT, f"a zip directory of {directory.bytes} bytes")
    raw = part.read(directory.offset, directory.bytes)
    records: list[_Record] = []
    at = 0
    try:
        while at < len(raw):
            record, at = _record(raw, at)
            records.append(record)
    except struct.error as error:
        raise _Bad(ZipState.CORRUPT, "its zip directory ends inside an entry") from error
    if len(records) != directory.records:
        counts = f"{len(records)} entries instead of {directory.records}"
        raise _Bad(ZipState.CORRUPT, f"its zip directory holds {counts}")
    if sum(record.bytes for record in records) > directory.offset:
        raise _Bad(ZipState.CORRUPT, "its records are larger than the file")
    return records


def _record(raw: bytes, at: int) -> tuple[_Record, int]:
    entry = _CENTRAL.unpack_from(raw, at)
    signature, flags, method, crc, packed, unpacked = (entry[i] for i in (0, 3, 4, 7, 8, 9))
    name_bytes, extra_bytes, comment_bytes, header = entry[10], entry[11], entry[12], entry[16]
    if signature != b"PK\x01\x02":
        raise _Bad(ZipState.CORRUPT, "its zip directory holds a damaged entry")
    start = at + _CENTRAL.size
    name = raw[start : start + name_bytes].decode("utf-8", "replace")
    extra = raw[start + name_bytes : start + name_bytes + extra_bytes]
    if method != 0 or flags & 1:
        raise _Bad(ZipState.FOREIGN, f"record {name} is compressed: not written by torch.save")
    packed, unpacked, header = _widen(extra, packed, unpacked, header)
    if packed != unpacked:
        raise _Bad(ZipState.CORRUPT, f"record {name} has two sizes")
    end = start + name_bytes + extra_bytes + comment_bytes
    return _Record(name, crc, unpacked, header), end


def _widen(extra: bytes, packed: int, unpacked: int, header: int) -> tuple[int, int, int]:
    """Sizes and offset, with those that did not fit in 32 bits from the zip64 extra field."""
    at = 0
    wide = b""
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            wide = extra[at + 4 : at + 4 + length]
        at += 4 + length
    numbers = iter(struct.unpack(f"<{len(wide) // 8}Q", wide[: len(wide) // 8 * 8]))
    full = 0xFFFFFFFF
    unpacked = next(numbers, unpacked) if unpacked == full else unpacked
    packed = next(numbers, packed) if packed == full else packed
    header = next(numbers, header) if header == full else header
    return packed, unpacked, header


def _payload(part: _Slice, record: _Record) -> int:
    """Where a record's bytes begin, from its local header, which must name the same record."""
    local = _LOCAL.unpack(part.read(record.header, _LOCAL.size))
    name = part.read(record.header + _LOCAL.size, local[9]).decode("utf-8", "replace")
    if local[0] != b"PK\x03\x04" or name != record.name:
        raise _Bad(ZipState.CORRUPT, f"the header of record {record.name} is damaged")
    return int(record.header + _LOCAL.size + local[9] + local[10])


def _compare(part: _Slice, records: Sequence[_Record]) -> ZipReport:
    """Every record against its CRC.

    All of them wrong means that they were written with CRCs switched off
    (``torch.serialization.set_crc32_options(False)``); some of them means damage.
    """
    filled = [record for record in records if record.bytes]
    wrong = [record.name for record in filled if _crc(part, record) != record.crc]
    if not wrong:
        return ZipReport(ZipState.WHOLE, records=len(filled))
    if len(wrong) == len(filled) > 1:
        return ZipReport(ZipState.UNVERIFIABLE, "was written with CRCs switched off")
    named = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    return ZipReport(ZipState.CORRUPT, f"record {named} differs from its CRC", len(filled))


def _crc(part: _Slice, record: _Record) -> int:
    crc = 0
    for piece in part.pieces(_payload(part, record), record.bytes):
        crc = zlib.crc32(piece, crc)
    return crc
