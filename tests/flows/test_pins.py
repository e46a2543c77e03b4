"""Pins: a checkpoint kept under a name, told by its run's journal."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ckptgov.catalog.catalog import Catalog
from ckptgov.governor import open_governor
from ckptgov.manifest.forms.records import decode_record
from ckptgov.model.clock import SystemClock
from ckptgov.ops.claims import AtStep, meant
from ckptgov.ops.standing_run import decoded
from ckptgov.planning.flushable import standing_pins
from ckptgov.planning.lines import Line, Lines
from ckptgov.testing.builders import write_dcp

YEAR_NS = 365 * 86400 * 10**9


@pytest.fixture
def run(cli, tier: Path) -> Path:
    """A sealed run with steps 100 and 200."""
    for step in (100, 200):
        write_dcp(tier / f"run/step_{step}")
    cli.done("scan", tier / "run")
    return tier / "run"


@pytest.fixture(params=["directory", "run"])
def target(request, run: Path) -> Path | str:
    """The run by its directory and by its name."""
    return run if request.param == "directory" else "run"


def in_journal(run: Path) -> list:
    """The records of the run's journal, in its order."""
    files = sorted((run / ".ckptgov/journal").glob("0*.json"))
    return [decode_record(file.read_bytes(), where=file.name) for file in files]


def in_catalog(home: Path):
    """The catalog's copy of the run's records."""
    file, clock = str(home / "catalog.sqlite"), SystemClock()
    with Catalog.open(file, fs_type="ext4", is_network=False, clock=clock) as catalog:
        (known,) = catalog.runs()
        return decoded(catalog.binding_records(known.identity.run_id))


def pins_of(home: Path, *, now_ns: int = 0) -> list[list[str]]:
    """The names that protect now, by checkpoint."""
    return [sorted(names) for names in standing_pins(in_catalog(home), now_ns=now_ns).values()]


def test_a_pin_is_told_by_the_journal_and_by_the_catalog(cli, target, run, home) -> None:
    told = cli.done("pin", target, "100", "--name", "release", "--reason", "paper")
    assert told.out.startswith("pinned step 100 (sha256:")
    assert told.out.endswith(") as release, until it is unpinned\n")
    record = in_journal(run)[-1]
    assert (record.pin_name, record.until_ns, record.stamp.reason) == ("release", None, "paper")
    assert pins_of(home) == [["release"]]


def test_an_unpin_ends_it(cli, target, home) -> None:
    cli.done("pin", target, "100", "--name", "a", "--reason", "x")
    cli.done("pin", target, "100", "--name", "b", "--reason", "x")
    assert "unpinned step 100" in cli.done("unpin", target, "100", "--name", "a").out
    assert pins_of(home) == [["b"]]


def test_a_pin_without_a_name_is_called_by_its_step(cli, target, home) -> None:
    cli.done("pin", target, "100", "--reason", "x")
    cli.done("pin", target, "200", "--reason", "x")
    assert pins_of(home) == [["step-100"], ["step-200"]]
    cli.done("unpin", target, "100")
    assert pins_of(home) == [["step-200"]]


def test_an_unpin_is_of_the_step_that_is_pinned(cli, target, home) -> None:
    cli.done("pin", target, "100", "--name", "a", "--reason", "x")
    told = cli.json("unpin", target, "200", "--name", "a")
    assert (told.code, told.json["error"]["hint"]) == (2, "nothing pins it")
    told = cli.json("unpin", target, "100", "--name", "b")
    assert (told.code, told.json["error"]["hint"]) == (2, "it is pinned under a")
    assert pins_of(home) == [["a"]]


def test_a_pin_until_then_protects_no_longer_and_its_name_stays(cli, target, home) -> None:
    words = ("--name", "a", "--reason", "x", "--until", "30d")
    assert ", until 2" in cli.done("pin", target, "100", *words).out
    now_ns = SystemClock().now_ns()
    assert pins_of(home, now_ns=now_ns) == [["a"]]
    assert pins_of(home, now_ns=now_ns + YEAR_NS) == []
    assert pins_of(home, now_ns=-1) == [["a"]]


