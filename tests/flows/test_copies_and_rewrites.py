"""What happens to sealed checkpoints: copied elsewhere, rewritten in place, deleted, restored."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ckptgov.testing.builders import WRITTEN_AT_NS, write_torch_file, write_world_size_set


def rewrite(directory: Path, source: Path) -> None:
    """Save again in place, as a trainer does: every file rewritten, the marker last."""
    names = sorted(path.name for path in source.iterdir() if path.name != ".metadata")
    for name in [*names, ".metadata"]:
        (directory / name).write_bytes((source / name).read_bytes())
        time.sleep(0.02)


@pytest.mark.parametrize("flags", ["-r", "-a"])
def test_a_copied_tree_is_answered_by_structure_and_not_as_a_run(
    cli, sample, tmp_path: Path, flags: str
) -> None:
    run = sample("dcp/single")
    cli.done("scan", run)
    copy = tmp_path / "elsewhere"
    subprocess.run(["cp", flags, str(run), str(copy)], check=True)
    answer = cli.json("latest", copy)
    assert (answer.code, answer.json["evidence"]) == (0, "structure"), answer
    assert "came here with a copy" in answer.notes
    assert cli("latest", copy, "--evidence", "digest").code == 5
    assert cli.json("latest", run).json["evidence"] == "digest"


def test_a_copied_tree_with_a_short_shard_is_refused_by_the_manifests_sizes(
    cli, sample, tmp_path: Path
) -> None:
    run = sample("torchsnapshot/2rank")
    cli.done("scan", run)
    copy = tmp_path / "elsewhere"
    shutil.copytree(run, copy)
    shard = max((copy / "step_1").rglob("*"), key=lambda path: path.stat().st_size)
    os.truncate(shard, shard.stat().st_size - 1)
    answer = cli.json("latest", copy)
    assert answer.code == 5
    assert "short" in answer.findings("step_1")[0]["evidence"]


def test_verifying_the_copy_gives_it_receipts_of_its_own(cli, sample, tmp_path: Path) -> None:
    run = sample("dcp/single")
    cli.done("scan", run)
    copy = tmp_path / "elsewhere"
    shutil.copytree(run, copy)
    cli.done("verify", copy)
    assert cli.json("latest", copy).json["evidence"] == "digest"


class TestRewrittenInPlace:
    def test_a_whole_new_save_becomes_the_next_attempt(self, cli, sample) -> None:
        run = sample("dcp/fsdp2-4rank")
        cli.done("scan", run)
        first = cli.json("latest", run).json["content_id"]
        other = sample("dcp-torn/rank2-killed-midshard") / "step_1"
        rewrite(run / "step_2", other)
        assert cli("latest", run).code == 5
        cli.done("scan")
        answer = cli.json("latest", run)
        assert answer.json["evidence"] == "digest"
        assert answer.json["content_id"] != first
        assert answer.json["attempt"] == 1
        cli.done("verify", run)

    def test_one_changed_shard_stays_re_opened(self, cli, sample) -> None:
        run = sample("dcp/fsdp2-4rank")
        cli.done("scan", run)
        shard = run / "step_2" / "__1_0.distcp"
        shard.write_bytes(shard.read_bytes())
        cli.done("scan")
        answer = cli.json("latest", run)
        assert answer.code == 5
        assert answer.reasons("step_2") == ["re-opened"]

    def test_the_same_bytes_again_are_whole_after_a_verification(self, cli, sample) -> None:
        run = sample("dcp/fsdp2-4rank")
        cli.done("scan", run)
        shard = run / "step_2" / "__1_0.distcp"
        shard.write_bytes(shard.read_bytes())
        cli.done("verify", run)
        assert cli.json("latest", run).json["evidence"] == "digest"


class TestDeletedByItsTrainer:
    def test_the_next_one_is_offered_and_the_loss_recorded(self, cli, sample) -> None:
        run = sample("megatron/core-torch_dist")
        cli.done("scan", run)
        shutil.rmtree(run / "iter_0000200")
        assert cli("latest", "core-torch_dist").path == run / "iter_0000100"
        answer = cli.json("scan")
        assert answer.json["runs"][0]["lost"] == ["iter_0000200"]
        assert cli.json("scan").json["runs"][0]["lost"] == []
        assert cli.json("list", "core-torch_dist").names == ["iter_0000100"]
        assert "agree" in cli("catalog", "check").out

    def test_all_deleted_is_none_restorable_and_never_never_any(self, cli, sample) -> None:
        run = sample("dcp/single")
        cli.done("scan", run)
        shutil.rmtree(run / "step_1")
        assert cli("latest", run).code == 5
        cli.done("scan")
        assert cli("latest", run).code == 5
        assert cli("latest", "single").code == 5

    def test_one_that_is_put_back_is_offered_after_a_scan(self, cli, sample, tmp_path) -> None:
        run = sample("dcp/single")
        cli.done("scan", run)
        shutil.move(run / "step_1", tmp_path / "aside")
        cli.done("scan")
        shutil.copytree(tmp_path / "aside", run / "step_1")
        cli.done("verify", run)
        assert cli.json("latest", run).json["evidence"] == "digest"


class TestADirectoryThatIsItsTrainersOwn:
    """accelerate reads a number out of every name in ``checkpoints``, and fails without one."""

    @pytest.mark.parametrize("named", ["ddp2", "ddp2/checkpoints", "ddp2/checkpoints/checkpoint_1"])
    def test_nothing_of_ours_is_written_into_it(self, cli, sample, named: str) -> None:
        project = sample("accelerate/ddp2")
        checkpoints = project / "checkpoints"
        before = sorted(os.listdir(checkpoints))
        cli.done("scan", project.parent / named)
        assert sorted(os.listdir(checkpoints)) == before
        assert cli.json("latest", checkpoints).json["evidence"] == "digest"
        assert cli("latest", "checkpoints").path == checkpoints / "checkpoint_1"
        cli.done("rollback", "checkpoints", "--to", "1")
        assert sorted(os.listdir(checkpoints)) == before

    def test_it_is_refused_as_a_tier(self, cli, sample) -> None:
        checkpoints = sample("accelerate/ddp2") / "checkpoints"
        answer = cli("tier", "add", "t", checkpoints)
        assert answer.code == 2
        assert "name the directory above it" in answer.err

    def test_its_catalog_is_rebuilt_from_above(self, cli, sample, home: Path) -> None:
        project = sample("accelerate/ddp2")
        cli.done("scan", project)
        before = cli.json("latest", "checkpoints").json
        for file in home.glob("catalog.sqlite*"):
            file.unlink()
        cli.done("catalog", "rebuild")
        assert cli.json("latest", "checkpoints").json == before


@pytest.mark.parametrize("is_rewritten", [False, True])
@pytest.mark.parametrize("ranks", [(8, 16), (16, 8), (2, 4)])
def test_what_is_left_of_the_ranks_before_is_no_newer_save(
    cli, tier: Path, ranks: tuple[int, int], is_rewritten: bool
) -> None:
    """Restarted on another number of ranks, a trainer saves the step again into the same directory;
    the file that all of them load belongs to the new set then."""
    directory = tier / "verl/global_step_10"
    directory.mkdir(parents=True)
    for turn, count in enumerate(ranks):
        at_ns = WRITTEN_AT_NS + turn * 10**12
        write_world_size_set(directory, "model", count, at_ns=at_ns)
        if turn == 0 or is_rewritten:
            write_torch_file(directory / "data.pt", at_ns=at_ns)
        cli.done("scan", tier / "verl")
        cli.done("scan", tier / "verl")
    told = cli.json("list", tier / "verl").json["checkpoints"]
    sealed = [one["world_size"] for one in told if one["content_id"]]
    assert sorted(sealed) == sorted(ranks)
    latest = cli.json("latest", tier / "verl", "--evidence", "digest")
    assert latest.json["world_size"] == ranks[1]
    manifests = [
        json.loads(path.read_bytes()) for path in (tier / "verl").glob(".ckptgov/manifests/*.json")
    ]
    (newest,) = [one for one in manifests if one["content_id"] == latest.json["content_id"]]
    assert "data.pt" in {shard["path"] for shard in newest["shards"]}
