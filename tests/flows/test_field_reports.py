"""Reports from the field, as tests of what a user sees.

Each class is one public report (retold): its input in small, and the behaviour that is right. What
a report says of retention or of copying to other tiers is not tested here.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from pathlib import Path
from typing import ClassVar

import pytest

from ckptgov.testing.builders import (
    WRITTEN_AT_NS,
    Tensor,
    date_files,
    dcp_files,
    shift_times,
    truncate,
    write_dcp,
    write_deepspeed,
    write_hf_trainer,
    write_lightning,
    write_safetensors,
    write_torch_file,
    write_torch_shards,
    write_world_size_set,
)

HOUR_NS = 3600 * 10**9


@pytest.fixture(params=["directory", "run"])
def latest(request, cli):
    """``latest`` of a directory as it lies there, and of the run after a scan."""

    def ask(run: Path, *options: str):
        if request.param == "directory":
            return cli.json("latest", run, *options)
        cli.done("scan", run)
        return cli.json("latest", run.name, *options)

    return ask


def path_of(answer) -> Path:
    assert answer.code == 0, answer
    return Path(answer.json["path"])


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
        assert path_of(latest(trainer)) == trainer / "checkpoint-10100"

    def test_padding_of_another_width_does_not_change_the_order(self, latest, padded: Path) -> None:
        answer = latest(padded)
        assert path_of(answer) == padded / "0900000"
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


class TestPointerAheadOfTheData:
    """The trainer moved ``latest`` when the save began; a crash left it on a short one."""

    @pytest.fixture
    def dcp_run(self, tier: Path) -> Path:
        run = tier / "dcp_run"
        write_dcp(run / "step_100")
        short = dcp_files(seed="step_200")["__0_0.distcp"][:200]
        (run / "step_200").mkdir()
        (run / "step_200/__0_0.distcp").write_bytes(short)
        (run / "step_200/metadata.json").write_text('{"step": 200}')
        (run / "latest").symlink_to("step_200")
        return run

    @pytest.fixture
    def ds_run(self, tier: Path) -> Path:
        write_deepspeed(tier / "ds_run", 100, world_size=2)
        write_deepspeed(tier / "ds_run", 200, world_size=2, ranks=[0])
        return tier / "ds_run"

    def test_the_whole_one_is_handed_out(self, latest, dcp_run: Path) -> None:
        assert path_of(latest(dcp_run)) == dcp_run / "step_100"

    def test_the_answer_says_that_the_link_disagrees(self, latest, dcp_run: Path) -> None:
        assert "step_200" in latest(dcp_run).notes

    def test_a_tag_file_is_not_believed_either(self, latest, ds_run: Path) -> None:
        answer = latest(ds_run)
        assert path_of(answer) == ds_run / "global_step100"
        assert "global_step200" in answer.notes

    def test_the_missing_rank_is_named(self, latest, ds_run: Path) -> None:
        findings = latest(ds_run).findings("global_step200")
        assert any("zero_pp_rank_1_mp_rank_00_optim_states.pt" in f["path"] for f in findings)

    def test_a_save_that_finishes_becomes_latest(self, cli, dcp_run: Path) -> None:
        cli.done("scan", dcp_run)
        write_dcp(dcp_run / "step_200")
        cli.done("scan", dcp_run)
        assert cli("latest", "dcp_run").path == dcp_run / "step_200"

    def test_a_tag_that_finishes_becomes_latest(self, latest, ds_run: Path) -> None:
        write_deepspeed(ds_run, 200, world_size=2)
        assert path_of(latest(ds_run)) == ds_run / "global_step200"


class TestEmptyFilesAfterPowerOff:
    """Every expected name was there, every file was zero bytes long."""

    @pytest.fixture
    def run(self, tier: Path) -> Path:
        whole = write_hf_trainer(tier / "run/epoch418", 418, adapter=True)
        for name in ("epoch420", "epoch422"):
            (tier / "run" / name).mkdir()
            for path in whole.iterdir():
                (tier / "run" / name / path.name).touch()
            date_files(tier / "run" / name)
        return tier / "run"

    @pytest.fixture
    def flat(self, tier: Path) -> Path:
        directory = tier / "flat"
        write_torch_shards(directory, "checkpoint_5_100", range(4))
        empty, short, *_ = write_torch_shards(directory, "checkpoint_last", range(4))
        truncate(empty, to_bytes=0)
        truncate(short, by_bytes=90)
        write_torch_shards(directory, "checkpoint_5_200", range(2))
        write_torch_file(directory / "checkpoint_5_200-shard2.pt.tmp")
        return directory

    def test_the_one_with_bytes_is_latest(self, latest, run: Path) -> None:
        assert path_of(latest(run)) == run / "epoch418"

    @pytest.mark.parametrize("name", ["epoch420", "epoch422"])
    def test_the_reason_is_an_empty_file(self, cli, run: Path, name: str) -> None:
        findings = cli.json("latest", run).findings(name)
        assert any("empty" in f["evidence"] or "0 bytes" in f["evidence"] for f in findings)

    def test_shards_are_grouped_by_their_stem(self, latest, flat: Path) -> None:
        answer = latest(flat)
        assert answer.code == 0
        assert (answer.json["name"], answer.json["step"]) == ("checkpoint_5_100", 100)

    def test_an_empty_and_a_short_shard_are_named(self, cli, flat: Path) -> None:
        paths = {f["path"] for f in cli.json("list", flat).findings("checkpoint_last")}
        assert {"checkpoint_last-shard0.pt", "checkpoint_last-shard1.pt"} <= paths

    def test_a_shard_under_a_temporary_name_is_none(self, cli, flat: Path) -> None:
        answer = cli.json("latest", flat)
        assert answer.reasons("checkpoint_5_200")


class TestNodeLocalHalves:
    """Two nodes with disks of their own each hold the files of their ranks."""

    @pytest.fixture
    def nodes(self, tmp_path: Path) -> Path:
        root = tmp_path / "nvme"
        write_half(root / "node0", 2, [0, 1])
        write_half(root / "node1", 1, [2, 3])
        write_half(root / "node1", 2, [2, 3])
        return root

    @pytest.fixture
    def both(self, cli, nodes: Path) -> Path:
        for node in ("node0", "node1"):
            add_node(cli, nodes, node)
        cli.done("scan")
        return nodes

    def test_one_node_alone_is_half_a_checkpoint(self, cli, nodes: Path) -> None:
        add_node(cli, nodes, "node0")
        cli("scan")
        answer = cli.json("latest", "run")
        assert answer.code == 5
        assert "missing-shard" in answer.reasons("checkpoint-2")

    def test_the_parts_that_are_elsewhere_are_named(self, cli, nodes: Path) -> None:
        findings = cli.json("latest", nodes / "node0/run").findings("checkpoint-2")
        missing = {f["path"] for f in findings if f["reason"] == "missing-shard"}
        assert any(path.endswith("zero_pp_rank_3_mp_rank_00_optim_states.pt") for path in missing)

    def test_two_halves_of_one_save_are_a_checkpoint(self, cli, both: Path) -> None:
        answer = cli.json("latest", "run")
        assert answer.code == 0
        assert (answer.json["step"], answer.json["world_size"]) == (2, 4)

    def test_the_answer_lists_where_each_shard_is(self, cli, both: Path) -> None:
        held = {c["node"]: set(c["shards"]) for c in cli.json("latest", "run").json["copies"]}
        folder = "global_step2/zero_pp_rank_{}_mp_rank_00_optim_states.pt"
        for node, here, elsewhere in (("node0", 1, 2), ("node1", 2, 1)):
            assert folder.format(here) in held[node]
            assert folder.format(elsewhere) not in held[node]

    @pytest.mark.parametrize("node", ["node0", "node1"])
    def test_every_node_is_told_the_same_step_on_its_own_disk(self, cli, both, node: str) -> None:
        answer = cli.json("latest", "run", "--node", node)
        assert path_of(answer) == both / node / "run/checkpoint-2"

    def test_what_one_node_alone_still_has_is_not_restorable(self, cli, both: Path) -> None:
        assert "missing-shard" in cli.json("list", "run").reasons("checkpoint-1")

    def test_halves_with_different_common_files_are_not_one_save(self, cli, nodes: Path) -> None:
        model = nodes / "node1/run/checkpoint-2/global_step2/mp_rank_00_model_states.pt"
        write_torch_file(model, model_states(2, world_size=4), seed="another save")
        for node in ("node0", "node1"):
            add_node(cli, nodes, node)
        cli("scan")
        assert cli.json("latest", "run").code == 5

    def test_halves_written_an_hour_apart_are_not_one_save(self, cli, nodes: Path) -> None:
        half = nodes / "node1/run/checkpoint-2"
        shift_times(half, newest_at_ns=WRITTEN_AT_NS + HOUR_NS)
        for node in ("node0", "node1"):
            add_node(cli, nodes, node)
        cli("scan")
        assert cli.json("latest", "run").code == 5


def write_half(node: Path, step: int, ranks: list[int]) -> None:
    """What a node's own disk gets of a HF Trainer save with DeepSpeed inside."""
    directory = node / f"run/checkpoint-{step}"
    write_hf_trainer(directory, step, world_size=4, optimizer=False, rng_ranks=ranks)
    write_deepspeed(directory, step, world_size=4, bf16=False, ranks=ranks)
    date_files(directory, "latest", "trainer_state.json")


