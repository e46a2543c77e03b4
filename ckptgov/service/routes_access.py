"""Tokens: who may ask. Only an admin of every team makes, lists and revokes them."""

from __future__ import annotations

from ckptgov.model.access import Right
from ckptgov.service import schemas
from ckptgov.service.access import make_token
from ckptgov.service.calls import AnyEndpoint, Call, NoSuch, Reply, ask, document, tell
from ckptgov.wire import cluster as documents
from ckptgov.wire import requests


class NoSuchToken(NoSuch):
    """No token has this id."""

    kind = "no-such-token"


def tokens(call: Call[requests.Query, requests.Body]) -> Reply:
    """Every token, without its text, which is kept nowhere."""
    return document(documents.tokens(call.serving.catalog.tokens.tokens()))


def new_token(call: Call[requests.Query, requests.NewToken]) -> Reply:
    """Make a token; its text is in this answer and nowhere else."""
    told = call.body
    made = make_token(
        call.serving.catalog,
        label=told.label,
        rights=told.rights,
        teams=told.teams,
        node=told.node,
        now_ns=call.serving.clock.now_ns(),
        ttl_s=told.ttl_s,
    )
    return document({"token": documents.token(made.facts), "secret": made.text})


def revoke(call: Call[requests.Query, requests.Body]) -> Reply:
    """From now on the token opens nothing; again changes nothing."""
    token_id = call.path["token"]
    known = {one.token_id for one in call.serving.catalog.tokens.tokens()}
    if token_id not in known:
        raise NoSuchToken(f"there is no token {token_id!r}")
    return document({"token": documents.token(call.serving.catalog.tokens.revoke(token_id))})


ENDPOINTS: tuple[AnyEndpoint, ...] = (
    ask(
        "/v1/tokens",
        "The tokens, without their texts.",
        tokens,
        query=requests.Query,
        answers={200: schemas.TOKENS},
        rights=(Right.ADMIN,),
        for_every_team=True,
    ),
    tell(
        "/v1/tokens",
        "Make a token. Its text is in this answer and nowhere else.",
        new_token,
        body=requests.NewToken,
        rights=(Right.ADMIN,),
        answers={200: schemas.MADE_TOKEN},
        for_every_team=True,
    ),
    tell(
        "/v1/tokens/{token}",
        "Revoke a token: the next request with it fails.",
        revoke,
        method="DELETE",
        body=requests.Body,
        has_body=False,
        rights=(Right.ADMIN,),
        answers={200: schemas.ONE_TOKEN},
        errors=(404,),
        for_every_team=True,
    ),
)
