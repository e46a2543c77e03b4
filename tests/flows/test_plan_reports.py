"""Retention, as field reports told of it going wrong: what a plan takes and what it must not."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptgov.testing.builders import (
    lightning_state,
    write_dcp,
    write_hf_trainer,
    write_lightning,
    write_safetensors,
)

FREE = {
    "floors": {"min_restorable": 1, "min_age": "0s"},
    "safety": {"adoption_grace": "0s", "max_fraction": "100%"},
}
"""Nothing but the keep rules, and what no policy overrides, holds anything back."""


@pytest.fixture
def policy(home: Path) -> Callable[..., None]:
    """Writes the policy of the tests: keep rules for the tier ``tier``."""

    def write(*, runs: str = "*", tier: str = "tier", **keep: object) -> None:
        directory = home / "policies"
        directory.mkdir(exist_ok=True)
        told = {"policy": "ours", "runs": [runs], "keep": {tier: keep}, **FREE}
        (directory / "ours.yaml").write_text(json.dumps(told))

    return write


@pytest.fixture
def root(cli, tier: Path) -> Path:
    """A registered tier with the name ``tier``."""
    cli.done("tier", "add", "tier", tier, "--ingest")
    return tier


def gone(answer) -> set[tuple[str, str]]:
    """(run, checkpoint) of everything a plan would remove."""
    return {(one["run"], one["checkpoint"]) for one in answer.json["entries"]}


def names(run: str, *steps: int | str) -> set[tuple[str, str]]:
    return {(run, f"checkpoint-{step}") for step in steps}


def hf(run: Path, step: int, **state: object) -> Path:
    return write_hf_trainer(run / f"checkpoint-{step}", step, state=state)


def scored(run: Path, step: int, eval_loss: float | None) -> Path:
    entry = {"step": step, "epoch": 1.0}
    if eval_loss is not None:
        entry["eval_loss"] = eval_loss
    return hf(run, step, log_history=[entry])


def handpicked(directory: Path) -> None:
    directory.mkdir(parents=True)
    write_safetensors(directory / "model.safetensors", seed="handpicked")


def padded(root: Path) -> None:
    """Numbers of different width beside a name without any."""
    for name in ("020000", "100000", "0900000"):
        write_dcp(root / "padded" / name)
    handpicked(root / "padded/handpicked")


def test_numbers_order_checkpoints_not_the_text_of_their_names(cli, root, policy) -> None:
    for step in (*range(9000, 10000, 100), 10000, 10100):
        hf(root / "hf", step)
    handpicked(root / "hf/checkpoint-handpicked")
    padded(root)
    policy(last=3)
    cli.done("scan")
    assert cli.done("latest", "hf").path.name == "checkpoint-10100"
    assert cli.done("latest", "padded").path.name == "0900000"
    answer = cli.json("plan")
    assert gone(answer) == names("hf", *range(9000, 9900, 100))


def test_what_has_no_number_is_neither_counted_nor_removed(cli, root, policy) -> None:
    padded(root)
    policy(last=1)
    cli.done("scan")
    assert gone(cli.json("plan")) == {("padded", "020000"), ("padded", "100000")}


@pytest.mark.parametrize(("last", "going"), [(2, (100,)), (1, (100, 300))])
def test_the_best_is_kept_beside_the_newest(cli, root, policy, last: int, going: tuple) -> None:
    for step, loss in ((100, 0.5), (200, 0.3), (300, 0.4), (400, 0.45)):
        scored(root / "run", step, loss)
    policy(last=last, best=[{"metric": "eval_loss", "mode": "min"}])
    cli.done("scan")
    assert gone(cli.json("plan")) == names("run", *going)


def test_of_equally_good_ones_the_later_is_the_best(cli, root, policy) -> None:
    for step, loss in ((100, 0.3), (200, 0.3), (300, 0.5), (400, 0.5)):
        scored(root / "run", step, loss)
    policy(last=1, best=[{"metric": "eval_loss", "mode": "min"}])
    cli.done("scan")
    assert gone(cli.json("plan")) == names("run", 100, 300)


def test_the_recorded_best_is_found_by_its_name_in_this_run(cli, root, policy) -> None:
    for step in (100, 200, 300):
        hf(root / "moved", step, best_model_checkpoint="/old/cluster/run/checkpoint-200")
    policy(last=1, recorded_best=True)
    cli.done("scan")
    assert gone(cli.json("plan")) == names("moved", 100)


def test_a_recorded_best_that_is_gone_holds_no_slot(cli, root, policy) -> None:
    for step in (70000, 75000):
        hf(root / "gone", step, best_model_checkpoint="/old/run/checkpoint-35000")
    policy(last=1, recorded_best=True)
    cli.done("scan")
    answer = cli.json("plan")
    assert gone(answer) == names("gone", 70000)
    assert any("checkpoint-35000" in note["text"] for note in answer.json["notes"])


def test_nothing_outside_is_read_because_a_state_names_it(
    cli, root, policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside" / "checkpoint-100"
    hf(outside.parent, 100)
    for step in (100, 200, 300):
        hf(root / "run", step, best_model_checkpoint=str(outside))
    policy(last=1, recorded_best=True)
    cli.done("scan")
    before = outside.stat().st_atime_ns
    opened: list[str] = []
    real = os.open

    def watched(path, *rest, **more):
        opened.append(os.fsdecode(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", watched)
    assert gone(cli.json("plan")) == names("run", 200)
    assert not [path for path in opened if str(outside) in path]
    assert outside.stat().st_atime_ns == before


def test_a_resumed_run_takes_nothing_of_the_run_it_came_from(cli, root, policy) -> None:
    old = root / "run_old" / "epoch=1-step=100.ckpt"
    write_lightning(old, 100)
    told = {"best_model_path": str(old), "last_model_path": str(old)}
    for epoch, step in ((2, 150), (3, 200), (4, 250)):
        path = root / "run_new" / f"epoch={epoch}-step={step}.ckpt"
        write_lightning(path, step, callbacks={"ModelCheckpoint": told})
    policy(last=1)
    cli.done("scan")
    assert gone(cli.json("plan")) == {
        ("run_new", "epoch=2-step=150.ckpt"),
        ("run_new", "epoch=3-step=200.ckpt"),
    }
    assert "callbacks" in lightning_state(1)


def test_no_score_that_is_no_number_wins_or_blocks(cli, root, policy) -> None:
    losses = {100: float("nan"), 200: 0.5, 300: float("nan"), 400: 0.4, 500: 0.6, 600: None}
    for step, loss in losses.items():
        scored(root / "run", step, loss)
    policy(last=1, best=[{"metric": "eval_loss", "mode": "min"}])
    cli.done("scan")
    assert gone(cli.json("plan")) == names("run", 100, 200, 300, 500)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_without_any_usable_score_only_the_newest_counts(cli, root, policy, mode: str) -> None:
    for step, loss in ((100, float("nan")), (200, float("inf")), (300, None)):
        scored(root / "run", step, loss)
    policy(last=1, best=[{"metric": "eval_loss", "mode": mode}])
    cli.done("scan")
    answer = cli.json("plan")
    assert gone(answer) == names("run", 100, 200)
    assert any("eval_loss" in note["text"] for note in answer.json["notes"])


def test_times_of_files_make_nothing_old(cli, root, policy) -> None:
    hour_ns = 3600 * 10**9
    dated = {100: 1_000_000_000, 200: time.time_ns() + 2 * hour_ns, 300: time.time_ns()}
    for step, at_ns in dated.items():
        write_dcp(root / f"run/step-{step}", at_ns=at_ns)
    policy(within="7d")
    cli.done("scan")
    answer = cli.json("plan")
    assert gone(answer) == set()
    assert cli.done("latest", "run").path.name == "step-300"


def test_a_short_checkpoint_counts_for_nothing_and_takes_nothing_with_it(cli, root, policy) -> None:
    for step in (100, 200):
        write_dcp(root / f"run/step-{step}")
    write_dcp(root / "run/step-250")
    shard = root / "run/step-250/__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:100])
    policy(last=1)
    cli.done("scan")
    answer = cli.json("plan")
    assert gone(answer) == {("run", "step-100")}


def test_what_a_link_has_yet_to_carry_stays_where_it_is(cli, root, policy, tmp_path, home) -> None:
    nvme = tmp_path / "nvme"
    nvme.mkdir()
    cli.done("tier", "add", "nvme", nvme, "--scope", "node", "--node", "a", "--ingest")
    cli.done("tier", "link", "nvme", "tier", "--every", "1")
    for step in (100, 200, 300):
        write_dcp(nvme / f"run/step-{step}")
    cli.done("scan")
    policy(tier="nvme", last=1)
    assert gone(cli.json("plan")) == set()
    cli.done("flush", "run")
    assert gone(cli.json("plan")) == {("run", "step-100"), ("run", "step-200")}
    assert {one["action"] for one in cli.json("plan").json["entries"]} == {"evict"}


def test_a_checkpoint_that_went_away_by_itself_is_not_planned(cli, root, policy) -> None:
    for step in (100, 200, 300, 400):
        write_dcp(root / f"run/step-{step}")
    policy(last=2)
    cli.done("scan")
    shutil.rmtree(root / "run/step-100")
    assert gone(cli.json("plan")) == {("run", "step-200")}
