"""Nodes, what they are asked to do, and what runs on a schedule: the nouns of the service."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class NodeState(StrEnum):
    """What people, or an alert, said of a node. Silence is told apart from it by the last beat."""

    ACTIVE = "active"
    CORDONED = "cordoned"  # still there; its only copies are flushed first
    DRAINED = "drained"  # the same, and nothing new is brought there
    DEAD = "dead"  # its disks are out of reach; its copies count for nothing until it beats again


class NodeBeat(Struct, frozen=True, kw_only=True):
    """What an agent says of itself. ``peer_url``: where it serves its shards, if it does."""

    node: str
    boot: str  # the kernel's boot id: another one means the node was restarted
    version: str
    peer_url: str | None = None


class NodeFacts(Struct, frozen=True, kw_only=True):
    """One node as the service knows it."""

    node: str
    state: NodeState
    reason: str = ""
    boot: str = ""
    version: str = ""
    peer_url: str | None = None
    first_seen_at_ns: int
    beat_at_ns: int

    def is_reachable(self, now_ns: int, *, timeout_s: float) -> bool:
        """Whether its copies can be counted on: not declared dead, and heard of lately."""
        return self.state is not NodeState.DEAD and now_ns - self.beat_at_ns <= timeout_s * 1e9


class TaskKind(StrEnum):
    """What can be asked of a node, or of the service itself."""

    SCAN = "scan"
    DIGEST = "digest"  # hash a range of one checkpoint's shards on a shared tier
    PUBLISH = "publish"  # write the merged manifest, and records, beside a node's own part
    FLUSH = "flush"
    VERIFY = "verify"
    RECONCILE = "reconcile"
    BACKUP = "backup"
    PLAN = "plan"
    APPLY = "apply"
    UNDELETE = "undelete"
    REMOVE = "remove"  # at a node's own disk: what the service has begun to remove, or gives back
    CAPACITY = "capacity"


class TaskState(StrEnum):
    """Where a task stands. A claimed one whose lease ended is queued again."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"


class NewTask(Struct, frozen=True, kw_only=True):
    """What is to be done. While a task of the same ``key`` is open, no second one is made.

    ``node`` None: by any process of the service. ``priority``: higher first. ``payload``: JSON
    whose form belongs to the kind. ``for_run`` only tells people and limits who may see it.
    """

    kind: TaskKind
    key: str
    payload: bytes
    node: str | None = None
    for_run: str | None = None
    priority: int = 0


class TaskFacts(Struct, frozen=True, kw_only=True):
    """One task. ``lease`` grows with every claim: an outcome is accepted under the newest only.

    ``outcome``: JSON; of a failed one the error's document.
    """

    task_id: str
    task: NewTask
    state: TaskState
    lease: int
    holder: str = ""
    lease_ends_at_ns: int = 0
    attempts: int = 0
    created_at_ns: int
    ended_at_ns: int | None = None
    outcome: bytes = b""


class Leader(Struct, frozen=True, kw_only=True):
    """Who runs what only one may run; ``epoch`` grows with every new holder and fences writes."""

    holder: str
    epoch: int
    expires_at_ns: int


class ActivityFacts(Struct, frozen=True, kw_only=True):
    """What runs on a schedule, and when it last did; 0 means never.

    ``slo_s``: a success older than this, or none since ``known_since_ns``, is an alert.
    """

    name: str
    every_s: float
    slo_s: float
    known_since_ns: int
    began_at_ns: int = 0
    ended_at_ns: int = 0
    succeeded_at_ns: int = 0
    failures: int = 0  # in a row
    error: str = ""

    def is_late(self, now_ns: int) -> bool:
        """Whether its promise is broken."""
        return now_ns - max(self.succeeded_at_ns, self.known_since_ns) > self.slo_s * 1e9


class PartFacts(Struct, frozen=True, kw_only=True):
    """One node's part of a save, as its agent posted it; ``told`` is JSON of ``wire.parts``."""

    run_id: str
    name: str
    place: str
    told: bytes
    posted_at_ns: int = 0


class RunChange(Struct, frozen=True, kw_only=True):
    """Something committed about one run, or (None) about places, nodes or all runs."""

    seq: int
    run_id: str | None
