"""DeepSpeed ZeRO: a tag directory with a file per rank, and ``latest`` beside it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from ckptgov.testing.builders.damage import WRITTEN_AT_NS, date_files
from ckptgov.testing.builders.pickles import Tensor
from ckptgov.testing.builders.torch_zip import write_torch_file

_VERSION = "0.19.8"


def write_deepspeed(
    parent: Path,
    step: int,
    *,
    world_size: int,
    stage: int = 1,
    bf16: bool = False,
    ranks: Iterable[int] | None = None,
    pointer: bool = True,
    partition: int = 32,
    at_ns: int | None = WRITTEN_AT_NS,
) -> Path:
    """Write ``global_step<step>`` below ``parent``: ZeRO ``stage`` 0..3 over ``world_size`` ranks.

    ``ranks`` are those whose files were written here (default: all), as when each node has a disk
    of its own or a rank died; the common model file is always there (stages 0-2). ``pointer``
    moves ``latest`` to it. ``partition``: how many elements, of 4 bytes, each rank's part of the
    optimizer has.
    """
    directory = parent / f"global_step{step}"
    directory.mkdir(parents=True, exist_ok=True)
    if stage < 3:
        _model_states(directory / "mp_rank_00_model_states.pt", step, world_size)
    for rank in range(world_size) if ranks is None else ranks:
        stem = f"zero_pp_rank_{rank}_mp_rank_00"
        if stage == 3:
            _model_states(directory / f"{stem}_model_states.pt", step, world_size)
        if stage > 0:
            prefix = "bf16_" if bf16 else ""
            path = directory / f"{prefix}{stem}_optim_states.pt"
            _optimizer_states(path, step, world_size, stage, partition)
    date_files(directory, at_ns=at_ns)
    if pointer:
        (parent / "latest").write_text(directory.name)
        date_files(parent / "latest", at_ns=at_ns)
    return directory


def _model_states(path: Path, step: int, world_size: int) -> None:
    state = {
        "module": OrderedDict({"weight": Tensor(), "bias": Tensor((8,))}),
        "optimizer": None,
        "lr_scheduler": None,
        "skipped_steps": 0,
        "global_steps": step,
        "global_samples": step * world_size,
        "dp_world_size": world_size,
        "mp_world_size": 1,
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
        "ds_version": _VERSION,
    }
    write_torch_file(path, state, seed=f"{path.name}/{step}")


def _optimizer_states(path: Path, step: int, world_size: int, stage: int, partition: int) -> None:
    state = {
        "optimizer_state_dict": {
            "zero_stage": stage,
            "partition_count": world_size,
            "single_partition_of_fp32_groups": [Tensor((partition,))],
        },
        "ds_version": _VERSION,
    }
    write_torch_file(path, state, seed=f"{path.name}/{step}")
