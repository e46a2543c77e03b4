"""safetensors: sharded weights with an index, as the Hub's models have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")
safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


def save(directory: Path, step: int) -> Path:
    directory.mkdir()
    weight_map = {}
    for number in (1, 2):
        file = f"model-{number:05d}-of-00002.safetensors"
        tensor = numpy.full((64, 64), step + number, dtype=numpy.float32)
        safetensors.save_file({f"layer.{number}": tensor}, directory / file)
        weight_map[f"layer.{number}"] = file
    index = {"metadata": {"total_size": 2 * 64 * 64 * 4}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_sealed_weights_load_and_a_flip_that_loads_too_is_caught(
    cli, run: Path, flip: Callable[[Path], Path]
) -> None:
    for step in (1, 2):
        save(run / f"step_{step}", step)
    # Whole, but no optimizer: not to resume from.
    assert cli.scan(run) == {"step_1": "wrong-purpose", "step_2": "wrong-purpose"}
    assert cli("verify", run).code == 0
    newest = cli.latest(run, "--purpose", "weights", "--evidence", "digest")
    assert newest == run / "step_2"
    shard = newest / "model-00002-of-00002.safetensors"
    assert (safetensors.load_file(shard)["layer.2"] == 4).all()
    flip(shard)
    assert not (safetensors.load_file(shard)["layer.2"] == 4).all()
    assert cli("verify", run).code == 5
    assert cli.latest(run, "--purpose", "weights", "--evidence", "digest") == run / "step_1"
