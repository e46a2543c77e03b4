"""Removals on disks that only their own nodes see: asked of their agents.

The service decides and begins, its catalog's guard asks P2 of all places; an agent does what it is
asked (REMOVE tasks) and tells what stands (``node_outcomes`` takes it in). A lost task or outcome
is asked again: what is to be done is read off the removals each time, and once more when a task is
handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.errors import CkptgovError, Malformed, RefusedBySafety
from ckptgov.model.cluster import NewTask, TaskFacts, TaskKind, TaskState
from ckptgov.model.copies import BEGUN, CopyState
from ckptgov.model.retention import Removal
from ckptgov.model.verbs import never
from ckptgov.ops.context import Context
from ckptgov.ops.prune import begin, in_order
from ckptgov.ops.removing import Removing
from ckptgov.ops.standing_run import is_here
from ckptgov.wire.node_removals import (
    NodeAnswer,
    Order,
    RemovePayload,
    What,
    decode_orders,
    encode_removals,
    order_of,
)

BACK_PRIORITY = 50
"""Somebody waits for it."""
MOST_ORDERS = 200
"""So many copies a task; what is left over is asked the next time."""

_OPEN = (TaskState.QUEUED, TaskState.CLAIMED)
Key = tuple[str, str, str]
"""Of a copy: run, content id, place."""


def ask_nodes(context: Context) -> tuple[TaskFacts, ...]:
    """Begin what is condemned and due on disks of other nodes, and ask their agents for it and for
    all that was begun; one task a node that is heard of.

    What P2 holds back by now stays condemned, and is talked of. Nothing is asked while the clock
    cannot be trusted.
    """
    catalog = context.catalog
    with Removing(context, dry_run=False, stop=never) as removing:
        waiting = list(_on_nodes_heard_of(removing))
        if not waiting:
            return ()
        try:
            catalog.tick()
        except RefusedBySafety as error:
            context.talk(error.message)
            return ()
        asked: dict[str, list[Order]] = {}
        for order in _orders(removing, waiting):
            orders = asked.setdefault(removing.place_facts(order.place).node or "", [])
            if len(orders) < MOST_ORDERS:
                orders.append(order)
        return tuple(
            _ask(catalog, f"remove:node:{node}", node, orders) for node, orders in asked.items()
        )


def ask_back(context: Context, run: str, step: int | None = None) -> tuple[TaskFacts, ...]:
    """Ask agents to bring back what lies in the trash on their nodes' disks, or is on its way
    there; of one run, or of one of its steps. What is only condemned needs no agent.
    """
    catalog = context.catalog
    known = catalog.run_by_name(run)
    if known is None:
        return ()
    removals = catalog.removals.removals(run_id=known.identity.run_id, states=BEGUN)
    sealed = catalog.sealed_of(known.identity.run_id, [one.content_id for one in removals])
    nodes = {one.place: one.node for one in catalog.places() if one.is_current}
    asked: dict[str, list[Order]] = {}
    for one in removals:
        node = nodes.get(one.place)
        if node is None or is_here(context, node):
            continue
        if step is None or (one.content_id in sealed and sealed[one.content_id].step == step):
            asked.setdefault(node, []).append(order_of(one, What.BACK))
    what = f"{run}:{'' if step is None else step}"
    return tuple(
        _ask(
            catalog,
            f"back:node:{node}:{what}:{start}",
            node,
            orders[start : start + MOST_ORDERS],
            for_run=run,
            priority=BACK_PRIORITY,
        )
        for node, orders in asked.items()
        for start in range(0, len(orders), MOST_ORDERS)
    )


def _ask(
    catalog: Catalog,
    key: str,
    node: str,
    orders: Iterable[Order],
    *,
    for_run: str | None = None,
    priority: int = 0,
) -> TaskFacts:
    payload = RemovePayload(epoch=catalog.identity().epoch, orders=tuple(orders))
    return catalog.tasks.add(
        NewTask(
            kind=TaskKind.REMOVE,
            key=key,
            payload=encode_removals(payload),
            node=node,
            for_run=for_run,
            priority=priority,
        )
    )


def _on_nodes_heard_of(removing: Removing) -> Iterator[Removal]:
    """Removals at places that only an agent reaches, where one would take a task now."""
    context = removing.context
    now_ns, timeout_s = context.catalog.now_ns(), context.settings.service.node_timeout_s
    heard = {
        one.node
        for one in context.catalog.nodes.nodes()
        if one.is_reachable(now_ns, timeout_s=timeout_s)
    }
    for one in in_order(context.catalog.removals.removals(), now_ns):
        facts = removing.place_facts(one.place)
        if facts.is_current and facts.node in heard and not removing.is_here(one.place):
            yield one


def _orders(removing: Removing, waiting: Iterable[Removal]) -> Iterator[Order]:
    catalog = removing.context.catalog
    now_ns = catalog.now_ns()
    caught_up: set[str] = set()
    coming_back: dict[str | None, frozenset[Key]] = {}
    for one in waiting:
        node = removing.place_facts(one.place).node
        if node not in coming_back:
            coming_back[node] = _coming_back(catalog, node)
        if key_of(one) in coming_back[node]:
            continue
        match one.state:
            case CopyState.TRASHING:
                yield order_of(one, What.ASIDE)
            case CopyState.TRASHED if one.due_at_ns <= now_ns:
                yield order_of(one, What.PURGE)
            case CopyState.CONDEMNED if one.due_at_ns <= now_ns:
                begun = _begun(removing, one, caught_up)
                if begun is not None:
                    yield order_of(begun, What.ASIDE)


def _begun(removing: Removing, removal: Removal, caught_up: set[str]) -> Removal | None:
    """From deciding to doing; None where something speaks against it by now, or it is not known.

    What lies there now, its agent compares.
    """
    try:
        return begin(removing, removal, caught_up)
    except CkptgovError as error:
        removing.context.talk(f"{removal.name}: stays condemned: {error.message}")
        return None


def key_of(one: Removal | Order | NodeAnswer) -> Key:
    """Which copy it is about."""
    return one.run_id, one.content_id, one.place


def _coming_back(catalog: Catalog, node: str | None) -> frozenset[Key]:
    """Copies that an open task is to bring back: nothing else becomes of them meanwhile."""
    found: set[Key] = set()
    for task in catalog.tasks.tasks(node=node, states=_OPEN):
        if task.task.kind is TaskKind.REMOVE:
            with suppress(Malformed):
                orders = decode_orders(task.task.payload).orders
                found.update(key_of(one) for one in orders if one.what is What.BACK)
    return frozenset(found)


def brought_up_to_date(catalog: Catalog, task: TaskFacts) -> TaskFacts:
    """A task as it is handed to an agent: of removals only what still stands to be done.

    It may have waited for days while its node was away, and copies came back meanwhile; or it was
    asked for by an earlier state of the catalog.
    """
    if task.task.kind is not TaskKind.REMOVE:
        return task
    try:
        payload = decode_orders(task.task.payload)
    except Malformed:
        return task  # it fails when it is carried out
    orders: tuple[Order, ...] = ()
    if payload.epoch == catalog.identity().epoch:
        orders = tuple(_still(catalog, task, payload.orders))
    raw = encode_removals(replace(payload, orders=orders))
    return replace(task, task=replace(task.task, payload=raw))


def _still(catalog: Catalog, task: TaskFacts, orders: Iterable[Order]) -> Iterator[Order]:
    standing = standing_of(catalog, task.task.node, orders)
    coming_back = _coming_back(catalog, task.task.node)
    for order in orders:
        removal = standing.get(key_of(order))
        if removal is None or removal.condemned_at_ns != order.condemned_at_ns:
            continue
        if order.what is What.BACK or key_of(order) not in coming_back:
            yield order_of(removal, order.what)


def standing_of(
    catalog: Catalog, node: str | None, about: Iterable[Order | NodeAnswer]
) -> dict[Key, Removal]:
    """Removals at places of one node, of those asked about, by what they are of."""
    own = {one.place for one in catalog.places() if one.node == node}
    return {
        key_of(one): one
        for place in own & {one.place for one in about}
        for one in catalog.removals.removals(place=place)
    }
