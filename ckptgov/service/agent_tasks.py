"""What an agent does when the service asks: each kind of task, carried out on the node's disks."""

from __future__ import annotations

import json
from collections.abc import Callable

from msgspec.structs import replace

from ckptgov.errors import Interrupted, UsageError
from ckptgov.model.cluster import TaskFacts, TaskKind
from ckptgov.model.pacing import FlowClass
from ckptgov.model.settings import Scope
from ckptgov.ops.context import Context
from ckptgov.ops.flush import FlushRequest, flush
from ckptgov.ops.node_removals import remove_ordered
from ckptgov.ops.own_disks import links_from_own, meet_targets
from ckptgov.ops.own_parts import digest_range, publish_merged
from ckptgov.ops.policies import links_of
from ckptgov.service.payloads import FlushPayload, ReconcilePayload, encoded, payload_of
from ckptgov.service.runners import Ended, Stop
from ckptgov.service.runners import reconcile as reconcile_
from ckptgov.service.runners import verify as verify_
from ckptgov.wire.movement import flushed
from ckptgov.wire.node_removals import decode_orders, encode_removals
from ckptgov.wire.parts import decode_digest, decode_publish, encode_payload

KINDS = frozenset(
    {
        TaskKind.SCAN,
        TaskKind.DIGEST,
        TaskKind.PUBLISH,
        TaskKind.FLUSH,
        TaskKind.VERIFY,
        TaskKind.REMOVE,
        TaskKind.RECONCILE,
    }
)

Look = Callable[[], Ended]
"""The agent's own look at its disks."""


class NodeFlush(FlushPayload, frozen=True, kw_only=True):
    """A FLUSH task of a node: what any flush says, and how urgent it is."""

    flow_class: FlowClass | None = None


def carry_out(context: Context, task: TaskFacts, *, node: str, look: Look, stop: Stop) -> Ended:
    """Do what a task asks.

    Raises:
        CkptgovError: nothing was done; Interrupted where ``stop`` said so.
    """
    match task.task.kind:
        case TaskKind.SCAN:
            return look()
        case TaskKind.PUBLISH:
            content_id = publish_merged(context, decode_publish(task.task.payload), node=node)
            return Ended(document={"content_id": content_id})
        case TaskKind.DIGEST:
            outcome = digest_range(context, decode_digest(task.task.payload))
            return Ended(document=json.loads(encode_payload(outcome)))
        case TaskKind.FLUSH:
            return _flush(context, task, node, stop)
        case TaskKind.VERIFY:
            return verify_(context, task, stop)
        case TaskKind.REMOVE:
            done = remove_ordered(context, decode_orders(task.task.payload), node=node, stop=stop)
            return Ended(document=json.loads(encode_removals(done)))
        case TaskKind.RECONCILE:
            return _reconcile(context, task, node, stop)
    raise UsageError(f"an agent does not know tasks of the kind {task.task.kind}")


def _flush(context: Context, task: TaskFacts, node: str, stop: Stop) -> Ended:
    payload = payload_of(task, NodeFlush)
    run = payload.run or task.task.for_run
    own = frozenset(one.name for one in context.settings.tiers if one.node == node)
    request = FlushRequest(
        run=run,
        step=payload.step,
        target=payload.to or _any_shared_tier(context, run, own),
        sources=own if payload.sources is None else own & set(payload.sources),
        node=node,
        flow_class=payload.flow_class,
    )
    meet_targets(context)
    answer = flush(context, request, stop=stop)
    if isinstance(answer.error, Interrupted):
        raise answer.error
    return Ended(document=flushed(answer), error=answer.error)


def _reconcile(context: Context, task: TaskFacts, node: str, stop: Stop) -> Ended:
    """The node's own disks, of the tiers that were named; what is shared, the service looks at."""
    payload = payload_of(task, ReconcilePayload)
    own = tuple(
        one
        for one in context.settings.tiers
        if one.node == node and (not payload.tiers or one.name in payload.tiers)
    )
    context.settings = replace(context.settings, tiers=own)
    all_of_them = replace(task.task, payload=encoded(replace(payload, tiers=())))
    return reconcile_(context, replace(task, task=all_of_them), stop)


def is_urgent(task: TaskFacts) -> bool:
    """Whether it is the flush of what a node that goes away alone holds."""
    if task.task.kind is not TaskKind.FLUSH:
        return False
    try:
        return payload_of(task, NodeFlush).flow_class is FlowClass.EMERGENCY
    except UsageError:
        return False  # it fails when it is carried out


def _any_shared_tier(context: Context, run: str | None, own: frozenset[str]) -> str | None:
    """Where to, when no link from this node says so: the first tier that others see as well."""
    links = links_from_own(context) if run is None else links_of(context, run)
    if any(one.source in own for one in links):
        return None
    shared = (one.name for one in context.settings.tiers if one.scope is Scope.SHARED)
    return next(shared, None)
