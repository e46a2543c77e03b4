"""Removals on disks of nodes: begun by the service, carried out by agents, settled when told."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import ckptgov.ops.context
from ckptgov.catalog.facts import PlacedCopy
from ckptgov.catalog.removals import RemovalBook
from ckptgov.errors import CouldNotLook, Interrupted, LeaseLost
from ckptgov.manifest.forms.identities import decode_tier, encode_tier
from ckptgov.model.checkpoint import Evidence
from ckptgov.model.cluster import NodeState, TaskFacts, TaskKind, TaskState
from ckptgov.model.copies import CopyState
from ckptgov.model.journal import Pin
from ckptgov.model.retention import Action, Removal
from ckptgov.ops import node_removals
from ckptgov.ops.apply import apply
from ckptgov.ops.posting import LEDGER, apply_post
from ckptgov.ops.telling_run import posted_copy, posted_place
from ckptgov.ops.undelete import undelete
from ckptgov.service.agent_cluster import DirectCluster
from ckptgov.service.node_outcomes import settle
from ckptgov.service.node_removals import ask_back, ask_nodes
from ckptgov.storage.contract import Storage
from ckptgov.testing.builders import date_files, write_dcp
from ckptgov.testing.builders.dcp import dcp_files
from ckptgov.testing.cluster import LeapingClock, LocalCluster, LocalNode
from ckptgov.testing.condemning import doomed, guard
from ckptgov.testing.crashing import Crash, CrashingStorage
from ckptgov.wire.facts import Post, PostedCopy, PostedRoot
from ckptgov.wire.node_removals import (
    Came,
    RemoveOutcome,
    decode_came,
    decode_orders,
    encode_removals,
)
from ckptgov.work.runstore import store_at
from ckptgov.work.tier import Place

PLAN = "sha256:" + "a" * 64
STEPS = (10, 20, 30)
DAY_S = 86400.0
UUID = "7a1c6d1e-0000-4000-8000-00000000000c"


class Restored(LocalCluster):
    """A cluster whose files were laid out before."""

    def __init__(self, base: Path, stack: ExitStack, *nodes: str) -> None:
        self.base, self._stack = base, stack
        self.clock = LeapingClock()
        self.lustre = base / "lustre"
        self.serving = self.replica()
        self.cluster = DirectCluster(self.serving)
        self.nodes = {
            name: LocalNode(name, base, self.cluster, self.clock, stack) for name in nodes
        }


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Homes and disks of a node with three checkpoints that are on the shared tier as well."""
    base = tmp_path_factory.mktemp("cluster") / "base"
    base.mkdir()
    with ExitStack() as stack:
        cluster = LocalCluster(base, stack, "node0")
        node = cluster.nodes["node0"]
        for step in STEPS:
            write_dcp(node.disk / f"run/step_{step}", seed=f"step_{step}")
        node.turn()
    base.rename(base.parent / "kept")
    return base


def _laid(source: str, target: str) -> None:
    """Files of checkpoints are the same ones, to their inodes; of catalogs each has its own."""
    if "/home" in source:
        shutil.copy2(source, target)
    else:
        os.link(source, target)


@pytest.fixture
def lay(laid_out: Path) -> Iterator[Callable[[], LocalCluster]]:
    """The cluster as it was laid out; again: anew, and the one before is over."""
    stack = ExitStack()

    def anew() -> LocalCluster:
        stack.close()
        shutil.rmtree(laid_out, ignore_errors=True)
        shutil.copytree(laid_out.parent / "kept", laid_out, copy_function=_laid)
        cluster = Restored(laid_out, stack, "node0")
        cluster.nodes["node0"].agent.beat()
        return cluster

    with stack:
        yield anew


@pytest.fixture
def cluster(lay: Callable[[], LocalCluster]) -> LocalCluster:
    return lay()


@pytest.fixture
def node(cluster: LocalCluster) -> LocalNode:
    return cluster.nodes["node0"]


def run_id(cluster: LocalCluster) -> str:
    return cluster.serving.catalog.run_by_name("run").identity.run_id


def content_id(cluster: LocalCluster, step: int) -> str:
    found = cluster.serving.catalog.checkpoints(run_id(cluster))
    return next(one.content_id for one in found if one.step == step)


def place_of(cluster: LocalCluster) -> str:
    places = cluster.serving.catalog.places()
    return next(one.place for one in places if one.node == "node0" and one.is_current)


