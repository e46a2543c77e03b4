"""accelerate's save_state: fixed names and a random state per rank."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.checkpoint import StepKind
from ckptgov.testing.builders import (
    truncate,
    write_dcp,
    write_deepspeed,
    write_safetensors,
    write_torch_file,
)

Look = Callable[..., Any]

NAME = "checkpoints/checkpoint_1"


def _save(directory: Path, ranks: int = 2, *, optimizer: bool = True) -> Path:
    write_safetensors(directory / "model.safetensors")
    if optimizer:
        write_torch_file(directory / "optimizer.bin")
    write_torch_file(directory / "scheduler.bin")
    for rank in range(ranks):
        write_torch_file(directory / f"random_states_{rank}.pkl")
    return directory


def test_a_real_save_is_whole_and_its_number_an_ordinal(look: Look, samples: Path) -> None:
    seen = look(samples / "accelerate/ddp2")[NAME]
    assert (seen.layout, seen.findings, seen.extras) == ("accelerate", (), ())
    assert (seen.step, seen.step_kind, seen.world_size) == (1, StepKind.ORDINAL, 2)
    assert len(seen.shards) == 5


def test_a_plain_copy_is_still_whole(look: Look, samples: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(
        samples / "accelerate/ddp2", tmp_path / "run", copy_function=shutil.copyfile
    )
    assert look(copied).whole == [NAME]


@pytest.mark.parametrize(
    ("lost", "evidence"),
    [
        ("random_states_0.pkl", "1 of at least 2 ranks are here"),
        ("optimizer.bin", "resuming needs it"),
    ],
)
def test_what_resuming_needs_is_missed(
    look: Look, tmp_path: Path, lost: str, evidence: str
) -> None:
    (_save(tmp_path / "checkpoint_3") / lost).unlink()
    assert look(tmp_path).told("checkpoint_3") == [
        f"missing-shard checkpoint_3/{lost}: is missing: {evidence}"
    ]


def test_missing_weights_are_told(look: Look, tmp_path: Path) -> None:
    (_save(tmp_path / "checkpoint_3") / "model.safetensors").unlink()
    (told,) = look(tmp_path).told("checkpoint_3")
    assert told.startswith("missing-shard checkpoint_3: no model weights are here")


def test_fewer_ranks_than_beside_are_missing(look: Look, tmp_path: Path) -> None:
    _save(tmp_path / "checkpoint_3", 2)
    _save(tmp_path / "checkpoint_4", 1)
    assert look(tmp_path).told("checkpoint_4") == [
        "missing-shard checkpoint_4/random_states_1.pkl: is missing: checkpoint_3 has 2"
    ]


def test_a_save_killed_after_the_weights_is_not_taken_for_weights(
    look: Look, tmp_path: Path
) -> None:
    _save(tmp_path / "checkpoint_3")
    write_safetensors(tmp_path / "checkpoint_4/model.safetensors")
    seen = look(tmp_path)
    assert seen.whole == ["checkpoint_3"]
    assert seen["checkpoint_4"].layout == "accelerate"


def test_a_cut_random_state_is_torn(look: Look, tmp_path: Path) -> None:
    truncate(_save(tmp_path / "checkpoint_3") / "random_states_1.pkl", by_bytes=30)
    (told,) = look(tmp_path).told("checkpoint_3")
    assert told.startswith("torn checkpoint_3/random_states_1.pkl: ")


def test_registered_objects_are_counted_from_zero(look: Look, tmp_path: Path) -> None:
    write_torch_file(_save(tmp_path / "checkpoint_3") / "custom_checkpoint_1.pkl")
    assert look(tmp_path).told("checkpoint_3") == [
        "missing-shard checkpoint_3/custom_checkpoint_0.pkl: is missing: a gap in their numbers"
    ]


def test_what_save_hooks_wrote_belongs_to_the_set(look: Look, tmp_path: Path) -> None:
    directory = _save(tmp_path / "checkpoint-500", 1)
    (directory / "model.safetensors").unlink()
    write_safetensors(directory / "unet/diffusion_pytorch_model.safetensors")
    seen = look(tmp_path)
    assert seen.whole == ["checkpoint-500"]
    paths = [shard.path for shard in seen["checkpoint-500"].shards]
    assert "unet/diffusion_pytorch_model.safetensors" in paths
    truncate(directory / "unet/diffusion_pytorch_model.safetensors", by_bytes=1)
    assert look(tmp_path).whole == []


def test_a_user_given_directory_keeps_the_step_of_its_name(look: Look, tmp_path: Path) -> None:
    _save(tmp_path / "step_1000")
    seen = look(tmp_path)["step_1000"]
    assert (seen.step, seen.step_kind) == (1000, StepKind.STEP)


def test_deepspeed_inside_says_how_many_ranks_there_are(look: Look, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint_3"
    write_deepspeed(tmp_path / "x", 7, world_size=2, pointer=False).rename(
        tmp_path / "pytorch_model"
    )
    directory.mkdir()
    (tmp_path / "pytorch_model").rename(directory / "pytorch_model")
    (tmp_path / "x").rmdir()
    write_torch_file(directory / "random_states_0.pkl")
    seen = look(tmp_path)
    assert (seen["checkpoint_3"].world_size, seen["checkpoint_3"].reshardable) == (2, False)
    assert seen.told("checkpoint_3") == [
        "missing-shard checkpoint_3/random_states_1.pkl: is missing: 1 of 2 ranks are here"
    ]


def test_sharded_fsdp_is_two_dcp_directories(look: Look, tmp_path: Path) -> None:
    directory = _save(tmp_path / "checkpoint_3", optimizer=False)
    (directory / "model.safetensors").unlink()
    write_dcp(directory / "pytorch_model_fsdp_0")
    write_dcp(directory / "optimizer_0")
    assert look(tmp_path).whole == ["checkpoint_3"]
    (directory / "optimizer_0/.metadata").unlink()
    assert look(tmp_path).whole == []


def test_the_trainers_name_does_not_make_it_the_trainers(look: Look, tmp_path: Path) -> None:
    _save(tmp_path / "checkpoint-500")
    seen = look(tmp_path)
    assert (seen.whole, seen["checkpoint-500"].layout) == (["checkpoint-500"], "accelerate")
