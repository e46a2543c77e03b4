"""What an agent is asked to do: leases, emergencies, ranges of large checkpoints, blank disks."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.errors import CouldNotLook, Interrupted
from ckptgov.model.cluster import NewTask, NodeState, TaskFacts, TaskKind, TaskState
from ckptgov.model.copies import CopyState
from ckptgov.ops.digesting import split_digests
from ckptgov.ops.evacuate import evacuate
from ckptgov.ops.parts import put_part
from ckptgov.ops.scan import scan
from ckptgov.service.agent_tasks import KINDS
from ckptgov.testing.builders import date_files, write_dcp, write_deepspeed, write_hf_trainer
from ckptgov.testing.cluster import LocalCluster, LocalNode
from ckptgov.wire.parts import PartState, decode_part


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with ExitStack() as stack:
        yield LocalCluster(tmp_path, stack, "node0", "node1", "node2")


def write_thirds(cluster: LocalCluster, step: int) -> None:
    for number, node in enumerate(cluster.nodes.values()):
        directory = node.disk / f"run/checkpoint-{step}"
        ranks = [2 * number, 2 * number + 1]
        write_hf_trainer(directory, step, world_size=6, optimizer=False, rng_ranks=ranks)
        write_deepspeed(directory, step, world_size=6, ranks=ranks)
        date_files(directory, "latest", "trainer_state.json")


def deliver(cluster: LocalCluster) -> None:
    for node in cluster.nodes.values():
        node.agent.look()
        node.agent.tell()
        node.agent.deliver_parts()


def tasks(cluster: LocalCluster, kind: TaskKind) -> list[TaskFacts]:
    return [one for one in cluster.serving.catalog.tasks.tasks() if one.task.kind is kind]


class TestLeases:
    def test_an_outcome_under_a_lost_lease_is_refused(self, cluster: LocalCluster) -> None:
        node = cluster.nodes["node0"]
        book = cluster.serving.catalog.tasks
        task = book.add(NewTask(kind=TaskKind.SCAN, key="k", payload=b"{}", node="node0"))
        real, lost = node.agent._carried_out, []

        def slow(*given: object) -> object:
            ended = real(*given)
            cluster.clock.sleep(120)  # nobody renewed meanwhile
            lost.extend(book.claim(node="node0", holder="another", kinds=KINDS, ttl_s=60, limit=1))
            return ended

        node.agent._carried_out = slow
        node.agent.work()
        assert [one.task_id for one in lost] == [task.task_id]
        standing = book.task(task.task_id)
        assert (standing.state, standing.holder) == (TaskState.CLAIMED, "another")

    def test_what_is_renewed_stays_ours(self, cluster: LocalCluster) -> None:
        node = cluster.nodes["node0"]
        book = cluster.serving.catalog.tasks
        book.add(NewTask(kind=TaskKind.SCAN, key="k", payload=b"{}", node="node0"))
        real = node.agent._carried_out

        def slow(*given: object) -> object:
            for _ in range(5):
                cluster.clock.sleep(40)
                node.agent.renew()
            assert not book.claim(node="node0", holder="x", kinds=KINDS, ttl_s=60, limit=1)
            return real(*given)

        node.agent._carried_out = slow
        node.agent.work()
        assert tasks(cluster, TaskKind.SCAN)[0].state is TaskState.DONE

    def test_told_to_stop_it_gives_back_what_it_took(self, cluster: LocalCluster) -> None:
        node = cluster.nodes["node0"]
        write_dcp(node.disk / "run/step_10")
        book = cluster.serving.catalog.tasks
        book.add(NewTask(kind=TaskKind.SCAN, key="k", payload=b"{}", node="node0"))
        node.agent.beat()
        node.agent._stop = lambda: True
        with pytest.raises(Interrupted):
            node.agent.work()
        (again,) = book.claim(node="node0", holder="next", kinds=KINDS, ttl_s=60, limit=1)
        assert again.attempts == 1
        assert cluster.restorable("run") == []

    def test_what_ended_while_the_service_was_away_is_said_later_and_not_done_again(
        self, cluster: LocalCluster
    ) -> None:
        node = cluster.nodes["node0"]
        book = cluster.serving.catalog.tasks
        task = book.add(NewTask(kind=TaskKind.SCAN, key="k", payload=b"{}", node="node0"))
        real, done = node.agent._carried_out, []

        def cut(*given: object) -> object:
            ended = real(*given)
            done.append(ended)
            node.line.is_cut = True
            return ended

        node.agent._carried_out = cut
        with pytest.raises(CouldNotLook):
            node.agent.work()
        node.line.is_cut = False
        for _ in range(3):
            cluster.clock.sleep(40)
            node.agent.renew()
        assert not book.claim(node="node0", holder="x", kinds=KINDS, ttl_s=60, limit=1)
        assert node.agent.work() == 0
        assert book.task(task.task_id).state is TaskState.DONE
        assert len(done) == 1

    def test_a_task_that_fails_says_why(self, cluster: LocalCluster) -> None:
        book = cluster.serving.catalog.tasks
        book.add(NewTask(kind=TaskKind.PUBLISH, key="k", payload=b"{}", node="node0"))
        cluster.nodes["node0"].agent.work()
        (task,) = tasks(cluster, TaskKind.PUBLISH)
        assert task.state is TaskState.FAILED
        assert json.loads(task.outcome)["error"]["kind"] == "malformed"

    def test_a_beat_after_death_is_life(self, cluster: LocalCluster) -> None:
        agent = cluster.nodes["node0"].agent
        agent.beat()
        cluster.serving.catalog.nodes.set_state("node0", NodeState.DEAD, reason="gone")
        assert agent.beat() is NodeState.ACTIVE
        cluster.serving.catalog.nodes.set_state("node0", NodeState.CORDONED, reason="ecc")
        assert agent.beat() is NodeState.CORDONED


class TestMerging:
    def test_two_replicas_that_merge_at_once_come_to_one_checkpoint(
        self, cluster: LocalCluster
    ) -> None:
        write_thirds(cluster, 2)
        parts = []
        for node in cluster.nodes.values():
            node.agent.look()
            node.agent.tell()
            parts += [one.told for one in node.agent.parts.all()]
        replicas = [cluster.serving, cluster.replica()]
        start = threading.Barrier(2)
        answers = []

        def bring(index: int) -> None:
            start.wait()
            for told in parts if index else reversed(parts):
                with replicas[index].context() as context:
                    answers.append(put_part(context, "run", told, node=None))

        threads = [threading.Thread(target=bring, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run_id = cluster.serving.catalog.runs()[0].identity.run_id
        assert len(cluster.serving.catalog.checkpoints(run_id)) == 1
        sealed = [one for one in cluster.serving.catalog.records(run_id) if one.kind == "sealed"]
        assert len(sealed) == 1
        assert {one.content_id for one in answers if one.state is PartState.SEALED} == {
            cluster.serving.catalog.checkpoints(run_id)[0].content_id
        }
        assert len(tasks(cluster, TaskKind.PUBLISH)) == 3

    def test_a_part_that_comes_again_after_the_merge_is_known(self, cluster: LocalCluster) -> None:
        write_thirds(cluster, 2)
        deliver(cluster)
        before = cluster.copies("run")
        cluster.nodes["node0"].agent.deliver_parts()
        assert cluster.copies("run") == before
        run_id = cluster.serving.catalog.runs()[0].identity.run_id
        assert cluster.serving.catalog.parts(run_id, "checkpoint-2") == ()
        assert len(tasks(cluster, TaskKind.PUBLISH)) == 3

    def test_a_publication_that_was_given_up_is_asked_for_again(
        self, cluster: LocalCluster
    ) -> None:
        write_thirds(cluster, 2)
        deliver(cluster)
        book = cluster.serving.catalog.tasks
        for _ in range(6):
            book.claim(node="node0", holder="dies", kinds=KINDS, ttl_s=1, limit=1)
            cluster.clock.sleep(2)
        states = {one.task.node: one.state for one in tasks(cluster, TaskKind.PUBLISH)}
        assert states["node0"] is TaskState.FAILED
        cluster.turn(times=2)
        assert cluster.restorable("run") == ["checkpoint-2"]

    def test_parts_wait_in_the_catalog_for_the_last_one(self, cluster: LocalCluster) -> None:
        write_thirds(cluster, 2)
        for name in ("node0", "node1"):
            agent = cluster.nodes[name].agent
            agent.look()
            agent.tell()
            agent.deliver_parts()
        run_id = cluster.serving.catalog.runs()[0].identity.run_id
        parts = cluster.serving.catalog.parts(run_id, "checkpoint-2")
        assert {decode_part(one.told).part.node for one in parts} == {"node0", "node1"}
        assert tasks(cluster, TaskKind.PUBLISH) == []


class TestEmergency:
    @pytest.fixture
    def sealed(self, cluster: LocalCluster) -> LocalNode:
        """A node that alone holds two checkpoints, and one that the shared tier has too."""
        node = cluster.nodes["node0"]
        write_dcp(node.disk / "run/step_10")
        node.turn()
        for step in (20, 30):
            write_dcp(node.disk / f"run/step_{step}")
        node.agent.look()
        node.agent.tell()
        return node

    def test_what_lies_nowhere_else_is_asked_for_newest_first(
        self, cluster: LocalCluster, sealed: LocalNode
    ) -> None:
        with cluster.serving.context() as context:
            asked = evacuate(context, "node0")
            assert evacuate(context, "node0") == asked
        steps = [json.loads(one.task.payload)["step"] for one in asked]
        assert steps == [30, 20]
        assert asked[0].task.priority > asked[1].task.priority

    def test_it_is_moved_as_an_emergency(
        self, cluster: LocalCluster, sealed: LocalNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with cluster.serving.context() as context:
            evacuate(context, "node0")
        desk, classes = sealed.serving.desk, []
        real = desk.open
        monkeypatch.setattr(
            desk,
            "open",
            lambda request, **more: (classes.append(request.flow_class), real(request, **more))[1],
        )
        while sealed.agent.work():
            sealed.agent.tell()
        assert (cluster.lustre / "run/step_30/.metadata").exists()
        assert (cluster.lustre / "run/step_20/.metadata").exists()
        assert {one.value for one in classes} == {"emergency"}
        with cluster.serving.context() as context:
            assert evacuate(context, "node0") == ()

    def test_what_moves_otherwise_makes_way(self, cluster: LocalCluster, sealed: LocalNode) -> None:
        sealed.agent._urgent.set()
        assert sealed.agent.flush() == 0
        assert not (cluster.lustre / "run/step_30").exists()


class TestLargeCheckpoints:
    """One checkpoint on the shared tier, digested in ranges by the agents."""

    @pytest.fixture
    def large(self, cluster: LocalCluster) -> Path:
        directory = write_dcp(cluster.lustre / "big/step_10", ranks=4)
        for node in cluster.nodes.values():
            node.agent.beat()
        return directory

    def scan(self, cluster: LocalCluster) -> list[str]:
        with cluster.serving.context() as context:
            elsewhere = split_digests(context, min_bytes=1, range_bytes=2000)
            answer = scan(context, [], elsewhere=elsewhere)
        assert answer.error is None, answer.error
        return [one.name for run in answer.runs for one in run.sealed]

    def test_ranges_are_asked_of_all_agents_and_sealed_when_all_are_in(
        self, cluster: LocalCluster, large: Path
    ) -> None:
        assert self.scan(cluster) == []
        asked = tasks(cluster, TaskKind.DIGEST)
        assert {one.task.node for one in asked} == {"node0", "node1", "node2"}
        for node in cluster.nodes.values():
            while node.agent.work():
                pass
        assert self.scan(cluster) == ["step_10"]
        assert cluster.restorable("big") == ["step_10"]

    def test_what_they_found_is_what_one_process_finds(
        self, cluster: LocalCluster, large: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(large, tmp_path / "lustre/twin/step_10")
        self.scan(cluster)
        for node in cluster.nodes.values():
            while node.agent.work():
                pass
        self.scan(cluster)
        with cluster.serving.context() as context:
            scan(context, [str(cluster.lustre / "twin")])
        assert list(cluster.copies("big")) == list(cluster.copies("twin"))

    def test_a_lost_agents_range_is_done_by_another(
        self, cluster: LocalCluster, large: Path
    ) -> None:
        self.scan(cluster)
        for name in ("node0", "node1"):
            while cluster.nodes[name].agent.work():
                pass
        assert self.scan(cluster) == []
        cluster.clock.sleep(120)
        for name in ("node0", "node1"):
            cluster.nodes[name].agent.beat()
        assert self.scan(cluster) == []
        for name in ("node0", "node1"):
            while cluster.nodes[name].agent.work():
                pass
        assert self.scan(cluster) == ["step_10"]

    def test_a_shard_rewritten_meanwhile_is_read_anew(
        self, cluster: LocalCluster, large: Path
    ) -> None:
        self.scan(cluster)
        for node in cluster.nodes.values():
            while node.agent.work():
                pass
        shard = large / "__0_0.distcp"
        before = shard.stat()
        body = bytearray(shard.read_bytes())
        body[100] ^= 1
        (large / "new").write_bytes(bytes(body))
        (large / "new").rename(shard)  # another inode, the same size
        os.utime(shard, ns=(before.st_mtime_ns, before.st_mtime_ns))
        digests = [json.loads(one.outcome)["shards"] for one in tasks(cluster, TaskKind.DIGEST)]
        stale = {one["digest"] for shards in digests for one in shards}
        self.scan(cluster)
        run_id = cluster.serving.catalog.run_by_name("big").identity.run_id
        for one in cluster.serving.catalog.checkpoints(run_id):
            raw = cluster.serving.catalog.manifest_bytes(run_id, one.content_id).decode()
            assert sum(digest in raw for digest in stale) < len(stale)

    def test_an_agent_without_the_tier_leaves_its_range_to_another(
        self, cluster: LocalCluster, large: Path
    ) -> None:
        node = cluster.nodes["node1"]
        config = node.home / "ckptgov.yaml"
        config.write_text(config.read_text().replace("lustre", "other"))
        self.scan(cluster)
        for _ in range(3):
            for one in cluster.nodes.values():
                while one.agent.work():
                    pass
            if self.scan(cluster):
                break
        assert cluster.restorable("big") == ["step_10"]

    def test_without_agents_it_is_sealed_at_once(self, cluster: LocalCluster, large: Path) -> None:
        cluster.clock.sleep(3600)
        assert self.scan(cluster) == ["step_10"]


class TestBlankDisks:
    @pytest.fixture
    def node(self, cluster: LocalCluster) -> LocalNode:
        node = cluster.nodes["node0"]
        write_dcp(node.disk / "run/step_10")
        node.turn()
        return node

    def test_a_blank_disk_is_a_new_place_and_the_old_ones_copies_are_lost(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        old = {one.place for one in cluster.serving.catalog.places() if one.node == "node0"}
        shutil.rmtree(node.disk)
        node.disk.mkdir()
        node.turn()
        current = [
            one
            for one in cluster.serving.catalog.places()
            if one.node == "node0" and one.is_current
        ]
        assert len(current) == 1
        assert current[0].place not in old
        states = {one.place: one.state for one in next(iter(cluster.copies("run").values()))}
        assert states[old.pop()] is CopyState.LOST

    def test_a_save_on_it_is_of_the_same_run(self, cluster: LocalCluster, node: LocalNode) -> None:
        shutil.rmtree(node.disk)
        write_dcp(node.disk / "run/step_20")
        shutil.move(node.disk / "run", node.disk.parent / "later")
        node.turn()
        shutil.move(node.disk.parent / "later", node.disk / "run")
        node.turn()
        assert len(cluster.serving.catalog.runs()) == 1
        assert cluster.restorable("run") == ["step_10", "step_20"]

    def test_another_file_system_at_the_path_is_not_given_an_identity(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        """What lies under a mount point is another file system than the one that was met."""
        catalog = node.serving.catalog
        known = catalog.place_by_root(str(node.disk), node="node0")
        catalog.put_place(replace(known, source="/dev/nvme7n1"))
        shutil.rmtree(node.disk)
        node.disk.mkdir()
        node.turn()
        assert list(node.disk.iterdir()) == []
        assert any(".ckptgov-tier.json" in one for one in node.said)

    def test_a_disk_that_is_not_blank_is_not_given_an_identity(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        (node.disk / ".ckptgov-tier.json").unlink()
        node.turn()
        assert not (node.disk / ".ckptgov-tier.json").exists()
        assert cluster.restorable("run") == ["step_10"]

    def test_killed_between_identity_and_catalog_it_goes_on(
        self, cluster: LocalCluster, node: LocalNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.rmtree(node.disk)
        node.disk.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(
                "ckptgov.ops.own_disks._replace_place", lambda *_: (_ for _ in ()).throw(KeyError)
            )
            with pytest.raises(KeyError):
                node.agent.look()
        node.start()
        node.turn()
        assert any(path.name == ".ckptgov-tier.json" for path in node.disk.iterdir())
        write_dcp(node.disk / "run/step_20")
        node.turn()
        assert "step_20" in cluster.restorable("run")
