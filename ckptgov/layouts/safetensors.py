"""safetensors files: ``u64 length | JSON header | bytes``, whose size rule is exact.

There is no checksum: a flipped byte does not show. The library itself refuses a file that is one
byte longer or shorter than its header says.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from typing import Any, Final

from msgspec import Struct, field

from ckptgov.errors import Malformed
from ckptgov.model.files import OpenFile

MAX_HEADER_BYTES: Final = 100_000_000
"""The library's own limit."""

_BITS: Final = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class SafetensorsHeader(Struct, frozen=True, kw_only=True):
    """What a whole safetensors file says of itself."""

    tensor_bytes: int
    tensors: frozenset[str]
    metadata: Mapping[str, str] = field(default_factory=dict)


def read_safetensors(file: OpenFile, *, name: str) -> SafetensorsHeader:
    """Read the header and prove that the file is exactly as long as it says.

    Raises:
        Malformed: it is empty, cut, longer than it says, or its header does not hold together;
            the message after ``name: `` is fit as evidence.
    """
    size = file.stat().bytes
    if size == 0:
        raise Malformed(f"{name}: is empty (0 bytes)")
    head = file.read_at(0, 8)
    if len(head) < 8:
        raise Malformed(f"{name}: has {size} bytes, less than a header")
    (length,) = struct.unpack("<Q", head)
    if length > MAX_HEADER_BYTES:
        raise Malformed(f"{name}: is no safetensors file (a header of {length} bytes)")
    if 8 + length > size:
        raise Malformed(f"{name}: has {size} of at least {8 + length} bytes")
    raw = file.read_at(8, length)
    if not any(raw[:64]):
        raise Malformed(f"{name}: is no safetensors file (a header of zeros)")
    header = _parse(raw, name)
    tensor_bytes = _covered(header, name)
    if 8 + length + tensor_bytes > size:
        raise Malformed(f"{name}: has {size} of {8 + length + tensor_bytes} bytes")
    if 8 + length + tensor_bytes < size:
        want = 8 + length + tensor_bytes
        raise Malformed(f"{name}: has {size} bytes, more than the {want} it should")
    metadata = header.get("__metadata__") or {}
    return SafetensorsHeader(
        tensor_bytes=tensor_bytes,
        tensors=frozenset(header) - {"__metadata__"},
        metadata={k: v for k, v in metadata.items() if isinstance(v, str)},
    )


def _parse(raw: bytes, name: str) -> dict[str, Any]:
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{name}: its header is no JSON") from error
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__") or {}, dict):
        raise Malformed(f"{name}: its header is no JSON object")
    return header


def _covered(header: Mapping[str, Any], name: str) -> int:
    """Bytes of all tensors, which must follow one another from 0 without holes."""
    spans: list[tuple[int, int]] = []
    for tensor, entry in header.items():
        if tensor != "__metadata__":
            spans.append(_span(tensor, entry, name))
    end = 0
    for start, stop in sorted(spans):
        if start != end:
            raise Malformed(f"{name}: its tensors leave a hole or overlap at byte {end}")
        end = stop
    return end


def _span(tensor: str, entry: object, name: str) -> tuple[int, int]:
    match entry:
        case {
            "dtype": str(dtype),
            "shape": [*shape],
            "data_offsets": [int(start), int(stop)],
        } if len(shape) <= 64 and all(type(n) is int and 0 <= n < 2**63 for n in shape):
            bits = _BITS.get(dtype)
        case _:
            raise Malformed(f"{name}: tensor {tensor[:200]!r} is not described")
    if not 0 <= start <= stop < 2**63:
        raise Malformed(f"{name}: tensor {tensor[:200]!r} has impossible offsets")
    # A dtype newer than this list is not judged; the library would know its size.
    if bits is not None and (stop - start) * 8 != prod(shape) * bits:
        raise Malformed(f"{name}: tensor {tensor[:200]!r} has not the bytes of its shape")
    return start, stop
