"""Whether a run lives: what people say of it, and the signs of life it gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.peek import SIGN_EVERY_NS, Peek
from ckptgov.catalog.signs import ONCE_NS
from ckptgov.errors import TransientStorageError
from ckptgov.governor import open_governor
from ckptgov.manifest.forms.records import decode_record
from ckptgov.model.clock import SystemClock
from ckptgov.model.policy import DAY_S, Lifecycle
from ckptgov.model.retention import CheckpointLease, RunLife
from ckptgov.ops.lives import (
    LifeFacts,
    Sign,
    asked,
    life_facts,
    life_of,
    read_life,
    retired_since_ns,
)
from ckptgov.ops.questions import note_question
from ckptgov.testing.builders import write_dcp

DAY_NS = 86400 * 10**9
NOW_NS = 1000 * DAY_NS


class Told(Struct, frozen=True):
    """A record as far as it tells of life."""

    kind: str
    at_ns: int


def told(*records: tuple[str, int], **known: object) -> LifeFacts:
    """Facts of a run that was met on day 1, of records (kind, day)."""
    days = [Told(kind, day * DAY_NS) for kind, day in records]
    return life_facts(days, met_at_ns=DAY_NS, **known)


def life(facts: LifeFacts, *, day: int, **rules: float) -> RunLife:
    return life_of(facts, Lifecycle(**rules), now_ns=day * DAY_NS)


@pytest.mark.parametrize(
    ("kind", "sign"),
    [
        ("sealed", Sign.SAVE),
        ("restart", Sign.RESTART),
        ("outcome", Sign.RESTART),
        ("pin", Sign.LEASE),
        ("unpin", Sign.LEASE),
    ],
)
def test_what_a_run_does_is_a_sign_of_life(kind: str, sign: Sign) -> None:
    facts = told((kind, 30), ("mark-bad", 40), ("lost", 40), ("tombstone", 40))
    assert (facts.alive_at_ns, facts.by) == (30 * DAY_NS, sign)


def test_so_is_a_question_a_reader_and_something_unsealed() -> None:
    reader = CheckpointLease(
        run_id="r",
        content_id="c",
        lease_id="l",
        owner="me",
        reason="restore",
        taken_at_ns=60 * DAY_NS,
        ends_at_ns=61 * DAY_NS,
    )
    assert told(asked_at_ns=50 * DAY_NS).by is Sign.QUESTION
    assert told(sighted_at_ns=50 * DAY_NS).by is Sign.SIGHTING
    assert told(claims=[reader]).alive_at_ns == 61 * DAY_NS


def test_a_run_is_dead_when_nothing_was_heard_of_it_for_so_long() -> None:
    facts = told(("sealed", 10))
    assert life(facts, day=23) is RunLife.LIVE
    assert life(facts, day=24) is RunLife.DEAD
    assert life(facts, day=13, dead_after_s=3 * DAY_S) is RunLife.DEAD


def test_one_that_crashed_before_its_first_save_is_dead_as_well() -> None:
    assert life(told(), day=14) is RunLife.LIVE
    assert life(told(), day=15) is RunLife.DEAD
    assert told().by is Sign.MET


def test_a_finished_run_is_never_dead_or_retired_for_it() -> None:
    facts = told(("sealed", 10), ("finish", 11))
    assert life(facts, day=900, retire_dead_after_s=0.0) is RunLife.FINISHED


def test_a_retired_run_is_retired_at_once() -> None:
    facts = told(("sealed", 10), ("finish", 11), ("retire", 12))
    assert life(facts, day=12) is RunLife.RETIRED
    assert facts.retired_at_ns == 12 * DAY_NS


@pytest.mark.parametrize("kind", ["finish", "retire"])
def test_a_save_sealed_later_lifts_it(kind: str) -> None:
    assert life(told(("sealed", 10), (kind, 11), ("sealed", 12)), day=13) is RunLife.LIVE
    assert life(told((kind, 11), saved_at_ns=12 * DAY_NS), day=13) is RunLife.LIVE
    again = told(("sealed", 10), (kind, 11), ("sealed", 12), (kind, 13))
    assert life(again, day=13) is not RunLife.LIVE


@pytest.mark.parametrize("kind", ["restart", "pin"])
def test_nothing_else_lifts_it(kind: str) -> None:
    assert life(told(("retire", 11), (kind, 12)), day=13) is RunLife.RETIRED


def test_a_dead_run_is_retired_only_by_a_rule() -> None:
    facts = told(("sealed", 10))
    assert life(facts, day=900) is RunLife.DEAD
    assert life(facts, day=39, retire_dead_after_s=30 * DAY_S) is RunLife.DEAD
    assert life(facts, day=40, retire_dead_after_s=30 * DAY_S) is RunLife.RETIRED
    rule = Lifecycle(retire_dead_after_s=30 * DAY_S)
    assert retired_since_ns(facts, rule, now_ns=50 * DAY_NS) == 40 * DAY_NS
    assert retired_since_ns(facts, rule, now_ns=39 * DAY_NS) is None


def test_none_is_retired_before_it_is_dead() -> None:
    rule = Lifecycle(dead_after_s=20 * DAY_S, retire_dead_after_s=1 * DAY_S)
    facts = told(("sealed", 10))
    assert life_of(facts, rule, now_ns=29 * DAY_NS) is RunLife.LIVE
    assert retired_since_ns(facts, rule, now_ns=30 * DAY_NS) == 30 * DAY_NS


# What people say, through the command line.


@pytest.fixture
def run(cli, tier: Path) -> Path:
    write_dcp(tier / "run/step_100")
    cli.done("scan", tier / "run")
    return tier / "run"


@pytest.fixture
def catalog(run: Path, home: Path):
    file, clock = str(home / "catalog.sqlite"), SystemClock()
    with Catalog.open(file, fs_type="ext4", is_network=False, clock=clock) as opened:
        yield opened


def now(catalog: Catalog) -> RunLife:
    """Where the one run stands."""
    (known,) = catalog.runs()
    facts = read_life(catalog, known)
    return life_of(facts, Lifecycle(), now_ns=catalog.now_ns())


@pytest.mark.parametrize("by_name", [True, False])
def test_finish_and_retire_are_recorded_and_a_new_save_lifts_them(
    cli, run: Path, catalog, by_name: bool
) -> None:
    target = "run" if by_name else run
    assert now(catalog) is RunLife.LIVE
    assert "is finished" in cli.done("run", "finish", target).out
    assert now(catalog) is RunLife.FINISHED
    assert "is retired" in cli.done("run", "retire", target, "--reason", "paper is out").out
    assert now(catalog) is RunLife.RETIRED
    write_dcp(run / "step_200")
    cli.done("scan", run)
    assert now(catalog) is RunLife.LIVE


def test_what_was_said_outlives_the_catalog(cli, run, home, forget_catalog) -> None:
    cli.done("run", "retire", "run")
    forget_catalog()
    cli.done("catalog", "rebuild")
    file, clock = str(home / "catalog.sqlite"), SystemClock()
    with Catalog.open(file, fs_type="ext4", is_network=False, clock=clock) as catalog:
        assert now(catalog) is RunLife.RETIRED


@pytest.mark.parametrize("verb", ["finish", "retire"])
def test_a_dry_run_says_would_and_changes_nothing(cli, run, catalog, verb: str) -> None:
    assert "would be" in cli.done("run", verb, "run", "--dry-run").out
    assert cli.json("run", verb, "run", "--dry-run").json["record"]["kind"] == verb
    assert now(catalog) is RunLife.LIVE


def test_a_clock_that_is_behind_the_newest_save_lifts_nothing(cli, run, home) -> None:
    class Behind(SystemClock):
        def now_ns(self) -> int:
            return super().now_ns() - DAY_NS

    with open_governor(clock=Behind()) as governor:
        record = governor.end_run("run", retire=True)
    (journal,) = (run / ".ckptgov/journal").glob("*.sealed.json")
    sealed = decode_record(journal.read_bytes(), where="")
    assert record.stamp.at_ns == sealed.stamp.at_ns + 1


@pytest.mark.parametrize("by_name", [True, False])
def test_delete_of_a_retired_run_only_plans(cli, run: Path, catalog, by_name: bool) -> None:
    target = "run" if by_name else run
    assert cli.json("run", "delete", target, "--confirm", "run").code == 6
    cli.done("run", "retire", target)
    assert cli.json("run", "delete", target, "--confirm", "ran").code == 2
    would = cli.json("run", "delete", target, "--confirm", "run", "--dry-run")
    assert (would.code, catalog.plans.plans()) == (0, ())
    cli.done("run", "delete", target, "--confirm", "run")
    (stored,) = catalog.plans.plans()
    assert [one.step for one in stored.plan.entries] == [100]
    assert cli.json("latest", "run").json["step"] == 100
    assert cli("run", "delete", target).code == 2


# That somebody asked.


def signs(catalog: Catalog) -> dict[str, int]:
    return catalog.signs.signs()


def test_a_question_without_a_service_is_noted_without_sqlmodel(run, catalog, home) -> None:
    (known,) = catalog.runs()
    run_id, file = known.identity.run_id, str(home / "catalog.sqlite")
    before = catalog.now_ns()
    with open_governor() as governor:
        note_question(governor.context, "run")
        note_question(governor.context, "nobody")
    (asked_at_ns,) = signs(catalog).values()
    assert asked_at_ns >= before
    with Peek.open(file) as peek:
        peek.note_asked(run_id, at_ns=asked_at_ns + SIGN_EVERY_NS - 1)
        assert signs(catalog) == {run_id: asked_at_ns}
        peek.note_asked(run_id, at_ns=asked_at_ns + SIGN_EVERY_NS)
        assert signs(catalog) == {run_id: asked_at_ns + SIGN_EVERY_NS}
    assert SIGN_EVERY_NS == ONCE_NS


def test_a_question_to_a_service_is_noted_and_never_fails_for_it(catalog, monkeypatch) -> None:
    asked(catalog, "some run")
    assert list(signs(catalog)) == ["some run"]

    def fail(run_id: str) -> None:
        raise TransientStorageError("the catalog does not answer")

    monkeypatch.setattr(catalog.signs, "asked", fail)
    asked(catalog, "another run")
    assert list(signs(catalog)) == ["some run"]


def test_a_question_waits_for_no_writer_and_changes_nothing_else_afterwards(
    run, catalog, home
) -> None:
    run_id = catalog.runs()[0].identity.run_id
    with Peek.open(str(home / "catalog.sqlite")) as peek:
        with catalog.transaction():
            catalog.signs.asked("another")
            peek.note_asked(run_id, at_ns=NOW_NS)
        assert run_id not in signs(catalog)
        peek.note_asked(run_id, at_ns=NOW_NS)
        assert signs(catalog)[run_id] == NOW_NS
        assert peek._select("PRAGMA query_only").__next__().query_only == 1
        assert peek._select("PRAGMA busy_timeout").__next__().timeout == 10_000


def test_a_question_of_a_catalog_that_may_not_be_written_is_answered(cli, run, home) -> None:
    with Peek.open(str(home / "catalog.sqlite")) as peek:
        peek._connection.execute("PRAGMA journal_mode")
        peek._connection.close()
        peek.note_asked("r", at_ns=1)


def test_a_sign_of_the_catalog_counts_where_it_is_given(run, catalog) -> None:
    (known,) = catalog.runs()
    facts = read_life(catalog, known, asked_at_ns=9 * 10**18)
    assert (facts.alive_at_ns, facts.by) == (9 * 10**18, Sign.QUESTION)
    assert replace(read_life(catalog, known), by=Sign.SAVE) == read_life(catalog, known)