def test_a_moment_may_be_given_and_needs_a_time_zone(cli, run) -> None:
    words = ("pin", run, "100", "--name", "a", "--reason", "x", "--until")
    assert cli(*words, "2100-01-01T00:00:00").code == 2
    assert "is over" in cli(*words, "2001-01-01T00:00:00Z").err
    assert cli(*words, "someday").code == 2
    cli.done(*words, "2100-01-01T01:00:00+01:00")
    assert abs(in_journal(run)[-1].until_ns - 4102444800 * 10**9) < 10**9


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("pin", "100", "--name", "a"), 2),
        (("pin", "100", "--name", "", "--reason", "x"), 2),
        (("pin", "100", "--name", "a\nb", "--reason", "x"), 2),
        (("pin", "100", "--name", "lease:a", "--reason", "x"), 2),
        (("pin", "100", "--name", "a", "--reason", "x", "--until", "0s"), 2),
        (("pin", "100", "--name", "a", "--reason", "x", "--until", "99999999d"), 2),
        (("pin", "300", "--name", "a", "--reason", "x"), 5),
        (("unpin", "100", "--name", "a"), 2),
        (("metric", "300", "loss=1"), 5),
        (("metric", "100", "loss"), 2),
        (("metric", "100", "loss=low"), 2),
        (("metric", "100", "loss=1_0"), 2),
        (("metric", "100", "=1"), 2),
    ],
)
def test_what_cannot_be_said_writes_nothing(cli, target, run, words, code: int) -> None:
    before = in_journal(run)
    told = cli.json(words[0], target, *words[1:])
    assert (told.code, told.json["error"]["exit_code"]) == (code, code)
    assert in_journal(run) == before


@pytest.mark.parametrize(
    "words",
    [
        ("pin", "100", "--name", "b", "--reason", "x"),
        ("unpin", "100", "--name", "a"),
        ("lease", "100", "--", "true"),
        ("metric", "100", "loss=0.5"),
    ],
)
def test_a_dry_run_says_would_and_writes_nothing(cli, target, run, words) -> None:
    cli.done("pin", target, "100", "--name", "a", "--reason", "x")
    before = in_journal(run)
    verb, *rest = words
    assert cli.done(verb, target, "--dry-run", *rest).out.startswith("would ")
    document = cli.json(verb, target, "--dry-run", "--json", *rest) if verb == "lease" else None
    document = document or cli.json(verb, target, "--dry-run", *rest)
    assert document.json["dry_run"] is True
    assert in_journal(run) == before


def test_a_pin_survives_a_rebuild_of_the_catalog(cli, run, home, forget_catalog) -> None:
    cli.done("pin", "run", "100", "--name", "release", "--reason", "x")
    forget_catalog()
    cli.done("catalog", "rebuild")
    assert pins_of(home) == [["release"]]


def test_two_writers_of_pins_at_once_both_write(cli, run, home) -> None:
    names = [f"n{number}" for number in range(8)]
    ready = threading.Barrier(len(names))

    def write(name: str) -> None:
        with open_governor() as governor:
            ready.wait()
            governor.pin("run", step=100, name=name, reason="x", ttl_s=None)

    threads = [threading.Thread(target=write, args=[name]) for name in names]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert pins_of(home) == [names]
    assert sorted(one.pin_name for one in in_journal(run) if hasattr(one, "pin_name")) == names


def test_of_two_attempts_at_one_step_the_newer_that_stands_is_meant(cli, run, home) -> None:
    first = cli.json("list", run).entries("step_200")[0]["content_id"]
    write_dcp(run / "step_200", seed="again", at_ns=None)
    cli.done("scan", run)
    cli.done("pin", "run", "200", "--name", "a", "--reason", "x")
    (pinned,) = standing_pins(in_catalog(home), now_ns=0)
    assert pinned != first
    assert pinned == cli.json("latest", "run").json["content_id"]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([("a", 2, 0, True), ("b", 2, 1, True)], "b"),
        ([("a", 2, 0, True), ("b", 2, 1, False)], "a"),
        ([("a", 2, 0, True), ("b", 1, 5, True)], "a"),
        ([("a", 1, 0, True), ("b", 1, 5, True)], "b"),
        ([("a", 2, 0, False), ("b", 1, 0, True)], "b"),
    ],
)
def test_what_the_active_line_has_is_meant_first_and_then_the_newest_attempt(
    found, wanted: str
) -> None:
    lines = Lines({1: Line(number=1), 2: Line(number=2, parent=1, base_step=50)})
    every = [
        AtStep(content_id=key, line=line, attempt=attempt, stands=stands)
        for key, line, attempt, stands in found
    ]
    assert meant("run", 100, every, lines) == wanted


def test_what_only_an_older_line_has_can_be_pinned(cli, target, run, home) -> None:
    cli.done("rollback", target, "--to", "100")
    cli.done("pin", target, "200", "--name", "a", "--reason", "to look into it")
    assert pins_of(home) == [["a"]]


def test_what_is_gone_cannot_be_pinned(cli, target, run) -> None:
    for file in (run / "step_200").iterdir():
        file.unlink()
    (run / "step_200").rmdir()
    cli.done("scan", run)
    told = cli.json("pin", target, "200", "--name", "a", "--reason", "x")
    assert (told.code, "is gone" in told.json["error"]["message"]) == (5, True)


def test_a_pin_of_a_directory_that_no_catalog_knows(cli, tmp_path: Path) -> None:
    write_dcp(tmp_path / "alone/step_1")
    cli.done("commit", tmp_path / "alone/step_1")
    cli.done("pin", tmp_path / "alone", "1", "--name", "a", "--reason", "x")
    assert in_journal(tmp_path / "alone")[-1].pin_name == "a"
