"""What runs on a schedule: which tasks each activity comes to, and when one has succeeded.

An activity goes in rounds. A round begins with its tasks, one per tier, link or node, keyed, so
that a task still open from before is joined and never doubled; it has ended once each of them
has, and its success is recorded then. Only the leader makes tasks and records (``Leadership``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlaceFacts
from ckptgov.model.cluster import NewTask, NodeFacts, NodeState, TaskFacts, TaskKind, TaskState
from ckptgov.model.settings import Scope, Settings, TierSettings
from ckptgov.service import logs
from ckptgov.service.leadership import Lead, Leadership
from ckptgov.service.outcomes import trouble
from ckptgov.service.payloads import (
    ApplyPayload,
    BackupPayload,
    By,
    CapacityPayload,
    FlushPayload,
    PlanPayload,
    ReconcilePayload,
    ScanPayload,
    VerifyPayload,
    encoded,
)

Here = frozenset[str] | None
"""Nodes whose own disks are paths here; None: every node's, the machine being all of them."""

EMERGENCY = 100
"""Priority of what a node that is going away still has to give."""
_LEAVING = frozenset({NodeState.CORDONED, NodeState.DRAINED})
_KINDS = {
    "scan": TaskKind.SCAN,
    "flush": TaskKind.FLUSH,
    "verify": TaskKind.VERIFY,
    "reconcile": TaskKind.RECONCILE,
    "backup": TaskKind.BACKUP,
    "plan": TaskKind.PLAN,
    "apply": TaskKind.APPLY,
    "capacity": TaskKind.CAPACITY,
}


def is_here(tier: TierSettings, here: Here) -> bool:
    """Whether a tier's root is one that this process may open as a path or URL."""
    return tier.node is None or here is None or tier.node in here


def seen_from(settings: Settings, here: Here) -> Settings:
    """Settings without what other nodes' agents have to do: their own disks, links from there."""
    tiers = tuple(one for one in settings.tiers if is_here(one, here))
    names = {one.name for one in tiers}
    links = tuple(one for one in settings.links if {one.source, one.target} <= names)
    return replace(settings, tiers=tiers, links=links)


def planned(
    name: str,
    settings: Settings,
    nodes: Mapping[str, NodeWork],
    *,
    here: Here,
    by: By,
) -> tuple[NewTask, ...]:
    """The tasks of one round. ``nodes`` are those whose agents would take one now; the links of
    ``settings`` are all there are, those of policies as well.
    """
    own = seen_from(settings, here)
    away = {node: one for node, one in nodes.items() if here is not None and node not in here}
    match name:
        case "scan":
            return (*_scans(own, here, by), *_asked_of(away, name, ScanPayload(by=by)))
        case "flush":
            return (*_flushes(own, by), *_asked_of(away, name, FlushPayload(by=by)))
        case "verify":
            asked = VerifyPayload(share_s=settings.service.cadences[name].every_s, by=by)
            return (*_verifications(own, asked), *_verified_by(away, asked))
        case "reconcile":
            return (*_reconciliations(own, by), *_reconciled_by(away, by))
        case "backup":
            return _one(name, name, BackupPayload(by=by))
        case "plan":
            return _one(name, "plan:all", PlanPayload(by=by))
        case "apply":
            return _one(name, "apply:newest", ApplyPayload(is_newest=True, by=by))
        case "capacity":
            return _one(name, name, CapacityPayload(by=by))
        case _:
            return ()


def _one(name: str, key: str, payload: Struct) -> tuple[NewTask, ...]:
    """A round that is one task, for any replica."""
    return (NewTask(kind=_KINDS[name], key=key, payload=encoded(payload)),)


def is_on(name: str, settings: Settings) -> bool:
    """Whether an activity runs at all."""
    if name == "backup" and settings.service.backup_tier is None:
        return False
    return name in _KINDS and settings.service.cadences[name].every_s > 0


def _scans(own: Settings, here: Here, by: By) -> Iterator[NewTask]:
    """One for each shared tier; one for all disks of this machine, whose halves belong together."""
    ingest = [one for one in own.tiers if one.ingest]
    for tier in ingest:
        if tier.scope is Scope.SHARED:
            payload = encoded(ScanPayload(tiers=(tier.name,), by=by))
            yield NewTask(kind=TaskKind.SCAN, key=f"scan:{tier.name}", payload=payload)
    disks = tuple(dict.fromkeys(one.name for one in ingest if one.scope is Scope.NODE))
    if disks:
        where = "" if here is None else ",".join(sorted(here))
        payload = encoded(ScanPayload(tiers=disks, by=by))
        key = f"scan:disks:{where}" if where else "scan:disks"
        yield NewTask(kind=TaskKind.SCAN, key=key, payload=payload, node=_node_of(here))


def _flushes(own: Settings, by: By) -> Iterator[NewTask]:
    """One for each tier that links begin at: what is held there is let go when all have it."""
    for source in dict.fromkeys(link.source for link in own.links):
        payload = encoded(FlushPayload(sources=(source,), by=by))
        yield NewTask(kind=TaskKind.FLUSH, key=f"flush:from:{source}", payload=payload)


def _verifications(own: Settings, asked: VerifyPayload) -> Iterator[NewTask]:
    for name in dict.fromkeys(tier.name for tier in own.tiers):
        payload = encoded(replace(asked, tiers=(name,)))
        yield NewTask(kind=TaskKind.VERIFY, key=f"verify:{name}", payload=payload)


