"""Real processes under one budget: what they write never exceeds it, whichever of them die."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ckptgov.catalog.catalog import Catalog
from ckptgov.model.clock import SystemClock
from ckptgov.planning.bandwidth import quantum_bytes

MB = 10**6

# One import for all of them: the movers are forked before any thread or connection exists.
MOVERS = textwrap.dedent(
    """
    import json, os, sys, time
    from ckptgov.catalog.catalog import Catalog
    from ckptgov.model.clock import SystemClock
    from ckptgov.model.pacing import Budget, FlowClass, FlowRequest
    from ckptgov.model.settings import Settings, TierSettings
    from ckptgov.ops.flows import FlowDesk

    home, count, budget, lease_s, seconds, piece = sys.argv[1], *map(int, sys.argv[2:])

    def moves(index):
        clock = SystemClock()
        tier = TierSettings(
            name="disk", root=home, budget=Budget(write_bytes_per_s=budget, flows=count)
        )
        catalog = Catalog.open(
            home + "/catalog.sqlite", fs_type="ext4", is_network=False, clock=clock
        )
        log = os.open(f"{home}/log-{index}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        target = os.open(f"{home}/file-{index}", os.O_WRONLY | os.O_CREAT)
        request = FlowRequest(
            flow_id=f"flow-{index}", what=f"run/step_{index}", flow_class=FlowClass.DURABLE,
            source=None, target="disk", node="a", bytes=2**40,
        )
        payload = os.urandom(piece)
        until = time.monotonic() + seconds
        with FlowDesk(catalog, Settings(home=home, tiers=(tier,)), clock, lease_s=lease_s) as desk:
            with desk.open(request) as flow:
                while time.monotonic() < until:
                    flow.writing.take(piece)
                    if time.monotonic() >= until:
                        break
                    os.pwrite(target, payload, 0)
                    os.fdatasync(target)
                    flow.moved(piece)
                    os.write(log, b"%d %d\\n" % (time.monotonic_ns(), piece))
        with open("/proc/self/io") as file:
            written = int(dict(line.split(": ") for line in file)["write_bytes"])
        os.write(log, b"# %d\\n" % written)

    for index in range(count):
        if os.fork() == 0:
            try:
                moves(index)
            finally:
                os._exit(0)
    print("started", flush=True)
    for _ in range(count):
        os.wait()
    """
)


class Movers:
    """The processes of one test, and the catalog they share."""

    def __init__(self, home: Path, catalog: Catalog, budget: int) -> None:
        self.home = home
        self.book = catalog.flows
        self.budget = budget
        self.began_ns = time.monotonic_ns()

    def allocator_pid(self) -> int:
        """The process that computes the grants; waits until there is one."""
        held = self.wait_for(lambda: (one := self.book.allocator()) and one.holder and one)
        return int(held.holder.split(":")[-3])

    def moving(self) -> int:
        return sum(1 for one in self.book.registered() if one.granted is not None)

    def wait_for(self, condition, timeout_s: float = 30):
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            found = condition()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError("waited in vain")

    def written(self) -> list[tuple[int, int]]:
        """When how many bytes had become durable, by all processes."""
        found = []
        for log in self.home.glob("log-*"):
            for line in log.read_text().splitlines():
                if not line.startswith("#"):
                    at_ns, count = line.split()
                    found.append((int(at_ns), int(count)))
        return sorted(found)

    def device_bytes(self) -> list[int]:
        """What the kernel counted for the device, of each that ended by itself."""
        lines = [line for log in self.home.glob("log-*") for line in log.read_text().splitlines()]
        return [int(line[1:]) for line in lines if line.startswith("#")]

    def rate(self, since_ns: int | None = None, until_ns: int | None = None) -> float:
        """Durable bytes/s between two times."""
        written = self.written()
        since_ns = self.began_ns if since_ns is None else since_ns
        until_ns = written[-1][0] if until_ns is None else until_ns
        moved = sum(count for at_ns, count in written if since_ns < at_ns <= until_ns)
        return moved / ((until_ns - since_ns) / 1e9)

    def worst_excess(self, window_s: int = 3) -> float:
        """By what part of the budget the worst window exceeded it, one quantum aside."""
        written = self.written()
        worst, start, moved = 0, 0, 0
        for at_ns, count in written:
            moved += count
            while written[start][0] <= at_ns - window_s * 10**9:
                moved -= written[start][1]
                start += 1
            worst = max(worst, moved)
        allowed = window_s * self.budget
        return max(0, worst - quantum_bytes(self.budget) - allowed) / allowed

    def show(self, what: str) -> None:
        moved = sum(count for _, count in self.written())
        print(
            f"{what}: {self.rate() / MB:.1f} MB/s of {self.budget / MB:.0f} MB/s; "
            f"payload {moved / MB:.0f} MB, device {sum(self.device_bytes()) / MB:.0f} MB "
            f"by {len(self.device_bytes())} that ended by themselves; "
            f"worst 3 s {self.worst_excess():.1%} above"
        )


@contextmanager
def movers(
    home: Path, *, count: int, budget: int, seconds: int, lease_s: int = 15, piece: int = 2**20
) -> Iterator[Movers]:
    """Start them, and wait until all have ended."""
    arguments = [str(home), *map(str, (count, budget, lease_s, seconds, piece))]
    with Catalog.open(
        str(home / "catalog.sqlite"), fs_type="ext4", is_network=False, clock=SystemClock()
    ) as catalog:
        parent = subprocess.Popen(
            [sys.executable, "-c", MOVERS, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "started\n"
            yield Movers(home, catalog, budget)
            parent.wait(timeout=90)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)  # a stopped one too
            parent.communicate()


def test_sixteen_processes_stay_within_200_mb_per_s_while_the_allocator_is_killed(
    tmp_path: Path,
) -> None:
    with movers(tmp_path, count=16, budget=200 * MB, seconds=9, piece=4 * 2**20) as going:
        going.wait_for(lambda: going.moving() == 16)
        killed = going.allocator_pid()
        os.kill(killed, signal.SIGKILL)
        going.wait_for(lambda: going.allocator_pid() != killed)
        going.wait_for(lambda: len(going.book.registered()) < 16)
    going.show("16 processes, the allocator killed and replaced")
    assert going.rate() <= 1.02 * going.budget
    assert going.worst_excess() <= 0.02
    assert len(going.device_bytes()) == 15
    assert going.book.registered() == ()


def stopped_outside_a_transaction(pid: int, home: Path) -> bool:
    """Stop a process where it does not hold the catalog's write lock, which nobody could take."""
    os.kill(pid, signal.SIGSTOP)
    probe = sqlite3.connect(home / "catalog.sqlite", isolation_level=None, timeout=1)
    try:
        probe.execute("BEGIN IMMEDIATE")
        probe.execute("ROLLBACK")
    except sqlite3.OperationalError:
        os.kill(pid, signal.SIGCONT)
        return False
    finally:
        probe.close()
    return True


def test_an_allocator_that_was_stopped_past_its_lease_changes_nothing_when_it_goes_on(
    tmp_path: Path,
) -> None:
    with movers(tmp_path, count=4, budget=20 * MB, seconds=10) as going:
        going.wait_for(lambda: going.moving() == 4)
        stopped, epoch = going.allocator_pid(), going.book.allocator().epoch
        going.wait_for(lambda: stopped_outside_a_transaction(stopped, tmp_path))
        going.wait_for(lambda: going.book.allocator().epoch > epoch)
        os.kill(stopped, signal.SIGCONT)
        time.sleep(1.5)
        assert going.allocator_pid() != stopped
        assert going.book.allocator().epoch == epoch + 1
    going.show("4 processes, the allocator stopped past its lease and continued")
    assert going.rate() <= 1.02 * going.budget
    assert going.worst_excess() <= 0.02


def test_processes_that_hear_nothing_go_on_at_a_rate_that_is_kept_aside_for_them(
    tmp_path: Path,
) -> None:
    with movers(tmp_path, count=4, budget=20 * MB, seconds=8, lease_s=2, piece=2**18) as going:
        going.wait_for(lambda: going.moving() == 4)
        time.sleep(1)
        lock = sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None, timeout=30)
        lock.execute("BEGIN IMMEDIATE")
        time.sleep(2)  # what they were granted has run out by now
        since_ns = time.monotonic_ns()
        time.sleep(2.5)
        until_ns = time.monotonic_ns()
        lock.execute("ROLLBACK")
        lock.close()
    silent = going.rate(since_ns, until_ns)
    going.show(f"4 processes, all silent meanwhile at {silent / MB:.2f} MB/s")
    assert 0 < silent <= 0.1 * 20 * MB * 1.02 + 4 * 2**18 / 2.5
    assert going.rate() <= 1.02 * going.budget
    assert going.worst_excess() <= 0.02
