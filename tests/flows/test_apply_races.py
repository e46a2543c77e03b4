"""Several appliers at once, one of them stopped for long: each copy goes once, as decided."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ckptgov.catalog.flowfacts import FlowOwner
from ckptgov.governor import open_governor
from ckptgov.model.removal import Went
from ckptgov.ops import copy_lease, prune
from ckptgov.testing.builders import write_hf_trainer

POLICY = """\
policy: tight
runs: ["*"]
keep: {{{keep}}}
floors: {{min_restorable: 1, min_age: 0s}}
safety: {{max_fraction: 99%, grace: {grace}, trash: 7d, adoption_grace: 0s}}
"""
STEPS = range(100, 1300, 100)
KEPT = (1100, 1200)


@pytest.fixture
def govern(home: Path) -> Callable[..., None]:
    def put(keep: str = "lustre: {last: 2}", *, grace: str = "0s") -> None:
        (home / "policies").mkdir(exist_ok=True)
        (home / "policies/tight.yaml").write_text(POLICY.format(keep=keep, grace=grace))

    return put


@pytest.fixture
def run(cli, tier: Path, govern) -> Path:
    govern()
    for step in STEPS:
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    return tier / "hf"


def end_leases(home: Path) -> None:
    """As if every lease had run out."""
    with closing(sqlite3.connect(home / "catalog.sqlite", timeout=30)) as catalog:
        catalog.execute("UPDATE copy_leases SET expires_at_ns = 1")
        catalog.commit()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, dict]:
    out, err = process.communicate(timeout=120)
    assert b"Traceback" not in err, err
    assert b"unexpected" not in err, err
    return process.returncode, json.loads(out)


def standing(run: Path) -> list[int]:
    return sorted(int(one.name.rpartition("-")[2]) for one in run.glob("checkpoint-*"))


def in_trash(run: Path) -> list[int]:
    found = run.glob(".ckptgov/trash/*/*/files/checkpoint-*")
    return sorted(int(one.name.rpartition("-")[2]) for one in found)


def test_two_appliers_of_one_plan_take_each_copy_once(cli, run: Path, spawn) -> None:
    made = cli.json("plan").json["plan_id"]
    both = [spawn("apply", made, "--json") for _ in range(2)]
    for code, told in map(ended, both):
        # The other one was first: for some copies, or for the plan as a whole.
        assert code in (0, 3, 6), told
    assert cli.json("apply").code == 0
    assert standing(run) == list(KEPT)
    assert in_trash(run) == [step for step in STEPS if step not in KEPT]
    assert cli.json("verify", "hf").code == 0


def test_two_that_only_go_on_take_each_copy_once(
    cli, run: Path, spawn, govern, time_is_over
) -> None:
    govern(grace="1d")
    cli.done("apply", cli.json("plan").json["plan_id"])
    time_is_over()
    both = [spawn("apply", "--json") for _ in range(2)]
    told = [ended(one) for one in both]
    assert all(code in (0, 3) for code, _ in told), told
    trashed = [one["step"] for _, each in told for one in each["steps"] if one["went"] == "trashed"]
    assert len(trashed) == len(set(trashed))
    cli.done("apply")
    assert standing(run) == list(KEPT)
    assert in_trash(run) == [step for step in STEPS if step not in KEPT]


def stop_outside_of_a_transaction(process: subprocess.Popen[bytes], home: Path) -> None:
    """Stopped within one, it would keep everybody else from the catalog, as any process may."""
    for _ in range(200):
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.01)  # until it really stands
        with closing(sqlite3.connect(home / "catalog.sqlite", timeout=0.05)) as catalog:
            try:
                catalog.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                os.kill(process.pid, signal.SIGCONT)
                continue
            catalog.rollback()
            return
    pytest.fail("it was never met outside of a transaction")


def test_one_stopped_past_its_lease_and_continued_does_no_harm(
    cli, run: Path, spawn, home, govern, time_is_over
) -> None:
    govern(grace="1d")
    cli.done("apply", cli.json("plan").json["plan_id"])
    time_is_over()
    first = spawn("apply", "--json")
    until = time.monotonic() + 60
    while not in_trash(run) and first.poll() is None and time.monotonic() < until:
        time.sleep(0.001)
    stop_outside_of_a_transaction(first, home)
    try:
        end_leases(home)
        second = cli.json("apply")
        assert second.code in (0, 3), second
        assert standing(run) == list(KEPT)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    code, told = ended(first)
    assert code in (0, 3), told
    assert cli.json("apply").code == 0
    assert standing(run) == list(KEPT)
    assert in_trash(run) == [step for step in STEPS if step not in KEPT]
    assert cli.json("undelete", "hf").code == 0
    assert standing(run) == list(STEPS)


@pytest.mark.parametrize("where", ["move_aside", "bury"])
def test_what_was_made_anew_while_one_was_stopped_is_not_its_to_take(
    cli, run: Path, home: Path, govern, monkeypatch, tmp_path: Path, time_is_over, where: str
) -> None:
    """Stopped right before it touches anything, while another purges the copy and a trainer's
    node brings the same checkpoint back to the same place."""
    govern("lustre: {last: 11}, cold: {last: all}", grace="1d")
    cold = tmp_path / "cold"
    cold.mkdir()
    cli.done("tier", "add", "cold", cold)
    cli.done("flush", "hf", "--to", "cold")
    cli.done("apply", cli.json("plan").json["plan_id"])
    time_is_over()
    original, stopped = getattr(prune, where), []

    def stop_first(*given, **named):
        if not stopped:
            stopped.append(where)
            end_leases(home)
            elsewhere = FlowOwner(host="elsewhere", boot="b", pid=1, started=1)
            monkeypatch.setattr(copy_lease, "this_process", lambda: elsewhere)
            with open_governor() as other:
                (one,) = other.apply(None).steps
                assert one.went is Went.PURGED, one
                restored = other.restore("hf", to=str(run), step=100)
                assert restored.path == str(run / "checkpoint-100")
                other.scan([str(run)])
        return original(*given, **named)

    monkeypatch.setattr(prune, where, stop_first)
    with open_governor() as governor:
        answer = governor.apply(None)
    assert stopped
    assert [one.went for one in answer.steps] == [Went.WAITING], answer
    assert len(list((run / "checkpoint-100").iterdir())) == 7
    assert standing(run) == list(STEPS)
    told = cli.json("list", "hf").json["checkpoints"]
    (one,) = [each for each in told if each["step"] == 100]
    assert {each["tier"]: each["evidence"] for each in one["copies"]} == {
        "lustre": "digest",
        "cold": "digest",
    }


def test_of_two_threads_of_one_process_one_takes_a_copy(
    cli, run: Path, govern, monkeypatch, time_is_over
) -> None:
    govern("lustre: {last: 11}", grace="1d")
    cli.done("apply", cli.json("plan").json["plan_id"])
    time_is_over()
    original, met = prune.move_aside, []

    def meanwhile(*given, **named):
        with open_governor() as other:
            met.extend(other.apply(None).steps)
        return original(*given, **named)

    monkeypatch.setattr(prune, "move_aside", meanwhile)
    with open_governor() as governor:
        answer = governor.apply(None)
    assert [one.went for one in met] == [Went.WAITING], met
    assert [one.went for one in answer.steps] == [Went.TRASHED], answer
    assert standing(run) == list(STEPS)[1:]
