"""A cluster in one process: a service, nodes with homes and disks of their own, a line between.

The line can be cut, and can lose answers of what was done all the same.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from ckptgov.catalog.facts import PlacedCopy
from ckptgov.errors import CouldNotLook
from ckptgov.model.checkpoint import Part, Purpose, StepKind
from ckptgov.model.clock import SystemClock
from ckptgov.model.cluster import NodeBeat, NodeState, TaskFacts, TaskKind, TaskState
from ckptgov.model.copies import CopyState
from ckptgov.model.settings import Link, Scope, TierSettings
from ckptgov.ops.budgets import link_tiers
from ckptgov.ops.tiers import add_tier
from ckptgov.service.agent import Agent, AgentIdentity
from ckptgov.service.agent_cluster import Cluster, DirectCluster
from ckptgov.service.agent_run import one_turn
from ckptgov.service.serving import Serving
from ckptgov.storage.posix import PosixStorage
from ckptgov.work.runstore import RunStore
from ckptgov.work.seal import SealSettings, digest_members


class LeapingClock(SystemClock):
    """The machine's clocks, and as much more as a test says. Sleeping only leaps."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_ns(self) -> int:
        return super().now_ns() + int(self.ahead_s * 1e9)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        self.ahead_s += seconds


class Line:
    """A cluster that is reached over a line. ``sent``: what was brought, for sending it again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.is_cut = False
        self.loses_answers = False
        self.sent: list[tuple[str, bytes]] = []

    def beat(self, beat: NodeBeat) -> NodeState:
        self._check()
        return self.cluster.beat(beat)

    def tell(self, node: str, raw: bytes) -> bytes:
        self._check()
        self.sent.append((node, raw))
        return self._answer(self.cluster.tell(node, raw))

    def put_part(self, node: str, run: str, raw: bytes) -> bytes:
        self._check()
        return self._answer(self.cluster.put_part(node, run, raw))

    def claim(
        self, node: str, *, holder: str, kinds: Collection[TaskKind], ttl_s: float, limit: int
    ) -> tuple[TaskFacts, ...]:
        self._check()
        return self.cluster.claim(node, holder=holder, kinds=kinds, ttl_s=ttl_s, limit=limit)

    def renew(self, task: TaskFacts, *, ttl_s: float) -> None:
        self._check()
        self.cluster.renew(task, ttl_s=ttl_s)

    def end(self, task: TaskFacts, *, state: TaskState, outcome: bytes) -> None:
        self._check()
        self.cluster.end(task, state=state, outcome=outcome)

    def _check(self) -> None:
        if self.is_cut:
            raise CouldNotLook("the line is cut")

    def _answer(self, raw: bytes) -> bytes:
        if self.loses_answers:
            raise CouldNotLook("the answer was lost")
        return raw


class LocalNode:
    """One node: its home, its disk, and the agent that runs there now."""

    def __init__(
        self, name: str, base: Path, cluster: Cluster, clock: LeapingClock, stack: ExitStack
    ) -> None:
        self.name = name
        self.home = base / f"home-{name}"
        self.disk = base / f"disk-{name}"
        self.said: list[str] = []
        self.line = Line(cluster)
        self._clock = clock
        self._stack = stack
        self.home.mkdir(exist_ok=True)
        self.disk.mkdir(exist_ok=True)
        self.start()

    def start(self) -> Agent:
        """The agent anew, as after its process ended."""
        self.serving = self._stack.enter_context(
            Serving.open(
                str(self.home),
                clock=self._clock,
                here=frozenset({self.name}),
                talk=self.said.append,
            )
        )
        identity = AgentIdentity(node=self.name, boot=f"boot-of-{self.name}", version="0")
        self.agent = Agent(self.serving, self.line, identity)
        return self.agent

    def turn(self) -> bool:
        """Everything once; whether the service answered."""
        return one_turn(self.agent, talk=self.said.append)

    def write_part(
        self, run: str, name: str, *, save_id: str, expected: int | None, layout: str, step: int
    ) -> None:
        """What a cooperative writer on this node leaves beside its shards of a save."""
        base = self.disk / run / name
        members = [(path.name, path.stat().st_size) for path in sorted(base.iterdir())]
        with PosixStorage(self.disk) as storage:
            digested = digest_members(
                storage,
                f"{run}/{name}",
                members,
                name=name,
                clock=self._clock,
                granularity_ns=0,
                settings=SealSettings(threads=1),
                durable=False,
            )
            part = Part(
                name=name,
                step=step,
                step_kind=StepKind.STEP,
                layout=layout,
                world_size=None,
                purposes=tuple(Purpose),
                save_id=save_id,
                node=self.name,
                expected_parts=expected,
                shards=digested.shards,
            )
            RunStore(storage, run).publish_part(part, group=save_id, member=self.name)


class LocalCluster:
    """A service with a shared tier, and nodes that flush to it."""

    def __init__(self, base: Path, stack: ExitStack, *nodes: str) -> None:
        self.base = base
        self.clock = LeapingClock()
        self._stack = stack
        self.lustre = base / "lustre"
        self.lustre.mkdir()
        home = base / "home"
        home.mkdir()
        self.serving = self.replica()
        shared = TierSettings(name="lustre", root=str(self.lustre), ingest=True)
        with self.serving.context() as context:
            add_tier(context, shared)
        self.cluster = DirectCluster(self.serving)
        self.nodes = {
            name: LocalNode(name, base, self.cluster, self.clock, stack) for name in nodes
        }
        for node in self.nodes.values():
            self._configure(node, shared)

    def replica(self) -> Serving:
        """One more process of the service."""
        return self._stack.enter_context(
            Serving.open(str(self.base / "home"), clock=self.clock, here=frozenset())
        )

    def _configure(self, node: LocalNode, shared: TierSettings) -> None:
        disk = TierSettings(
            name="nvme", root=str(node.disk), scope=Scope.NODE, node=node.name, ingest=True
        )
        with node.serving.context() as context:
            add_tier(context, disk)
            add_tier(context, shared)
            link_tiers(context, Link(source="nvme", target="lustre", every=1))

    def reopen(self) -> None:
        """Every process anew: what was open belongs to another one, or died with it."""
        self.serving = self.replica()
        self.cluster = DirectCluster(self.serving)
        for node in self.nodes.values():
            node.line = Line(self.cluster)
            node.start()

    def turn(self, *, times: int = 1) -> None:
        """Every agent's turn, one after the other."""
        for _ in range(times):
            for node in self.nodes.values():
                node.turn()

    def copies(self, run: str) -> dict[str, list[PlacedCopy]]:
        """What the service knows of a run's copies, by checkpoint."""
        catalog = self.serving.catalog
        facts = catalog.run_by_name(run)
        if facts is None:
            return {}
        found: dict[str, list[PlacedCopy]] = {}
        for one in catalog.copies(facts.identity.run_id):
            found.setdefault(one.content_id, []).append(one)
        return found

    def restorable(self, run: str) -> list[str]:
        """Checkpoints of which verified copies hold every shard, as the service knows them."""
        catalog = self.serving.catalog
        facts = catalog.run_by_name(run)
        if facts is None:
            return []
        copies = self.copies(run)
        return [
            one.name
            for one in catalog.checkpoints(facts.identity.run_id)
            if _is_covered(copies.get(one.content_id, []), one.shard_count)
        ]


def _is_covered(copies: Collection[PlacedCopy], shards: int) -> bool:
    bits = 0
    for one in copies:
        if one.state is CopyState.VERIFIED:
            whole = (1 << shards) - 1
            bits |= whole if one.coverage is None else int.from_bytes(one.coverage, "little")
    return bits == (1 << shards) - 1
