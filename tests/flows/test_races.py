"""Several processes at once: one checkpoint is sealed once, one restart is decided once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptgov.catalog.catalog import Catalog
from ckptgov.ops import scan
from ckptgov.testing.builders import write_dcp

Spawn = Callable[..., "subprocess.Popen[bytes]"]


def together(spawn: Spawn, *commands: tuple[str | Path, ...]) -> list[tuple[int, bytes, bytes]]:
    """Start all commands, then wait for all: exit code, stdout and stderr of each."""
    started = [spawn(*words) for words in commands]
    outputs = [process.communicate(timeout=120) for process in started]
    codes = [process.returncode for process in started]
    return [(code, *output) for code, output in zip(codes, outputs, strict=True)]


@pytest.mark.parametrize("command", ["commit", "scan"])
def test_two_sealing_one_checkpoint_give_one_manifest(
    cli, spawn: Spawn, tier: Path, command: str
) -> None:
    directory = write_dcp(tier / "run/step_1", rows=200)
    words = (command, directory if command == "commit" else directory.parent)
    ended = together(spawn, words, words)
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert len(list((tier / "run/.ckptgov/manifests").iterdir())) == 1
    assert len(list((tier / "run/.ckptgov").glob("run.json"))) == 1
    cli.done("verify", tier / "run")
    assert cli.json("latest", "run", "--evidence", "digest").json["step"] == 1


@pytest.mark.parametrize("command", ["commit", "scan"])
@pytest.mark.parametrize("moment", ["before run.json was looked for", "before it was registered"])
def test_who_loses_the_race_to_register_a_run_takes_the_winners(
    cli, spawn: Spawn, tier: Path, monkeypatch: pytest.MonkeyPatch, command: str, moment: str
) -> None:
    directory = write_dcp(tier / "run/step_1")
    words = (command, directory if command == "commit" else directory.parent)
    won: list[int] = []
    if moment == "before it was registered":
        cli.done("latest", tier / "run", "--restart-id", "x")  # leaves run.json alone
        holder, name = Catalog, "run_by_id"
    else:
        holder, name = scan, "default_name"
    asked = getattr(holder, name)

    def overtaken(*given: object) -> object:
        answer = asked(*given)
        if not won:
            ((code, _, _),) = together(spawn, words)
            won.append(code)
        return answer

    monkeypatch.setattr(holder, name, overtaken)
    cli.done(*words)
    assert won == [0]
    assert [run["run"] for run in cli.json("run", "list").json["runs"]] == ["run"]
    assert len(list((tier / "run/.ckptgov/manifests").iterdir())) == 1


def test_racing_sealers_leave_no_temporary_name(spawn: Spawn, tier: Path) -> None:
    directory = write_dcp(tier / "run/step_1")
    together(spawn, *[("commit", directory)] * 2)
    left = [path.name for path in (tier / "run/.ckptgov").rglob("*") if path.is_file()]
    assert all(name.endswith(".json") for name in left), left


@pytest.mark.parametrize("sealed", [True, False])
def test_all_ranks_of_a_restart_get_one_answer(cli, spawn: Spawn, tier: Path, sealed: bool) -> None:
    for step in (1, 2):
        write_dcp(tier / f"run/step_{step}")
    if sealed:
        cli.done("scan", tier / "run")
    words = ("latest", tier / "run", "--restart-id", "a.0", "--json")
    ended = together(spawn, *[words] * 3)
    documents = [json.loads(out) for _, out, _ in ended]
    assert [code for code, _, _ in ended] == [0, 0, 0], ended
    assert {document["path"] for document in documents} == {str(tier / "run/step_2")}
    assert sum(document["restart"]["decided_here"] for document in documents) == 1
    assert len(list((tier / "run/.ckptgov/journal").glob("restart.*"))) == 1


def test_a_rollback_and_a_decision_at_once_are_both_recorded(cli, spawn: Spawn, tier: Path) -> None:
    for step in (1, 2):
        write_dcp(tier / f"run/step_{step}")
    cli.done("scan", tier / "run")
    run = tier / "run"
    ended = together(
        spawn,
        ("latest", run, "--restart-id", "a", "--json"),
        ("rollback", run, "--to", "1"),
        ("mark-bad", run, "--step", "2", "--reason", "nan"),
    )
    assert [code for code, _, _ in ended] == [0, 0, 0], ended
    decided = json.loads(ended[0][1])["path"]
    assert cli.json("latest", run, "--restart-id", "a").json["path"] == decided
    assert cli.json("latest", run).json["step"] == 1
