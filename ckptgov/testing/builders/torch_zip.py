"""``torch.save`` files: an uncompressed zip whose records are aligned to 64 bytes.

The form was taken from torch 2.13 byte by byte: local headers without sizes and a data descriptor
after each record, padding in an extra field ``FB``, and all three trailers (zip64 end of central
directory, its locator, the classic end) whether or not the file needs them.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from ckptgov.testing.builders.damage import WRITTEN_AT_NS, date_files
from ckptgov.testing.builders.pickles import Tensor, pickle_bytes

_ALIGNMENT = 64
_FLAGS = 0x0808  # sizes follow the record; names are UTF-8
_MADE_BY = 0x031E
_NEEDS = 45  # zip64


def torch_file_bytes(value: object, *, seed: str = "", root: str = "archive") -> bytes:
    """What ``torch.save(value)`` gives; tensor elements depend on ``seed`` and their position.

    ``root`` is the folder inside the zip: the stem of the file name when torch saves to a path,
    ``archive`` when it saves to a buffer (DCP entries, Lightning).
    """
    tensors: list[Tensor] = []
    pickled = pickle_bytes(value, protocol=2, tensors=tensors)
    records = [
        ("data.pkl", pickled),
        (".format_version", b"1"),
        (".storage_alignment", str(_ALIGNMENT).encode()),
        ("byteorder", b"little"),
        *((f"data/{k}", float_bytes(f"{seed}/{k}", t.count)) for k, t in enumerate(tensors)),
        ("version", b"3\n"),
    ]
    records.append((".data/serialization_id", _serialization_id(records)))
    return zip_bytes((f"{root}/{name}", body) for name, body in records)


def write_torch_file(
    path: Path,
    value: object = None,
    *,
    seed: str | None = None,
    root: str | None = None,
    at_ns: int | None = WRITTEN_AT_NS,
) -> Path:
    """Write ``value`` (a lone tensor by default) as ``torch.save`` to a path does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    value = Tensor() if value is None else value
    body = torch_file_bytes(value, seed=path.name if seed is None else seed, root=root or path.stem)
    path.write_bytes(body)
    date_files(path, at_ns=at_ns)
    return path


def float_bytes(seed: str, count: int) -> bytes:
    """``count`` little-endian float32 in [-1, 1) that depend on ``seed`` alone."""
    noise = hashlib.shake_128(seed.encode("utf-8", "surrogateescape")).digest(count)
    return struct.pack(f"<{count}f", *(byte / 128 - 1 for byte in noise))


def _serialization_id(records: Iterable[tuple[str, bytes]]) -> bytes:
    digest = hashlib.sha256()
    for name, body in records:
        digest.update(name.encode() + b"\0" + body)
    return f"{int.from_bytes(digest.digest(), 'big') % 10**40:040d}".encode()


def zip_bytes(records: Iterable[tuple[str, bytes]]) -> bytes:
    """The zip torch makes of these records (name with its root, body), in this order."""
    out = bytearray()
    entries: list[bytes] = []
    for name, body in records:
        entries.append(_directory_entry(name.encode(), body, len(out)))
        out += _record(name.encode(), body, len(out))
    directory = b"".join(entries)
    return bytes(out) + directory + _trailers(len(entries), len(directory), len(out))


def _record(name: bytes, body: bytes, offset: int) -> bytes:
    padding = -(offset + 30 + len(name) + 4) % _ALIGNMENT
    header = struct.pack(
        "<4s5H3I2H", b"PK\3\4", 0, _FLAGS, 0, 0, 0, 0, 0, 0, len(name), 4 + padding
    )
    extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    descriptor = struct.pack("<4s3I", b"PK\7\x08", zlib.crc32(body), len(body), len(body))
    return header + name + extra + body + descriptor


def _directory_entry(name: bytes, body: bytes, offset: int) -> bytes:
    sizes = (zlib.crc32(body), len(body), len(body))
    fixed = struct.pack("<4s6H3I", b"PK\1\2", 0, 0, _FLAGS, 0, 0, 0, *sizes)
    return fixed + struct.pack("<5H2I", len(name), 0, 0, 0, 0, 0, offset) + name


def _trailers(count: int, directory_bytes: int, directory_offset: int) -> bytes:
    where = (count, count, directory_bytes, directory_offset)
    zip64_end = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, _MADE_BY, _NEEDS, 0, 0, *where)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, directory_offset + directory_bytes, 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, *where, 0)
    return zip64_end + locator + end
