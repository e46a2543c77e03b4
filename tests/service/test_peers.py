"""Nodes with a disk each and one catalog: what lies on one is looked at and restored elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.errors import CkptgovError, CouldNotLook
from ckptgov.model.answers import LatestAnswer
from ckptgov.model.clock import SystemClock
from ckptgov.model.cluster import NodeBeat, NodeState
from ckptgov.model.facts import Query
from ckptgov.model.movement import RestoreAnswer
from ckptgov.model.pacing import Budget, FlowRequest
from ckptgov.model.settings import Scope, ServiceSettings, Settings, TierSettings
from ckptgov.ops.bringing import RestoreRequest
from ckptgov.ops.context import Context
from ckptgov.ops.flows import FlowDesk
from ckptgov.ops.moving import restoring
from ckptgov.ops.restore import restore
from ckptgov.ops.scan import scan
from ckptgov.service.peer_flows import serving_peers
from ckptgov.service.peer_server import PeerServer
from ckptgov.testing.sealed_runs import put_place
from ckptgov.work import ask
from ckptgov.work.author import Author

RUN = "llm"
SHARD = "__1_0.distcp"
TOKEN = "a-secret-of-the-cluster"


class Cluster:
    """A catalog that all share, and nodes that see their own disks only."""

    def __init__(self, top: Path, stack: ExitStack) -> None:
        self.top = top
        self.stack = stack
        self.clock = SystemClock()
        self.said: list[str] = []
        (top / "service").mkdir()
        self.catalog = stack.enter_context(
            Catalog.open(
                str(top / "service/catalog.sqlite"),
                fs_type="ext4",
                is_network=False,
                clock=self.clock,
            )
        )
        self.settings = Settings(
            home=str(top / "service"),
            tiers=tuple(self.tier(node) for node in "abc"),
            service=ServiceSettings(node_timeout_s=3600),
            stall_s=20,
        )
        self.desk = stack.enter_context(
            FlowDesk(self.catalog, self.settings, self.clock, beat_s=0.05)
        )
        for node in "abc":
            uuid = str(uuid4())
            put_place(self.catalog, self.disk(node), tier="nvme", node=node, uuid=uuid)

    def tier(self, node: str) -> TierSettings:
        return TierSettings(
            name="nvme", root=str(self.disk(node)), scope=Scope.NODE, node=node, ingest=True
        )

    def disk(self, node: str) -> Path:
        return self.top / node / "nvme"

    def at(self, node: str, **options: object) -> Context:
        """What a process on one node works with."""
        return Context(
            settings=self.settings,
            author=Author(clock=self.clock, by=f"uid:1@{node}"),
            talk=self.said.append,
            stack=self.stack,
            shared=self.catalog,
            shared_desk=self.desk,
            here=frozenset({node}),
            **options,
        )

    def start(self, node: str, settings: Callable[[], Settings] | None = None) -> PeerServer:
        """The node's agent serves and beats."""
        server = self.stack.enter_context(
            serving_peers(
                node,
                desk=self.desk,
                settings=settings or (lambda: self.settings),
                new_id=lambda: str(uuid4()),
                tokens=lambda: (TOKEN,),
                host="127.0.0.1",
            )
        )
        self.beat(node, server)
        return server

    def beat(self, node: str, server: PeerServer | None) -> None:
        url = None if server is None else "http://{}:{}".format(*server.address)
        self.catalog.nodes.beat(NodeBeat(node=node, boot="b", version="1", peer_url=url))

    def seal(self, node: str, sample: Path) -> None:
        shutil.copytree(sample, self.disk(node) / RUN, symlinks=True)
        scan(self.at(node), [str(self.disk(node) / RUN)], run=RUN, node=node)

    def latest(self, node: str) -> LatestAnswer:
        asked = self.at(node).asked(RUN, node=node)
        assert asked is not None
        return ask.latest(asked, Query())

    def restore(self, node: str, to: Path) -> RestoreAnswer:
        context = self.at(node)
        asked = context.asked(RUN, node=node)
        assert asked is not None
        request = RestoreRequest(to=str(to), node=node)
        return restore(context, asked, request, moving=restoring(context))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("CKPTGOV_PEER_TOKEN", TOKEN)
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


@pytest.fixture
def sample(samples: Path) -> Path:
    return samples / "dcp/fsdp2-4rank"


