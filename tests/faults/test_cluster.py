"""A cluster whose parts fail in the middle of seals and flushes: nothing it says is ever wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fault_watch import Copies, Watch

from ckptgov.errors import CkptgovError
from ckptgov.service.leadership import LEASE_S
from ckptgov.testing import cluster_processes
from ckptgov.testing._members import wait_until
from ckptgov.testing._ranks import digests_of
from ckptgov.testing.cluster_processes import ProcessCluster

RUN = "llm-7b"
SETTINGS = """\
settle: 0s
service:
  node_timeout: 10s
  activities: {scan: {every: 5s}, flush: {every: 2s}, verify: {every: 0s}}
"""
WRITE_BUDGET = "1MB/s"
PARTITION = 16_384
"""So many numbers for each rank: a save of 400 kB takes a while to be flushed."""
CONVERGE_S = 400.0

if reason := cluster_processes.reason_to_skip():
    pytest.skip(reason, allow_module_level=True)


@dataclass(frozen=True)
class Size:
    """How much is done to the cluster, in seconds where it is time."""

    rounds: int
    cut: tuple[float, float]
    stopped: tuple[float, float]
    calm: tuple[float, float]
    between_saves: tuple[float, float]


SAMPLE = Size(
    rounds=1,
    cut=(13, 17),  # longer than a node may be silent
    stopped=(LEASE_S + 2, LEASE_S + 5),
    calm=(0, 3),
    between_saves=(0, 5),
)
WHOLE = Size(
    rounds=4,
    cut=(60, 75),
    stopped=(LEASE_S + 2, 5 * LEASE_S),
    calm=(0, 15),
    between_saves=(2, 15),
)


@dataclass
class Faults:
    """What is done to the cluster, in lanes that go on side by side; ``log`` tells when.

    Where nodes have no networks of their own, none is cut (tests/testing/test_networks.py says so).
    """

    cluster: ProcessCluster
    dice: random.Random
    size: Size
    began: float = field(default_factory=time.monotonic)
    log: list[str] = field(default_factory=list)
    stopped: list[tuple[int, int]] = field(default_factory=list)
    broken: list[BaseException] = field(default_factory=list)

    def lanes(self, *, with_agents: bool) -> list[threading.Thread]:
        """Replicas one after the other, so that one is left; beside them all that is not one."""
        beside = [self.restart_the_database]
        if self.cluster.networks.why_shared is None:
            beside.append(self.cut_a_network)
        if with_agents:
            beside.append(self.kill_an_agent)
        lanes = ([self.kill_the_leader, self.stop_the_leader], beside)
        return [self._lane(faults, random.Random(self.dice.random())) for faults in lanes]

    def kill_the_leader(self, dice: random.Random) -> None:
        number = self._leader()
        self.cluster.replicas[number].kill()
        self._tell(f"replica {number} is killed")
        time.sleep(dice.uniform(1, 4))
        self.cluster.replicas[number].start()
        self._tell(f"replica {number} is started")

    def stop_the_leader(self, dice: random.Random) -> None:
        """In the middle of what it does, until another one leads, and a little longer."""
        number = self._leader()
        replica = self.cluster.replicas[number]
        epoch = led_by(replica.log)[-1]

        def acts() -> bool:
            with contextlib.suppress(CkptgovError):  # the database may be away
                return epoch in acted_under(self.cluster)
            return False

        wait_until("the leader to act", acts)
        replica.stop()
        self._tell(f"replica {number} is stopped, which leads (epoch {epoch})")
        time.sleep(dice.uniform(*self.size.stopped))
        self._leader(but=number)
        replica.go_on()
        self._tell(f"replica {number} goes on")
        self.stopped.append((number, epoch))

    def restart_the_database(self, dice: random.Random) -> None:
        database = self.cluster.database
        end = dice.choice((database.stop, database.kill))
        end()
        self._tell(f"the database is gone ({end.__name__})")
        time.sleep(dice.uniform(0, 3))
        database.start()
        self._tell("the database is back")

    def cut_a_network(self, dice: random.Random) -> None:
        number = dice.randrange(len(self.cluster.nodes))
        self.cluster.networks.cut(number)
        self._tell(f"node{number} is cut off")
        time.sleep(dice.uniform(*self.size.cut))
        self.cluster.networks.plug_in(number)
        self._tell(f"node{number} is plugged in")

    def kill_an_agent(self, dice: random.Random) -> None:
        node = dice.choice(self.cluster.nodes)
        self.cluster.agents[node].kill()
        self._tell(f"the agent of {node} is killed")
        time.sleep(dice.uniform(0, 15))
        self.cluster.agents[node].start()

    def _leader(self, *, but: int | None = None) -> int:
        """The replica that leads, waited for."""
        found: list[int] = []

        def leads() -> bool:
            with contextlib.suppress(CkptgovError):  # the database may be away
                number = self.cluster.leader()
                if number is not None and number != but:
                    found.append(number)
            return bool(found)

        wait_until("a leader", leads)
        return found[0]

    def _lane(
        self, faults: list[Callable[[random.Random], None]], dice: random.Random
    ) -> threading.Thread:
        def play() -> None:
            try:
                for _ in range(self.size.rounds):
                    for fault in dice.sample(faults, len(faults)):
                        time.sleep(dice.uniform(*self.size.calm))
                        fault(dice)
            except BaseException as error:
                self.broken.append(error)

        thread = threading.Thread(target=play)
        thread.start()
        return thread

    def _tell(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self.began:6.1f} s  {text}")


def led_by(log: Path) -> list[int]:
    """The epochs in which a replica led, as it says itself."""
    return [int(one) for one in re.findall(r"this process leads, epoch (\d+)", log.read_text())]


def acted_under(cluster: ProcessCluster) -> list[int]:
    """The leader epoch of everything that the schedule had done, in the order it was written."""
    with contextlib.closing(cluster.catalog()) as catalog:
        tasks = reversed(catalog.tasks.tasks(limit=1_000_000))
    payloads = [json.loads(one.task.payload or b"{}") for one in tasks]
    return [one["by"]["leader_epoch"] for one in payloads if one.get("by") is not None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path, write_budget=WRITE_BUDGET, settings=SETTINGS) as made:
        made.come_up()
        yield made


def save(cluster: ProcessCluster, step: int, dice: random.Random) -> None:
    """At a trainer's pace: a scan may see any part of it."""
    cluster.save(RUN, step, partition=PARTITION, pause=lambda: time.sleep(dice.uniform(0, 0.1)))


