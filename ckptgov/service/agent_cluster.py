"""What an agent asks of its cluster: over HTTP, or in the process of the service itself."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from ckptgov.client.address import ServiceAddress
from ckptgov.client.transport import Transport, answered, path_of
from ckptgov.errors import Malformed
from ckptgov.model.clock import Clock
from ckptgov.model.closing import Closing
from ckptgov.model.cluster import NewTask, NodeBeat, NodeState, TaskFacts, TaskKind, TaskState
from ckptgov.ops.parts import put_part
from ckptgov.ops.posting import apply_post, identify_run
from ckptgov.service.node_outcomes import end_task
from ckptgov.service.node_removals import brought_up_to_date
from ckptgov.service.serving import Serving
from ckptgov.wire.facts import Post, decode_told, encode_answer
from ckptgov.wire.parts import decode_part, encode_part_answer

_T = TypeVar("_T")

PATIENCE_S = 3.0
"""A request is tried again for so long; then the agent goes on by itself, and asks later."""
BEAT_S = 4.0
"""How long a replica has to answer a beat: one that was stopped must not make its nodes silent."""


class Cluster(Protocol):
    """The service as an agent sees it. Threads may share it.

    Every call raises CouldNotLook while the service is away.
    """

    def beat(self, beat: NodeBeat) -> NodeState:
        """Say that the node lives; what it is held for now."""
        ...

    def tell(self, node: str, raw: bytes) -> bytes:
        """Bring a post or a claim (``wire.facts``), and its answer back."""
        ...

    def put_part(self, node: str, run: str, raw: bytes) -> bytes:
        """Bring a part of a save (``wire.parts``), and its answer back."""
        ...

    def claim(
        self, node: str, *, holder: str, kinds: Collection[TaskKind], ttl_s: float, limit: int
    ) -> tuple[TaskFacts, ...]:
        """Take tasks of the node."""
        ...

    def renew(self, task: TaskFacts, *, ttl_s: float) -> None:
        """Go on with a task; ``ttl_s`` 0 gives it back, as if never taken. Raises LeaseLost."""
        ...

    def end(self, task: TaskFacts, *, state: TaskState, outcome: bytes) -> None:
        """Say how a task ended. Raises LeaseLost."""
        ...


class DirectCluster:
    """The service in this process: one machine that is both."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def beat(self, beat: NodeBeat) -> NodeState:
        return self._serving.catalog.nodes.beat(beat).state

    def tell(self, node: str, raw: bytes) -> bytes:
        told = decode_told(raw)
        with self._serving.context("agent:" + node) as context:
            if isinstance(told, Post):
                at_ns = context.author.clock.now_ns()
                return encode_answer(apply_post(context.catalog, told, node=node, at_ns=at_ns))
            return encode_answer(
                identify_run(context.catalog, told, node=node, author=context.author)
            )

    def put_part(self, node: str, run: str, raw: bytes) -> bytes:
        with self._serving.context("agent:" + node) as context:
            return encode_part_answer(put_part(context, run, decode_part(raw), node=node))

    def claim(
        self, node: str, *, holder: str, kinds: Collection[TaskKind], ttl_s: float, limit: int
    ) -> tuple[TaskFacts, ...]:
        catalog = self._serving.catalog
        found = catalog.tasks.claim(node=node, holder=holder, kinds=kinds, ttl_s=ttl_s, limit=limit)
        return tuple(brought_up_to_date(catalog, one) for one in found)

    def renew(self, task: TaskFacts, *, ttl_s: float) -> None:
        book = self._serving.catalog.tasks
        if ttl_s == 0:
            book.give_back(task.task_id, task.lease)
        else:
            book.renew(task.task_id, task.lease, ttl_s=ttl_s)

    def end(self, task: TaskFacts, *, state: TaskState, outcome: bytes) -> None:
        with self._serving.context("agent:" + (task.task.node or "")) as context:
            end_task(context, task, task.lease, state=state, outcome=outcome)