def _reconciliations(own: Settings, by: By) -> Iterator[NewTask]:
    for name in dict.fromkeys(tier.name for tier in own.tiers):
        payload = encoded(ReconcilePayload(tiers=(name,), by=by))
        yield NewTask(kind=TaskKind.RECONCILE, key=f"reconcile:{name}", payload=payload)


def _asked_of(
    nodes: Mapping[str, NodeWork], name: str, payload: ScanPayload | FlushPayload
) -> Iterator[NewTask]:
    for node, one in nodes.items():
        yield NewTask(
            kind=_KINDS[name],
            key=f"{name}:node:{node}",
            payload=encoded(payload),
            node=node,
            priority=EMERGENCY if one.is_leaving else 0,
        )


def _verified_by(nodes: Mapping[str, NodeWork], asked: VerifyPayload) -> Iterator[NewTask]:
    """An agent reads its own disks in turns; what is shared is not read once by every node."""
    for node, one in nodes.items():
        if one.tiers:
            payload = encoded(replace(asked, tiers=one.tiers))
            key = f"verify:node:{node}"
            yield NewTask(kind=TaskKind.VERIFY, key=key, payload=payload, node=node)


def _reconciled_by(nodes: Mapping[str, NodeWork], by: By) -> Iterator[NewTask]:
    for node, one in nodes.items():
        if one.tiers:
            payload = encoded(ReconcilePayload(tiers=one.tiers, by=by))
            key = f"reconcile:node:{node}"
            yield NewTask(kind=TaskKind.RECONCILE, key=key, payload=payload, node=node)


def _node_of(here: Here) -> str | None:
    """Whose task it is: a disk of one named node is touched on that node only."""
    return next(iter(here)) if here is not None and len(here) == 1 else None


class NodeWork(Struct, frozen=True, kw_only=True):
    """What is known of a node that can be asked: the tiers of its disks, whether it goes away."""

    tiers: tuple[str, ...] = ()
    is_leaving: bool = False


class Activity:
    """One activity, as the leader runs it. ``begin`` at its cadence, ``look`` every few seconds.

    Two threads may call them; they wait for each other, so that a round is recorded once.
    """

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        leadership: Leadership,
        plan: Callable[[By], Sequence[NewTask]],
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._leadership = leadership
        self._plan = plan
        self._open: dict[str, str] = {}
        self._results: dict[str, str | None] = {}
        self._leader: int | None = None
        self._is_begun = False
        self._turn = threading.RLock()

    def begin(self) -> None:
        """Make the tasks of a round; within one, those that ended meanwhile are made anew.

        Raises:
            LeaseLost: this process does not lead (any more); nothing was written.
        """
        with self._turn:
            with self._leadership.writing() as lead:
                self._belong_to(lead)
                if not self._is_begun:
                    self._catalog.activities.began(self.name, leader=lead.leader)
                tasks = [self._catalog.tasks.add(one) for one in self._plan(_by(lead))]
            self._is_begun = True
            self._wait_for(tasks)
            self.look()

    def look(self) -> None:
        """Take in what ended; when that was all of the round, record how it went.

        Raises:
            LeaseLost: as ``begin``.
        """
        with self._turn:
            self._look()

    def _look(self) -> None:
        lead = self._leadership.lead()
        if lead is None or self._leader != lead.leader.epoch or not self._is_begun:
            return
        for key, task_id in list(self._open.items()):
            task = self._catalog.tasks.task(task_id)
            if task is None or task.state in (TaskState.DONE, TaskState.FAILED):
                self._results[key] = f"{key}: its task is gone" if task is None else trouble(task)
                del self._open[key]
        if self._open.keys() <= self._results.keys():
            self._record()

    def _record(self) -> None:
        """What was made anew meanwhile and is still open counts for the next round."""
        error = next((one for one in self._results.values() if one is not None), None)
        with self._leadership.writing() as lead:
            self._catalog.activities.ended(self.name, leader=lead.leader, error=error)
        self._results, self._is_begun = {}, False
        if error is not None:
            logs.tell("activity-failed", error, level=logging.WARNING, activity=self.name)

    def _belong_to(self, lead: Lead) -> None:
        """An unfinished round of an earlier leadership is nobody's: another may have led since."""
        if self._leader != lead.leader.epoch:
            self._open, self._results, self._is_begun = {}, {}, False
            self._leader = lead.leader.epoch

    def _wait_for(self, tasks: Sequence[TaskFacts]) -> None:
        """These, and no others: for a tier that was removed, or a node silent by now, nobody."""
        self._open = {one.task.key: one.task_id for one in tasks}
        self._results = {key: one for key, one in self._results.items() if key in self._open}


def heard_of(
    nodes: Iterable[NodeFacts], places: Iterable[PlaceFacts], *, now_ns: int, timeout_s: float
) -> dict[str, NodeWork]:
    """Nodes whose agents would take a task now."""
    disks: dict[str, list[str]] = {}
    for place in places:
        if place.node is not None and place.is_current:
            disks.setdefault(place.node, []).append(place.tier)
    return {
        one.node: NodeWork(
            tiers=tuple(sorted(set(disks.get(one.node, ())))), is_leaving=one.state in _LEAVING
        )
        for one in nodes
        if one.is_reachable(now_ns, timeout_s=timeout_s)
    }


def _by(lead: Lead) -> By:
    return By(catalog_epoch=lead.catalog_epoch, leader_epoch=lead.leader.epoch)
