"""The cluster: nodes and what is said of them, tiers and budgets, what takes room."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET
from msgspec.structs import replace

from ckptgov.errors import CouldNotLook, UsageError
from ckptgov.model.access import Caller, Right
from ckptgov.model.cluster import NodeBeat, NodeFacts, NodeState
from ckptgov.model.pacing import Budget
from ckptgov.model.settings import Settings
from ckptgov.model.usage import DuAnswer, TierUsage
from ckptgov.ops.budgets import change_budget
from ckptgov.ops.du import du as measure
from ckptgov.ops.evacuate import evacuate
from ckptgov.service import schemas
from ckptgov.service.calls import AnyEndpoint, B, Call, Cost, Reply, ask, document, tell
from ckptgov.service.refusals import status_of
from ckptgov.wire import cluster as documents
from ckptgov.wire import requests, usage
from ckptgov.wire import settings as settings_documents
from ckptgov.wire.documents import Document
from ckptgov.wire.usage_sums import by_document

ACTION = "ckptgov_action"
"""The label, or annotation, of an alert that says what to do with its node."""
_STATES = {
    "dead": NodeState.DEAD,
    "drain": NodeState.DRAINED,
    "cordon": NodeState.CORDONED,
}


def tiers(call: Call[requests.Query, requests.Body]) -> Reply:
    """The configured tiers."""
    return document(settings_documents.tiers(call.serving.settings().tiers))


def budget(call: Call[requests.Query, requests.ChangeBudget]) -> Reply:
    """Change what may be taken from a tier."""
    name, told = call.path["tier"], call.body
    with call.context() as context:
        found = [one for one in context.settings.tiers if one.name == name]
        if not [one for one in found if told.node in (None, one.node)]:
            raise UsageError(f"no tier {name!r} is configured there")
        settings = change_budget(context, name, told.node, _change(told), dry_run=told.dry_run)
    return document(_budgets(settings, name, told))


def _change(told: requests.ChangeBudget) -> Callable[[Budget], Budget]:
    members = ("read_bytes_per_s", "write_bytes_per_s", "requests_per_s", "flows")
    limits = {name: getattr(told, name) for name in members if getattr(told, name) is not UNSET}
    return lambda old: replace(Budget() if told.clear else old, **limits)


def _budgets(settings: Settings, tier: str, told: requests.ChangeBudget) -> Document:
    chosen = [one for one in settings.tiers if one.name == tier and told.node in (None, one.node)]
    return settings_documents.budgets(
        chosen, (), fallback_percent=settings.fallback_percent, dry_run=told.dry_run
    )


def budgets(call: Call[requests.Query, requests.Body]) -> Reply:
    """What may be taken from each tier, and by each node."""
    now = call.serving.settings()
    return document(
        settings_documents.budgets(now.tiers, now.nodes, fallback_percent=now.fallback_percent)
    )


def du(call: Call[requests.UsageQuery, requests.Body]) -> Reply:
    """What takes room, by tier, run and state."""
    asked = call.query
    if asked.run is not None:
        call.known(asked.run)
    with call.context() as context:
        answer = measure(context, run=asked.run, tier=asked.tier)
    told = answer if not call.caller.teams else _of_teams(answer, call.caller)
    shown = usage.du(told)
    if asked.by is not None:
        shown |= by_document(told, asked.by)
    return document(shown, 200 if told.error is None else status_of(told.error))


def _of_teams(answer: DuAnswer, caller: Caller) -> DuAnswer:
    """Without what other teams have; of what could not be looked at only that it could not."""
    return replace(answer, tiers=tuple(_tier_of_teams(one, caller) for one in answer.tiers))


def _tier_of_teams(one: TierUsage, caller: Caller) -> TierUsage:
    hidden = CouldNotLook("could not be looked at")
    return replace(
        one,
        states=tuple(each for each in one.states if caller.sees(each.run)),
        left=tuple(each for each in one.left if each.run is not None and caller.sees(each.run)),
        failures=(("a part of the tier", hidden),) if one.failures else (),
        error=None if one.error is None else hidden,
    )


def nodes(call: Call[requests.Query, requests.Body]) -> Reply:
    """The nodes whose agents were ever heard of."""
    found = call.serving.catalog.nodes.nodes()
    return document({"nodes": [_node(call, one) for one in found]})


def beat(call: Call[requests.Query, requests.Beat]) -> Reply:
    """An agent says that it lives."""
    node, told = call.path["node"], call.body
    call.caller.require_node(node)
    _check_node(node)
    facts = call.serving.catalog.nodes.beat(
        NodeBeat(node=node, boot=told.boot, version=told.version, peer_url=told.peer_url)
    )
    return document({"node": _node(call, facts)})


def change_node(call: Call[requests.Query, requests.ChangeNode]) -> Reply:
    """A person says what a node is."""
    node, told = call.path["node"], call.body
    facts = _set_state(call, node, told.state, told.reason)
    return document({"node": _node(call, facts)})


def _set_state(
    call: Call[requests.Query, B], node: str, state: NodeState, reason: str
) -> NodeFacts:
    """Set it; a node that is to go away first gives what lies nowhere else."""
    facts = call.serving.catalog.nodes.set_state(node, state, reason=reason)
    _give_first(call, facts)
    return facts


def _give_first(call: Call[requests.Query, B], one: NodeFacts) -> None:
    """Have what lies nowhere else flushed; what was asked for already is not asked for twice."""
    if one.state in (NodeState.CORDONED, NodeState.DRAINED):
        with call.context() as context:
            evacuate(context, one.node)


def _node(call: Call[requests.Query, B], one: NodeFacts) -> Document:
    settings = call.serving.settings()
    now_ns = call.serving.catalog.now_ns()  # the clock that beats are stamped with
    is_reachable = one.is_reachable(now_ns, timeout_s=settings.service.node_timeout_s)
    return documents.node(one, is_reachable=is_reachable)


def _check_node(node: str) -> None:
    if not node.isprintable() or node != node.strip() or len(node.encode()) > 200:
        raise UsageError(f"{node!r} is no name for a node")


def alerts(call: Call[requests.Query, requests.Alerts]) -> Reply:
    """Set the states of nodes that alerts are about; a resolved one makes its node active again,
    unless a person, or another alert, has said something of it since.

    An alert counts where it has the label ``node`` (or ``instance``, less a port) of a node that
    was ever heard of, and the label or annotation ``ckptgov_action``.
    """
    changed = []
    book = call.serving.catalog.nodes
    for one in call.body.alerts:
        action = one.labels.get(ACTION) or one.annotations.get(ACTION)
        state = _STATES.get(action or "")
        known = book.node(_node_of(one)) if state is not None else None
        if state is None or known is None:
            continue
        name = one.labels.get("alertname", "an alert")
        if one.status == "firing" and known.state is state:
            _give_first(call, known)  # the sender repeats itself until it heard that it was done
        elif one.status == "firing":
            reason = f"{name}: {one.annotations.get('summary') or 'fires'}"
            changed.append(_set_state(call, known.node, state, reason[:1000]))
        elif known.state is state and known.reason.startswith(f"{name}: "):
            changed.append(_set_state(call, known.node, NodeState.ACTIVE, f"{name} is over"))
    return document({"nodes": [_node(call, one) for one in changed]})


def _node_of(alert: requests.Alert) -> str:
    """The node an alert is about; ``instance`` may carry the port of what was scraped."""
    named = alert.labels.get("node")
    if named:
        return named
    instance = alert.labels.get("instance", "")
    host, colon, port = instance.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() else instance


_OF_AGENTS = (Right.AGENT,)

ENDPOINTS: tuple[AnyEndpoint, ...] = (
    ask("/v1/tiers", "The tiers.", tiers, query=requests.Query, answers={200: schemas.TIERS}),
    ask(
        "/v1/tiers/budgets",
        "What may be taken from each tier, and by each node.",
        budgets,
        query=requests.Query,
        answers={200: schemas.BUDGETS},
    ),
    tell(
        "/v1/tiers/{tier}/budget",
        "Change what may be taken from a tier; null lifts a limit.",
        budget,
        method="PUT",
        body=requests.ChangeBudget,
        rights=(Right.ADMIN,),
        answers={200: schemas.BUDGETS},
        for_every_team=True,
    ),
    ask(
        "/v1/du",
        "What takes room, by tier, run and state; summed up as well with `by`.",
        du,
        query=requests.UsageQuery,
        answers={200: schemas.USAGE},
        cost=Cost.STORAGE,
    ),
    ask(
        "/v1/nodes",
        "The nodes whose agents were ever heard of.",
        nodes,
        query=requests.Query,
        answers={200: schemas.NODES},
    ),
    tell(
        "/v1/nodes/{node}/beat",
        "An agent says that it lives. A node declared dead is active again.",
        beat,
        body=requests.Beat,
        rights=_OF_AGENTS,
        answers={200: schemas.ONE_NODE},
        for_every_team=True,
    ),
    tell(
        "/v1/nodes/{node}/state",
        "Say that a node is active, cordoned, drained or dead.",
        change_node,
        method="PUT",
        body=requests.ChangeNode,
        rights=(Right.APPLY,),
        answers={200: schemas.ONE_NODE},
        for_every_team=True,
    ),
    tell(
        "/v1/alerts",
        "A webhook for Alertmanager: alerts with `ckptgov_action` set the states of nodes.",
        alerts,
        body=requests.Alerts,
        rights=(Right.APPLY,),
        answers={200: schemas.NODES},
        for_every_team=True,
    ),
)
