"""Reports from the field, as tests of what a user sees: names, links, times, sizes.

Each class is one public report (retold): its input in small, and the behaviour that is right. What
a report says of retention or of copying to other tiers is not tested here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

import pytest

from ckptgov.testing.builders import (
    Tensor,
    date_files,
    shift_times,
    write_dcp,
    write_deepspeed,
    write_hf_trainer,
    write_lightning,
    write_safetensors,
    write_torch_file,
    write_world_size_set,
)

HOUR_NS = 3600 * 10**9


class TestStepNamesComparedAsText:
    """Text order put step_500 above step_2500, and an unnumbered directory above all."""

    @pytest.fixture
    def padded(self, tier: Path) -> Path:
        for name in ("020000", "100000", "0900000"):
            write_dcp(tier / "padded" / name)
        write_safetensors(tier / "padded/handpicked/model.safetensors")
        return tier / "padded"

    @pytest.fixture
    def trainer(self, tier: Path) -> Path:
        for step in (9900, 10000, 10100):
            write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
        write_safetensors(tier / "hf/checkpoint-handpicked/model.safetensors")
        return tier / "hf"

    def test_five_digits_are_newer_than_four(self, latest, trainer: Path) -> None:
        assert latest(trainer).chosen == trainer / "checkpoint-10100"

    def test_padding_of_another_width_does_not_change_the_order(self, latest, padded: Path) -> None:
        answer = latest(padded)
        assert answer.chosen == padded / "0900000"
        assert answer.json["step"] == 900000

    def test_an_unnumbered_sibling_is_listed_and_has_no_step(self, cli, trainer: Path) -> None:
        cli.done("scan", trainer)
        listed = cli.json("list", "hf")
        named = {e["name"]: e["step"] for e in listed.json["checkpoints"]}
        assert [step for name, step in named.items() if "handpicked" in name] == [None]

    @pytest.mark.parametrize("purpose", ["resume", "weights"])
    def test_an_unnumbered_one_alone_is_never_latest(self, cli, tier: Path, purpose: str) -> None:
        write_safetensors(tier / "hf/checkpoint-handpicked/model.safetensors")
        answer = cli.json("latest", tier / "hf", "--purpose", purpose)
        assert answer.code in {4, 5}


class TestRetentionEvictedTheBest:
    """The best by metric is not the newest, and ``latest`` never means the best."""

    def test_latest_is_the_newest_whatever_the_metrics_say(self, latest, tier: Path) -> None:
        for step, loss in ((100, 0.5), (200, 0.3), (300, 0.4)):
            log = [{"eval_loss": loss, "step": step}]
            state = {"best_metric": 0.3, "log_history": log}
            write_hf_trainer(tier / f"run/checkpoint-{step}", step, state=state)
        assert latest(tier / "run").chosen == tier / "run/checkpoint-300"


class TestLastIsALink:
    """``last.ckpt`` linked to itself, to a file that was gone, or to the newest one."""

    TARGETS: ClassVar = {
        "loop": "last.ckpt",
        "good": "epoch=2-step=200.ckpt",
        "dangling": "gone.ckpt",
    }

    @pytest.fixture(params=sorted(TARGETS))
    def run(self, request, tier: Path) -> Path:
        directory = tier / request.param
        write_lightning(directory / "epoch=1-step=100.ckpt", 100)
        write_lightning(directory / "epoch=2-step=200.ckpt", 200)
        (directory / "last.ckpt").symlink_to(self.TARGETS[request.param])
        return directory

    def test_the_file_of_the_highest_step_is_latest(self, latest, run: Path) -> None:
        assert latest(run).chosen == run / "epoch=2-step=200.ckpt"

    def test_the_link_is_no_second_checkpoint(self, cli, run: Path) -> None:
        cli.done("scan", run)
        names = cli.json("list", run.name).names
        assert sorted(names) == ["epoch=1-step=100.ckpt", "epoch=2-step=200.ckpt"]

    def test_a_link_that_leads_nowhere_is_reported(self, cli, run: Path) -> None:
        if run.name != "good":
            assert "last.ckpt" in cli.json("scan", run).notes


class TestRecordedPathOfAnotherMachine:
    """The trainer's state names its best checkpoint by a path that is not this run's."""

    def test_a_dead_path_changes_nothing(self, latest, tier: Path) -> None:
        for step in (70000, 75000):
            state = {"best_model_checkpoint": "/old/run/checkpoint-35000", "best_metric": 0.2}
            write_hf_trainer(tier / f"gone/checkpoint-{step}", step, state=state)
        assert latest(tier / "gone").chosen == tier / "gone/checkpoint-75000"

    def test_a_live_path_outside_is_no_part_of_the_run(self, cli, tier: Path, tmp_path) -> None:
        outside = write_hf_trainer(tmp_path / "outside/checkpoint-999", 999)
        state = {"best_model_checkpoint": str(outside), "best_metric": 0.2}
        write_hf_trainer(tier / "moved/checkpoint-300", 300, state=state)
        scanned = cli.json("scan", tier / "moved")
        assert scanned.names == ["checkpoint-300"]
        assert not (tmp_path / "outside/.ckptgov").exists()


class TestSlashInAMetricName:
    """``val/loss`` in a file name put each checkpoint one directory deeper."""

    @pytest.fixture
    def run(self, tier: Path) -> Path:
        run = tier / "run"
        write_lightning(run / "epoch=1-step=100-val/loss=0.41.ckpt", 100)
        write_lightning(run / "epoch=2-step=200-val/loss=0.31.ckpt", 200)
        weights = {"meta": {"iter": 250}, "state_dict": {"weight": Tensor()}}
        write_torch_file(run / "best_top10/acc_step_250.pth", weights)
        (run / "notes").mkdir()
        (run / "notes/readme.txt").write_text("keep me")
        return run

    def test_all_are_one_run_with_their_steps(self, cli, run: Path) -> None:
        scanned = cli.json("scan", run).json
        assert len(scanned["runs"]) == 1
        found = {entry["name"]: entry["step"] for entry in scanned["runs"][0]["checkpoints"]}
        assert found == {
            "epoch=1-step=100-val/loss=0.41.ckpt": 100,
            "epoch=2-step=200-val/loss=0.31.ckpt": 200,
            "best_top10/acc_step_250.pth": 250,
        }

    def test_nothing_else_in_the_run_is_touched(self, cli, run: Path) -> None:
        cli.done("scan", run)
        assert (run / "notes/readme.txt").read_text() == "keep me"
        assert {p.name for p in (run / "notes").iterdir()} == {"readme.txt"}


class TestFilesOfAnotherRun:
    """The saved callback state of a resumed run lists the files of the run it came from."""

    @pytest.fixture
    def runs(self, tier: Path) -> Path:
        old = write_lightning(tier / "run_old/ckpt/epoch=1-step=100.ckpt", 100)
        listed = {"dirpath": str(old.parent), "best_model_path": str(old)}
        for epoch, step in ((2, 150), (3, 200), (4, 250)):
            path = tier / f"run_new/ckpt/epoch={epoch}-step={step}.ckpt"
            write_lightning(path, step, callbacks={"ModelCheckpoint": listed})
        return tier

    def test_each_run_has_its_own_latest(self, cli, runs: Path) -> None:
        for name, file in (("new", "epoch=4-step=250.ckpt"), ("old", "epoch=1-step=100.ckpt")):
            directory = runs / f"run_{name}"
            cli.done("scan", directory, "--run", name)
            assert cli("latest", name).path == directory / "ckpt" / file

    def test_the_listed_file_is_not_counted_to_the_new_run(self, cli, runs: Path) -> None:
        cli.done("scan", runs / "run_new", "--run", "new")
        assert "epoch=1-step=100.ckpt" not in cli.json("list", "new").names
        assert not list((runs / "run_old").rglob(".ckptgov*"))

    def test_a_name_that_is_taken_asks_for_another(self, cli, runs: Path) -> None:
        cli.done("scan", runs / "run_new")  # both run roots are called "ckpt"
        answer = cli("scan", runs / "run_old")
        assert answer.code == 2
        assert "--run" in answer.err

    def test_the_directory_above_both_is_ambiguous(self, cli, runs: Path) -> None:
        answer = cli("latest", runs)
        assert answer.code == 12
        assert "run_old" in answer.err
        assert "run_new" in answer.err


class TestClocksThatDisagree:
    """File times from 1970, from two hours ahead and of a node three hours ahead."""

    @pytest.fixture
    def run(self, tier: Path) -> Path:
        now = time.time_ns()
        for step, newest_at in ((100, 0), (200, now + 2 * HOUR_NS), (300, now - 24 * HOUR_NS)):
            directory = write_dcp(tier / f"run/step-{step}")
            shift_times(directory, newest_at_ns=newest_at)
        date_files(tier / "run/step-100", at_ns=0)
        for seconds, name in enumerate(("__1_0.distcp", ".metadata")):
            at = now + 3 * HOUR_NS + seconds * 10**9
            os.utime(tier / "run/step-300" / name, ns=(at, at))
        return tier / "run"

    def test_the_highest_step_is_latest_at_once(self, latest, run: Path) -> None:
        assert latest(run).chosen == run / "step-300"

    def test_all_three_are_restorable(self, cli, run: Path) -> None:
        cli.done("scan", run)
        entries = cli.json("list", "run").json["checkpoints"]
        assert {entry["name"]: entry["state"] for entry in entries} == {
            f"step-{step}": "restorable" for step in (100, 200, 300)
        }

    def test_times_in_the_future_are_reported(self, cli, run: Path) -> None:
        notes = cli.json("scan", run).notes
        assert "step-200" in notes
        assert "step-300" in notes
        assert "step-100" not in notes


class TestAnotherNumberOfWorkers:
    """The newest checkpoint was cut for another world size than the launch has."""

    @pytest.fixture
    def ds_run(self, tier: Path) -> Path:
        write_deepspeed(tier / "ds_run", 100, world_size=4, bf16=True)
        return tier / "ds_run"

    @pytest.fixture
    def verl_run(self, tier: Path) -> Path:
        actor = tier / "verl_run/global_step_50/actor"
        write_world_size_set(actor, "model", 4)
        write_world_size_set(actor, "optim", 4)
        write_world_size_set(actor, "model", 8, ranks=range(4))
        return tier / "verl_run"

    def test_the_answer_states_the_saved_world_size(self, latest, ds_run: Path) -> None:
        answer = latest(ds_run).json
        assert (answer["world_size"], answer["reshardable"]) == (4, False)

    def test_the_same_number_fits(self, latest, ds_run: Path) -> None:
        assert latest(ds_run, "--world-size", "4").chosen == ds_run / "global_step100"

    def test_another_number_is_refused_and_what_exists_is_named(self, latest, ds_run) -> None:
        answer = latest(ds_run, "--world-size", "6")
        assert answer.code == 5
        assert answer.reasons("global_step100") == ["does-not-fit"]

    def test_a_format_that_reshards_fits_any(self, latest, tier: Path) -> None:
        write_dcp(tier / "dcp_run/step-90", ranks=2)
        answer = latest(tier / "dcp_run", "--world-size", "6")
        assert answer.chosen == tier / "dcp_run/step-90"
        assert answer.json["reshardable"] is True

    def test_two_sets_in_one_directory_are_told_apart(self, latest, verl_run: Path) -> None:
        answer = latest(verl_run, "--world-size", "4")
        assert answer.code == 0
        assert (answer.json["step"], answer.json["world_size"]) == (50, 4)

    def test_half_a_set_is_not_completed_by_another_one(self, latest, verl_run: Path) -> None:
        assert latest(verl_run, "--world-size", "8").code == 5

    def test_a_whole_file_of_a_wrong_size_set_never_hides_the_right_one(
        self, latest, verl_run: Path
    ) -> None:
        answer = latest(verl_run)
        assert (answer.code, answer.json["world_size"]) == (0, 4)
