"""P1: agents and service killed at any point offer nothing false, and what is left converges."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckptgov.model.checkpoint import Evidence
from ckptgov.model.facts import Query
from ckptgov.testing.builders import date_files, write_deepspeed, write_hf_trainer
from ckptgov.testing.cluster import LocalCluster
from ckptgov.work.answer import answer

POINTS = frozenset(
    {
        *("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.utime"),
        *("sqlite3.connect", "ckptgov.line"),
    }
)


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Callable[[], LocalCluster]]:
    """Clusters of two nodes, each with its half of one save."""
    with ExitStack() as stack:
        made = iter(range(1000))

        def make() -> LocalCluster:
            base = tmp_path / f"{next(made)}"
            base.mkdir()
            cluster = LocalCluster(base, stack, "node0", "node1")
            for number, node in enumerate(cluster.nodes.values()):
                directory = node.disk / "run/checkpoint-2"
                ranks = [2 * number, 2 * number + 1]
                write_hf_trainer(directory, 2, world_size=4, optimizer=False, rng_ranks=ranks)
                write_deepspeed(directory, 2, world_size=4, ranks=ranks)
                date_files(directory, "latest", "trainer_state.json")
            return cluster

        yield make


def all_of_it(cluster: LocalCluster) -> None:
    """Seal and flush, every process in this one; the lines are points to be killed at as well."""
    cluster.reopen()
    for node in cluster.nodes.values():
        for name in ("tell", "put_part", "claim", "end"):
            setattr(node.line, name, _marked(getattr(node.line, name)))
    cluster.turn(times=3)


def _marked(call: Callable[..., object]) -> Callable[..., object]:
    def marked(*given: object, **named: object) -> object:
        sys.audit("ckptgov.line")
        try:
            return call(*given, **named)
        finally:
            sys.audit("ckptgov.line")

    return marked


def in_child(work: Callable[[], None], *, kill_at: int | None) -> int:
    """How many points the work passed in a process of its own, killed at one of them."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            count = 0

            def hook(event: str, given: object) -> None:
                nonlocal count
                del given
                if event in POINTS:
                    if count == kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    count += 1

            sys.addaudithook(hook)
            work()
            os.write(writing, str(count).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) is (kill_at is not None)
    return int(told or b"0")


def on_the_disks(cluster: LocalCluster) -> str | None:
    """What a look at the nodes' disks alone offers, by digest."""
    looks = []
    with ExitStack() as stack:
        for node in cluster.nodes.values():
            context = stack.enter_context(node.agent._context())
            place = context.place(next(one for one in context.settings.tiers if one.node))
            looks.append(context.look(place, "run", partial=True, run="run"))
        choice = answer(looks, Query(min_evidence=Evidence.DIGEST, may_gather=True))
    return choice.chosen.name if choice.chosen is not None else None


def drawn(points: range, config: pytest.Config) -> list[int]:
    """Some of the points, or with --full-sweep all of them."""
    if config.getoption("--full-sweep"):
        return list(points)
    dice = random.Random(config.getoption("--seed"))
    return sorted(dice.sample(points, 5))


def test_killed_anywhere_nothing_false_is_offered_and_the_rest_is_done_later(
    clusters: Callable[[], LocalCluster], pytestconfig: pytest.Config
) -> None:
    first = clusters()
    points = in_child(lambda: all_of_it(first), kill_at=None)
    assert points > 100
    first.reopen()
    assert first.restorable("run") == ["checkpoint-2"]
    for point in drawn(range(points - 20), pytestconfig):
        cluster = clusters()
        in_child(lambda at=cluster: all_of_it(at), kill_at=point)
        cluster.reopen()
        if cluster.restorable("run"):
            assert on_the_disks(cluster) == "checkpoint-2", point
        cluster.clock.sleep(120)  # the leases of the dead end
        cluster.turn(times=4)
        run_id = cluster.serving.catalog.run_by_name("run").identity.run_id
        assert cluster.restorable("run") == ["checkpoint-2"], point
        assert on_the_disks(cluster) == "checkpoint-2", point
        kinds = [one.kind for one in cluster.serving.catalog.records(run_id)]
        assert kinds == ["sealed"], point
        assert (cluster.lustre / "run/checkpoint-2/trainer_state.json").exists(), point
