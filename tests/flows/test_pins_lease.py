"""Leases: a checkpoint is kept while a command runs, and no longer."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from ckptgov.catalog.catalog import Catalog
from ckptgov.errors import RefusedBySafety
from ckptgov.model.clock import SystemClock
from ckptgov.model.journal import Pin, Unpin
from ckptgov.ops.standing_run import decoded
from ckptgov.planning.flushable import standing_pins
from ckptgov.testing.builders import write_dcp
from ckptgov.testing.condemning import doomed, guard

WAITS = "import signal; print('ready', flush=True); signal.pause()"


@pytest.fixture
def run(cli, tier: Path) -> Path:
    for step in (100, 200):
        write_dcp(tier / f"run/step_{step}")
    cli.done("scan", tier / "run")
    return tier / "run"


@pytest.fixture
def catalog(run: Path, home: Path):
    """The catalog of this home, beside whoever else uses it."""
    file, clock = str(home / "catalog.sqlite"), SystemClock()
    with Catalog.open(file, fs_type="ext4", is_network=False, clock=clock) as opened:
        yield opened


class Claims:
    """What the catalog knows of the one run."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.run_id = catalog.runs()[0].identity.run_id

    @property
    def records(self) -> list:
        told = decoded(self.catalog.binding_records(self.run_id))
        return [one.record for one in told if isinstance(one.record, Pin | Unpin)]

    def names(self, *, later_ns: int = 0) -> list[str]:
        now_ns = SystemClock().now_ns() + later_ns
        records = decoded(self.catalog.binding_records(self.run_id))
        return [name for names in standing_pins(records, now_ns=now_ns).values() for name in names]

    @property
    def owners(self) -> list[str]:
        return [one.owner for one in self.catalog.claims.claims(self.run_id)]


@pytest.fixture
def claims(catalog) -> Claims:
    return Claims(catalog)


@pytest.fixture
def condemn(catalog, claims):
    """Decides that the one copy of a checkpoint goes, and may begin with it."""

    def decide(name: str, *, begin: bool = False) -> object:
        (one,) = [each for each in catalog.copies(claims.run_id) if each.name == name]
        against = guard(reachable=frozenset({one.place}))
        going = doomed(one.content_id, one.place)
        condemned = catalog.removals.condemn(claims.run_id, [going], against, plan_id="p")
        if begin:
            catalog.removals.begin(claims.run_id, one.content_id, one.place, against)
        return condemned

    return decide


@pytest.fixture
def leased(spawn, run: Path):
    """A command that runs under a lease on step 100 and says that it does."""
    words = ("lease", "run", "100", "--ttl", "10s", "--reason", "evaluation", "--")
    process = spawn(*words, sys.executable, "-c", WAITS)
    try:
        assert process.stdout.readline() == b"ready\n", process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_exit_code_is_the_commands(cli, run, spawn) -> None:
    command = (sys.executable, "-c", "raise SystemExit(3)")
    process = spawn("lease", "run", "100", "--", *command)
    process.communicate()
    assert process.returncode == 3


def test_it_is_kept_while_the_command_runs_and_let_go_of_at_its_end(leased, claims) -> None:
    (name,) = claims.names()
    assert name.startswith("lease:")
    assert claims.owners == [name.removeprefix("lease:")]
    assert claims.records[-1].stamp.reason == "evaluation"
    assert claims.names(later_ns=11 * 10**9) == []
    os.kill(leased.pid, signal.SIGTERM)
    leased.communicate()
    assert leased.returncode == 128 + signal.SIGTERM
    assert claims.names() == claims.owners == []
    assert [type(one) for one in claims.records] == [Pin, Unpin]


def test_killed_it_runs_out_by_itself_and_the_command_ends(leased, claims) -> None:
    children = psutil.Process(leased.pid).children()
    leased.kill()
    leased.wait()
    psutil.wait_procs(children, timeout=20)
    assert not any(child.is_running() for child in children)
    assert len(claims.names()) == 1
    assert claims.names(later_ns=11 * 10**9) == []


def test_no_copy_of_it_goes_anywhere_meanwhile(leased, claims, condemn) -> None:
    with pytest.raises(RefusedBySafety, match="evaluation"):
        condemn("step_100")
    os.kill(leased.pid, signal.SIGTERM)
    leased.communicate()
    assert condemn("step_100")


@pytest.mark.parametrize("words", [("100", "--ttl", "5s"), ("100", "--ttl", "soon"), ("300",)])
def test_where_it_cannot_be_taken_the_command_is_not_started(cli, run, tmp_path, words) -> None:
    made = tmp_path / "made"
    step, *options = words
    told = cli("lease", "run", step, *options, "--", "touch", made)
    assert told.code in (2, 5)
    assert not made.exists()


def test_what_is_being_removed_is_not_leased(cli, condemn, claims, tmp_path) -> None:
    condemn("step_100", begin=True)
    told = cli("lease", "run", "100", "--", "touch", tmp_path / "made")
    assert (told.code, "being removed" in told.err) == (5, True)
    assert not (tmp_path / "made").exists()
    assert claims.names() == claims.owners == []


def test_a_command_that_is_not_there_leaves_no_claim(cli, run, claims) -> None:
    assert cli("lease", "run", "100", "--", "/nowhere/at-all").code == 2
    assert claims.names() == claims.owners == []


def test_json_goes_with_a_dry_run_only(cli, run) -> None:
    told = cli("lease", "run", "100", "--json", "--", "true")
    assert told.code == 2
    assert "--dry-run" in told.json["error"]["message"]
