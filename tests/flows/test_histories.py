"""Rollback, mark-bad and lower steps: which line of a run's history ``latest`` speaks of."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptgov.testing.builders import write_dcp


@pytest.fixture
def run(cli, tier: Path) -> Path:
    """A sealed run with steps 100, 200 and 300."""
    for step in (100, 200, 300):
        write_dcp(tier / f"run/step_{step}")
    cli.done("scan", tier / "run")
    return tier / "run"


@pytest.fixture(params=["directory", "run"])
def latest(request, cli, run: Path):
    """``latest`` asked by directory and by name."""
    return lambda *options: cli.json("latest", run if request.param == "directory" else "run")


def test_a_rollback_takes_back_the_higher_steps(cli, latest) -> None:
    cli.done("rollback", "run", "--to", "200", "--reason", "loss spike")
    answer = latest()
    assert answer.json["step"] == 200
    assert answer.reasons("step_300") == ["superseded"]


def test_a_rollback_can_be_written_without_a_scan_before(cli, tier: Path) -> None:
    for step in (100, 200):
        write_dcp(tier / f"fresh/step_{step}")
    cli.done("rollback", tier / "fresh", "--to", "100")
    assert cli.json("latest", tier / "fresh").json["step"] == 100


def test_what_is_saved_after_a_rollback_is_offered(cli, run: Path, latest) -> None:
    cli.done("rollback", "run", "--to", "200")
    write_dcp(run / "step_250", at_ns=None)
    cli.done("scan", run)
    answer = latest()
    assert (answer.json["step"], answer.json["line"]) == (250, 2)


def test_a_step_above_the_forsaken_ones_is_offered_too(cli, run: Path, latest) -> None:
    cli.done("rollback", "run", "--to", "200")
    write_dcp(run / "step_400", at_ns=None)
    cli.done("scan", run)
    assert latest().json["step"] == 400


def test_a_rollback_to_no_known_step_is_refused(cli, run: Path) -> None:
    assert cli("rollback", "run", "--to", "150").code != 0
    assert cli.json("latest", "run").json["step"] == 300


def test_a_dry_run_only_tells(cli, run: Path) -> None:
    answer = cli.done("rollback", "run", "--to", "100", "--dry-run")
    assert "would" in answer.out + answer.err
    assert cli.json("latest", "run").json["step"] == 300


def test_a_step_marked_bad_is_stepped_over(cli, latest) -> None:
    cli.done("mark-bad", "run", "--step", "300", "--reason", "nan loss")
    answer = latest()
    assert answer.json["step"] == 200
    assert answer.reasons("step_300") == ["bad"]


def test_a_range_marked_bad_covers_later_saves(cli, run: Path, latest) -> None:
    cli.done("mark-bad", "run", "--from", "200", "--reason", "bad shard of training text")
    assert latest().json["step"] == 100
    write_dcp(run / "step_400")
    cli.done("scan", run)
    assert latest().json["step"] == 100


def test_a_closed_range_ends(cli, latest) -> None:
    cli.done("mark-bad", "run", "--from", "100", "--until", "200", "--reason", "nan")
    answer = latest()
    assert answer.json["step"] == 300
    cli.done("mark-bad", "run", "--step", "300", "--reason", "nan")
    assert latest().code == 5


def test_a_lower_step_saved_later_opens_a_line_and_says_so(cli, run: Path) -> None:
    write_dcp(run / "step_150", at_ns=None)
    cli.done("scan", run)
    answer = cli.json("latest", "run")
    assert (answer.json["step"], answer.json["line"]) == (150, 2)
    assert answer.json["notes"]


def test_a_lower_step_carried_here_by_a_copy_opens_none(cli, run: Path) -> None:
    write_dcp(run / "step_150")  # dated before it was born: its times came with it
    cli.done("scan", run)
    assert cli.json("latest", "run").json["step"] == 300


def test_explain_gives_the_reason_of_each_passed_over_one(cli, run: Path) -> None:
    cli.done("mark-bad", "run", "--step", "300", "--reason", "nan loss")
    told = cli.done("explain", "run").out
    assert "step_300" in told
    assert "bad" in told
    assert "nan loss" in told


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("rollback", "run", "--to", "200"), "rollback"),
        (("mark-bad", "run", "--step", "300", "--reason", "nan"), "mark-bad"),
    ],
)
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "not-json"])
def test_a_binding_record_that_does_not_decode_is_9(
    cli, run: Path, latest, words: tuple[str, ...], kind: str, damage: str
) -> None:
    cli.done(*words)
    (record,) = (run / ".ckptgov/journal").glob(f"*.{kind}.json")
    text = record.read_bytes()
    damaged = {
        "flip": text[:40] + bytes([text[40] ^ 1]) + text[41:],
        "cut": text[: len(text) // 2],
        "empty": b"",
        "not-json": b"not json\n",
    }[damage]
    record.chmod(0o644)
    record.write_bytes(damaged)
    answer = latest()
    assert answer.code == 9
    assert record.name in answer.json["error"]["message"]


def test_a_broken_record_at_any_place_of_a_run_is_9(cli, tier: Path) -> None:
    for name in ("one", "two"):
        write_dcp(tier / name / "run/step_1")
        cli.done("tier", "add", name, tier / name, "--ingest")
        cli.done("scan", tier / name, "--run", "run")
    cli.done("mark-bad", "run", "--from", "5", "--reason", "x")
    assert cli("latest", "run").code == 0
    (record,) = (tier / "two/run/.ckptgov/journal").glob("*.mark-bad.json")
    record.write_bytes(record.read_bytes()[:-9])
    answer = cli.json("latest", "run")
    assert (answer.code, answer.json["error"]["kind"]) == (9, "malformed")
