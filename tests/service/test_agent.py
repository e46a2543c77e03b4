"""Agents and the service: what lies on nodes' disks is known, merged, flushed; once in effect."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckptgov.model.copies import CopyState
from ckptgov.ops.parts import doubts_of
from ckptgov.testing.builders import (
    WRITTEN_AT_NS,
    date_files,
    flip_bit,
    shift_times,
    write_dcp,
    write_deepspeed,
    write_hf_trainer,
)
from ckptgov.testing.builders.dcp import dcp_files
from ckptgov.testing.cluster import LocalCluster

HOUR_NS = 3600 * 10**9


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with ExitStack() as stack:
        yield LocalCluster(tmp_path, stack, "node0", "node1", "node2")


def write_half(disk: Path, step: int, ranks: list[int], *, world_size: int = 6) -> Path:
    """What a node's own disk gets of a HF Trainer save with DeepSpeed inside."""
    directory = disk / f"run/checkpoint-{step}"
    write_hf_trainer(directory, step, world_size=world_size, optimizer=False, rng_ranks=ranks)
    write_deepspeed(directory, step, world_size=world_size, ranks=ranks)
    date_files(directory, "latest", "trainer_state.json")
    return directory


def write_thirds(cluster: LocalCluster, step: int) -> None:
    for number, node in enumerate(cluster.nodes.values()):
        write_half(node.disk, step, [2 * number, 2 * number + 1])


def write_dcp_thirds(
    cluster: LocalCluster, step: int, *, save_id: str = "save-1", expected: int | None = 3
) -> None:
    """A DCP save of three ranks, each on its node; only rank 0's has the index."""
    name = f"step_{step}"
    files = dcp_files(ranks=3, seed=name, name=name)
    for number, node in enumerate(cluster.nodes.values()):
        directory = node.disk / "run" / name
        directory.mkdir(parents=True)
        for file, body in files.items():
            if file.startswith(f"__{number}_") or (number == 0 and file == ".metadata"):
                (directory / file).write_bytes(body)
        date_files(directory, *([".metadata"] if number == 0 else []))
        node.write_part("run", name, save_id=save_id, expected=expected, layout="dcp", step=step)


class TestWhatLiesWholeOnOneNode:
    def test_it_is_sealed_told_and_flushed(self, cluster: LocalCluster) -> None:
        write_dcp(cluster.nodes["node0"].disk / "run/step_10")
        cluster.nodes["node0"].turn()
        assert cluster.restorable("run") == ["step_10"]
        (copies,) = cluster.copies("run").values()
        assert [one.state for one in copies] == [CopyState.VERIFIED, CopyState.VERIFIED]
        assert (cluster.lustre / "run/step_10/.metadata").exists()

    def test_one_path_on_two_nodes_is_one_run(self, cluster: LocalCluster) -> None:
        write_dcp(cluster.nodes["node0"].disk / "run/step_10")
        write_dcp(cluster.nodes["node1"].disk / "run/step_20")
        cluster.turn()
        assert len(cluster.serving.catalog.runs()) == 1
        assert sorted(cluster.restorable("run")) == ["step_10", "step_20"]

    def test_its_manifest_reaches_the_service_as_it_is(self, cluster: LocalCluster) -> None:
        write_dcp(cluster.nodes["node0"].disk / "run/step_10")
        cluster.nodes["node0"].turn()
        (content_id,) = cluster.copies("run")
        run_id = cluster.serving.catalog.runs()[0].identity.run_id
        here = cluster.nodes["node0"].serving.catalog.manifest_bytes(run_id, content_id)
        assert cluster.serving.catalog.manifest_bytes(run_id, content_id) == here


class TestSavesThatNodesShare:
    def test_three_thirds_become_one_checkpoint(self, cluster: LocalCluster) -> None:
        write_thirds(cluster, 2)
        cluster.turn(times=3)
        assert cluster.restorable("run") == ["checkpoint-2"]

    def test_a_third_alone_is_nothing(self, cluster: LocalCluster) -> None:
        write_thirds(cluster, 2)
        for _ in range(2):
            cluster.nodes["node0"].turn()
            cluster.nodes["node1"].turn()
        assert cluster.restorable("run") == []

    def test_nothing_is_offered_before_every_node_has_published(
        self, cluster: LocalCluster
    ) -> None:
        write_thirds(cluster, 2)
        for name in ("node0", "node1", "node2"):
            cluster.nodes[name].agent.look()
            cluster.nodes[name].agent.tell()
            cluster.nodes[name].agent.deliver_parts()
        assert len(cluster.copies("run")) == 1
        assert cluster.restorable("run") == []
        for name in ("node0", "node1"):
            cluster.nodes[name].agent.work()
            cluster.nodes[name].agent.tell()
        assert cluster.restorable("run") == []

    def test_a_dcp_save_whose_writers_say_so_is_one_checkpoint(self, cluster: LocalCluster) -> None:
        write_dcp_thirds(cluster, 10)
        cluster.turn(times=3)
        assert cluster.restorable("run") == ["step_10"]

    def test_and_is_whole_on_the_shared_tier_in_the_end(self, cluster: LocalCluster) -> None:
        write_dcp_thirds(cluster, 10)
        cluster.turn(times=4)
        there = {path.name for path in (cluster.lustre / "run/step_10").iterdir()}
        assert there == {".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"}
        (copies,) = cluster.copies("run").values()
        assert all(one.state is CopyState.VERIFIED for one in copies)
        assert any(one.coverage is None for one in copies)

    def test_what_one_node_finished_no_other_reads_again(self, cluster: LocalCluster) -> None:
        write_dcp_thirds(cluster, 10)
        cluster.turn(times=3)
        receipts = set((cluster.lustre / "run/.ckptgov/receipts").iterdir())
        cluster.turn(times=2)
        assert set((cluster.lustre / "run/.ckptgov/receipts").iterdir()) == receipts
        assert len(receipts) == 1


