"""What agents tell of their nodes: facts of their places, and their parts of saves."""

from __future__ import annotations

from ckptgov.errors import Malformed, UsageError
from ckptgov.model.access import Right
from ckptgov.ops.posting import apply_post, identify_run
from ckptgov.service import schemas
from ckptgov.service.calls import AnyEndpoint, Call, Reply, tell
from ckptgov.wire import requests
from ckptgov.wire.facts import Post, decode_told, encode_answer
from ckptgov.wire.strict import MAX_MESSAGE_BYTES


def facts(call: Call[requests.Query, requests.Body]) -> Reply:
    """Take over what an agent posts of its node."""
    node = call.path["node"]
    call.caller.require_node(node)
    try:
        told = decode_told(requests.check_no_nul(call.raw))
        if isinstance(told, Post):
            at_ns = call.serving.clock.now_ns()
            answer = apply_post(call.serving.catalog, told, node=node, at_ns=at_ns)
            return Reply(status=200, body=encode_answer(answer))
        with call.context() as context:
            claimed = identify_run(call.serving.catalog, told, node=node, author=context.author)
        return Reply(status=200, body=encode_answer(claimed))
    except Malformed as error:  # of the request, not of a file of ours
        raise UsageError(error.message, hint=error.hint) from error


ENDPOINTS: tuple[AnyEndpoint, ...] = (
    tell(
        "/v1/nodes/{node}/facts",
        "What an agent knows of its node's places: runs, copies, sightings, records.",
        facts,
        body=requests.Body,
        is_raw=True,
        raw_schema=schemas.POSTED,
        rights=(Right.AGENT,),
        answers={200: schemas.NOTHING},
        errors=(409,),
        for_every_team=True,
        most_body_bytes=MAX_MESSAGE_BYTES,
    ),
)