def checkpoints(cluster: ProcessCluster) -> dict[int, dict[str, Any]]:
    """What the service has of the run, by step; nothing while it cannot say."""
    for replica in range(len(cluster.ports)):
        with contextlib.suppress(OSError, http.client.HTTPException):
            _status, told = cluster.get(replica, f"/v1/runs/{RUN}/checkpoints", timeout_s=15)
            if "error" not in told:
                return {one["step"]: one for one in told["checkpoints"]}
    return {}


def is_whole_on(checkpoint: dict[str, Any], tier: str) -> bool:
    return checkpoint["state"] == "restorable" and any(
        copy["tier"] == tier and copy["shards"] is None for copy in checkpoint["copies"]
    )


def has_converged(cluster: ProcessCluster, steps: range) -> bool:
    found = checkpoints(cluster)
    return found.keys() == set(steps) and all(is_whole_on(one, "s3") for one in found.values())


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_whatever_fails_no_answer_is_wrong_and_everything_converges(
    cluster: ProcessCluster, tmp_path: Path, dice: random.Random, full_sweep: bool, capsys
) -> None:
    save(cluster, 1, dice)
    wait_until("the first save in the store", lambda: has_converged(cluster, range(1, 2)))
    faults = Faults(cluster, dice, WHOLE if full_sweep else SAMPLE)
    watch = Watch(cluster, RUN)
    last = 1
    try:
        with watch.asking():
            lanes = faults.lanes(with_agents=full_sweep)
            while any(lane.is_alive() for lane in lanes):
                last += 1
                save(cluster, last, dice)
                time.sleep(dice.uniform(*faults.size.between_saves))
            steps = range(1, last + 1)
            wait_until("everything", lambda: has_converged(cluster, steps), seconds=CONVERGE_S)
            converged_at = time.monotonic() - faults.began
    finally:
        with capsys.disabled():
            print("", *faults.log, f"right: {dict(watch.right)}", sep="\n")
            print(f"no answer: {dict(watch.later)}")
        if faults.broken or watch.wrong:
            print(cluster.last_words())
    assert faults.broken == []
    assert watch.wrong == []
    assert min(watch.right.values()) > 5
    with capsys.disabled():
        print(f"{last} saves, all in the store after {converged_at:.0f} s")

    assert_the_copies_are_what_was_written(cluster, steps)
    assert_the_store_alone_gives_it_back(cluster, dice.choice(steps), last, tmp_path)
    assert_a_rebuilt_catalog_says_the_same(cluster, tmp_path)
    assert_nothing_is_left_over(cluster)
    assert_one_led_at_a_time(cluster, faults)


