"""Names of runs: the root's base name, unless another run has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptgov.testing.builders import write_dcp


@pytest.fixture
def two(tier: Path) -> tuple[Path, Path]:
    """Two run roots of one base name."""
    roots = (tier / "a/checkpoints", tier / "b/checkpoints")
    for number, root in enumerate(roots, 1):
        write_dcp(root / f"step_{number}", seed=str(number))
    return roots


def test_a_taken_name_asks_for_another(cli, two) -> None:
    cli.done("scan", two[0])
    answer = cli.json("scan", two[1])
    assert answer.code == 2
    assert "--run" in answer.json["error"]["hint"]
    cli.done("scan", two[1], "--run", "team/b")
    assert cli("latest", "team/b").path == two[1] / "step_2"
    assert cli("latest", "checkpoints").path == two[0] / "step_1"


def test_two_that_were_named_before_they_were_registered_can_both_be_registered(cli, two) -> None:
    for root in two:
        cli.done("latest", root, "--restart-id", "x")
    cli.done("scan", two[0])
    assert cli("scan", two[1]).code == 2
    cli.done("scan", two[1], "--run", "other")
    cli.done("scan", two[1])
    assert cli("latest", "other").path == two[1] / "step_2"
    assert cli("scan", two[1], "--run", "third").code == 2


def test_a_rebuild_keeps_both_reachable(cli, two, home: Path) -> None:
    for root in two:
        cli.done("latest", root, "--restart-id", "x")
    cli.done("scan", two[0])
    cli.done("scan", two[1], "--run", "other")
    for file in home.glob("catalog.sqlite*"):
        file.unlink()
    cli.done("catalog", "rebuild")
    runs = {run["run"]: run["roots"] for run in cli.json("run", "list").json["runs"]}
    assert sorted(runs.values()) == [[str(root)] for root in two]
    for name, (root,) in runs.items():
        assert cli("latest", name).path.parent == Path(root)


def test_a_home_that_cannot_be_made_is_told_with_what_to_do(cli, two, monkeypatch) -> None:
    monkeypatch.setenv("CKPTGOV_HOME", "/proc/none/home")
    answer = cli.json("scan", two[0])
    assert answer.code == 9
    assert "CKPTGOV_HOME" in answer.json["error"]["hint"]