def condemn(cluster: LocalCluster, *steps: int, **changes: Any) -> tuple[Removal, ...]:
    """Of the node's copies; pruned, with a day in the trash, unless ``changes`` say so."""
    place = place_of(cluster)
    fields = {"trash_s": DAY_S} | changes
    going = [doomed(content_id(cluster, step), place, **fields) for step in steps]
    catalog = cluster.serving.catalog
    places = frozenset(one.place for one in catalog.places())
    return catalog.removals.condemn(run_id(cluster), going, guard(reachable=places), plan_id=PLAN)


def remove_10(cluster: LocalCluster, node: LocalNode) -> None:
    """Condemned, asked of its node, and carried out there, one after the other."""
    condemn(cluster, 10)
    ask(cluster)
    work(node)


def ask(cluster: LocalCluster) -> tuple[TaskFacts, ...]:
    with cluster.serving.context() as context:
        return ask_nodes(context)


def back(cluster: LocalCluster, step: int | None = None) -> tuple[TaskFacts, ...]:
    with cluster.serving.context() as context:
        return ask_back(context, "run", step)


def work(node: LocalNode) -> None:
    while node.agent.work():
        node.agent.tell()


def state(serving: Any, cluster: LocalCluster, step: int) -> CopyState:
    """What a catalog has of the node's copy."""
    return copy_of(serving, cluster, step).state


def copy_of(serving: Any, cluster: LocalCluster, step: int) -> PlacedCopy:
    wanted = content_id(cluster, step)
    found = serving.catalog.copies_of(run_id(cluster), [wanted])[wanted]
    return next(one for one in found if one.place == place_of(cluster))


def removals(serving: Any) -> dict[CopyState, int]:
    found: dict[CopyState, int] = {}
    for one in serving.catalog.removals.removals():
        found[one.state] = found.get(one.state, 0) + 1
    return found


def make_due(serving: Any) -> None:
    """Its time in the trash is over."""
    for one in serving.catalog.removals.removals(states=(CopyState.TRASHED,)):
        serving.catalog.removals.adopt(replace(one, due_at_ns=1))


def files(node: LocalNode, step: int) -> list[str]:
    return sorted(path.name for path in (node.disk / f"run/step_{step}").glob("*"))


def trash(node: LocalNode) -> list[Path]:
    return [one for one in (node.disk / "run/.ckptgov/trash").glob("*/*/**/*") if one.is_file()]


def with_identity(node: LocalNode, **changes: str) -> None:
    """Another identity at the root of its disk."""
    path = node.disk / ".ckptgov-tier.json"
    raw = encode_tier(replace(decode_tier(path.read_bytes(), where=str(path)), **changes))
    path.unlink()
    path.write_bytes(raw)


@contextmanager
def rotten(shard: Path) -> Iterator[None]:
    """A bit of it is another one, and nothing else tells of that. (The file is laid out again for
    other tests.)"""
    found = shard.stat()
    with shard.open("r+b") as file:
        byte = file.read(1)
        try:
            file.seek(0)
            file.write(bytes([byte[0] ^ 1]))
            file.flush()
            os.utime(file.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
            yield
        finally:
            file.seek(0)
            file.write(byte)
            file.flush()
            os.utime(file.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))


def outcomes(cluster: LocalCluster) -> list[str]:
    """What came of every order, oldest task first."""
    found = cluster.serving.catalog.tasks.tasks()
    ended = [one for one in reversed(found) if one.task.kind is TaskKind.REMOVE]
    return [
        answer.came.value
        for one in ended
        if one.state is TaskState.DONE
        for answer in decode_came(one.outcome).answers
    ]