def model_states(step: int, *, world_size: int) -> dict[str, object]:
    return {
        "module": OrderedDict({"weight": Tensor()}),
        "global_steps": step,
        "dp_world_size": world_size,
        "mp_world_size": 1,
    }


def add_node(cli, nodes: Path, node: str) -> None:
    cli.done("tier", "add", "nvme", nodes / node, "--scope", "node", "--node", node, "--ingest")


class TestRetentionEvictedTheBest:
    """The best by metric is not the newest, and ``latest`` never means the best."""

    def test_latest_is_the_newest_whatever_the_metrics_say(self, latest, tier: Path) -> None:
        for step, loss in ((100, 0.5), (200, 0.3), (300, 0.4)):
            log = [{"eval_loss": loss, "step": step}]
            state = {"best_metric": 0.3, "log_history": log}
            write_hf_trainer(tier / f"run/checkpoint-{step}", step, state=state)
        assert path_of(latest(tier / "run")) == tier / "run/checkpoint-300"


class TestStagingDirectoriesLeftBehind:
    """Only the first rank renamed ``tmp-checkpoint-N``; others kept theirs."""

    @pytest.fixture
    def nodes(self, tier: Path) -> Path:
        write_hf_trainer(tier / "node0/run/checkpoint-50", 50)
        write_hf_trainer(tier / "node0/run/tmp-checkpoint-s0yubqtr", 55)
        write_hf_trainer(tier / "node0/run/tmp-checkpoint-60", 60, at_ns=None)
        write_torch_file(tier / "node1/run/tmp-checkpoint-50/optimizer.pt")
        write_torch_file(tier / "node1/run/tmp-checkpoint-50/rng_state_1.pth")
        return tier

    def test_a_whole_looking_staging_directory_is_not_latest(self, latest, nodes: Path) -> None:
        run = nodes / "node0/run"
        assert path_of(latest(run)) == run / "checkpoint-50"

    def test_staging_alone_gives_no_checkpoint(self, cli, nodes: Path) -> None:
        assert cli.json("latest", nodes / "node1/run").code in {4, 5}

    def test_a_staging_directory_cannot_be_asked_for(self, cli, nodes: Path) -> None:
        answer = cli.json("latest", nodes / "node0/run/tmp-checkpoint-s0yubqtr")
        assert answer.code in {4, 5}

    def test_scan_tells_the_bytes_staging_holds(self, cli, nodes: Path) -> None:
        scanned = cli.json("scan", nodes / "node0/run").json["runs"][0]
        held = {entry["path"]: entry["bytes"] for entry in scanned["staging"]}
        assert set(held) == {"tmp-checkpoint-60", "tmp-checkpoint-s0yubqtr"}
        assert all(count > 1000 for count in held.values())

    def test_an_old_orbax_suffix_with_a_time_is_staging(self, latest, sample) -> None:
        run = sample("orbax/atomic-rename")
        (run / "1").rename(run / "100")
        (run / "2").rename(run / "200.orbax-checkpoint-tmp-1700000000")
        assert path_of(latest(run)) == run / "100"


