"""Metrics in names, in a trainer's state and in the state of Lightning's callbacks."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptgov.layouts.told_metrics import MOST_BYTES, metrics_in_name, spelled, told
from ckptgov.testing.builders import write_hf_trainer, write_lightning
from ckptgov.testing.builders.pickles import Tensor

Look = Callable[..., object]


@pytest.mark.parametrize(
    ("path", "metrics"),
    [
        ("epoch=1-step=100.ckpt", {}),
        ("epoch=1-step=100-val_loss=0.41.ckpt", {"val_loss": "0.41"}),
        ("logs/v_0/epoch=01-val_loss=0.410.ckpt", {"val_loss": "0.410"}),
        ("epoch=1-step=100-val/loss=0.41.ckpt", {"val/loss": "0.41"}),
        ("run/epoch=1-step=100-val/acc/top1=.9.ckpt", {"val/acc/top1": ".9"}),
        ("epoch=1-a=1e-05-b=-2.5E+3.ckpt", {"a": "1e-05", "b": "-2.5E+3"}),
        ("epoch=1-loss=nan.ckpt", {"loss": "nan"}),
        ("epoch=1-loss=-inf-v1.ckpt", {"loss": "-inf"}),
        ("epoch=1-val-loss=0.41-last.ckpt", {"val-loss": "0.41"}),
        ("val_loss=0.41-epoch=1.ckpt", {"val_loss": "0.41"}),
        ("resnet-epoch=1-val_loss=0.41.ckpt", {"val_loss": "0.41"}),
        ("gpt--val_loss=2.5-step=100-consumed=64.0", {"val_loss": "2.5", "consumed": "64.0"}),
        ("epoch=1-loss=low.ckpt", {}),
        ("epoch=1-loss=1.2.3.ckpt", {}),
        ("lr=0.1/last.ckpt", {}),
        ("last.ckpt", {}),
        ("", {}),
    ],
)
def test_pairs_in_a_name(path: str, metrics: dict[str, str]) -> None:
    assert dict(metrics_in_name(path)) == metrics


def test_a_name_of_hostile_length_is_read_in_no_time() -> None:
    assert metrics_in_name("epoch=1-" + "-=1" * 1300) == ()
    assert metrics_in_name("epoch=1-" + "a-" * 2000) == ()


def test_only_what_a_record_can_hold_is_told() -> None:
    many = [(f"m{number:05}", "0.5") for number in range(5000)]
    kept = told(many)
    assert 0 < len(json.dumps(dict(kept), separators=(",", ":"))) <= MOST_BYTES
    assert kept == tuple(many[: len(kept)])
    assert told([("a", "1_0"), ("b", ""), ("", "1"), ("c", "1" * 65), ("\x07", "1")]) == ()
    assert told([("a", "1"), ("a", "2")]) == (("a", "1"),)


@pytest.mark.parametrize(
    "text", ["0.1", "0.41", "3.4e+38", "1", "-2.5", "nan", "inf", "1.2345678", "3.4028235e+38"]
)
def test_a_number_is_spelled_as_short_as_it_can_be(text: str) -> None:
    kept = struct.unpack("<f", struct.pack("<f", float(text)))[0]
    assert spelled(kept, digits=9) == text
    assert spelled(float(text), digits=17) == text


def test_the_trainers_best_value_so_far_is_told_beside_its_own(look, tmp_path: Path) -> None:
    directory = write_hf_trainer(tmp_path / "checkpoint-5", 5)
    (directory / "trainer_state.json").write_text(
        '{"global_step": 5, "best_metric": 0.30, "log_history": [{"step": 5, "eval_loss": 0.4}]}'
    )
    assert look(tmp_path)["checkpoint-5"].metrics == (("best_metric", "0.30"), ("eval_loss", "0.4"))


@pytest.mark.parametrize("best", ["null", '"0.3"', "true", "[1]"])
def test_a_best_value_that_is_no_number_is_not(look, tmp_path: Path, best: str) -> None:
    directory = write_hf_trainer(tmp_path / "checkpoint-5", 5)
    (directory / "trainer_state.json").write_text(f'{{"global_step": 5, "best_metric": {best}}}')
    assert look(tmp_path)["checkpoint-5"].metrics == ()


def callback(monitor: object, kept: object) -> dict[str, object]:
    """The state of a ModelCheckpoint as Lightning saves it."""
    return {
        f"ModelCheckpoint{{'monitor': {monitor!r}}}": {"monitor": monitor, "best_k_models": kept}
    }


def test_a_callback_tells_the_score_it_keeps_the_file_for(look, tmp_path: Path) -> None:
    kept = {
        "/old/machine/ckpt/epoch=1-step=100.ckpt": Tensor(()),
        "/old/machine/ckpt/epoch=0-step=50.ckpt": Tensor(()),
        "C:\\ckpt\\epoch=1-step=100.ckpt": 0.25,
    }
    path = write_lightning(
        tmp_path / "epoch=1-step=100.ckpt", 100, callbacks=callback("val/loss", kept)
    )
    (name, value), *others = look(tmp_path)["epoch=1-step=100.ckpt"].metrics
    assert (name, others) == ("val/loss", [])
    floats = struct.iter_unpack("<f", path.read_bytes()[: path.stat().st_size // 4 * 4])
    assert any(each == float(value) for (each,) in floats)


def test_the_callbacks_number_outweighs_the_rounded_one_in_the_name(look, tmp_path: Path) -> None:
    name = "epoch=1-step=100-val_loss=0.41.ckpt"
    write_lightning(tmp_path / name, 100, callbacks=callback("val_loss", {f"/x/{name}": 0.4123}))
    assert look(tmp_path)[name].metrics == (("val_loss", "0.4123"),)


@pytest.mark.parametrize(
    "kept",
    [
        {"/x/other.ckpt": 0.5},
        {"/x/epoch=1-step=100.ckpt": "0.5"},
        {"/x/epoch=1-step=100.ckpt": True},
        {"/x/epoch=1-step=100.ckpt": 10**30},
        {"/x/epoch=1-step=100.ckpt": Tensor((2,))},
        {"/x/my-epoch=1-step=100.ckpt": 0.5},
        {7: 0.5},
        ["/x/epoch=1-step=100.ckpt"],
        None,
    ],
)
def test_a_state_that_tells_no_number_of_this_file_tells_nothing(
    look, tmp_path: Path, kept: object
) -> None:
    name = "epoch=1-step=100.ckpt"
    write_lightning(tmp_path / name, 100, callbacks=callback("loss", kept))
    sighting = look(tmp_path)[name]
    assert (sighting.metrics, sighting.findings) == ((), ())


@pytest.mark.parametrize("monitor", [None, 7, "x" * 5000, ""])
def test_a_monitor_that_is_no_name_tells_nothing(look, tmp_path: Path, monitor: object) -> None:
    name = "epoch=1-step=100.ckpt"
    write_lightning(tmp_path / name, 100, callbacks=callback(monitor, {f"/x/{name}": 0.5}))
    sighting = look(tmp_path)[name]
    assert (sighting.metrics, sighting.findings) == ((), ())
