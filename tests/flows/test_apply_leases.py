"""A removal holds its lease for as long as it takes, and ends where another one took it over."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import SCHEMA_VERSION
from ckptgov.governor import open_governor
from ckptgov.model.removal import Went
from ckptgov.ops import copy_lease, prune
from ckptgov.testing.builders import write_hf_trainer

POLICY = """\
policy: tight
runs: ["*"]
keep: {lustre: {last: 1}}
floors: {min_restorable: 1, min_age: 0s}
safety: {max_fraction: 99%, grace: 0s, trash: 7d, adoption_grace: 0s}
"""
NO_TRASH = POLICY.replace("trash: 7d", "trash: 0s")


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


@pytest.fixture(params=["move_aside", "purge", "purge at once"])
def during(
    request: pytest.FixtureRequest,
    cli,
    plan: str,
    time_is_over: Callable[[], None],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:
    """Has something happen before moving aside, or purging, and after it, under its lease; gives
    the answer."""
    verb = request.param.split()[0]
    work = getattr(prune, verb)
    words: tuple[str, ...] = ("apply", plan)
    if request.param == "purge at once":
        (home / "policies/tight.yaml").write_text(NO_TRASH)
        words = ("apply", str(cli.json("plan").json["plan_id"]))
    elif verb == "purge":
        cli.done("apply", plan)
        time_is_over()
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


def test_it_ends_where_another_took_its_lease_over(
    during, cli, sql, time_is_over, tier: Path
) -> None:
    """Where a copy goes for good at once, the lease is lost when it was moved aside already."""

    def taken_over() -> None:
        ends_ns = time.time_ns() + 60 * 10**9
        sql(f"UPDATE copy_leases SET epoch = epoch + 1, expires_at_ns = {ends_ns}")

    def standing() -> set[bytes]:
        return {one.read_bytes() for one in tier.rglob("model.safetensors")}

    before = standing()
    answer = during(taken_over)
    (step,) = answer.json["steps"]
    assert (step["went"], step["text"]) == ("waiting", "another process is at work on it")
    assert standing() == before
    sql("DELETE FROM copy_leases")
    for _ in range(2):  # moved aside, then purged
        time_is_over()
        cli.done("apply")
    assert len(standing()) == 1


def test_one_that_is_told_to_stop_in_the_middle_says_so(plan: str, tier: Path, monkeypatch) -> None:
    is_told = False
    move_aside = prune.move_aside

    def disturbed(*given: Any, **named: Any) -> Any:
        nonlocal is_told
        is_told = True
        return move_aside(*given, **named)

    monkeypatch.setattr(prune, "move_aside", disturbed)
    with open_governor() as governor:
        answer = governor.apply(plan, stop=lambda: is_told)
    (step,) = answer.steps
    assert (step.went, step.text) == (Went.WAITING, "told to stop")
    assert len([*tier.rglob("model.safetensors")]) == 2


def test_nothing_is_purged_by_a_catalog_that_was_migrated_after_the_call_began(
    cli, plan: str, sql, time_is_over, tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.done("apply", plan)
    time_is_over()
    before = {*tier.rglob("*")}
    tick = Catalog.tick

    def migrated(self: Catalog) -> int:
        now_ns = tick(self)
        sql(f"UPDATE meta SET value = '{SCHEMA_VERSION + 1}' WHERE key = 'schema_version'")
        return now_ns

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "tick", migrated)
        answer = cli.json("apply")
    assert [one["went"] for one in answer.json["steps"]] == ["protected"]
    assert {*tier.rglob("*")} == before
