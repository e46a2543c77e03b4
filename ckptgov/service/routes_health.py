"""Whether the process lives, whether it can answer, and what it counts."""

from __future__ import annotations

from ckptgov.model.access import Right
from ckptgov.service import schemas
from ckptgov.service.calls import AnyEndpoint, Call, Cost, Reply, ask, document
from ckptgov.service.metrics import CONTENT_TYPE
from ckptgov.service.refusals import untold_errors
from ckptgov.wire import requests

READY_WITHIN_S = 1.0


def alive(_call: Call[requests.Query, requests.Body]) -> Reply:
    """The process answers; nothing else is asked."""
    return document({"status": "alive"})


def ready(call: Call[requests.Query, requests.Body]) -> Reply:
    """The catalog answers, and is the one that the tiers name."""
    with untold_errors():  # whoever asks is not known
        identity = call.serving.catalog.identity()
    return document({"status": "ready", "catalog": identity.uuid, "epoch": identity.epoch})


def metrics(call: Call[requests.Query, requests.Body]) -> Reply:
    """What Prometheus scrapes."""
    return Reply(status=200, body=call.metrics.text(), media=CONTENT_TYPE)


ENDPOINTS: tuple[AnyEndpoint, ...] = (
    ask(
        "/healthz",
        "The process lives. Needs no token.",
        alive,
        query=requests.Query,
        answers={200: schemas.HEALTH},
        rights=(),
        cost=Cost.NOTHING,
    ),
    ask(
        "/readyz",
        "The catalog answers within a second. Needs no token.",
        ready,
        query=requests.Query,
        answers={200: schemas.HEALTH},
        rights=(),
        limit_s=READY_WITHIN_S,
    ),
    ask(
        "/metrics",
        "Metrics in the text format of Prometheus.",
        metrics,
        query=requests.Query,
        answers={200: schemas.TEXT},
        rights=(Right.READ,),
        for_every_team=True,
        media="text/plain",
    ),
)