def assert_the_copies_are_what_was_written(cluster: ProcessCluster, steps: range) -> None:
    assert cluster.latest(RUN)["step"] == steps[-1]
    copies = Copies(cluster, RUN)
    for step, one in checkpoints(cluster).items():
        assert list(copies.faults(one)) == [], step
        assert is_whole_on(one, "lustre"), step


def assert_the_store_alone_gives_it_back(
    cluster: ProcessCluster, step: int, last: int, scratch: Path
) -> None:
    """Without the service, its catalog and its configuration."""
    home, url = scratch / "nobody-at-all", f"{cluster.object_url}/{RUN}"
    told = cluster.run("latest", url, "--evidence", "digest", home=home)
    assert told.out.strip() == f"{url}/checkpoint-{last}"
    target = scratch / "restored"
    cluster.run("restore", url, "--step", str(step), "--to", str(target), home=home)
    restored = digests_of(target / f"checkpoint-{step}")
    assert restored == cluster.written[RUN, step]


def assert_a_rebuilt_catalog_says_the_same(cluster: ProcessCluster, scratch: Path) -> None:
    home = scratch / "home-rebuilt"
    home.mkdir()
    configuration = (cluster.home(None) / "ckptgov.yaml").read_bytes()
    (home / "ckptgov.yaml").write_bytes(configuration)
    environ = {"CKPTGOV_CATALOG": cluster.database.new_database()}

    def of_rebuilt(*words: str) -> dict[str, Any]:
        return cluster.run(*words, "--json", home=home, environ=environ).document

    def what_counts(one: dict[str, Any]) -> dict[str, Any]:
        places = sorted(copy["root"] for copy in one["copies"] if copy["node"] is None)
        names = ("name", "step", "content_id", "line", "attempt", "bytes", "evidence", "purposes")
        return {"places": places, **{name: one[name] for name in names}}

    of_rebuilt("catalog", "rebuild")
    assert what_counts(of_rebuilt("latest", RUN)) == what_counts(cluster.latest(RUN))
    rebuilt = {one["step"]: one for one in of_rebuilt("list", RUN)["checkpoints"]}
    standing = checkpoints(cluster)
    assert rebuilt.keys() == standing.keys()
    for step, one in rebuilt.items():
        assert what_counts(one) == what_counts(standing[step])


def assert_nothing_is_left_over(cluster: ProcessCluster) -> None:
    cluster.ask("reconcile", "lustre", "s3", "--older-than", "0s")
    names = [str(path) for path in cluster.lustre.rglob("*")]
    for disk in cluster.nvme.values():
        names += [str(path) for path in disk.rglob("*")]
    with contextlib.closing(cluster.store.client()) as client:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=cluster.store.bucket)
        names += [one["Key"] for page in pages for one in page.get("Contents", ())]
        uploads = client.list_multipart_uploads(Bucket=cluster.store.bucket)
    assert [name for name in names if "/attempt-" in name] == []
    assert [name for name in names if "/.ckptgov/staging/" in name] == []
    assert "Uploads" not in uploads


def assert_one_led_at_a_time(cluster: ProcessCluster, faults: Faults) -> None:
    """What the schedule made says under which leadership; a former one's comes after no later."""
    acted = acted_under(cluster)
    assert acted == sorted(acted)
    led = [epoch for replica in cluster.replicas for epoch in led_by(replica.log)]
    assert len(led) == len(set(led))
    assert set(acted) <= set(led)
    for number, epoch in faults.stopped:
        assert epoch in acted
        later = [one for one in led if one > epoch]
        assert later, "nobody led while the leader was stopped"
        assert min(later) not in led_by(cluster.replicas[number].log)
