"""What configured links choose, what a hold keeps for them, and what ``--watch`` adds."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ckptgov.testing.builders import write_dcp

STEPS = (100, 200, 300, 400, 500)


@pytest.fixture
def tiers(cli, tmp_path: Path) -> Path:
    """nvme and lustre; gives their parent."""
    for name, words in (
        ("nvme", ("--scope", "node", "--node", "a", "--ingest")),
        ("lustre", ()),
    ):
        (tmp_path / name).mkdir()
        cli.done("tier", "add", name, tmp_path / name, *words)
    return tmp_path


@pytest.fixture
def run(cli, tiers: Path) -> Path:
    """Sealed checkpoints at five steps."""
    for step in STEPS:
        write_dcp(tiers / f"nvme/run/step_{step}", seed=f"{step}")
    cli.done("scan")
    return tiers / "nvme/run"


@pytest.fixture
def link(home: Path) -> Callable[..., None]:
    """Declares the link from nvme to lustre in the configuration file."""

    def declare(**rules: object) -> None:
        path = home / "ckptgov.yaml"
        told = yaml.safe_load(path.read_text())
        told["links"] = [{"from": "nvme", "to": "lustre", **rules}]
        path.write_text(yaml.safe_dump(told))

    return declare


def until(process: subprocess.Popen[bytes], seen: Callable[[], object]) -> None:
    """Return when something is seen; the process must not end before."""
    while not seen():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
            raise AssertionError(process.communicate())


def flushed(tiers: Path) -> set[str]:
    return {path.name for path in tiers.glob("lustre/run/step_*")}


@pytest.mark.parametrize(
    ("rules", "steps"),
    [
        ({"every": 2}, (100, 300, 500)),
        ({"every_steps": 250}, (100, 300, 500)),
        ({"last": 2}, (400, 500)),
        ({"every": "365d"}, (100,)),
        ({"every": 4, "last": 1}, (100, 500)),
    ],
)
def test_a_link_chooses_by_its_rules(cli, run, tiers, link, rules: dict, steps: tuple) -> None:
    link(**rules)
    would = cli.json("flush", "run", "--dry-run").json["checkpoints"]
    answer = cli.json("flush", "run")
    assert answer.code == 0
    assert flushed(tiers) == {f"step_{step}" for step in steps}
    assert {one["name"] for one in would} == flushed(tiers)
    whys = {why for one in answer.json["checkpoints"] for why in one["reasons"]}
    assert whys <= {"every", "every-steps", "last", "interval"}
    reasons = {one["why_not"] for one in answer.json["skipped"]}
    assert reasons <= {"not-chosen", "superseded"}
    again = cli.json("flush", "run")
    assert (again.code, again.json["checkpoints"]) == (0, [])


def test_what_a_link_chose_stays_chosen_when_newer_ones_come(cli, run, tiers, link) -> None:
    link(every=2)
    cli.done("flush", "run")
    write_dcp(run / "step_600", seed="600")
    write_dcp(run / "step_700", seed="700")
    shutil.rmtree(run / "step_100")  # the trainer keeps a few
    cli.done("scan")
    answer = cli.json("flush", "run")
    assert [one["name"] for one in answer.json["checkpoints"]] == ["step_700"]


def test_a_target_may_be_narrowed_down_to_one_of_the_links(cli, run, tiers, link) -> None:
    link(every=1)
    (tiers / "archive").mkdir()
    cli.done("tier", "add", "archive", tiers / "archive")
    cli.done("tier", "link", "lustre", "archive", "--last", "1")
    cli.done("flush", "run", "--to", "lustre")
    assert len(flushed(tiers)) == 5
    assert not (tiers / "archive/run").exists()
    cli.done("flush", "run")
    assert [path.name for path in tiers.glob("archive/run/step_*")] == ["step_500"]


class TestHold:
    def test_what_the_trainer_rotates_away_meanwhile_arrives_all_the_same(
        self, cli, spawn, run: Path, tiers: Path, link: Callable[..., None]
    ) -> None:
        link(last=2, hold=True)
        cli.done("tier", "budget", "lustre", "--write", "5kB/s")
        before = {
            name: {p.name: p.read_bytes() for p in (run / name).iterdir()}
            for name in ("step_400", "step_500")
        }
        process = spawn("flush", "run", "--json")
        held = run / ".ckptgov/held"
        until(process, lambda: len(list(held.rglob("*.distcp"))) >= 4)
        for name in before:
            shutil.rmtree(run / name)
        cli.done("tier", "budget", "lustre", "--write", "none")
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (out, err)
        for name, bodies in before.items():
            there = tiers / "lustre/run" / name
            assert {p.name: p.read_bytes() for p in there.iterdir()} == bodies
        assert cli.json("latest", tiers / "lustre/run", "--evidence", "digest").json["step"] == 500
        assert not [path for path in held.rglob("*") if path.is_file()]

    def test_a_hold_that_a_killed_flush_left_is_used_by_the_next(
        self, cli, spawn, run: Path, tiers: Path, link: Callable[..., None]
    ) -> None:
        link(last=1, hold=True)
        cli.done("tier", "budget", "lustre", "--write", "1kB/s")
        process = spawn("flush", "run", "--json")
        held = run / ".ckptgov/held"
        whole = {path.name for path in (run / "step_500").iterdir()}
        until(process, lambda: whole <= {path.name for path in held.rglob("*")})
        process.kill()
        process.communicate()
        shutil.rmtree(run / "step_500")
        cli("scan")
        cli.done("tier", "budget", "lustre", "--write", "none")
        answer = cli.json("flush", "run")
        assert answer.code == 0, answer
        assert cli.json("latest", tiers / "lustre/run", "--evidence", "digest").json["step"] == 500
        assert not [path for path in held.rglob("*") if path.is_file()]

    def test_without_a_hold_what_is_gone_is_skipped_and_said(
        self, cli, run: Path, tiers: Path, link: Callable[..., None]
    ) -> None:
        link(last=2)
        shutil.rmtree(run / "step_500")
        answer = cli.json("flush", "run", "--step", "500")
        assert answer.code == 5
        assert flushed(tiers) == set()


class TestWatch:
    def test_what_is_sealed_later_is_flushed_too_until_it_is_told_to_stop(
        self, cli, spawn, run: Path, tiers: Path, link: Callable[..., None]
    ) -> None:
        link(every=1)
        process = spawn("flush", "run", "--watch", "--every", "0.2")
        try:
            until(process, lambda: flushed(tiers) == {f"step_{step}" for step in STEPS})
            write_dcp(run / "step_600", seed="600")
            cli.done("scan")
            until(process, lambda: "step_600" in flushed(tiers))
        finally:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        assert process.returncode in (0, 143), (out, err)
        assert b"step_600" in out
        assert cli.json("latest", tiers / "lustre/run", "--evidence", "digest").json["step"] == 600
        assert cli.json("flows").json["flows"] == []
