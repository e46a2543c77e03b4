"""What agents do for the service besides removals: reconcile, free space, flush by policies."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckptgov.client.address import ServiceAddress, replica_of
from ckptgov.model.access import Right
from ckptgov.model.clock import SystemClock
from ckptgov.model.cluster import NewTask, TaskFacts, TaskKind, TaskState
from ckptgov.model.copies import CopyState
from ckptgov.ops.plan_fills import fills_now
from ckptgov.service.access import make_token
from ckptgov.service.agent import SPACE_EVERY_S
from ckptgov.service.agent_cluster import HttpCluster
from ckptgov.service.app import create_app
from ckptgov.service.node_removals import ask_back, ask_nodes
from ckptgov.service.payloads import ReconcilePayload, encoded
from ckptgov.testing.builders import write_dcp
from ckptgov.testing.cluster import LocalCluster, LocalNode
from ckptgov.testing.condemning import doomed, guard
from ckptgov.testing.served import running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with ExitStack() as stack:
        yield LocalCluster(tmp_path, stack, "node0")


@pytest.fixture
def node(cluster: LocalCluster) -> LocalNode:
    return cluster.nodes["node0"]


def place_of(cluster: LocalCluster) -> str:
    return next(one.place for one in cluster.serving.catalog.places() if one.node == "node0")


class TestReconcile:
    def ask(self, cluster: LocalCluster, *tiers: str) -> TaskFacts:
        payload = encoded(ReconcilePayload(tiers=tiers, older_than_s=0.0))
        new = NewTask(kind=TaskKind.RECONCILE, key="k", payload=payload, node="node0")
        return cluster.serving.catalog.tasks.add(new)

    def ended(self, cluster: LocalCluster, task: TaskFacts) -> dict:
        found = cluster.serving.catalog.tasks.task(task.task_id)
        assert found.state is TaskState.DONE
        return json.loads(found.outcome)

    @pytest.mark.parametrize("tiers", [(), ("nvme",), ("nvme", "lustre")])
    def test_an_agent_looks_at_its_own_disks_only(
        self, cluster: LocalCluster, node: LocalNode, tiers: tuple[str, ...]
    ) -> None:
        node.agent.look()
        task = self.ask(cluster, *tiers)
        node.agent.work()
        told = self.ended(cluster, task)
        assert [(one["tier"], one["node"]) for one in told["tiers"]] == [("nvme", "node0")]

    def test_what_a_dead_mover_left_on_a_nodes_disk_goes(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        write_dcp(node.disk / "run/step_10")
        node.agent.look()
        node.agent.tell()
        left = node.disk / "run/.ckptgov/staging" / ("a" * 64)
        left.mkdir(parents=True)
        (left / "part").write_bytes(b"half")
        os.utime(left / "part", (1, 1))
        os.utime(left, (1, 1))
        self.ask(cluster)
        node.agent.work()
        assert not left.exists()

    def test_a_copy_that_vanished_is_lost_for_the_service_too(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        write_dcp(node.disk / "run/step_10")
        node.agent.look()
        node.agent.tell()
        for path in (node.disk / "run/.ckptgov/manifests").iterdir():
            path.unlink()
        self.ask(cluster)
        node.agent.work()
        node.agent.tell()
        (copies,) = cluster.copies("run").values()
        assert [one.state for one in copies] == [CopyState.LOST]


class TestSpace:
    def samples(self, cluster: LocalCluster) -> list[tuple[int | None, int | None]]:
        found = cluster.serving.catalog.samples.samples(place_of(cluster), since_ns=0)
        return [(one.free_bytes, one.total_bytes) for one in found]

    def test_the_service_hears_how_full_a_nodes_disk_is(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        node.agent.look()
        node.agent.tell()
        ((free, total),) = self.samples(cluster)
        seen = os.statvfs(node.disk)
        assert total == (seen.f_blocks - seen.f_bfree + seen.f_bavail) * seen.f_frsize
        assert free is not None

    def test_now_and_then_though_nothing_else_changes(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        node.agent.look()
        for _ in range(3):
            node.agent.tell()
        assert len(self.samples(cluster)) == 1
        cluster.clock.sleep(SPACE_EVERY_S)
        node.agent.tell()
        assert len(self.samples(cluster)) == 2

    def test_what_it_told_counts_in_plans(self, cluster: LocalCluster, node: LocalNode) -> None:
        node.agent.look()
        node.agent.tell()
        with cluster.serving.context() as context:
            fills, unmeasured = fills_now(
                context, frozenset({"nvme"}), now_ns=cluster.serving.catalog.now_ns()
            )
        (fill,) = [one for one in fills if one.node == "node0"]
        assert (fill.tier, fill.total_bytes) == ("nvme", self.samples(cluster)[0][1])
        assert unmeasured == ()

    def test_a_removal_is_told_of_at_once(self, cluster: LocalCluster, node: LocalNode) -> None:
        for step in (10, 20):
            write_dcp(node.disk / f"run/step_{step}", seed=f"{step}")
        node.turn()
        catalog, place = cluster.serving.catalog, place_of(cluster)
        run_id = catalog.runs()[0].identity.run_id
        oldest = next(one for one in catalog.checkpoints(run_id) if one.step == 10)
        catalog.removals.condemn(
            run_id,
            [doomed(oldest.content_id, place)],
            guard(reachable=frozenset(one.place for one in catalog.places())),
            plan_id="sha256:" + "a" * 64,
        )
        with cluster.serving.context() as context:
            ask_nodes(context)
        before = len(self.samples(cluster))
        node.agent.work()
        node.agent.tell()
        assert len(self.samples(cluster)) == before + 1


class TestLinksOfPolicies:
    def test_a_node_flushes_along_a_link_that_only_a_policy_has(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        config = node.home / "ckptgov.yaml"
        config.write_text(re.sub(r"^links:\n([ -].*\n)*", "", config.read_text(), flags=re.M))
        assert node.serving.settings().links == ()
        policies = node.home / "policies"
        policies.mkdir()
        (policies / "p.yaml").write_text(
            'policy: p\nruns: ["*"]\nflush:\n  - {from: nvme, to: lustre, every: 1}\n'
        )
        write_dcp(node.disk / "run/step_10")
        node.turn()
        assert (cluster.lustre / "run/step_10/.metadata").exists()


class TestOverHttp:
    @pytest.fixture
    def http(self, cluster: LocalCluster) -> Iterator[HttpCluster]:
        made = make_token(
            cluster.serving.catalog,
            label="node0",
            rights={Right.AGENT},
            node="node0",
            now_ns=cluster.clock.now_ns(),
        )
        with running(create_app(cluster.serving)) as url:
            address = ServiceAddress(replicas=(replica_of(url),), token=made.text)
            with HttpCluster(address, clock=SystemClock()) as http:
                yield http

    def test_a_task_that_is_given_back_counts_as_never_taken(
        self, cluster: LocalCluster, http: HttpCluster
    ) -> None:
        book = cluster.serving.catalog.tasks
        task = book.add(NewTask(kind=TaskKind.SCAN, key="k", payload=b"{}", node="node0"))
        (taken,) = http.claim("node0", holder="a", kinds=[TaskKind.SCAN], ttl_s=60, limit=1)
        http.renew(taken, ttl_s=0.0)
        standing = book.task(task.task_id)
        assert (standing.state, standing.attempts) == (TaskState.QUEUED, 0)

    def test_a_removal_is_carried_out_settled_and_brought_back(
        self, cluster: LocalCluster, node: LocalNode, http: HttpCluster
    ) -> None:
        for step in (10, 20):
            write_dcp(node.disk / f"run/step_{step}", seed=f"{step}")
        node.line.cluster = http
        node.turn()
        catalog, place = cluster.serving.catalog, place_of(cluster)
        run_id = catalog.runs()[0].identity.run_id
        found = catalog.checkpoints(run_id)
        wanted = next(one.content_id for one in found if one.step == 10)
        catalog.removals.condemn(
            run_id,
            [doomed(wanted, place, trash_s=3600.0)],
            guard(reachable=frozenset(one.place for one in catalog.places())),
            plan_id="sha256:" + "a" * 64,
        )
        with cluster.serving.context() as context:
            ask_nodes(context)
        node.turn()
        assert [one.state for one in catalog.removals.removals()] == [CopyState.TRASHED]
        assert not (node.disk / "run/step_10").exists()
        with cluster.serving.context() as context:
            ask_back(context, "run", 10)
        node.turn()
        assert catalog.removals.removals() == ()
        assert (node.disk / "run/step_10").exists()
        copies = catalog.copies_of(run_id, [wanted])[wanted]
        assert {one.state for one in copies} == {CopyState.VERIFIED}


def test_a_team_sees_its_tasks_however_many_others_are_newer(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptgov.service.routes_work._MOST_TASKS", 2)
    book = cluster.serving.catalog.tasks
    for number, run in enumerate(["red/a", *["blue/b"] * 3, None]):
        book.add(NewTask(kind=TaskKind.SCAN, key=f"k{number}", payload=b"{}", for_run=run))
    made = make_token(
        cluster.serving.catalog,
        label="red",
        rights={Right.READ},
        teams=["red"],
        now_ns=cluster.clock.now_ns(),
    )
    with running(create_app(cluster.serving)) as url:
        asked = urllib.request.Request(f"{url}/v1/tasks")
        asked.add_header("Authorization", f"Bearer {made.text}")
        with urllib.request.urlopen(asked) as reply:
            told = json.loads(reply.read())
    assert [one["run"] for one in told["tasks"]] == ["red/a"]
