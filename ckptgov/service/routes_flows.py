"""What moves now: shown to people, and doors for agents to open, tell and close their flows."""

from __future__ import annotations

from msgspec import to_builtins

from ckptgov.model.access import Caller, Right
from ckptgov.model.pacing import FlowFacts
from ckptgov.ops import flows_door
from ckptgov.planning.bandwidth import limits_of
from ckptgov.service import schemas
from ckptgov.service.calls import AnyEndpoint, Call, Reply, ask, document, tell
from ckptgov.wire import flows as wire
from ckptgov.wire import movement, requests


def flows(call: Call[requests.Query, requests.Body]) -> Reply:
    """Who moves what at what rate, who waits, and why."""
    found = [one for one in call.serving.desk.facts() if _sees(call.caller, one)]
    return document({"flows": [movement.flow(one) for one in found]})


def _sees(caller: Caller, one: FlowFacts) -> bool:
    """What a flow moves begins with its run's name; others are nobody's business."""
    return not caller.teams or one.request.what.startswith(
        tuple(f"{team}/" for team in caller.teams)
    )


def open_flow(call: Call[requests.Query, wire.OpenFlow]) -> Reply:
    """Register a flow of a node."""
    limits = limits_of(call.serving.settings())
    flows_door.open_flow(call.serving.catalog, limits, call.body, node=call.caller.node)
    return document({})


def beat_flows(call: Call[requests.Query, wire.FlowBeats]) -> Reply:
    """Tell how flows go on, and hear what they may take from here on."""
    heard = flows_door.hear_beats(call.serving.catalog, call.body, node=call.caller.node)
    return document(to_builtins(heard))


def close_flows(call: Call[requests.Query, wire.CloseFlows]) -> Reply:
    """Forget flows that ended."""
    closed = flows_door.close_flows(call.serving.catalog, call.body, node=call.caller.node)
    return document(to_builtins(closed))


_OF_AGENTS = (Right.AGENT,)

ENDPOINTS: tuple[AnyEndpoint, ...] = (
    ask(
        "/v1/flows",
        "Who moves what at what rate, who waits, and why.",
        flows,
        query=requests.Query,
        answers={200: schemas.FLOWS},
    ),
    tell(
        "/v1/flows/open",
        "Register a flow of a node; again by the same process changes nothing.",
        open_flow,
        body=wire.OpenFlow,
        rights=_OF_AGENTS,
        answers={200: schemas.NOTHING},
        errors=(409,),
        for_every_team=True,
    ),
    tell(
        "/v1/flows/beat",
        "Tell how flows go on, and hear what they may take from here on.",
        beat_flows,
        body=wire.FlowBeats,
        rights=_OF_AGENTS,
        answers={200: schemas.GRANTS},
        for_every_team=True,
    ),
    tell(
        "/v1/flows/close",
        "Forget flows that ended, or whose process did.",
        close_flows,
        body=wire.CloseFlows,
        rights=_OF_AGENTS,
        answers={200: schemas.CLOSED},
        for_every_team=True,
    ),
)
