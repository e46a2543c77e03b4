"""A removal holds its lease for as long as it takes, and ends where another one took it over."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ckptgov.ops import copy_lease, prune
from ckptgov.testing.builders import write_hf_trainer

POLICY = """\
policy: tight
runs: ["*"]
keep: {lustre: {last: 1}}
floors: {min_restorable: 1, min_age: 0s}
safety: {max_fraction: 99%, grace: 0s, trash: 7d, adoption_grace: 0s}
"""


@pytest.fixture
def plan(cli, home: Path, tier: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One by which one checkpoint goes; every question renews its lease."""
    (home / "policies").mkdir()
    (home / "policies/tight.yaml").write_text(POLICY)
    for step in (100, 200):
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    monkeypatch.setattr(copy_lease, "RENEW_S", 0.0)
    return str(cli.json("plan").json["plan_id"])


@pytest.fixture
def sql(home: Path) -> Callable[[str], list[Any]]:
    def run(statement: str) -> list[Any]:
        with closing(sqlite3.connect(home / "catalog.sqlite", timeout=30)) as catalog:
            rows = catalog.execute(statement).fetchall()
            catalog.commit()
        return rows

    return run


@pytest.fixture(params=["move_aside", "purge"])
def during(
    request: pytest.FixtureRequest, cli, plan: str, sql, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Has something happen before moving aside, or purging, and after it, under its lease; gives
    the answer."""
    verb: str = request.param
    work = getattr(prune, verb)
    words: tuple[str, ...] = ("apply", plan)
    if verb == "purge":
        cli.done("apply", plan)
        sql("UPDATE removals SET due_at_ns = 1")
        words = ("apply",)

    def happens(before: Callable[[], None], after: Callable[[], None] = lambda: None) -> Any:
        def disturbed(*given: Any, **named: Any) -> Any:
            before()
            done = work(*given, **named)
            after()
            return done

        with monkeypatch.context() as patch:
            patch.setattr(prune, verb, disturbed)
            return cli.json(*words)

    return happens


def test_its_lease_is_renewed_while_it_works(during, sql) -> None:
    ends_ns: list[int] = []

    def nearly_over() -> None:
        sql(f"UPDATE copy_leases SET expires_at_ns = {time.time_ns()}")

    def note() -> None:
        ends_ns.append(sql("SELECT expires_at_ns FROM copy_leases")[0][0])

    answer = during(nearly_over, note)
    assert answer.code == 0
    assert ends_ns[0] > time.time_ns() + copy_lease.TTL_NS / 2


def test_it_ends_where_another_took_its_lease_over(during, cli, sql, tier: Path) -> None:
    before = {*tier.rglob("*.safetensors")}

    def taken_over() -> None:
        ends_ns = time.time_ns() + 60 * 10**9
        sql(f"UPDATE copy_leases SET epoch = epoch + 1, expires_at_ns = {ends_ns}")

    answer = during(taken_over)
    (step,) = answer.json["steps"]
    assert (step["went"], step["text"]) == ("waiting", "another process is at work on it")
    assert {*tier.rglob("*.safetensors")} == before
    sql("DELETE FROM copy_leases")
    cli.done("apply")
    assert {*tier.rglob("*.safetensors")} != before
