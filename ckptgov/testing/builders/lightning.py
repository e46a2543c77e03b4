"""PyTorch Lightning: one ``.ckpt`` file, a ``torch.save`` of the trainer's whole state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from ckptgov.testing.builders.damage import WRITTEN_AT_NS
from ckptgov.testing.builders.pickles import Tensor
from ckptgov.testing.builders.torch_zip import write_torch_file


def lightning_state(
    step: int, *, callbacks: Mapping[str, object] | None = None
) -> dict[str, object]:
    """What Lightning saves after ``step`` optimizer steps."""
    return {
        "epoch": 0,
        "global_step": step,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": OrderedDict({"layer.weight": Tensor(), "layer.bias": Tensor((8,))}),
        "loops": {},
        "callbacks": dict(callbacks or {}),
        "optimizer_states": [
            {"state": {0: {"exp_avg": Tensor()}}, "param_groups": [{"lr": 0.001, "params": [0]}]}
        ],
        "lr_schedulers": [],
    }


def write_lightning(
    path: Path,
    step: int,
    *,
    callbacks: Mapping[str, object] | None = None,
    at_ns: int | None = WRITTEN_AT_NS,
) -> Path:
    """Write such a file; Lightning saves through a buffer, so the zip's root says ``archive``."""
    state = lightning_state(step, callbacks=callbacks)
    return write_torch_file(path, state, seed=f"{step}", root="archive", at_ns=at_ns)
