"""The builders' promises: their writers' exact forms, the same bytes each time, markers newest."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from ckptgov.testing.builders import (
    TICK_NS,
    Global,
    Instance,
    Reduced,
    Tensor,
    date_files,
    dcp_files,
    flip_bit,
    pickle_bytes,
    safetensors_bytes,
    shift_times,
    torch_file_bytes,
    truncate,
    write_dcp,
    write_deepspeed,
    write_hf_trainer,
    write_megatron,
)
from ckptgov.testing.builders.torch_zip import zip_bytes

VALUE = {"weight": Tensor((4, 3)), "step": 5, "names": ["a", "b"], "lr": 1e-3}


def test_equal_arguments_give_equal_bytes_and_another_seed_others() -> None:
    assert torch_file_bytes(VALUE, seed="x") == torch_file_bytes(VALUE, seed="x")
    assert torch_file_bytes(VALUE, seed="x") != torch_file_bytes(VALUE, seed="y")
    assert dcp_files(seed="x") == dcp_files(seed="x")


def test_another_seed_changes_no_size() -> None:
    ours, theirs = dcp_files(seed="A"), dcp_files(seed="B")
    assert {n: len(b) for n, b in ours.items()} == {n: len(b) for n, b in theirs.items()}
    assert ours["__0_0.distcp"] != theirs["__0_0.distcp"]


def test_torch_zips_pass_every_checksum() -> None:
    with zipfile.ZipFile(io.BytesIO(torch_file_bytes(VALUE))) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[0] == "archive/data.pkl"


def test_torch_records_begin_at_multiples_of_64() -> None:
    body = torch_file_bytes(VALUE)
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        for record in archive.infolist():
            name_bytes, extra_bytes = struct.unpack_from("<2H", body, record.header_offset + 26)
            assert (record.header_offset + 30 + name_bytes + extra_bytes) % 64 == 0


def test_torch_zips_end_with_all_three_trailers() -> None:
    body = torch_file_bytes(VALUE)
    assert [body[at : at + 4] for at in (-98, -42, -22)] == [b"PK\6\6", b"PK\6\7", b"PK\5\6"]


@pytest.mark.parametrize(
    "name",
    [
        "deepspeed/zero2/global_step2/mp_rank_00_model_states.pt",
        "hf-trainer/single/checkpoint-2/optimizer.pt",
        "lightning/single-file/last.ckpt",
        "megatron/core-torch_dist/iter_0000100/common.pt",
    ],
)
def test_records_of_a_real_file_zip_to_its_very_bytes(samples: Path, name: str) -> None:
    real = (samples / name).read_bytes()
    with zipfile.ZipFile(io.BytesIO(real)) as archive:
        records = [(record.filename, archive.read(record)) for record in archive.infolist()]
    assert zip_bytes(records) == real


@pytest.mark.parametrize("protocol", [2, 4])
def test_plain_values_survive_a_real_unpickler(protocol: int) -> None:
    value = [0, 255, 256, 65536, -1, 2**31, -(2**40), 1.5, None, True, "é\udc80", "x" * 300]
    nested = {"list": value, "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "again": "list"}
    assert pickle.loads(pickle_bytes(nested, protocol=protocol)) == nested


@pytest.mark.parametrize("protocol", [2, 4])
def test_globals_are_called_by_name_when_loaded(protocol: int) -> None:
    value = [Reduced(Global("fractions", "Fraction"), (1, 3)), Global("fractions", "Fraction")]
    third, cls = pickle.loads(pickle_bytes(value, protocol=protocol))
    assert (third * 3, cls.__name__) == (1, "Fraction")


def test_instances_get_their_state() -> None:
    made = pickle.loads(
        pickle_bytes(Instance(Global("types", "SimpleNamespace"), {"a": 1}), protocol=4)
    )
    assert made.a == 1


def test_what_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle_bytes({"oops": {1, 2}}, protocol=2)


def test_safetensors_are_covered_without_a_hole() -> None:
    body = safetensors_bytes({"a": (2, 3), "b": (5,)})
    (header_bytes,) = struct.unpack_from("<Q", body)
    header = json.loads(body[8 : 8 + header_bytes])
    assert [header[name]["data_offsets"] for name in ("a", "b")] == [[0, 24], [24, 44]]
    assert len(body) == 8 + header_bytes + 44


@pytest.mark.parametrize(
    ("stage", "bf16", "expected"),
    [
        (0, False, ["mp_rank_00_model_states.pt"]),
        (
            1,
            True,
            [
                "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
                "mp_rank_00_model_states.pt",
            ],
        ),
        (
            3,
            False,
            [
                "zero_pp_rank_0_mp_rank_00_model_states.pt",
                "zero_pp_rank_0_mp_rank_00_optim_states.pt",
                "zero_pp_rank_1_mp_rank_00_model_states.pt",
                "zero_pp_rank_1_mp_rank_00_optim_states.pt",
            ],
        ),
    ],
)
def test_deepspeed_stages_have_their_own_files(
    tmp_path: Path, stage: int, bf16: bool, expected: list[str]
) -> None:
    tag = write_deepspeed(tmp_path, 10, world_size=2, stage=stage, bf16=bf16)
    assert sorted(path.name for path in tag.iterdir()) == expected
    assert (tmp_path / "latest").read_text() == "global_step10"


@pytest.mark.parametrize("build", [write_dcp, write_megatron, write_hf_trainer])
def test_markers_are_newer_than_what_they_vouch_for(tmp_path: Path, build) -> None:
    marker = {"write_dcp": ".metadata", "write_megatron": "metadata.json"}.get(
        build.__name__, "trainer_state.json"
    )
    directory = build(tmp_path / "step_5") if build is write_dcp else build(tmp_path / "step_5", 5)
    times = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert times.pop(marker) - max(times.values()) == TICK_NS


def test_a_flipped_bit_keeps_the_times_and_flips_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\0\0\0")
    date_files(path)
    before = path.stat().st_mtime_ns
    flip_bit(path, -1, 7)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (b"\0\0\x80", before)
    flip_bit(path, 2, 7)
    assert path.read_bytes() == b"\0\0\0"


def test_a_cut_file_keeps_its_times(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    date_files(path)
    before = path.stat().st_mtime_ns
    truncate(path, by_bytes=2)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (b"123", before)
    truncate(path, to_bytes=0)
    assert path.read_bytes() == b""


def test_shifted_times_keep_their_distances(tmp_path: Path) -> None:
    directory = write_dcp(tmp_path / "step_1")
    shift_times(directory, newest_at_ns=10**18)
    times = sorted(path.stat().st_mtime_ns for path in directory.iterdir())
    assert times == [10**18 - TICK_NS, 10**18 - TICK_NS, 10**18]
