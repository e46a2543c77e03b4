"""The agent of one node: looks at its disks, tells the service, does what only it can.

Promises: what lies on the node's disks is told to the service, at once or, while it is away, as
soon as it answers again, and never twice in effect; a part of a save is published as part of a
checkpoint only while its shards are what was digested; whatever is under way when the agent ends
goes on from there. It works on within its fallback limits while the service is away.

``Agent`` has the steps, each of which may be called by itself; ``run_agent`` calls them in turn.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
from msgspec import Struct

from ckptgov.catalog.facts import PlaceFacts
from ckptgov.errors import CkptgovError, Interrupted, LeaseLost
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.cluster import NodeBeat, NodeState, TaskFacts, TaskKind, TaskState
from ckptgov.model.movement import FlushState
from ckptgov.model.verbs import end_if
from ckptgov.ops.context import Context
from ckptgov.ops.flush import FlushRequest, flush
from ckptgov.ops.node_removals import forget_replaced
from ckptgov.ops.own_disks import (
    directories_to_watch,
    links_from_own,
    meet_targets,
    own_disks,
    settings_of_node,
)
from ckptgov.ops.scan import scan
from ckptgov.ops.telling import PostLog, Told, tell_changes, tell_space
from ckptgov.ops.telling_run import posted_place
from ckptgov.service.agent_cluster import Cluster
from ckptgov.service.agent_parts import PendingParts
from ckptgov.service.agent_tasks import KINDS, carry_out, is_urgent
from ckptgov.service.runners import Ended, broke, failed, is_done
from ckptgov.service.serving import Serving
from ckptgov.wire.documents import scan as scan_document
from ckptgov.wire.facts import RunClaim, decode_claim_answer, encode_told

LEASE_S = 60.0
SPACE_EVERY_S = 600.0
"""How often the service hears how full the node's disks are; after a removal at once."""
MAX_WATCHED = 4096
_ARRIVED = frozenset({FlushState.FLUSHED, FlushState.STOOD, FlushState.UNPROVEN})


class AgentIdentity(Struct, frozen=True, kw_only=True):
    """What the agent says of itself when it beats."""

    node: str
    boot: str
    version: str
    peer_url: str | None = None


class Looked(Struct, frozen=True, kw_only=True):
    """What a look at the node's disks came to."""

    sealed: int
    parts: int
    failures: tuple[str, ...] = ()


