"""Agents over HTTP: their tokens, their loops, their command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckptgov.client.address import ServiceAddress, replica_of
from ckptgov.errors import CkptgovError, CouldNotLook, NotAllowed
from ckptgov.model.access import Right
from ckptgov.model.clock import SystemClock
from ckptgov.model.cluster import TaskKind
from ckptgov.service.access import make_token
from ckptgov.service.agent_cluster import HttpCluster
from ckptgov.service.agent_run import Pace, run_agent
from ckptgov.service.app import create_app
from ckptgov.testing.builders import date_files, write_dcp, write_deepspeed, write_hf_trainer
from ckptgov.testing.cluster import LocalCluster
from ckptgov.testing.served import running

PACE = Pace(beat_s=0.1, work_s=0.05, rescan_s=0.3, settle_s=0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with ExitStack() as stack:
        yield LocalCluster(tmp_path, stack, "node0", "node1")


@pytest.fixture
def url(cluster: LocalCluster) -> Iterator[str]:
    with running(create_app(cluster.serving)) as url:
        yield url


def token_of(cluster: LocalCluster, node: str) -> str:
    now_ns = cluster.clock.now_ns()
    made = make_token(
        cluster.serving.catalog, label=node, rights={Right.AGENT}, node=node, now_ns=now_ns
    )
    return made.text


@pytest.fixture
def over_http(cluster: LocalCluster, url: str) -> Iterator[Callable[[str], HttpCluster]]:
    with ExitStack() as stack:

        def reach(node: str) -> HttpCluster:
            address = ServiceAddress(replicas=(replica_of(url),), token=token_of(cluster, node))
            return stack.enter_context(HttpCluster(address, clock=SystemClock()))

        yield reach


def write_halves(cluster: LocalCluster) -> None:
    for number, node in enumerate(cluster.nodes.values()):
        directory = node.disk / "run/checkpoint-2"
        ranks = [2 * number, 2 * number + 1]
        write_hf_trainer(directory, 2, world_size=4, optimizer=False, rng_ranks=ranks)
        write_deepspeed(directory, 2, world_size=4, ranks=ranks)
        date_files(directory, "latest", "trainer_state.json")


def test_halves_become_a_checkpoint(
    cluster: LocalCluster, over_http: Callable[[str], HttpCluster]
) -> None:
    write_halves(cluster)
    for name, node in cluster.nodes.items():
        node.line.cluster = over_http(name)
    cluster.turn(times=3)
    assert cluster.restorable("run") == ["checkpoint-2"]
    assert {one.node for one in cluster.serving.catalog.nodes.nodes()} == {"node0", "node1"}


def test_why_a_part_is_no_checkpoint_yet_is_told(
    cluster: LocalCluster, over_http: Callable[[str], HttpCluster], url: str
) -> None:
    """P9: one half is there; whoever lists the run hears what it waits for."""
    write_halves(cluster)
    node = cluster.nodes["node0"]
    node.line.cluster = over_http("node0")
    node.turn()
    made = make_token(
        cluster.serving.catalog,
        label="reader",
        rights={Right.READ},
        now_ns=cluster.clock.now_ns(),
    )
    asking = urllib.request.Request(
        f"{url}/v1/runs/run/checkpoints", headers={"Authorization": f"Bearer {made.text}"}
    )
    with urllib.request.urlopen(asking, timeout=30) as answer:
        notes = json.load(answer)["notes"]
    assert [one["text"] for one in notes if one["kind"] == "halves"] != []


def test_a_token_speaks_for_its_node_only(
    cluster: LocalCluster, over_http: Callable[[str], HttpCluster]
) -> None:
    node = cluster.nodes["node1"]
    write_dcp(node.disk / "run/step_10")
    node.line.cluster = over_http("node0")
    with pytest.raises(NotAllowed):
        node.agent.beat()
    with pytest.raises(CkptgovError):
        node.agent.work()
    assert cluster.restorable("run") == []


def test_a_service_that_is_not_there_is_silence(cluster: LocalCluster) -> None:
    address = ServiceAddress(replicas=(replica_of("http://127.0.0.1:9"),), token=None)
    silent = HttpCluster(address, clock=cluster.clock)
    with pytest.raises(CouldNotLook):
        silent.claim("node0", holder="h", kinds={TaskKind.SCAN}, ttl_s=1, limit=1)


def test_the_loops_seal_publish_move_and_end_when_told_to(
    cluster: LocalCluster, over_http: Callable[[str], HttpCluster]
) -> None:
    write_halves(cluster)
    stop, threads = threading.Event(), []
    for name, node in cluster.nodes.items():
        node.line.cluster = over_http(name)
        node.agent._stop = stop.is_set
        run = threading.Thread(
            target=run_agent,
            args=(node.agent,),
            kwargs={"clock": SystemClock(), "stop": stop, "talk": node.said.append, "pace": PACE},
        )
        run.start()
        threads.append(run)
    there = cluster.lustre / "run/.ckptgov/manifests"
    waited = threading.Event()
    for _ in range(1200):
        if there.exists() and any(there.iterdir()) and cluster.restorable("run"):
            break
        waited.wait(0.05)
    stop.set()
    for run in threads:
        run.join(60)
        assert not run.is_alive()
    assert cluster.restorable("run") == ["checkpoint-2"]


class TestTheCommand:
    def start(self, cluster: LocalCluster, url: str, *words: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "CKPTGOV_HOME": str(cluster.nodes["node0"].home),
            "CKPTGOV_URL": url,
            "CKPTGOV_TOKEN": token_of(cluster, "node0"),
            "CKPTGOV_PEER_TOKEN": "of-this-cluster",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "ckptgov_cli.main", "agent", "--node", "node0", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def test_once_does_everything_once(self, cluster: LocalCluster, url: str) -> None:
        write_dcp(cluster.nodes["node0"].disk / "run/step_10")
        with self.start(cluster, url, "--once") as process:
            _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert cluster.restorable("run") == ["step_10"]

    def test_without_a_service_it_says_so(self, cluster: LocalCluster) -> None:
        write_dcp(cluster.nodes["node0"].disk / "run/step_10")
        with self.start(cluster, "http://127.0.0.1:9", "--once") as process:
            _, said = process.communicate(timeout=120)
        assert process.returncode == 9, said

    def test_a_signal_ends_it(self, cluster: LocalCluster, url: str) -> None:
        with self.start(cluster, url, "--listen", "127.0.0.1:0") as process:
            book = cluster.serving.catalog.nodes
            waited = threading.Event()
            for _ in range(1200):
                facts = book.node("node0")
                if facts is not None:
                    break
                waited.wait(0.05)
            assert facts is not None
            assert facts.peer_url is not None
            assert facts.peer_url.startswith("http://127.0.0.1:")
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said

    def test_a_node_without_a_disk_is_a_wrong_call(self, cluster: LocalCluster, url: str) -> None:
        with self.start(cluster, url, "--once") as process:
            process.communicate(timeout=120)
        config = cluster.nodes["node0"].home / "ckptgov.yaml"
        config.write_text(config.read_text().replace("node0", "node7"))
        with self.start(cluster, url, "--once") as process:
            _, said = process.communicate(timeout=120)
        assert process.returncode == 2, said
