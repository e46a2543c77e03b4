"""What the bytes of a torch.save file prove."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptgov.errors import Malformed
from ckptgov.layouts.base import LookSettings, Tree
from ckptgov.layouts.torch_zip import (
    ZipState,
    check_torch_zip,
    finding_of,
    read_record,
    torch_facts,
)
from ckptgov.model.facts import Depth, Reason
from ckptgov.model.files import OpenFile
from ckptgov.storage.posix import PosixStorage

Opener = Callable[[bytes], OpenFile]

LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")


@pytest.fixture(scope="module")
def whole(samples: Path) -> bytes:
    path = samples / "megatron/core-torch_dist/iter_0000200/common.pt"
    return path.read_bytes()


def _state(file: OpenFile, depth: Depth = Depth.STRUCTURE) -> ZipState:
    return check_torch_zip(file, depth=depth).state


@pytest.mark.parametrize("depth", Depth)
def test_a_file_as_torch_wrote_it_is_whole(whole: bytes, open_bytes: Opener, depth: Depth) -> None:
    report = check_torch_zip(open_bytes(whole), depth=depth)
    assert (report.state, report.evidence) == (ZipState.WHOLE, "")


@pytest.mark.parametrize("depth", Depth)
def test_every_torch_file_of_the_whole_samples_is_whole(
    samples: Path, open_bytes: Opener, depth: Depth
) -> None:
    files = [
        path
        for pattern in ("*.pt", "*.pth", "*.bin", "*.ckpt", "random_states_*.pkl")
        for path in samples.rglob(pattern)
        if path.is_file() and "-torn" not in str(path)
    ]
    assert len(files) > 20
    for path in files:
        assert _state(open_bytes(path.read_bytes()), depth) is ZipState.WHOLE, path


@pytest.mark.parametrize("cut", [1, 22, 42, 98, 99, 700, 1380, 1382])
def test_a_cut_file_is_cut(whole: bytes, open_bytes: Opener, cut: int) -> None:
    report = check_torch_zip(open_bytes(whole[:-cut]))
    assert report.state is ZipState.CUT
    assert "no zip trailer" in report.evidence


def test_every_possible_cut_is_seen(whole: bytes, open_bytes: Opener) -> None:
    for length in range(1, len(whole)):
        assert _state(open_bytes(whole[:length])) is ZipState.CUT


def test_junk_behind_the_trailer_is_seen(whole: bytes, open_bytes: Opener) -> None:
    assert zipfile.is_zipfile(io.BytesIO(whole + bytes(100)))
    assert _state(open_bytes(whole + bytes(100))) is ZipState.CUT


@pytest.mark.parametrize("from_end", [2, 30, 50, 58])
def test_a_trailer_that_does_not_point_where_it_stands_is_seen(
    whole: bytes, open_bytes: Opener, from_end: int
) -> None:
    # the comment's length, the locator's offset, the directory's offset and its size
    changed = bytearray(whole)
    changed[-from_end] ^= 1
    assert _state(open_bytes(bytes(changed))) is ZipState.CUT


def test_bytes_lost_in_the_middle_are_seen(whole: bytes, open_bytes: Opener) -> None:
    assert _state(open_bytes(whole[:200] + whole[264:])) is ZipState.CUT


def test_an_empty_file_says_so(open_bytes: Opener) -> None:
    report = check_torch_zip(open_bytes(b""))
    assert (report.state, report.evidence) == (ZipState.EMPTY, "is empty (0 bytes)")


def test_a_file_of_zeros_is_foreign_and_torn(open_bytes: Opener) -> None:
    finding = finding_of(check_torch_zip(open_bytes(bytes(5000))), "a.pt")
    assert finding is not None
    assert finding.reason is Reason.TORN
    assert "zeros" in finding.evidence


def test_the_legacy_format_is_unproven(open_bytes: Opener) -> None:
    report = check_torch_zip(open_bytes(LEGACY + bytes(100)))
    finding = finding_of(report, "a.pt")
    assert report.state is ZipState.LEGACY
    assert finding is not None
    assert finding.reason is Reason.UNPROVEN


def test_a_slice_of_a_file_is_proved_as_a_file(whole: bytes, open_bytes: Opener) -> None:
    file = open_bytes(whole + whole)
    for depth in Depth:
        assert check_torch_zip(file, len(whole), len(whole), depth).state is ZipState.WHOLE
    assert check_torch_zip(file, len(whole) - 1, len(whole), depth).state is not ZipState.WHOLE


def test_a_zip_without_zip64_records_is_proved_by_its_plain_trailer(open_bytes: Opener) -> None:
    raw = _zipped({"archive/data.pkl": b"\x80\x02}.", "archive/data/0": b"abc" * 99})
    assert _state(open_bytes(raw), Depth.DEEP) is ZipState.WHOLE
    assert _state(open_bytes(raw + b"\0"), Depth.DEEP) is ZipState.CUT


def test_a_flipped_payload_byte_is_corrupt_and_named(whole: bytes, open_bytes: Opener) -> None:
    at = whole.index(b"iteration")
    flipped = whole[:at] + b"I" + whole[at + 1 :]
    report = check_torch_zip(open_bytes(flipped), depth=Depth.DEEP)
    assert report.state is ZipState.CORRUPT
    assert report.evidence == "record common/data.pkl differs from its CRC"
    assert _state(open_bytes(flipped)) is ZipState.WHOLE  # only a full read sees it


def test_a_damaged_directory_is_corrupt(whole: bytes, open_bytes: Opener) -> None:
    counted = bytearray(whole)
    counted[-66] += 1  # the number of entries in the zip64 trailer
    named = bytearray(whole)
    named[named.index(b"common/version")] ^= 1  # the first is in the record's own header
    for damaged in (counted, named):
        assert _state(open_bytes(bytes(damaged)), Depth.DEEP) is ZipState.CORRUPT


def test_switched_off_crcs_are_unverifiable_and_not_corrupt(
    whole: bytes, open_bytes: Opener
) -> None:
    report = check_torch_zip(open_bytes(_without_crcs(whole)), depth=Depth.DEEP)
    assert report.state is ZipState.UNVERIFIABLE
    assert finding_of(report, "a.pt") is None


def test_a_compressed_record_is_not_torchs(open_bytes: Opener) -> None:
    bomb = _zipped({"archive/data/0": bytes(10**7)}, zipfile.ZIP_DEFLATED)
    report = check_torch_zip(open_bytes(bomb), depth=Depth.DEEP)
    assert report.state is ZipState.FOREIGN
    assert "compressed" in report.evidence


def test_records_that_overlap_are_refused_before_they_are_read(open_bytes: Opener) -> None:
    raw = _zipped({"a/data/0": b"x" * 1000})
    end = raw.index(b"PK\x01\x02")
    entry = raw[end:-22]
    directory = entry * 1000
    trailer = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1000, 1000, len(directory), end, 0)
    report = check_torch_zip(open_bytes(raw[:end] + directory + trailer), depth=Depth.DEEP)
    assert report.evidence == "its records are larger than the file"


@given(st.data())
def test_no_bytes_make_the_check_raise(data: st.DataObject) -> None:
    raw = bytearray(_zipped({"a/data.pkl": b"\x80\x02}.", "a/data/0": b"x" * 50}))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    check_torch_zip(_Held(bytes(raw)), depth=Depth.DEEP)


@given(bit=st.integers(0, 8 * 50 - 1))
def test_every_bit_flip_in_a_payload_is_seen(bit: int) -> None:
    raw = bytearray(_zipped({"a/data.pkl": b"\x80\x02}.", "a/data/0": b"x" * 50}))
    raw[raw.index(b"x" * 50) + bit // 8] ^= 1 << bit % 8
    assert check_torch_zip(_Held(bytes(raw)), depth=Depth.DEEP).state is ZipState.CORRUPT


def test_a_record_is_read_by_the_end_of_its_name(whole: bytes, open_bytes: Opener) -> None:
    file = open_bytes(whole)
    assert read_record(file, suffix="version", cap_bytes=10, name="c") == b"3\n"
    with pytest.raises(Malformed, match=r"c: data\.pkl has \d+ bytes, too many"):
        read_record(file, suffix="data.pkl", cap_bytes=10, name="c")
    with pytest.raises(Malformed, match="a zip without other"):
        read_record(file, suffix="other", cap_bytes=10, name="c")


def test_facts_of_a_torch_file_come_without_running_it(samples: Path) -> None:
    storage = PosixStorage(samples)
    with Tree(storage, "deepspeed/zero2", LookSettings(now_ns=0)) as tree:
        facts = torch_facts(
            tree, "global_step2/mp_rank_00_model_states.pt", ["global_steps", "dp_world_size"]
        )
    storage.close()
    assert facts.scalars == {"global_steps": 2, "dp_world_size": 2}
    assert facts.storages


class _Held:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def stat(self) -> object:
        class Stat:
            bytes = len(self.content)

        return Stat

    def read_at(self, offset: int, length: int) -> bytes:
        return self.content[offset : offset + length]


def _zipped(records: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as packed:
        for name, content in records.items():
            packed.writestr(name, content)
    return out.getvalue()


def _without_crcs(raw: bytes) -> bytes:
    """The same file with every CRC wrong, as torch leaves them when told not to compute any."""
    changed = bytearray(raw)
    for signature, at in ((b"PK\x03\x04", 14), (b"PK\x01\x02", 16)):
        start = changed.find(signature)
        while start >= 0:
            crc = zlib.crc32(bytes(changed[start + at : start + at + 4]))
            changed[start + at : start + at + 4] = struct.pack("<I", crc)
            start = changed.find(signature, start + 4)
    return bytes(changed)
