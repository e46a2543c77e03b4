"""``--dry-run`` says what would be done and leaves every byte where it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def everything_below(root: Path) -> dict[str, tuple[int, int]]:
    """Path to (size, mtime) of all files, ours and the trainer's, but no catalog."""
    found = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            stat = path.lstat()
            found[str(path)] = (stat.st_size, stat.st_mtime_ns)
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("scan", "{run}"),
        ("commit", "{run}/step_1"),
        ("rollback", "{run}", "--to", "1"),
        ("mark-bad", "{run}", "--step", "1", "--reason", "x"),
        ("tier", "add", "t", "{run}"),
        ("run", "create", "other", "--root", "{run}/../other"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_an_unregistered_tree_stays_as_it_is(cli, sample, words: tuple[str, ...]) -> None:
    run = sample("dcp-torn/rank2-killed-midshard")
    before = everything_below(run.parent)
    answer = cli(*(word.format(run=run) for word in words), "--dry-run")
    assert answer.code == 0, answer
    assert "would" in answer.out + answer.err
    assert everything_below(run.parent) == before


@pytest.mark.parametrize(
    "words",
    [("scan",), ("verify", "single"), ("catalog", "rebuild"), ("rollback", "single", "--to", "1")],
    ids=lambda words: words[0],
)
def test_a_registered_run_stays_as_it_is(cli, sample, words: tuple[str, ...]) -> None:
    run = sample("dcp/single")
    cli.done("scan", run)
    before = everything_below(run)
    assert cli(*words, "--dry-run").code == 0
    assert everything_below(run) == before
