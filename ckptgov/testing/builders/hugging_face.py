"""Hugging Face Trainer: ``checkpoint-N`` with the model, resume files and, last, its state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from ckptgov.testing.builders.damage import WRITTEN_AT_NS, date_files
from ckptgov.testing.builders.pickles import Global, Instance, Tensor
from ckptgov.testing.builders.safetensors import DEFAULT_SHAPES, write_safetensors
from ckptgov.testing.builders.torch_zip import write_torch_file


def write_hf_trainer(
    directory: Path,
    step: int,
    *,
    world_size: int = 1,
    model_shards: int = 1,
    adapter: bool = False,
    optimizer: bool = True,
    rng_ranks: Sequence[int] | None = None,
    state: Mapping[str, object] | None = None,
    at_ns: int | None = WRITTEN_AT_NS,
) -> Path:
    """Write one whole checkpoint.

    ``model_shards`` > 1 gives numbered files and an index. ``adapter`` saves a PEFT adapter in
    place of the model. Without ``optimizer`` there is no ``optimizer.pt``, as where DeepSpeed
    keeps that state. ``rng_ranks`` are the ranks whose generator state lies here (default: all).
    ``state`` adds to ``trainer_state.json``, which is written last.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _configuration(directory, adapter)
    _model(directory, step, model_shards, adapter)
    _resume_state(directory, step, optimizer)
    _generators(directory, step, world_size, rng_ranks)
    told: dict[str, object] = {
        "best_metric": None,
        "best_model_checkpoint": None,
        "epoch": step / 1000,
        "global_step": step,
        "log_history": [],
        **(state or {}),
    }
    (directory / "trainer_state.json").write_text(json.dumps(told, indent=2) + "\n")
    date_files(directory, "trainer_state.json", at_ns=at_ns)
    return directory


def _configuration(directory: Path, adapter: bool) -> None:
    name, told = ("config.json", {"model_type": "tiny"})
    if adapter:
        name, told = ("adapter_config.json", {"peft_type": "LORA"})
    (directory / name).write_text(json.dumps(told, indent=2) + "\n")


def _model(directory: Path, step: int, shards: int, adapter: bool) -> None:
    stem = "adapter_model" if adapter else "model"
    if shards == 1:
        write_safetensors(directory / f"{stem}.safetensors", seed=f"{step}")
        return
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for number in range(1, shards + 1):
        file = f"{stem}-{number:05d}-of-{shards:05d}.safetensors"
        shapes = {f"layers.{number}.{name}": shape for name, shape in DEFAULT_SHAPES.items()}
        write_safetensors(directory / file, shapes, seed=f"{step}")
        weight_map.update(dict.fromkeys(shapes, file))
        total_bytes += 4 * sum(prod(shape) for shape in shapes.values())
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (directory / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _resume_state(directory: Path, step: int, optimizer: bool) -> None:
    arguments = Instance(
        Global("transformers.training_args", "TrainingArguments"), {"output_dir": "out", "seed": 42}
    )
    write_torch_file(directory / "training_args.bin", arguments)
    write_torch_file(directory / "scheduler.pt", {"base_lrs": [0.001], "last_epoch": step})
    if optimizer:
        moments = {"exp_avg": Tensor(), "exp_avg_sq": Tensor()}
        state = {"state": {0: moments}, "param_groups": [{"lr": 0.001, "params": [0]}]}
        write_torch_file(directory / "optimizer.pt", state, seed=f"optimizer/{step}")


def _generators(directory: Path, step: int, world_size: int, ranks: Sequence[int] | None) -> None:
    for rank in range(world_size) if ranks is None else ranks:
        alone = world_size == 1 and ranks is None
        name = "rng_state.pth" if alone else f"rng_state_{rank}.pth"
        write_torch_file(directory / name, {"cpu": Tensor((16,))}, seed=f"rng/{step}/{rank}")
