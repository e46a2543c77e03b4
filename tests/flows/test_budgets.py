"""Budgets as a user meets them: how long things take, what ``flows`` shows, changes on the fly.

Times are lower bounds only: a budget promises never more, not when something is done.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

MIB = 2**20
SHARD_BYTES = 2 * MIB
SHARDS = 3
TOTAL_BYTES = SHARD_BYTES * SHARDS
CONFIGURATION = """\
runs:
  - run: run*
    expect: {glob: "step_*/*.bin", count: 3, step: "step_(\\\\d+)"}
settle: 0s
"""


@pytest.fixture
def nvme(cli, home: Path, tmp_path: Path) -> Path:
    """Two runs of a checkpoint of 6 MiB each, sealed, and an empty tier lustre beside them."""
    (home / "ckptgov.yaml").write_text(CONFIGURATION)
    for name in ("nvme", "lustre"):
        (tmp_path / name).mkdir()
        cli.done("tier", "add", name, tmp_path / name, "--ingest")
    for run in ("run1", "run2"):
        directory = tmp_path / "nvme" / run / "step_1"
        directory.mkdir(parents=True)
        for number in range(SHARDS):
            body = random.Random(f"{run}/{number}").randbytes(SHARD_BYTES)
            (directory / f"{number}.bin").write_bytes(body)
    cli.done("scan")
    return tmp_path / "nvme"


def took(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def test_a_flush_takes_as_long_as_its_budget_makes_it(cli, nvme: Path) -> None:
    cli.done("tier", "budget", "lustre", "--write", "4MiB/s")
    answers = []
    assert took(lambda: answers.append(cli.json("flush", "run1", "--to", "lustre"))) >= 1.5
    (one,) = answers[0].json["checkpoints"]
    assert one["state"] == "flushed"
    assert one["took_s"] >= TOTAL_BYTES / (4 * MIB)


def test_what_is_read_back_counts_as_read(cli, nvme: Path) -> None:
    cli.done("tier", "budget", "lustre", "--read", "4MiB/s")
    (one,) = cli.json("flush", "run1", "--to", "lustre").json["checkpoints"]
    assert one["state"] == "flushed"
    assert one["took_s"] >= TOTAL_BYTES / (4 * MIB)


def test_verifying_a_budgeted_tier_is_paced_too(cli, nvme: Path) -> None:
    cli.done("tier", "budget", "nvme", "--read", "6MiB/s")
    assert took(lambda: cli.done("verify", "run1")) >= TOTAL_BYTES / (6 * MIB)


def test_a_restore_is_paced_too(cli, nvme: Path, tmp_path: Path) -> None:
    cli.done("tier", "budget", "nvme", "--read", "6MiB/s")
    to = tmp_path / "elsewhere"
    to.mkdir()
    cli.done("run", "list")
    begun = time.monotonic()
    cli.done("restore", "run1", "--to", to)
    assert time.monotonic() - begun >= TOTAL_BYTES / (6 * MIB)


def test_a_budget_of_a_tier_that_nothing_touches_costs_nothing(cli, nvme: Path) -> None:
    cli.done("tier", "budget", "nvme", "--write", "1B/s")
    (one,) = cli.json("flush", "run1", "--to", "lustre").json["checkpoints"]
    assert one["state"] == "flushed"


class TestWhileItMoves:
    def test_flows_shows_one_moving_and_one_waiting_and_a_new_budget_takes_effect(
        self, cli, spawn, nvme: Path, tmp_path: Path
    ) -> None:
        cli.done("tier", "budget", "lustre", "--write", "500kB/s", "--flows", "1")
        processes = [spawn("flush", run, "--to", "lustre", "--json") for run in ("run1", "run2")]
        moving, waiting = self.until_seen(cli, processes)
        assert moving["what"].split() in (["run1", "step_1"], ["run2", "step_1"])
        assert (moving["source"], moving["target"]) == ("nvme", "lustre")
        assert 0 < moving["granted_bytes_per_s"] <= 500_000
        assert 0 < moving["moved_bytes"] < moving["bytes"] == TOTAL_BYTES
        left_s = (TOTAL_BYTES - moving["moved_bytes"]) / 500_000
        assert moving["eta_s"] >= 0.2 * left_s
        assert waiting["waits_for"] in (
            "flows of tier lustre: 1 of 1",
            "an earlier checkpoint of this class goes first",
        )
        table = cli("flows").out
        assert waiting["what"] in table
        assert waiting["waits_for"] in table

        # At the old rate both would take half a minute.
        cli.done("tier", "budget", "lustre", "--write", "500MB/s", "--flows", "2")
        for process in processes:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            assert json.loads(out)["checkpoints"][0]["state"] == "flushed"
        assert cli.json("flows").json["flows"] == []
        for run in ("run1", "run2"):
            assert cli.json("latest", tmp_path / "lustre" / run, "--evidence", "digest").code == 0

    @staticmethod
    def until_seen(cli, processes: list) -> tuple[dict, dict]:
        """One flow that has moved some and is measured, and one that waits for its place."""
        while True:
            assert all(process.poll() is None for process in processes)
            flows = [f for f in cli.json("flows").json["flows"] if f["target"] == "lustre"]
            moving = [f for f in flows if f["state"] == "moving" and f["measured_bytes_per_s"]]
            waiting = [
                f
                for f in flows
                if f["state"] == "waiting" and f["waits_for"] != "the arbiter's next round"
            ]
            if moving and waiting:
                return moving[0], waiting[0]
