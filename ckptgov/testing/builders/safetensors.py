"""safetensors files: a length, a JSON header padded to 8 bytes, and the tensors without a hole."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

from ckptgov.testing.builders.damage import WRITTEN_AT_NS, date_files
from ckptgov.testing.builders.torch_zip import float_bytes

Shapes = Mapping[str, tuple[int, ...]]
DEFAULT_SHAPES: Shapes = {"model.weight": (8, 8), "model.bias": (8,)}


def safetensors_bytes(shapes: Shapes = DEFAULT_SHAPES, *, seed: str = "") -> bytes:
    """A file of float32 tensors of these shapes, in this order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape in shapes.items():
        start = len(body)
        body += float_bytes(f"{seed}/{name}", prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(body)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(body)


def write_safetensors(
    path: Path,
    shapes: Shapes = DEFAULT_SHAPES,
    *,
    seed: str = "",
    at_ns: int | None = WRITTEN_AT_NS,
) -> Path:
    """Write such a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors_bytes(shapes, seed=seed))
    date_files(path, at_ns=at_ns)
    return path