class _ToldTask(Struct, frozen=True, kw_only=True):
    """A task as the service tells it to an agent; members not named here do not matter."""

    task_id: str
    kind: TaskKind
    key: str
    run: str | None
    node: str | None
    lease: int
    holder: str
    attempts: int
    created_at_ns: int
    payload: Any


class _ToldTasks(Struct, frozen=True, kw_only=True):
    tasks: tuple[_ToldTask, ...]


class _ToldNode(Struct, frozen=True, kw_only=True):
    state: NodeState


class _ToldBeat(Struct, frozen=True, kw_only=True):
    node: _ToldNode


class HttpCluster(Closing):
    """The service at its address. Every thread has a connection of its own; close them together."""

    def __init__(self, address: ServiceAddress, *, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._local = threading.local()
        self._opened: list[Transport] = []

    def close(self) -> None:
        """Let go of every connection. Not while a call is under way."""
        for transport in self._opened:
            transport.close()

    def beat(self, beat: NodeBeat) -> NodeState:
        body = {"boot": beat.boot, "version": beat.version, "peer_url": beat.peer_url}
        raw = self._send(path_of("nodes", beat.node, "beat"), body, answer_s=BEAT_S)
        return _decoded(raw, _ToldBeat).node.state

    def tell(self, node: str, raw: bytes) -> bytes:
        return self._send(path_of("nodes", node, "facts"), msgspec.json.decode(raw))

    def put_part(self, node: str, run: str, raw: bytes) -> bytes:
        return self._send(path_of("runs", run, "parts"), msgspec.json.decode(raw))

    def claim(
        self, node: str, *, holder: str, kinds: Collection[TaskKind], ttl_s: float, limit: int
    ) -> tuple[TaskFacts, ...]:
        body = {
            "holder": holder,
            "kinds": [kind.value for kind in kinds],
            "ttl_s": ttl_s,
            "limit": limit,
        }
        raw = self._send(path_of("nodes", node, "claim"), body, is_repeatable=False)
        return tuple(_task(one) for one in _decoded(raw, _ToldTasks).tasks)

    def renew(self, task: TaskFacts, *, ttl_s: float) -> None:
        body = {"lease": task.lease, "ttl_s": ttl_s}
        self._send(path_of("tasks", task.task_id, "renew"), body)

    def end(self, task: TaskFacts, *, state: TaskState, outcome: bytes) -> None:
        body = {
            "lease": task.lease,
            "state": state.value,
            "outcome": msgspec.json.decode(outcome or b"{}"),
        }
        # Said a second time, it is refused as what a lost lease would be: nothing is done twice.
        self._send(path_of("tasks", task.task_id, "end"), body)

    def post(self, path: str, document: Any) -> Any:
        """Send a document of ``ops.flows_remote``; the answer's document."""
        return msgspec.json.decode(self._send(path, document, answer_s=BEAT_S))

    def _send(
        self,
        path: str,
        body: dict[str, Any],
        *,
        is_repeatable: bool = True,
        answer_s: float | None = None,
    ) -> bytes:
        reply = self._transport().ask(
            "POST", path, body=body, is_repeatable=is_repeatable, answer_s=answer_s
        )
        answered(reply)
        return reply.raw

    def _transport(self) -> Transport:
        held: Transport | None = getattr(self._local, "transport", None)
        if held is None:
            held = Transport(self._address, clock=self._clock, patience_s=PATIENCE_S)
            self._local.transport = held
            self._opened.append(held)
        return held


def _decoded(raw: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the service's answer: {error}") from error


def _task(one: _ToldTask) -> TaskFacts:
    return TaskFacts(
        task_id=one.task_id,
        task=NewTask(
            kind=one.kind,
            key=one.key,
            payload=msgspec.json.encode(one.payload),
            node=one.node,
            for_run=one.run,
        ),
        state=TaskState.CLAIMED,
        lease=one.lease,
        holder=one.holder,
        attempts=one.attempts,
        created_at_ns=one.created_at_ns,
    )