class Agent:
    """The steps of one node's agent. ``stop`` asks whatever is under way to end soon.

    Its steps may be called from several threads; looking, and telling, is done by one at a time.
    """

    def __init__(
        self,
        serving: Serving,
        cluster: Cluster,
        identity: AgentIdentity,
        *,
        stop: Callable[[], bool] = lambda: False,
        talk: Callable[[str], None] | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.node = identity.node
        self._serving = serving
        self._cluster = cluster
        self._identity = identity
        self._stop = stop
        self._talk = talk or serving.talk
        self._lease_s = lease_s
        self._holder = f"{identity.node}:{identity.boot[:8]}:{os.getpid()}"
        self._log = PostLog.load(serving.settings().home)
        self.parts = PendingParts()
        self._held: dict[str, TaskFacts] = {}
        self._unsaid: dict[str, Callable[[], None]] = {}
        self._lost: set[str] = set()
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._telling = threading.Lock()
        self._saying = threading.Lock()
        self._next_space_s = 0.0
        self._urgent = threading.Event()
        self.node_state = NodeState.ACTIVE

    def beat(self) -> NodeState:
        """Say that the node lives; one that was declared dead is active again.

        Raises:
            CouldNotLook: the service does not answer.
        """
        one = self._identity
        self.node_state = self._cluster.beat(
            NodeBeat(node=one.node, boot=one.boot, version=one.version, peer_url=one.peer_url)
        )
        return self.node_state

    def look(self) -> Looked:
        """Seal what lies whole on the node's disks, digest its parts of saves it shares.

        Raises:
            Interrupted: told to stop.
        """
        return self._look()[0]

    def _look(self) -> tuple[Looked, Ended]:
        with self._looking, self._context() as context:
            disks, failed = own_disks(context, self.node, identify=self._identify)
            forget_replaced(context)
            for error in failed:
                self._talk(error.message)
            directories = [one for disk in disks for one in disk.directories]
            if not directories:
                empty = Looked(sealed=0, parts=0, failures=tuple(one.message for one in failed))
                return empty, Ended(document={"runs": []}, error=failed[0] if failed else None)
            answer = scan(context, directories, node=self.node)
            sealed = sum(len(run.sealed) for run in answer.runs)
            problems = [error for run in answer.runs for _name, error in run.failures]
            parts = self.parts.digest(context, disks, problems)
        messages = tuple(one.message for one in (*failed, *problems))
        looked = Looked(sealed=sealed, parts=parts, failures=messages)
        return looked, Ended(document=scan_document(answer), error=answer.error)

    def _identify(self, place: PlaceFacts, path: str, name: str) -> RunIdentity | None:
        """Which run a root without identity is; None while the service cannot say."""
        claim = RunClaim(node=self.node, place=posted_place(place), path=path, name=name)
        try:
            answer = decode_claim_answer(self._cluster.tell(self.node, encode_told(claim)))
        except CkptgovError as error:
            self._talk(f"{place.root}/{path}: not known yet whose it is: {error.message}")
            return None
        if answer.refusal is not None:
            self._talk(answer.refusal.message)
        return answer.run

    def tell(self) -> Told:
        """Post what changed since the last acknowledgement, and now and then how full disks are.

        Raises:
            CouldNotLook: the service does not answer; it is told the next time.
        """
        with self._telling, self._context() as context:
            self._say_ended()  # of a copy that went before what came to its place since
            told = tell_changes(context, self._log, node=self.node, send=self._send)
            self._tell_space(context)
        for refusal in told.refused:
            self._talk(f"the service did not take over {refusal}")
        return told

    def _send(self, raw: bytes) -> bytes:
        return self._cluster.tell(self.node, raw)

    def _tell_space(self, context: Context) -> None:
        now_s = self._serving.clock.monotonic()
        if now_s >= self._next_space_s:
            tell_space(context, node=self.node, send=self._send)
            self._next_space_s = now_s + SPACE_EVERY_S

    def deliver_parts(self) -> int:
        """Bring every part to the service that is not part of a checkpoint yet; how many were
        taken. Again does no harm: it makes up for whatever was lost on the other side.

        Raises:
            CouldNotLook: the service does not answer.
        """
        return self.parts.deliver(self._cluster, self.node, self._talk)

    def flush(self) -> int:
        """Bring what the node's links choose to where they lead; how many arrived.

        Ends early where something urgent is to be moved: the next time goes on from there.

        Raises:
            Interrupted: told to stop; what has arrived stays for the next time.
        """
        with self._context() as context:
            sources = frozenset(one.source for one in links_from_own(context))
            if not sources:
                return 0
            meet_targets(context)
            request = FlushRequest(run=None, sources=sources, node=self.node)
            answer = flush(context, request, stop=self._must_make_way)
        if isinstance(answer.error, Interrupted) and self._stop():
            raise answer.error
        if answer.error is not None:
            self._talk(answer.error.message)
        return sum(1 for one in answer.checkpoints if one.state in _ARRIVED)

    def _must_make_way(self) -> bool:
        return self._stop() or self._urgent.is_set()

    def work(self, *, limit: int = 1) -> int:
        """Take tasks of this node and carry them out; how many were.

        What one came to while the service was away is kept, its lease goes on, and it is said
        before anything else is taken.

        Raises:
            CouldNotLook: the service does not answer.
            Interrupted: told to stop; the task was given back.
        """
        self._say_ended()
        tasks = self._cluster.claim(
            self.node, holder=self._holder, kinds=KINDS, ttl_s=self._lease_s, limit=limit
        )
        for task in tasks:
            with self._lock:
                self._held[task.task_id] = task
        try:
            for task in tasks:
                self._work_on(task)
        finally:
            self._give_back()
        return len(tasks)

    def renew(self) -> None:
        """Prolong the leases of what is under way; what was taken over ends soon."""
        with self._lock:
            held = list(self._held.values())
        for task in held:
            try:
                self._cluster.renew(task, ttl_s=self._lease_s)
            except LeaseLost:
                with self._lock:
                    if task.task_id in self._held:
                        self._lost.add(task.task_id)
            except CkptgovError:
                continue  # its outcome is judged when it comes

    def watched(self) -> list[str]:
        """Directories in which a change tells of a save."""
        with self._context() as context:
            disks, _failed = own_disks(context, self.node, identify=lambda *_: None)
            return list(directories_to_watch(disks, limit=MAX_WATCHED))

    def _work_on(self, task: TaskFacts) -> None:
        def stop() -> bool:
            return self._stop() or task.task_id in self._lost

        try:
            ended = self._carried_out(task, stop)
        except Interrupted:
            if not self._stop():
                return  # another process has taken it over
            raise
        if task.task.kind is TaskKind.PUBLISH and ended.error is not None:
            self.parts.forget()  # what was digested is not what lies there
        state = TaskState.DONE if is_done(task, ended.error) else TaskState.FAILED
        outcome = msgspec.json.encode(ended.document)
        self._unsaid[task.task_id] = lambda: self._cluster.end(task, state=state, outcome=outcome)
        if task.task.kind is TaskKind.REMOVE:
            self._next_space_s = 0.0
            with self._telling:  # no post from before the removal comes after its outcome
                self._say_ended()
        else:
            self._say_ended()

    def _say_ended(self) -> None:
        with self._saying:
            for task_id, say in list(self._unsaid.items()):
                with suppress(LeaseLost):
                    say()
                with self._lock:
                    del self._unsaid[task_id]
                    self._held.pop(task_id, None)
                    self._lost.discard(task_id)

    def _carried_out(self, task: TaskFacts, stop: Callable[[], bool]) -> Ended:
        """What the task came to; an error of any sort is an outcome as well."""
        try:
            with self._ahead_of_others(task), self._context(stop) as context:
                return carry_out(
                    context, task, node=self.node, look=lambda: self._look()[1], stop=stop
                )
        except Interrupted:
            raise
        except CkptgovError as error:
            return failed(error)
        except Exception as error:
            self._talk(f"task {task.task_id}: unexpected {type(error).__name__}: {error}")
            return broke(error)

    @contextmanager
    def _ahead_of_others(self, task: TaskFacts) -> Iterator[None]:
        """While something urgent is moved, what is moved otherwise makes way."""
        if not is_urgent(task):
            yield
            return
        self._urgent.set()
        try:
            yield
        finally:
            self._urgent.clear()

    def _give_back(self) -> None:
        """End the leases of what was not ended: any other process may claim it now."""
        with self._lock:
            held = [one for one in self._held.values() if one.task_id not in self._unsaid]
            for task in held:
                del self._held[task.task_id]
        for task in held:
            if task.task_id not in self._lost:
                with suppress(CkptgovError):  # else they end by themselves
                    self._cluster.renew(task, ttl_s=0.0)
            self._lost.discard(task.task_id)

    @contextmanager
    def _context(self, stop: Callable[[], bool] | None = None) -> Iterator[Context]:
        """What an operation works with here; bytes are counted so that it can be stopped."""
        asked = stop or self._stop

        def count(count_bytes: int) -> None:
            del count_bytes
            end_if(asked)

        with self._serving.context("agent:" + self.node, talk=self._talk) as context:
            context.settings = settings_of_node(context.settings, self.node)
            context.progress = count
            yield context