def flip(path: Path) -> None:
    """Change one bit; size and times stay, as on a disk that decays."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(stat.st_size // 2)
        byte = file.read(1)[0]
        file.seek(stat.st_size // 2)
        file.write(bytes([byte ^ 4]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def files(top: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(top)): path.read_bytes()
        for path in sorted(top.rglob("*"))
        if path.is_file()
    }


def test_a_checkpoint_on_a_living_node_is_restored_on_another(
    cluster: Cluster, sample: Path
) -> None:
    cluster.seal("a", sample)
    cluster.start("a")
    answer = cluster.restore("b", cluster.top / "b/out")
    assert answer.faults == ()
    assert {(one.tier, one.root) for one in answer.sources} == {("nvme", str(cluster.disk("a")))}
    there = files(cluster.disk("a") / RUN / "step_2")
    assert files(Path(answer.path)) == there
    assert answer.shards == len(there)


def test_a_look_through_an_agent_says_what_the_nodes_own_look_says(
    cluster: Cluster, sample: Path
) -> None:
    cluster.seal("a", sample)
    cluster.start("a")
    own, other = cluster.latest("a"), cluster.latest("b")
    assert other.error is None
    assert other.chosen == own.chosen


def test_what_lands_on_the_nodes_own_disk_becomes_a_copy_there(
    cluster: Cluster, sample: Path
) -> None:
    cluster.seal("a", sample)
    cluster.start("a")
    cluster.restore("b", cluster.disk("b") / RUN)
    run = cluster.catalog.run_by_name(RUN)
    assert run is not None
    (copies,) = cluster.catalog.copies_of(
        run.identity.run_id, [cluster.latest("b").chosen.content_id]
    ).values()
    assert len({one.place for one in copies}) == 2
    cluster.catalog.nodes.set_state("a", NodeState.DEAD, reason="its board burnt")
    assert cluster.latest("b").path == str(cluster.disk("b") / RUN / "step_2")


def test_two_nodes_may_have_their_disks_at_one_and_the_same_path(
    cluster: Cluster, sample: Path
) -> None:
    cluster.seal("a", sample)
    as_it_is = cluster.settings
    server = cluster.start("a", settings=lambda: as_it_is)
    same = str(cluster.disk("b"))  # what b calls its own disk, a calls its own as well
    (place,) = [one for one in cluster.catalog.places() if one.node == "a"]
    cluster.catalog.put_place(replace(place, root=same))
    tiers = tuple(replace(one, root=same) if one.node == "a" else one for one in as_it_is.tiers)
    cluster.settings = replace(as_it_is, tiers=tiers)
    assert server.tiers() == {"nvme": str(cluster.disk("a"))}
    answer = cluster.restore("b", cluster.disk("b") / RUN)
    assert Path(answer.path) == cluster.disk("b") / RUN / "step_2"
    wanted = files(cluster.disk("a") / RUN / "step_2")
    assert files(cluster.disk("b") / RUN / "step_2") == wanted


# A node that does not answer: said so, and taken from elsewhere.


def test_a_node_that_was_never_heard_of_could_not_be_looked_at(
    cluster: Cluster, sample: Path
) -> None:
    cluster.seal("a", sample)
    with pytest.raises(CouldNotLook, match="lies on node a, which was never heard of"):
        cluster.at("b").asked(RUN, node="b")


def test_a_dead_node_could_not_be_looked_at_and_the_reason_is_told(
    cluster: Cluster, sample: Path
) -> None:
    cluster.seal("a", sample)
    cluster.start("a")
    cluster.catalog.nodes.set_state("a", NodeState.DEAD, reason="its board burnt")
    with pytest.raises(CouldNotLook, match="node a, which is declared dead: its board burnt"):
        cluster.latest("b")


def test_a_silent_node_is_named_with_since_when(cluster: Cluster, sample: Path) -> None:
    cluster.seal("a", sample)
    cluster.start("a")
    service = replace(cluster.settings.service, node_timeout_s=0)
    cluster.settings = replace(cluster.settings, service=service)
    with pytest.raises(CouldNotLook, match=r"node a, which is silent since \d{4}-\d\d-\d\dT"):
        cluster.latest("b")


def test_an_agent_that_stopped_is_told_and_never_reads_as_none(
    cluster: Cluster, sample: Path
) -> None:
    cluster.seal("a", sample)
    cluster.start("a").close()
    with pytest.raises(CouldNotLook, match=r"the agent at http://127\.0\.0\.1:\d+ does not answer"):
        cluster.latest("b")


def test_an_agent_that_serves_nothing_is_told(cluster: Cluster, sample: Path) -> None:
    cluster.seal("a", sample)
    cluster.beat("a", None)
    with pytest.raises(CouldNotLook, match="whose agent serves no shards"):
        cluster.latest("b")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CKPTGOV_PEER_TOKEN", "", "there is no token to show"),
        ("CKPTGOV_PEER_TOKEN", "another", "does not take our token"),
        ("CKPTGOV_PEER_TOKEN_FILE", "/absent/file", "cannot be read"),
    ],
)
def test_without_the_right_token_it_could_not_be_looked_at(
    cluster: Cluster,
    sample: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    said: str,
) -> None:
    cluster.seal("a", sample)
    cluster.start("a")
    monkeypatch.delenv("CKPTGOV_PEER_TOKEN")
    monkeypatch.setenv(variable, value)
    with pytest.raises(CouldNotLook, match=said):
        cluster.latest("b")


def test_another_disk_mounted_at_the_nodes_path_is_not_taken_for_its_own(
    cluster: Cluster, sample: Path
) -> None:
    cluster.seal("a", sample)
    cluster.start("a")
    shutil.copy(cluster.disk("c") / ".ckptgov-tier.json", cluster.disk("a") / ".ckptgov-tier.json")
    with pytest.raises(CouldNotLook, match="was expected"):
        cluster.latest("b")


@pytest.fixture
def both(cluster: Cluster, sample: Path) -> Cluster:
    """A copy on a and one on c, both of which serve."""
    cluster.seal("a", sample)
    cluster.start("a")
    cluster.restore("c", cluster.disk("c") / RUN)
    cluster.start("c")
    return cluster


def test_another_living_node_is_the_source_when_one_is_gone(both: Cluster) -> None:
    both.catalog.nodes.set_state("a", NodeState.DEAD, reason="gone")
    answer = both.restore("b", both.top / "b/out")
    assert {one.root for one in answer.sources} == {str(both.disk("c"))}
    assert answer.faults == ()


# A bad shard there.


def test_a_flipped_byte_there_is_caught_and_the_shard_comes_from_another_node(
    both: Cluster,
) -> None:
    flip(both.disk("a") / RUN / "step_2" / SHARD)
    before = files(both.disk("a"))
    answer = both.restore("b", both.top / "b/out")
    assert files(Path(answer.path)) == files(both.disk("c") / RUN / "step_2")
    (fault,) = answer.faults
    assert fault.path == str(both.disk("a") / RUN / "step_2" / SHARD)
    assert fault.reason.value == "corrupt"
    assert files(both.disk("a")) == before, "nobody else writes there"
    assert "could not be quarantined" in " ".join(both.said)
    assert "read only: another node's disk" in " ".join(both.said)


def test_a_flipped_byte_there_is_caught_where_there_is_no_other_source(
    cluster: Cluster, sample: Path
) -> None:
    cluster.seal("a", sample)
    cluster.start("a")
    flip(cluster.disk("a") / RUN / "step_2" / SHARD)
    with pytest.raises(CkptgovError, match=SHARD):
        cluster.restore("b", cluster.top / "b/out")
    assert not (cluster.top / "b/out/step_2").exists()


def test_a_shard_rewritten_there_is_re_opened_for_a_look_from_here(
    cluster: Cluster, sample: Path
) -> None:
    cluster.seal("a", sample)
    cluster.start("a")
    os.utime(cluster.disk("a") / RUN / "step_2" / SHARD)
    told = cluster.latest("b")
    assert told.chosen is None
    assert {one.reason.value for v in told.choice.verdicts for one in v.findings} == {"re-opened"}


# Budgets: the disk's, where the disk is.


def test_what_leaves_a_disk_is_taken_from_its_budget_once(cluster: Cluster, sample: Path) -> None:
    budget = Budget(read_bytes_per_s=10**12)
    tiers = tuple(replace(one, budget=budget) for one in cluster.settings.tiers)
    cluster.settings = replace(cluster.settings, tiers=tiers)
    cluster.desk = cluster.stack.enter_context(
        FlowDesk(cluster.catalog, cluster.settings, cluster.clock, beat_s=0.05)
    )
    cluster.seal("a", sample)
    cluster.start("a")
    asked: list[FlowRequest] = []
    opens = cluster.desk.open
    cluster.desk.open = lambda wanted, **more: asked.append(wanted) or opens(wanted, **more)
    cluster.restore("b", cluster.top / "b/out")
    assert [one for one in asked if one.source == "nvme"] == [], "the other side takes it"
    (serving,) = [one for one in cluster.desk.facts() if one.request.source == "nvme"]
    assert (serving.request.node, serving.request.flow_class.value) == ("a", "restore")
    cluster.desk.step()
    (serving,) = [one for one in cluster.desk.facts() if one.request.source == "nvme"]
    shards = sum(len(raw) for raw in files(cluster.disk("a") / RUN / "step_2").values())
    assert serving.moved_bytes >= shards
