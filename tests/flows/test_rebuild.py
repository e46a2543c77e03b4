"""Storage is the truth: a deleted catalog comes back with the same answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckptgov.testing.builders import flip_bit, truncate, write_deepspeed, write_hf_trainer


@pytest.fixture
def runs(cli, tier: Path) -> Path:
    for step in (100, 200, 300):
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    truncate(write_hf_trainer(tier / "hf/checkpoint-400", 400) / "optimizer.pt", by_bytes=5)
    write_deepspeed(tier / "ds", 10, world_size=2)
    write_deepspeed(tier / "ds", 20, world_size=2, ranks=[0])
    for run in ("hf", "ds"):
        cli.done("scan", tier / run)
    return tier


def answers(cli) -> dict[str, object]:
    """Everything a user can ask, of both runs."""
    told = {}
    for run in ("hf", "ds"):
        for command in ("latest", "list"):
            answer = cli.json(command, run)
            told[command, run] = (answer.code, answer.json)
    return told


def test_a_rebuilt_catalog_answers_the_same(cli, runs: Path, forget_catalog) -> None:
    before = answers(cli)
    forget_catalog()
    cli.done("catalog", "rebuild")
    assert answers(cli) == before


def test_without_the_catalog_the_directories_answer_the_same(cli, runs, forget_catalog) -> None:
    before = [cli.json("latest", runs / run).json["path"] for run in ("hf", "ds")]
    forget_catalog()
    assert [cli.json("latest", runs / run).json["path"] for run in ("hf", "ds")] == before


def test_a_rollback_survives(cli, runs: Path, forget_catalog) -> None:
    cli.done("rollback", "hf", "--to", "200")
    forget_catalog()
    cli.done("catalog", "rebuild")
    assert cli.json("latest", "hf").json["step"] == 200


def test_a_mark_survives(cli, runs: Path, forget_catalog) -> None:
    cli.done("mark-bad", "hf", "--step", "300", "--reason", "nan")
    forget_catalog()
    cli.done("catalog", "rebuild")
    assert cli.json("latest", "hf").json["step"] == 200


def test_a_shard_that_changed_meanwhile_is_noticed(cli, runs: Path, forget_catalog) -> None:
    forget_catalog()
    flip_bit(runs / "hf/checkpoint-300/model.safetensors", -1, 0, keep_times=False)
    cli.done("catalog", "rebuild")
    assert cli.json("latest", "hf").json["step"] == 200


def test_rebuild_takes_roots_that_no_configuration_names(
    cli, runs: Path, home: Path, forget_catalog
) -> None:
    before = cli.json("latest", "hf").json
    forget_catalog()
    (home / "ckptgov.yaml").unlink()
    cli.done("catalog", "rebuild", runs / "hf")
    assert cli.json("latest", "hf").json == before


def test_check_agrees_after_a_scan_and_after_a_rebuild(cli, runs: Path, forget_catalog) -> None:
    cli.done("catalog", "check")
    forget_catalog()
    cli.done("catalog", "rebuild")
    cli.done("catalog", "check")


def test_check_finds_a_manifest_that_is_gone(cli, runs: Path) -> None:
    (manifest,) = (runs / "ds/.ckptgov/manifests").glob("*.json")
    manifest.unlink()
    checks = {check["name"]: check for check in cli.json("catalog", "check").json["checks"]}
    assert checks["hf"]["severity"] == "ok"
    assert checks["ds"]["severity"] != "ok"
    assert "global_step10" in checks["ds"]["text"]


def test_a_run_whose_checkpoints_are_all_gone_is_still_a_run(cli, sample, home) -> None:
    run = sample("dcp/single")
    cli.done("tier", "add", "t", run.parent, "--ingest")
    cli.done("scan")
    shutil.rmtree(run / "step_1")
    for path in ("single", run, run.parent):
        assert cli("latest", path).code == 5
    for file in home.glob("catalog.sqlite*"):
        file.unlink()
    cli.done("catalog", "rebuild")
    assert cli("latest", "single").code == 5


def test_a_run_without_a_checkpoint_yet_survives_a_rebuild(cli, tier, home) -> None:
    cli.done("tier", "add", "t", tier, "--ingest")
    cli.done("run", "create", "team/new", "--expect-glob", "step_*/r_*.pt", "--expect-count", "2")
    assert cli("latest", "team/new").code == 4
    for file in home.glob("catalog.sqlite*"):
        file.unlink()
    cli.done("catalog", "rebuild")
    assert cli("latest", "team/new").code == 4
