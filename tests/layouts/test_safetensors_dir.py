"""Directories and files of safetensors weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.testing.builders import truncate, write_safetensors, write_torch_file

Look = Callable[..., Any]


def _sharded(directory: Path) -> Path:
    weight_map: dict[str, str] = {}
    for number in (1, 2):
        name = f"model-{number:05d}-of-00002.safetensors"
        write_safetensors(directory / name, {f"w{number}": (2, 3)})
        weight_map[f"w{number}"] = name
    index = {"metadata": {"total_size": 48}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_a_real_bare_file_is_whole_for_weights(look: Look, samples: Path) -> None:
    seen = look(samples / "safetensors")
    assert seen.whole == ["two-tensors.safetensors"]
    (only,) = seen.sightings
    assert (only.purposes, only.reshardable) == ((Purpose.WEIGHTS,), True)
    assert (only.step_kind, only.shards[0].path) == (StepKind.NONE, "")


def test_a_cut_bare_file_is_torn_with_numbers(look: Look, tmp_path: Path) -> None:
    size = write_safetensors(tmp_path / "lora-000010.safetensors").stat().st_size
    truncate(tmp_path / "lora-000010.safetensors", by_bytes=1)
    assert look(tmp_path).told("lora-000010.safetensors") == [
        f"torn lora-000010.safetensors: has {size - 1} of {size} bytes"
    ]


def test_bare_files_take_the_last_integer_as_an_ordinal(look: Look, tmp_path: Path) -> None:
    for number in (10, 20):
        write_safetensors(tmp_path / f"loras/mine-{number:06d}.safetensors")
    seen = look(tmp_path)
    assert [(s.step, s.step_kind) for s in seen.sightings] == [
        (10, StepKind.ORDINAL),
        (20, StepKind.ORDINAL),
    ]


def test_an_index_makes_a_directory_one_checkpoint(look: Look, tmp_path: Path) -> None:
    _sharded(tmp_path / "weights")
    seen = look(tmp_path)["weights"]
    assert (seen.findings, len(seen.shards), seen.layout) == ((), 3, "safetensors")


@pytest.mark.parametrize(
    "lost", ["model-00002-of-00002.safetensors", "model.safetensors.index.json"]
)
def test_a_missing_part_is_told(look: Look, tmp_path: Path, lost: str) -> None:
    (_sharded(tmp_path / "weights") / lost).unlink()
    (told,) = look(tmp_path).told("weights")
    assert told.startswith(f"missing-shard weights/{lost}: is missing")


def test_ranks_that_overwrote_each_other_lost_half_the_weights(look: Look, samples: Path) -> None:
    assert look(samples / "dcp-hf-torn/rank-overwrite-lost-data").told("step_1") == [
        "torn step_1/model.safetensors.index.json: "
        "says total_size 21312, but its files hold 10656 bytes of tensors"
    ]


@pytest.mark.parametrize("text", ['{"weight_map": {"w": 3}}', "{}", "[]", "nonsense", ""])
def test_an_index_of_another_shape_is_torn(look: Look, tmp_path: Path, text: str) -> None:
    (_sharded(tmp_path / "weights") / "model.safetensors.index.json").write_text(text)
    (told,) = look(tmp_path).told("weights")
    assert told.startswith("torn weights/model.safetensors.index.json: ")


def test_an_index_that_points_outside_reads_nothing_there(look: Look, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "secret.safetensors", {"w": (2, 3)})
    (tmp_path / "run/weights").mkdir(parents=True)
    index = {"weight_map": {"w": "../../secret.safetensors"}}
    (tmp_path / "run/weights/model.safetensors.index.json").write_text(json.dumps(index))
    assert look(tmp_path / "run").told("weights")[0].startswith("missing-shard ")


def test_one_file_in_a_step_directory_is_whole(look: Look, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "step_5/adapter.safetensors")
    seen = look(tmp_path)
    assert seen.whole == ["step_5"]
    assert seen["step_5"].step == 5


@pytest.mark.parametrize("names", [("a.safetensors", "b.safetensors"), ("rank_0.safetensors",)])
def test_files_that_nothing_ties_together_are_unproven(
    look: Look, tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        write_safetensors(tmp_path / "step_5" / name)
    assert look(tmp_path).told("step_5") == [
        "unproven step_5: nothing on disk tells its full set: declare a rule or commit it"
    ]


def test_weights_beside_torch_files_are_unproven_for_resuming(look: Look, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "step_5/model.safetensors")
    write_torch_file(tmp_path / "step_5/optimizer.pt")
    seen = look(tmp_path)
    assert seen.told("step_5") == [
        "unproven step_5: nothing on disk tells its full set: declare a rule or commit it"
    ]
    assert [shard.path for shard in seen["step_5"].shards] == ["model.safetensors", "optimizer.pt"]


def test_a_configuration_beside_the_weights_is_a_member(look: Look, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "final/model.safetensors")
    (tmp_path / "final/config.json").write_text("{}")
    seen = look(tmp_path)
    assert [shard.path for shard in seen["final"].shards] == ["config.json", "model.safetensors"]
    (tmp_path / "final/config.json").write_text("")
    assert look(tmp_path).told("final") == ["torn final/config.json: is empty (0 bytes)"]


def test_weights_in_bin_files_are_proven_as_torch_zips(look: Look, tmp_path: Path) -> None:
    write_torch_file(tmp_path / "step_5/pytorch_model.bin")
    assert look(tmp_path).whole == ["step_5"]
    truncate(tmp_path / "step_5/pytorch_model.bin", by_bytes=5)
    assert look(tmp_path).whole == []


def test_a_temporary_file_is_no_shard(look: Look, tmp_path: Path) -> None:
    _sharded(tmp_path / "weights")
    shutil.copy(
        tmp_path / "weights/model-00001-of-00002.safetensors", tmp_path / "weights/.tmpabc123"
    )
    seen = look(tmp_path)["weights"]
    assert (seen.findings, seen.extras) == ((), (".tmpabc123",))
