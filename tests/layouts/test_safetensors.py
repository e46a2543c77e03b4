"""The exact size rule of safetensors files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptgov.errors import Malformed
from ckptgov.layouts.safetensors import read_safetensors
from ckptgov.model.files import OpenFile

Opener = Callable[[bytes], OpenFile]

TENSORS = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "__metadata__": {"format": "pt"},
}


def _packed(header: object, tensor_bytes: int = 32) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(tensor_bytes)


def _refusal(file: OpenFile) -> str:
    with pytest.raises(Malformed) as caught:
        read_safetensors(file, name="m")
    return caught.value.message


def test_a_whole_file_tells_tensors_bytes_and_metadata(open_bytes: Opener) -> None:
    header = read_safetensors(open_bytes(_packed(TENSORS)), name="m")
    assert header.tensor_bytes == 32
    assert header.tensors == {"a", "b"}
    assert header.metadata == {"format": "pt"}


def test_every_file_of_the_whole_samples_is_whole(samples: Path, open_bytes: Opener) -> None:
    files = [p for p in samples.rglob("*.safetensors") if "-torn" not in str(p)]
    assert len(files) > 5
    for path in files:
        read_safetensors(open_bytes(path.read_bytes()), name=str(path))


def test_one_byte_more_or_less_is_refused(open_bytes: Opener) -> None:
    whole = _packed(TENSORS)
    assert _refusal(open_bytes(whole[:-1])) == f"m: has {len(whole) - 1} of {len(whole)} bytes"
    assert "more than" in _refusal(open_bytes(whole + b"\0"))


def test_every_cut_is_refused(open_bytes: Opener) -> None:
    whole = _packed(TENSORS)
    for length in range(len(whole)):
        _refusal(open_bytes(whole[:length]))


def test_an_empty_file_says_so(open_bytes: Opener) -> None:
    assert _refusal(open_bytes(b"")) == "m: is empty (0 bytes)"


def test_a_header_of_2_gib_is_refused_unread(open_bytes: Opener) -> None:
    claimed = struct.pack("<Q", 2**31) + b"{}"
    assert "is no safetensors file" in _refusal(open_bytes(claimed))


def test_a_file_of_full_size_and_zeros_is_refused(open_bytes: Opener) -> None:
    _refusal(open_bytes(bytes(4096)))
    assert "zeros" in _refusal(open_bytes(struct.pack("<Q", 100) + bytes(132)))


@pytest.mark.parametrize(
    ("name", "change", "evidence"),
    [
        ("a", {"data_offsets": [0, 20]}, "has not the bytes of its shape"),
        ("b", {"data_offsets": [25, 33]}, "leave a hole or overlap"),
        ("b", {"data_offsets": [20, 28]}, "leave a hole or overlap"),
        ("b", {"data_offsets": [28, 24]}, "impossible offsets"),
        ("b", {"data_offsets": [24]}, "is not described"),
        ("b", {"shape": [-4]}, "is not described"),
        ("b", {"shape": "4"}, "is not described"),
        ("b", {"shape": [1] * 100}, "is not described"),
        ("b", {"dtype": 5}, "is not described"),
        ("__metadata__", 5, "no JSON object"),
    ],
)
def test_a_header_that_does_not_hold_together_is_refused(
    open_bytes: Opener, name: str, change: object, evidence: str
) -> None:
    entry = {**TENSORS[name], **change} if isinstance(change, dict) else change
    assert evidence in _refusal(open_bytes(_packed({**TENSORS, name: entry})))


@pytest.mark.parametrize("header", [b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b"5"])
def test_a_header_that_is_no_object_is_refused(open_bytes: Opener, header: bytes) -> None:
    assert "its header is no JSON" in _refusal(open_bytes(_packed(header)))


def test_a_dtype_of_the_future_is_not_judged(open_bytes: Opener) -> None:
    entry = {"dtype": "F3", "shape": [64], "data_offsets": [0, 24]}
    header = read_safetensors(open_bytes(_packed({"t": entry}, 24)), name="m")
    assert header.tensor_bytes == 24
