"""Reports from the field, as tests of what a user sees: saves that were not whole.

Each class is one public report (retold): its input in small, and the behaviour that is right. What
a report says of retention or of copying to other tiers is not tested here.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

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
    write_torch_file,
    write_torch_shards,
)

HOUR_NS = 3600 * 10**9


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
        assert latest(dcp_run).chosen == dcp_run / "step_100"

    def test_the_answer_says_that_the_link_disagrees(self, latest, dcp_run: Path) -> None:
        assert "step_200" in latest(dcp_run).notes

    def test_a_tag_file_is_not_believed_either(self, latest, ds_run: Path) -> None:
        answer = latest(ds_run)
        assert answer.chosen == ds_run / "global_step100"
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
        assert latest(ds_run).chosen == ds_run / "global_step200"


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
        assert latest(run).chosen == run / "epoch418"

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
        assert answer.chosen == both / node / "run/checkpoint-2"

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
        assert latest(run).chosen == run / "checkpoint-50"

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
        assert latest(run).chosen == run / "100"


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
        assert answer.chosen == overwritten / "step-200"
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
