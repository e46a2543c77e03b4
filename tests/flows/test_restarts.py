"""One answer per restart: the first decision is a record that every other rank reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ckptgov.testing.builders import write_dcp


@pytest.fixture
def run(cli, tier: Path) -> Path:
    """A sealed run with steps 100 and 200."""
    for step in (100, 200):
        write_dcp(tier / f"run/step_{step}")
    cli.done("scan", tier / "run")
    return tier / "run"


@pytest.fixture(params=["directory", "run"])
def ask(request, cli, run: Path) -> Callable:
    """Asks for the start point of a restart, by directory and by name."""
    where = run if request.param == "directory" else "run"
    return lambda restart: cli.json("latest", where, "--restart-id", restart)


def test_the_first_to_ask_decides(ask) -> None:
    first, second = ask("slurm-7.0"), ask("slurm-7.0")
    assert first.json["restart"] == {"restart_id": "slurm-7.0", "epoch": 0, "decided_here": True}
    assert second.json["restart"]["decided_here"] is False
    assert first.json["path"] == second.json["path"]


def test_a_newer_save_does_not_change_a_decision(cli, run: Path, ask) -> None:
    decided = ask("a")
    write_dcp(run / "step_300")
    cli.done("scan", run)
    assert ask("a").json["path"] == decided.json["path"]
    assert ask("b").json["step"] == 300


def test_a_decision_is_kept_when_the_step_is_marked_bad_later(cli, ask) -> None:
    ask("a")
    cli.done("mark-bad", "run", "--step", "200", "--reason", "nan")
    assert ask("b").json["step"] == 100


@pytest.mark.parametrize("outcome", ["missing", "corrupt", "load-failed"])
def test_what_does_not_load_is_stepped_over_in_the_next_epoch(cli, ask, outcome: str) -> None:
    assert ask("a").json["step"] == 200
    cli.done("report", "run", "--restart-id", "a", "--outcome", outcome)
    again = ask("a").json
    assert (again["step"], again["restart"]["epoch"]) == (100, 1)


@pytest.mark.parametrize("outcome", ["started", "failed-later"])
def test_a_crash_for_another_reason_never_steps_back(cli, ask, outcome: str) -> None:
    ask("a")
    cli.done("report", "run", "--restart-id", "a", "--outcome", outcome)
    assert ask("a").json["restart"]["epoch"] == 0
    assert ask("b").json["step"] == 200


def test_another_restart_steps_over_what_did_not_load(cli, ask) -> None:
    ask("a")
    cli.done("report", "run", "--restart-id", "a", "--outcome", "load-failed")
    answer = ask("b")
    assert answer.json["step"] == 100
    assert answer.json["passed_over"]


def test_a_decision_outlives_the_catalog(cli, ask, run: Path, forget_catalog) -> None:
    decided = ask("a").json["path"]
    write_dcp(run / "step_300")
    forget_catalog()
    cli.done("catalog", "rebuild")
    assert ask("a").json["path"] == decided


def test_a_decision_that_does_not_decode_is_9(ask, run: Path) -> None:
    ask("a")
    (record,) = (run / ".ckptgov/journal").glob("restart.*.json")
    record.chmod(0o644)
    record.write_bytes(record.read_bytes()[:-20])
    assert ask("a").code == 9


def test_where_other_ranks_cannot_see_the_record_is_9(cli, tmp_path: Path) -> None:
    write_dcp(tmp_path / "nvme/run/step_1")
    words = ("--scope", "node", "--node", "node0", "--ingest")
    cli.done("tier", "add", "nvme", tmp_path / "nvme", *words)
    cli.done("scan")
    assert cli("latest", "run").code == 0
    assert cli.json("latest", "run", "--restart-id", "a").code == 9