class TestOldMarkerVouchesForNewShards:
    """A fresh run wrote into a step whose completion marker was still there."""

    SHARD = "__0_0.distcp"

    @pytest.fixture
    def run(self, cli, tier: Path) -> Path:
        for step in (200, 300):
            directory = write_dcp(tier / f"run/step-{step}", seed=f"A{step}")
            (directory / ".complete").touch()
            date_files(directory, ".metadata", ".complete")
        cli.done("scan", tier / "run")
        return tier / "run"

    @pytest.fixture
    def overwritten(self, run: Path) -> Path:
        shard = run / "step-300" / self.SHARD
        before = shard.stat().st_size
        shard.write_bytes(dcp_files(seed="B300")[self.SHARD])
        assert shard.stat().st_size == before
        return run

    def test_the_sealed_one_is_latest(self, cli, run: Path) -> None:
        assert cli("latest", "run").path == run / "step-300"

    def test_latest_steps_back_without_any_scan(self, cli, overwritten: Path) -> None:
        answer = cli.json("latest", "run")
        assert path_of(answer) == overwritten / "step-200"
        assert "re-opened" in answer.reasons("step-300")

    def test_the_directory_is_answered_alike(self, cli, overwritten: Path) -> None:
        assert cli("latest", overwritten).path == overwritten / "step-200"

    def test_scan_alone_notices_the_change(self, cli, overwritten: Path) -> None:
        scanned = cli.json("scan", overwritten)
        assert scanned.entries("step-300")[0]["state"] != "restorable"
        assert cli("latest", "run").path == overwritten / "step-200"

    def test_verify_names_the_changed_shard(self, cli, overwritten: Path) -> None:
        answer = cli.json("verify", overwritten / "step-300")
        assert answer.code == 5
        assert any(self.SHARD in f["path"] for f in answer.findings("step-300"))

    def test_it_stays_refused_after_verify(self, cli, overwritten: Path) -> None:
        cli("verify", "run")
        assert cli("latest", "run").path == overwritten / "step-200"

    def test_the_bytes_put_back_are_accepted_after_verify(self, cli, overwritten: Path) -> None:
        (overwritten / "step-300" / self.SHARD).write_bytes(dcp_files(seed="A300")[self.SHARD])
        date_files(overwritten / "step-300", ".metadata", ".complete")
        cli.done("verify", "run")
        assert cli("latest", "run").path == overwritten / "step-300"


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
        assert path_of(latest(run)) == run / "epoch=2-step=200.ckpt"

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
        assert path_of(latest(tier / "gone")) == tier / "gone/checkpoint-75000"

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
        assert path_of(latest(run)) == run / "step-300"

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
        assert path_of(latest(ds_run, "--world-size", "4")) == ds_run / "global_step100"

    def test_another_number_is_refused_and_what_exists_is_named(self, latest, ds_run) -> None:
        answer = latest(ds_run, "--world-size", "6")
        assert answer.code == 5
        assert answer.reasons("global_step100") == ["does-not-fit"]

    def test_a_format_that_reshards_fits_any(self, latest, tier: Path) -> None:
        write_dcp(tier / "dcp_run/step-90", ranks=2)
        answer = latest(tier / "dcp_run", "--world-size", "6")
        assert path_of(answer) == tier / "dcp_run/step-90"
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
