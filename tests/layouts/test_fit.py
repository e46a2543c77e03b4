"""A manifest tells the same about other numbers of ranks as the layout that looked at the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.layouts.fit import reshardable_of
from ckptgov.testing.builders import write_deepspeed, write_hf_trainer, write_world_size_set

WHOLE = [
    *("accelerate/ddp2", "dcp/single", "dcp/fsdp2-4rank", "dcp/no-collectives-2rank"),
    *("dcp-hf/consolidated", "deepspeed/zero0", "deepspeed/zero1-bf16", "deepspeed/zero3"),
    *("hf-trainer/ddp2", "hf-trainer/single", "lightning/single-file", "torchsnapshot/2rank"),
    *("lightning/distributed-dir", "megatron/core-torch_dist", "orbax/atomic-rename"),
]


def told_alike(looked: Any) -> None:
    assert looked.sightings
    for one in looked.sightings:
        paths = [shard.path for shard in one.shards]
        assert reshardable_of(one.layout, paths) is one.reshardable, one.name


@pytest.mark.parametrize("sample", WHOLE)
def test_of_every_real_sample(look: Callable[..., Any], samples: Path, sample: str) -> None:
    told_alike(look(samples / sample))


def test_of_sets_that_name_a_world_size_and_of_zero(look: Callable[..., Any], tmp_path) -> None:
    write_world_size_set(tmp_path / "verl/global_step_5/actor", "model", 4)
    write_deepspeed(tmp_path / "ds", 7, world_size=2)
    write_hf_trainer(tmp_path / "hf/checkpoint-3", 3)
    for run in ("verl", "ds", "hf"):
        told_alike(look(tmp_path / run))
