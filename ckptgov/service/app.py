"""The HTTP API as FastAPI serves it: the endpoints of ``/v1``, and what stands before them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI, Request, Response
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException

from ckptgov.service import (
    routes_access,
    routes_agents,
    routes_cluster,
    routes_flows,
    routes_health,
    routes_history,
    routes_keeping,
    routes_plans,
    routes_policies,
    routes_runs,
    routes_work,
)
from ckptgov.service.answers import Answers
from ckptgov.service.api import Api, Limits, response_of
from ckptgov.service.calls import AnyEndpoint, NoSuchEndpoint, Reply
from ckptgov.service.fastpath import FastPath
from ckptgov.service.front import SLASH, Front
from ckptgov.service.metrics import Metrics
from ckptgov.service.openapi import description
from ckptgov.service.refusals import WrongMethod, refusal, unforeseen
from ckptgov.service.serving import Serving

__all__ = ["ENDPOINTS", "Limits", "create_app"]

ENDPOINTS: tuple[AnyEndpoint, ...] = (
    *routes_health.ENDPOINTS,
    *routes_runs.ENDPOINTS,
    *routes_history.ENDPOINTS,
    *routes_plans.ENDPOINTS,
    *routes_keeping.ENDPOINTS,
    *routes_policies.ENDPOINTS,
    *routes_work.ENDPOINTS,
    *routes_cluster.ENDPOINTS,
    *routes_flows.ENDPOINTS,
    *routes_agents.ENDPOINTS,
    *routes_access.ENDPOINTS,
)
DESCRIPTION_PATH = "/v1/openapi.json"

_OF_A_RUN = "/v1/runs/{run:run}/"
VERBS = sorted(
    {
        one.path.removeprefix(_OF_A_RUN).partition("/")[0]
        for one in ENDPOINTS
        if one.path.startswith(_OF_A_RUN)
    }
)


class _RunConvertor(Convertor[str]):
    """A run's name in a path: one part, or two; a second one that is a verb is the verb.

    A run ``team/latest`` is written ``team%2Flatest``.
    """

    regex = f"[^/]+(?:/(?!(?:{'|'.join(VERBS)})(?:/|$))[^/]+)?"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value.replace("/", SLASH)


register_url_convertor("run", _RunConvertor())


def create_app(
    serving: Serving,
    *,
    answers: Answers | None = None,
    metrics: Metrics | None = None,
    limits: Limits | None = None,
) -> FastPath:
    """The service as an ASGI application; ``answers`` not given are started and closed with it."""
    own = Answers(serving) if answers is None else None
    used = answers or own
    assert used is not None
    api = Api(serving, used, metrics or Metrics(serving), limits or Limits())

    @asynccontextmanager
    async def living(_app: FastAPI) -> AsyncIterator[None]:
        if own is not None:
            await asyncio.to_thread(own.start)
        try:
            yield
        finally:
            api.close()
            if own is not None:
                await asyncio.to_thread(own.close)

    app = FastAPI(
        title="ckptgov",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=living,
    )
    for endpoint in ENDPOINTS:
        app.add_api_route(
            endpoint.path,
            api.answering(endpoint),
            methods=[endpoint.method],
            response_class=Response,
            response_model=None,
        )
    described = Reply(status=200, body=description(ENDPOINTS))

    async def openapi(_request: Request) -> Response:
        return response_of(described)

    app.add_api_route(DESCRIPTION_PATH, openapi, methods=["GET"], response_class=Response)
    app.add_exception_handler(HTTPException, partial(_no_route, app))
    front = Front(app, is_open=serving.is_open)
    return FastPath(front, serving, used, verbs=VERBS, end_waits=api.end_waits)


async def _no_route(app: FastAPI, request: Request, error: Exception) -> Response:
    """No endpoint at this path, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        methods = ", ".join(sorted(_methods_at(app, request)))
        reply = refusal(
            WrongMethod(f"{request.method} is not for this path, {methods} is"),
            headers=(("Allow", methods),),
        )
    elif error.status_code == 404:
        reply = refusal(
            NoSuchEndpoint(
                "nothing of the API is at this path",
                hint=f"{DESCRIPTION_PATH} tells what there is",
            )
        )
    else:
        reply = unforeseen(f"{request.method} {error.status_code}", error)
    return response_of(reply)


def _methods_at(app: FastAPI, request: Request) -> set[str]:
    found: set[str] = set()
    for route in app.router.routes:
        path_regex = getattr(route, "path_regex", None)
        if path_regex is not None and path_regex.match(request.scope["path"]):
            found |= set(getattr(route, "methods", None) or ())
    return found