class TestProof:
    def test_thirds_with_another_common_file_are_kept_and_told(self, cluster: LocalCluster) -> None:
        write_thirds(cluster, 2)
        other = cluster.nodes["node2"].disk / "run/checkpoint-2"
        state = other / "trainer_state.json"
        state.write_text(state.read_text().replace("2", "3", 1) + " ")
        date_files(other, "latest", "trainer_state.json")
        cluster.turn(times=3)
        assert cluster.restorable("run") == []
        assert "common file differs" in " ".join(doubts(cluster))
        assert any("common file differs" in one for one in cluster.nodes["node2"].said)

    def test_thirds_written_long_apart_are_not_one_save(self, cluster: LocalCluster) -> None:
        write_thirds(cluster, 2)
        half = cluster.nodes["node1"].disk / "run/checkpoint-2"
        shift_times(half, newest_at_ns=WRITTEN_AT_NS + HOUR_NS)
        cluster.turn(times=3)
        assert cluster.restorable("run") == []
        assert "3600 s apart" in " ".join(doubts(cluster))

    def test_with_one_save_id_they_are(self, cluster: LocalCluster) -> None:
        write_dcp_thirds(cluster, 10)
        half = cluster.nodes["node1"].disk / "run/step_10"
        shift_times(half, newest_at_ns=WRITTEN_AT_NS + HOUR_NS)
        cluster.turn(times=3)
        assert cluster.restorable("run") == ["step_10"]

    def test_without_a_count_from_their_writers_nobody_knows_that_all_are_there(
        self, cluster: LocalCluster
    ) -> None:
        write_dcp_thirds(cluster, 10, expected=None)
        cluster.turn(times=3)
        assert cluster.restorable("run") == []
        assert "how many parts" in " ".join(doubts(cluster))

    def test_two_of_three_told_parts_wait_for_the_third(self, cluster: LocalCluster) -> None:
        """Nothing else tells that a shard is lacking: the index is not read for what lies here."""
        write_dcp_thirds(cluster, 10)
        shutil.rmtree(cluster.nodes["node2"].disk / "run")
        files = dcp_files(ranks=2, seed="step_10", name="step_10")
        index = cluster.nodes["node0"].disk / "run/step_10/.metadata"
        index.write_bytes(files[".metadata"])
        cluster.nodes["node0"].write_part(
            "run", "step_10", save_id="save-1", expected=3, layout="dcp", step=10
        )
        cluster.turn(times=3)
        assert cluster.restorable("run") == []
        assert "2 of its 3 parts" in " ".join(doubts(cluster))

    def test_a_shard_that_differs_from_what_its_writer_said_is_no_part(
        self, cluster: LocalCluster
    ) -> None:
        write_dcp_thirds(cluster, 10)
        flip_bit(cluster.nodes["node1"].disk / "run/step_10/__1_0.distcp", 100, 1)
        cluster.turn(times=3)
        assert cluster.copies("run") == {}  # nothing was sealed

    def test_a_third_that_was_written_just_now_is_left_to_settle(
        self, cluster: LocalCluster
    ) -> None:
        write_thirds(cluster, 2)
        half = cluster.nodes["node1"].disk / "run/checkpoint-2"
        shift_times(half, newest_at_ns=cluster.clock.now_ns())
        looked = cluster.nodes["node1"].agent.look()
        assert looked.parts == 0
        cluster.clock.sleep(60)
        assert cluster.nodes["node1"].agent.look().parts == 1


class TestRewrittenMeanwhile:
    def test_a_third_rewritten_after_it_was_digested_is_not_published(
        self, cluster: LocalCluster
    ) -> None:
        write_thirds(cluster, 2)
        for node in cluster.nodes.values():
            node.agent.look()
            node.agent.tell()
            node.agent.deliver_parts()
        node = cluster.nodes["node1"]
        shard = next((node.disk / "run/checkpoint-2").glob("rng_state_*.pth"))
        shard.write_bytes(shard.read_bytes())
        for one in cluster.nodes.values():
            one.agent.work()
            one.agent.tell()
        assert not list((node.disk / "run/.ckptgov").glob("manifests/*"))
        assert cluster.restorable("run") == []

    def test_a_new_save_under_the_same_name_is_another_attempt(self, cluster: LocalCluster) -> None:
        write_thirds(cluster, 2)
        for node in cluster.nodes.values():
            node.agent.look()
            node.agent.tell()
            node.agent.deliver_parts()
        for node in cluster.nodes.values():
            half = node.disk / "run/checkpoint-2"
            state = half / "trainer_state.json"
            state.write_text(state.read_text() + " ")
            date_files(half, "latest", "trainer_state.json", at_ns=WRITTEN_AT_NS + HOUR_NS)
        cluster.turn(times=4)
        run_id = cluster.serving.catalog.runs()[0].identity.run_id
        both = cluster.serving.catalog.checkpoints(run_id)
        assert [one.attempt for one in both] == [0, 1]
        assert cluster.restorable("run") == ["checkpoint-2"]


def doubts(cluster: LocalCluster) -> list[str]:
    run_id = cluster.serving.catalog.runs()[0].identity.run_id
    with cluster.serving.context() as context:
        return [note.text for note in doubts_of(context, run_id)]
