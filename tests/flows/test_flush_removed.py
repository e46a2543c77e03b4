"""What retention took away is not brought back by a link, nor sent on from where it is to go."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ckptgov.testing.builders import write_hf_trainer

POLICY = """\
policy: tight
runs: ["*"]
keep: {keep}
floors: {{min_restorable: 1, min_age: 0s}}
safety: {{max_fraction: 99%, grace: {grace}, trash: 7d, adoption_grace: 0s}}
"""
STEPS = (100, 200, 300)


@pytest.fixture
def nfs(home: Path, linked: Path) -> Path:
    """Where a link has brought every checkpoint of a run."""
    (home / "policies").mkdir()
    return linked


@pytest.fixture
def let_go(cli, home: Path) -> Callable[..., Any]:
    """Plan and apply by keep rules."""

    def go(keep: str, grace: str = "0s") -> None:
        text = POLICY.format(keep=keep, grace=grace)
        (home / "policies/tight.yaml").write_text(text)
        cli.done("plan", "--apply")

    return go


def at(root: Path) -> list[str]:
    """Checkpoints of the run at a tier."""
    return sorted(one.name for one in (root / "hf").glob("checkpoint-*"))


def test_a_copy_that_was_evicted_is_not_brought_back_by_the_link(
    cli, nfs: Path, let_go: Callable[..., Any]
) -> None:
    let_go("{nfs: {last: 1}}")
    assert at(nfs) == ["checkpoint-300"]
    for _ in range(2):
        cli.done("flush", "--all")
        cli.done("scan")
    assert at(nfs) == ["checkpoint-300"]


def test_whoever_names_it_brings_it_back(cli, nfs: Path, let_go: Callable[..., Any]) -> None:
    let_go("{nfs: {last: 1}}")
    cli.done("flush", "hf", "--step", "100", "--to", "nfs")
    assert at(nfs) == ["checkpoint-100", "checkpoint-300"]
    cli.done("flush", "--all")
    assert {one["state"] for one in copies(cli, 100)} == {"verified"}


def test_nor_by_a_catalog_that_was_rebuilt_since(
    cli, nfs: Path, let_go: Callable[..., Any], forget_catalog: Callable[[], None]
) -> None:
    """Only the run's own records tell what went where."""
    let_go("{nfs: {last: 1}}")
    forget_catalog()
    cli.done("catalog", "rebuild")
    cli.done("flush", "--all")
    assert at(nfs) == ["checkpoint-300"]


def test_what_is_condemned_is_not_sent_on(
    cli, nfs: Path, home: Path, tier: Path, let_go: Callable[..., Any]
) -> None:
    """Condemned while no link asked for it; by then one does, and a person names it."""
    write_hf_trainer(tier / "hf/checkpoint-250", 250)
    cli.done("scan")
    config = home / "ckptgov.yaml"
    every = config.read_text()
    config.write_text(every.replace("every: 1", "every_steps: 100"))
    let_go("{lustre: {every_steps: 100}, nfs: {every_steps: 100}}", grace="1d")
    config.write_text(every)
    cli.done("flush", "--all")
    assert at(nfs) == [f"checkpoint-{step}" for step in STEPS]
    answer = cli.json("flush", "hf", "--step", "250", "--to", "nfs")
    assert answer.code != 0, answer
    assert at(nfs) == [f"checkpoint-{step}" for step in STEPS]
    cli.done("undelete", "hf", "--step", "250")
    cli.done("flush", "--all")
    assert "checkpoint-250" in at(nfs)


def test_a_copy_that_lies_in_the_trash_comes_back_by_an_undelete_alone(
    cli, nfs: Path, home: Path, tier: Path, let_go: Callable[..., Any], time_is_over
) -> None:
    """One of two copies was moved aside, and its removal stopped there."""
    let_go("{lustre: {last: 2}, nfs: {last: 2}}", grace="1d")
    time_is_over()
    with closing(sqlite3.connect(home / "catalog.sqlite", timeout=30)) as catalog:
        catalog.execute(
            "UPDATE removals SET due_at_ns = 9e18 WHERE place = (SELECT place FROM places "
            "WHERE tier = 'lustre')"
        )
        catalog.commit()
    cli("apply")
    assert (at(tier), at(nfs)) == (
        [f"checkpoint-{step}" for step in STEPS],
        ["checkpoint-200", "checkpoint-300"],
    )
    cli.done("flush", "--all")
    answer = cli.json("flush", "hf", "--step", "100", "--to", "nfs")
    assert answer.code != 0, answer
    assert at(nfs) == ["checkpoint-200", "checkpoint-300"]
    cli.done("undelete", "hf", "--step", "100")
    assert at(nfs) == [f"checkpoint-{step}" for step in STEPS]


def copies(cli, step: int) -> list[dict[str, Any]]:
    """A step's copies, by 'list'."""
    found = cli.json("list", "hf").json["checkpoints"]
    return [
        {"state": "verified" if not copy["findings"] else "not"}
        for one in found
        if one["step"] == step
        for copy in one["copies"]
    ]