class TestTheLifeOfARemoval:
    def test_what_others_keep_is_purged_at_once(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10, action=Action.EVICT)
        (task,) = ask(cluster)
        assert (task.task.node, task.task.kind) == ("node0", TaskKind.REMOVE)
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHING
        work(node)
        assert outcomes(cluster) == ["purged"]
        assert (files(node, 10), trash(node)) == ([], [])
        for serving in (cluster.serving, node.serving):
            assert state(serving, cluster, 10) is CopyState.PURGED
            assert removals(serving) == {}
        assert files(node, 20)

    def test_what_is_pruned_lies_in_the_trash_first(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        assert outcomes(cluster) == ["moved"]
        assert files(node, 10) == []
        for serving in (cluster.serving, node.serving):
            assert state(serving, cluster, 10) is CopyState.TRASHED
        (removal,) = cluster.serving.catalog.removals.removals()
        assert (node.disk / removal.trash / "files").is_dir()
        assert removal.due_at_ns > cluster.serving.catalog.now_ns() + 0.9 * DAY_S * 1e9
        assert ask(cluster) == ()

    def test_then_it_is_gone(self, cluster: LocalCluster, node: LocalNode) -> None:
        remove_10(cluster, node)
        make_due(cluster.serving)
        ask(cluster)
        work(node)
        assert outcomes(cluster) == ["moved", "purged"]
        assert trash(node) == []
        for serving in (cluster.serving, node.serving):
            assert state(serving, cluster, 10) is CopyState.PURGED
            assert removals(serving) == {}

    def test_a_scan_does_not_seal_again_what_lies_in_the_trash(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        node.turn()
        cluster.turn()
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHED
        assert not list((node.disk / "run/.ckptgov").rglob("step_10*.json"))

    def test_the_tombstone_is_known_to_the_service_and_stands_at_the_place(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        kinds = [one.kind for one in cluster.serving.catalog.records(run_id(cluster))]
        assert kinds.count("tombstone") == 1
        for root in (node.disk, cluster.lustre):
            assert len(list((root / "run/.ckptgov/journal").glob("*tombstone*"))) == 1

    def test_while_its_grace_lasts_no_agent_is_asked(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10, grace_s=DAY_S)
        assert ask(cluster) == ()
        assert state(cluster.serving, cluster, 10) is CopyState.CONDEMNED

    def test_what_p2_holds_back_by_now_stays_condemned(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        """It was to stay on the shared tier; that copy is lost by now."""
        condemn(cluster, 10, action=Action.EVICT)
        catalog = cluster.serving.catalog
        shared = next(one.place for one in catalog.places() if one.node is None)
        catalog.transition(
            run_id(cluster),
            content_id(cluster, 10),
            shared,
            expected=CopyState.VERIFIED,
            to=CopyState.LOST,
            at_ns=1,
        )
        assert ask(cluster) == ()
        assert state(cluster.serving, cluster, 10) is CopyState.CONDEMNED

    def test_nor_goes_what_was_pinned_meanwhile_without_the_service(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10)
        with cluster.serving.context() as context:
            place = context.place(context.settings.tiers[0])
            stamp = context.author.stamp(run_id(cluster), reason="it is published")
            store_at(place.storage, "run").append(
                Pin(stamp=stamp, content_id=content_id(cluster, 10), pin_name="paper")
            )
        assert ask(cluster) == ()
        assert state(cluster.serving, cluster, 10) is CopyState.CONDEMNED

    def test_all_of_a_node_is_one_task_and_is_asked_once(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10, 20)
        (task,) = ask(cluster)
        assert len(decode_orders(task.task.payload).orders) == 2
        assert [one.task_id for one in ask(cluster)] == [task.task_id]

    def test_more_than_one_task_carries_are_asked_one_task_after_the_other(
        self, cluster: LocalCluster, node: LocalNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ckptgov.service.node_removals.MOST_ORDERS", 1)
        condemn(cluster, 10, 20)
        for _ in range(2):
            (task,) = ask(cluster)
            assert len(decode_orders(task.task.payload).orders) == 1
            work(node)
        assert removals(cluster.serving) == {CopyState.TRASHED: 2}

    def test_on_one_machine_there_is_nobody_to_ask(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        make_due(cluster.serving)
        with cluster.serving.context() as context:
            context.here = None
            assert ask_nodes(context) == ()
            assert ask_back(context, "run") == ()

    def test_a_clock_that_went_back_asks_for_nothing(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10)
        cluster.clock.ahead_s = 7200.0
        cluster.serving.catalog.tick()
        cluster.clock.ahead_s = 0.0
        node.agent.beat()
        assert ask(cluster) == ()
        assert state(cluster.serving, cluster, 10) is CopyState.CONDEMNED


class TestWhatStandsAgainstIt:
    def test_a_namesake_that_took_its_place_is_left_alone(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10)
        ask(cluster)
        shutil.rmtree(node.disk / "run/step_10")
        write_dcp(node.disk / "run/step_10", seed="another")
        work(node)
        assert outcomes(cluster) == ["changed"]
        assert files(node, 10)
        for serving in (cluster.serving, node.serving):
            assert state(serving, cluster, 10) is CopyState.REOPENED
            assert removals(serving) == {}

    def test_another_place_at_its_root_is_not_touched(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10)
        ask(cluster)
        with_identity(node, place=UUID)
        node.agent.work()
        assert outcomes(cluster) == ["resisted"]
        assert files(node, 10)
        (removal,) = cluster.serving.catalog.removals.removals()
        assert removal.state is CopyState.TRASHING
        assert "expected" in removal.error

    def test_a_disk_that_another_catalog_governs_is_not_touched(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10)
        ask(cluster)
        with_identity(node, catalog=UUID)
        node.agent.work()
        assert outcomes(cluster) == ["resisted"]
        assert files(node, 10)

    def test_what_resists_is_noted_and_asked_again(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10)
        ask(cluster)
        held = node.disk / "run/.ckptgov"
        held.rename(node.disk / "run/aside")
        node.agent.work()
        assert outcomes(cluster) == ["resisted"]
        assert removals(cluster.serving) == {CopyState.TRASHING: 1}
        assert cluster.serving.catalog.removals.removals()[0].error
        (node.disk / "run/aside").rename(held)
        ask(cluster)
        work(node)
        assert outcomes(cluster) == ["resisted", "moved"]
        assert cluster.serving.catalog.removals.removals()[0].error == ""

    def test_a_node_whose_clock_is_wrong_removes_nothing(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10)
        ask(cluster)
        cluster.clock.ahead_s = 3600.0  # what its disk stamps is an hour behind
        node.agent.work()
        assert files(node, 10)
        (task,) = [
            one for one in cluster.serving.catalog.tasks.tasks() if one.task.kind is TaskKind.REMOVE
        ]
        assert task.state is TaskState.FAILED
        (removal,) = cluster.serving.catalog.removals.removals()
        assert "clock" in removal.error

    def test_another_nodes_place_is_not_settled(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        make_due(cluster.serving)
        (done,) = [one for one in cluster.serving.catalog.tasks.tasks() if one.outcome]
        (answer,) = decode_came(done.outcome).answers
        gone = replace(answer, came=Came.PURGED, copy=None)
        raw = encode_removals(RemoveOutcome(answers=(gone,)))
        other = replace(done, task=replace(done.task, node="node1"))
        with cluster.serving.context() as context:
            settle(context, other, raw)
            assert state(cluster.serving, cluster, 10) is CopyState.TRASHED
            settle(context, done, raw)
        assert state(cluster.serving, cluster, 10) is CopyState.PURGED


class TestSilenceAndLoss:
    def test_while_the_node_is_away_its_removals_wait(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10)
        cluster.clock.sleep(3600)
        assert ask(cluster) == ()
        assert state(cluster.serving, cluster, 10) is CopyState.CONDEMNED
        cluster.clock.ahead_s = 0.0
        cluster.serving.catalog.nodes.set_state("node0", NodeState.DEAD, reason="gone")
        assert ask(cluster) == ()

    def test_a_lost_outcome_is_told_again(self, cluster: LocalCluster, node: LocalNode) -> None:
        condemn(cluster, 10)
        condemn(cluster, 20, action=Action.EVICT)
        ask(cluster)
        node.line.end = lambda *_given, **_named: (_ for _ in ()).throw(LeaseLost("lost"))
        node.agent.work()
        assert files(node, 10) == files(node, 20) == []
        assert removals(cluster.serving) == {CopyState.TRASHING: 2}
        del node.line.end
        node.start()
        cluster.clock.sleep(61)
        node.agent.beat()
        work(node)
        assert sorted(outcomes(cluster)) == ["moved", "purged"]
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHED
        assert state(cluster.serving, cluster, 20) is CopyState.PURGED

    def test_an_outcome_that_comes_twice_changes_nothing(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        (done,) = [one for one in cluster.serving.catalog.tasks.tasks() if one.outcome]
        before = cluster.serving.catalog.removals.removals()
        with cluster.serving.context() as context:
            settle(context, done, done.outcome)
        assert cluster.serving.catalog.removals.removals() == before

    def test_an_outcome_of_an_earlier_removal_is_passed_over(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        (done,) = [one for one in cluster.serving.catalog.tasks.tasks() if one.outcome]
        back(cluster)
        work(node)
        condemn(cluster, 10)
        ask(cluster)
        with cluster.serving.context() as context:
            settle(context, done, done.outcome)
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHING

    def test_a_replaced_disk_takes_its_removals_with_it(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        make_due(cluster.serving)
        condemn(cluster, 20, grace_s=DAY_S)
        old = place_of(cluster)
        shutil.rmtree(node.disk)
        node.disk.mkdir()
        node.turn()
        assert old != place_of(cluster)
        assert ask(cluster) == ()
        assert node.serving.catalog.removals.removals() == ()
        with cluster.serving.context() as context:
            apply(context, None)
        assert cluster.serving.catalog.removals.removals() == ()

    def test_what_was_asked_before_a_catalog_came_back_is_void(
        self, cluster: LocalCluster, node: LocalNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        condemn(cluster, 10)
        ask(cluster)
        catalog = cluster.serving.catalog
        later = replace(catalog.identity(), epoch=catalog.identity().epoch + 1)
        monkeypatch.setattr(catalog, "identity", lambda: later)
        node.agent.work()
        assert outcomes(cluster) == []
        assert files(node, 10)

    def test_a_service_that_lost_its_catalog_learns_of_what_is_on_its_way_out(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10)
        condemn(cluster, 20, action=Action.EVICT)
        ask(cluster)
        work(node)
        condemned = cluster.serving.catalog.removals.removals()[0].condemned_at_ns
        cluster.serving.catalog.wipe_facts()
        with cluster.serving.context() as context:
            context.place(context.settings.tiers[0])  # what a rebuild would find
        write_dcp(node.disk / "run/step_40")
        node.turn()
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHED
        (removal,) = cluster.serving.catalog.removals.removals()
        assert (removal.name, removal.condemned_at_ns) == ("step_10", condemned)
        make_due(cluster.serving)
        ask(cluster)
        work(node)
        assert trash(node) == []
        assert cluster.serving.catalog.removals.removals() == ()

    def test_an_agent_that_lost_its_home_goes_by_what_lies_on_its_disk(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        catalog = node.serving.catalog
        catalog.removals.purged(run_id(cluster), content_id(cluster, 10), place_of(cluster))
        make_due(cluster.serving)
        ask(cluster)
        work(node)
        assert outcomes(cluster) == ["moved", "purged"]
        assert trash(node) == []


def test_the_parts_of_a_checkpoint_go_from_each_node_that_has_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = LocalCluster(tmp_path, stack, "node0", "node1")
        for number, node in enumerate(cluster.nodes.values()):
            directory = node.disk / "run/step_10"
            directory.mkdir(parents=True)
            for file, body in dcp_files(ranks=2, seed="s", name="step_10").items():
                if file.startswith(f"__{number}_") or (number == 0 and file == ".metadata"):
                    (directory / file).write_bytes(body)
            date_files(directory, *([".metadata"] if number == 0 else []))
            node.write_part("run", "step_10", save_id="x", expected=2, layout="dcp", step=10)
        cluster.turn(times=4)
        catalog = cluster.serving.catalog
        ((whole, copies),) = cluster.copies("run").items()
        parts = [one.place for one in copies if one.coverage is not None]
        assert [one.state for one in copies] == [CopyState.VERIFIED] * 3
        going = [doomed(whole, place, action=Action.EVICT) for place in parts]
        everywhere = guard(reachable=frozenset(one.place for one in copies))
        catalog.removals.condemn(run_id(cluster), going, everywhere, plan_id=PLAN)
        assert len(ask(cluster)) == 2
        cluster.turn(times=2)
        states = {one.place: one.state for one in cluster.copies("run")[whole]}
        assert {states.pop(place) for place in parts} == {CopyState.PURGED}
        assert set(states.values()) == {CopyState.VERIFIED}
        assert cluster.restorable("run") == ["step_10"]


class TestBack:
    def test_what_lies_in_the_trash_is_put_back_compared_and_offered(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        before = files(node, 10)
        remove_10(cluster, node)
        (task,) = back(cluster, 10)
        assert (task.task.node, task.task.for_run) == ("node0", "run")
        work(node)
        assert outcomes(cluster) == ["moved", "back"]
        assert files(node, 10) == before
        assert trash(node) == []
        for serving in (cluster.serving, node.serving):
            assert state(serving, cluster, 10) is CopyState.VERIFIED
            assert removals(serving) == {}
        kinds = [one.kind for one in cluster.serving.catalog.records(run_id(cluster))]
        assert kinds.count("undelete") == 1

    def test_it_can_go_again(self, cluster: LocalCluster, node: LocalNode) -> None:
        remove_10(cluster, node)
        back(cluster)
        work(node)
        condemn(cluster, 10, action=Action.EVICT)
        ask(cluster)
        work(node)
        assert outcomes(cluster) == ["moved", "back", "purged"]
        assert files(node, 10) == []

    def test_only_the_step_that_was_asked_for_comes_back(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10, 20)
        ask(cluster)
        work(node)
        back(cluster, 20)
        work(node)
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHED
        assert state(cluster.serving, cluster, 20) is CopyState.VERIFIED

    def test_what_is_only_condemned_needs_no_agent(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10, grace_s=DAY_S)
        assert back(cluster) == ()
        with cluster.serving.context() as context:
            answer = undelete(context, "run")
        assert answer.error is None
        assert state(cluster.serving, cluster, 10) is CopyState.VERIFIED

    def test_an_undelete_of_the_service_says_for_whom_it_waits(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        back(cluster)
        with cluster.serving.context() as context:
            answer = undelete(context, "run")
        assert answer.error is None
        assert [one.text for one in answer.steps] == ["waits for the agent of node node0"]
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHED

    def test_what_is_on_its_way_there_goes_on_and_comes_back(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10)
        ask(cluster)
        back(cluster)
        work(node)
        assert state(cluster.serving, cluster, 10) is CopyState.VERIFIED
        assert files(node, 10)

    def test_a_purge_that_was_asked_before_is_void(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        make_due(cluster.serving)
        ask(cluster)
        back(cluster)
        assert ask(cluster) == ()
        work(node)
        assert outcomes(cluster) == ["moved", "back"]
        assert state(cluster.serving, cluster, 10) is CopyState.VERIFIED

    def test_a_purge_waits_while_an_open_task_brings_it_back(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        make_due(cluster.serving)
        ask(cluster)
        (task,) = back(cluster)
        book = cluster.serving.catalog.tasks
        (taken,) = book.claim(node="node0", holder="x", kinds=None, ttl_s=60, limit=1)
        assert taken.task_id == task.task_id
        work(node)
        assert trash(node)

    def test_a_purge_of_an_earlier_removal_is_not_of_the_next_one(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        make_due(cluster.serving)
        (purge,) = ask(cluster)
        back(cluster)
        node.agent.work()
        condemn(cluster, 10)
        assert [one.task_id for one in ask(cluster)] == [purge.task_id]
        work(node)
        assert outcomes(cluster) == ["moved", "back"]
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHING
        ask(cluster)
        work(node)
        assert outcomes(cluster) == ["moved", "back", "moved"]

    def test_what_is_not_what_it_was_comes_back_and_is_not_offered(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        (shard,) = (node.disk / "run/.ckptgov/trash").rglob("__0_0.distcp")
        with rotten(shard):
            back(cluster)
            work(node)
        for serving in (cluster.serving, node.serving):
            assert state(serving, cluster, 10) is CopyState.CORRUPT
            assert removals(serving) == {}

    def test_a_name_that_is_taken_by_now_keeps_it_in_the_trash(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        write_dcp(node.disk / "run/step_10", seed="another")
        back(cluster)
        work(node)
        assert outcomes(cluster) == ["moved", "resisted"]
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHED
        assert trash(node)

    def test_what_was_brought_back_by_hand_is_told_when_it_is_to_be_purged(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        remove_10(cluster, node)
        with node.serving.context() as context:
            answer = undelete(context, "run")
            assert len(answer.restored) == 1, answer
        node.agent.tell()
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHED
        make_due(cluster.serving)
        ask(cluster)
        work(node)
        assert outcomes(cluster) == ["moved", "back"]
        assert files(node, 10)
        assert state(cluster.serving, cluster, 10) is CopyState.VERIFIED


class TestWhatAnAgentPosts:
    """It must not bring back what the service decided; a newer save counts."""

    def post(self, cluster: LocalCluster, copy: PostedCopy) -> None:
        catalog, place = cluster.serving.catalog, place_of(cluster)
        (root,) = [one for one in catalog.roots_of(run_id(cluster)) if one.place == place]
        facts = next(one for one in catalog.places() if one.place == place)
        standing = next(
            int(one.told)
            for one in catalog.parts(run_id(cluster), LEDGER + "node0")
            if one.place == place
        )
        answer = apply_post(
            catalog,
            Post(
                node="node0",
                place=posted_place(facts),
                number=standing + 1,
                after=standing,
                run=catalog.run_by_name("run").identity,
                root=PostedRoot(path=root.path, sidecar=root.sidecar),
                copies=(copy,),
            ),
            node="node0",
            at_ns=1,
        )
        assert answer.is_applied

    @pytest.mark.parametrize("how", ["trashing", "trashed", "purged"])
    def test_a_late_verdict_does_not_bring_it_back(
        self, cluster: LocalCluster, node: LocalNode, how: str
    ) -> None:
        late = posted_copy(copy_of(node.serving, cluster, 10), None)
        condemn(cluster, 10, action=Action.EVICT if how == "purged" else Action.PRUNE)
        ask(cluster)
        if how != "trashing":
            work(node)
        assert state(cluster.serving, cluster, 10).value == how
        self.post(cluster, late)
        assert state(cluster.serving, cluster, 10).value == how

    def test_not_even_one_of_just_before_it_went(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10, action=Action.EVICT)
        ask(cluster)
        just_before_ns = node.serving.clock.now_ns()
        node.agent.work()
        copy = posted_copy(copy_of(node.serving, cluster, 10), None)
        late = replace(
            copy,
            state=CopyState.VERIFIED,
            evidence=Evidence.DIGEST,
            verified_at_ns=just_before_ns,
        )
        assert just_before_ns > copy.verified_at_ns
        self.post(cluster, late)
        assert state(cluster.serving, cluster, 10) is CopyState.PURGED

    def test_the_same_bytes_saved_anew_count(self, cluster: LocalCluster, node: LocalNode) -> None:
        condemn(cluster, 10, action=Action.EVICT)
        ask(cluster)
        work(node)
        write_dcp(node.disk / "run/step_10", seed="step_10")
        node.turn()
        for serving in (cluster.serving, node.serving):
            assert state(serving, cluster, 10) is CopyState.VERIFIED

    def test_and_are_left_alone_by_an_order_that_comes_again(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10, action=Action.EVICT)
        ask(cluster)
        node.line.end = lambda *_given, **_named: (_ for _ in ()).throw(LeaseLost("lost"))
        node.agent.work()
        del node.line.end
        write_dcp(node.disk / "run/step_10", seed="step_10")
        node.turn()
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHING
        cluster.clock.sleep(61)
        node.agent.beat()
        work(node)
        assert outcomes(cluster) == ["changed"]
        assert state(cluster.serving, cluster, 10) is CopyState.VERIFIED
        assert files(node, 10)
        node.turn()
        for serving in (cluster.serving, node.serving):
            assert state(serving, cluster, 10) is CopyState.VERIFIED

    def test_a_condemned_copy_that_got_lost_is_no_removal_any_more(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10, grace_s=DAY_S)
        copy = posted_copy(copy_of(node.serving, cluster, 10), None)
        self.post(cluster, replace(copy, state=CopyState.LOST))
        assert state(cluster.serving, cluster, 10) is CopyState.LOST
        assert removals(cluster.serving) == {}

    def test_what_went_at_the_node_without_the_service_is_not_offered(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        place, wanted = place_of(cluster), content_id(cluster, 10)
        everywhere = guard(reachable=frozenset({place}))
        book = node.serving.catalog.removals
        book.condemn(run_id(cluster), [doomed(wanted, place)], everywhere, plan_id=PLAN)
        node.agent.tell()
        assert state(cluster.serving, cluster, 10) is CopyState.VERIFIED
        book.begin(run_id(cluster), wanted, place, everywhere)
        node.agent.tell()
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHING
        book.purged(run_id(cluster), wanted, place)
        node.agent.tell()
        assert state(cluster.serving, cluster, 10) is CopyState.TRASHING
        ask(cluster)

    def test_no_post_from_before_a_removal_comes_after_its_outcome(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        """What one thread has gathered is told before another says that the copy went."""
        condemn(cluster, 10, action=Action.EVICT)
        ask(cluster)
        said = []
        real = node.line.end

        def end(*given: Any, **named: Any) -> None:
            said.append(node.agent._telling.locked())
            real(*given, **named)

        node.line.end = end
        node.agent.work()
        assert said == [True]

    def test_an_outcome_that_could_not_be_said_comes_before_anything_else_is_told(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10, action=Action.EVICT)
        ask(cluster)
        real = node.agent._carried_out

        def cut(*given: Any) -> Any:
            ended = real(*given)
            node.line.is_cut = True
            return ended

        node.agent._carried_out = cut
        with pytest.raises(CouldNotLook):
            node.agent.work()
        node.line.is_cut = False
        write_dcp(node.disk / "run/step_10", seed="step_10")
        node.agent.look()
        node.agent.tell()
        assert state(cluster.serving, cluster, 10) is CopyState.VERIFIED


class TestKilled:
    """The agent dies at some call, and another one goes on."""

    @pytest.fixture
    def drawn(self, request: pytest.FixtureRequest) -> Callable[[int], range]:
        """One of so many points; every one in the full campaign."""
        dice = random.Random(request.config.getoption("--seed"))

        def draw(points: int) -> range:
            step = 1 if request.config.getoption("--full-sweep") else points
            return range(dice.randrange(step), points, step)

        return draw

    def moving_aside(self, cluster: LocalCluster) -> CopyState:
        condemn(cluster, 10)
        ask(cluster)
        return CopyState.TRASHED

    def purging_at_once(self, cluster: LocalCluster) -> CopyState:
        condemn(cluster, 10, action=Action.EVICT)
        ask(cluster)
        return CopyState.PURGED

    def purging(self, cluster: LocalCluster) -> CopyState:
        self.moving_aside(cluster)
        work(cluster.nodes["node0"])
        make_due(cluster.serving)
        ask(cluster)
        return CopyState.PURGED

    def bringing_back(self, cluster: LocalCluster) -> CopyState:
        self.moving_aside(cluster)
        work(cluster.nodes["node0"])
        back(cluster)
        return CopyState.VERIFIED

    @pytest.mark.parametrize(
        "begin", ["moving_aside", "purging_at_once", "purging", "bringing_back"]
    )
    def test_the_next_one_brings_it_to_an_end(
        self,
        lay: Callable[[], LocalCluster],
        drawn: Callable[[int], range],
        monkeypatch: pytest.MonkeyPatch,
        begin: str,
    ) -> None:
        cluster = lay()
        getattr(self, begin)(cluster)
        with monkeypatch.context() as patch:
            points = Killing(patch, None)
            work(cluster.nodes["node0"])
        assert points.passed > 3
        for point in drawn(points.passed):
            cluster = lay()
            node = cluster.nodes["node0"]
            end = getattr(self, begin)(cluster)
            with monkeypatch.context() as patch:
                Killing(patch, point)
                with pytest.raises(Crash):
                    node.agent.work()
            node.start()
            node.agent.look()  # which seals whatever it takes for new
            node.agent.tell()
            assert state(cluster.serving, cluster, 10) is not CopyState.VERIFIED, point
            cluster.clock.sleep(61)  # it may have been killed while it told what it did
            work(node)
            if begin == "purging_at_once":  # between the trash and its end, it lies there
                make_due(cluster.serving)
                node.agent.beat()
                ask(cluster)
                work(node)
            for serving in (cluster.serving, node.serving):
                assert state(serving, cluster, 10) is end, point
            assert bool(files(node, 10)) is (end is CopyState.VERIFIED), point
            assert bool(trash(node)) is (end is CopyState.TRASHED), point
            node.turn()
            assert state(cluster.serving, cluster, 10) is end, point
            assert state(cluster.serving, cluster, 20) is CopyState.VERIFIED


class Killing:
    """Ends the agent at one of the calls that change its disk or its catalog of removals."""

    def __init__(self, patch: pytest.MonkeyPatch, point: int | None) -> None:
        self.passed = 0
        self._point = point
        real = ckptgov.ops.context.open_place

        def opened(*given: Any, **named: Any) -> Place:
            place = real(*given, **named)
            return replace(place, storage=Mortal(place.storage, self))

        patch.setattr("ckptgov.ops.context.open_place", opened)
        for name in ("ordered", "moved", "purged", "undo"):
            patch.setattr(RemovalBook, name, self._around(getattr(RemovalBook, name)))

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Before it, and after it."""

        def around(*given: Any, **named: Any) -> Any:
            self.step()
            done = call(*given, **named)
            self.step()
            return done

        return around

    def step(self) -> None:
        if self.passed == self._point:
            raise Crash
        self.passed += 1


class Mortal(CrashingStorage):
    """Storage whose calls that change something are counted with others."""

    def __init__(self, inner: Storage, killing: Killing) -> None:
        super().__init__(inner)
        self._killing = killing

    def _mutate(self, call: str, path: str) -> None:
        self._killing.step()
        super()._mutate(call, path)


class TestLeases:
    def test_told_to_stop_it_gives_the_task_back_and_another_goes_on(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10, 20)
        (task,) = ask(cluster)
        answered = []
        real = node_removals._did

        def did(*given: Any) -> Any:
            answered.append(real(*given))
            node.agent._stop = lambda: True
            return answered[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node_removals, "_did", did)
            with pytest.raises(Interrupted):
                node.agent.work()
        assert len(answered) == 1
        standing = cluster.serving.catalog.tasks.task(task.task_id)
        assert (standing.state, standing.attempts) == (TaskState.QUEUED, 0)
        node.start()
        work(node)
        assert outcomes(cluster) == ["moved", "moved"]

    def test_an_outcome_under_a_lost_lease_settles_nothing(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10)
        ask(cluster)
        book = cluster.serving.catalog.tasks
        real = node.agent._carried_out

        def slow(*given: Any) -> Any:
            ended = real(*given)
            cluster.clock.sleep(61)
            book.claim(node="node0", holder="another", kinds=None, ttl_s=60, limit=1)
            return ended

        node.agent._carried_out = slow
        node.agent.work()
        assert files(node, 10) == []
        assert removals(cluster.serving) == {CopyState.TRASHING: 1}

    def test_one_that_was_taken_over_stops_at_the_next_copy(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        condemn(cluster, 10, 20)
        (task,) = ask(cluster)
        book = cluster.serving.catalog.tasks
        real = node_removals._did
        answered = []

        def did(*given: Any) -> Any:
            answered.append(real(*given))
            cluster.clock.sleep(61)
            book.claim(node="node0", holder="another", kinds=None, ttl_s=60, limit=1)
            node.agent.renew()
            return answered[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node_removals, "_did", did)
            node.agent.work()
        assert len(answered) == 1
        assert files(node, 20) or files(node, 10)
        assert removals(node.serving) == {CopyState.TRASHED: 1}  # nothing else was begun
        assert book.task(task.task_id).holder == "another"
        assert removals(cluster.serving) == {CopyState.TRASHING: 2}
