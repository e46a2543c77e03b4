"""How a request is answered: judged, admitted, run in a bounded pool, asked again while it waits.

Promises: who may not ask is refused before anything of a body is read; whatever blocks runs in a
pool; every error is a document with the status of its class, and tells nothing of what went wrong
inside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any

from fastapi import Request, Response
from msgspec import Struct
from starlette.requests import ClientDisconnect

from ckptgov.errors import CkptgovError, TimedOut
from ckptgov.model.access import Caller, Right
from ckptgov.model.closing import Closing
from ckptgov.ops.restarts import Restarts
from ckptgov.service.access import caller_of, require_every_team, require_one_of
from ckptgov.service.answers import Answers
from ckptgov.service.calls import AnyEndpoint, Call, Cost, Reply
from ckptgov.service.front import SLASH
from ckptgov.service.metrics import Metrics
from ckptgov.service.pools import Pool
from ckptgov.service.refusals import (
    Busy,
    NotJson,
    TooLarge,
    refusal,
    unforeseen,
    untold_errors,
)
from ckptgov.service.request_metrics import tell_route
from ckptgov.service.serving import Serving
from ckptgov.service.watch import Watch
from ckptgov.wire import requests

log = logging.getLogger(__name__)

LARGE_BYTES = 2**20
"""Endpoints that take more than this are few at a time."""


class Limits(Struct, frozen=True, kw_only=True):
    """What one process takes on. Seconds are those a request may take without its ``wait``."""

    request_s: float = 30.0
    storage_s: float = 120.0
    body_s: float = 30.0
    catalog_threads: int = 8
    answer_threads: int = 8
    storage_threads: int = 8
    waiting: int = 4096
    large_bodies: int = 8


class Api(Closing):
    """Answers requests, one endpoint at a time; what it opened is closed with it."""

    def __init__(
        self, serving: Serving, answers: Answers, metrics: Metrics, limits: Limits
    ) -> None:
        self._serving = serving
        self._answers = answers
        self._restarts = Restarts(serving.context)
        self._metrics = metrics
        self._limits = limits
        self._pools = {
            Cost.CATALOG: Pool("catalog", threads=limits.catalog_threads, waiting=limits.waiting),
            Cost.ANSWER: Pool("answers", threads=limits.answer_threads, waiting=limits.waiting),
            Cost.DECISION: Pool("decisions", threads=limits.answer_threads, waiting=limits.waiting),
            Cost.STORAGE: Pool("storage", threads=limits.storage_threads, waiting=limits.waiting),
        }
        self._watch = Watch()
        self._large = limits.large_bodies

    def close(self) -> None:
        """Begin nothing more."""
        for pool in self._pools.values():
            pool.close()

    async def end_waits(self) -> None:
        """Whoever waits is answered now, as things stand: the service is to go down."""
        await self._watch.end()

    def answering(self, endpoint: AnyEndpoint) -> Callable[[Request], Awaitable[Response]]:
        """What FastAPI calls for one endpoint."""

        async def handle(request: Request) -> Response:
            clock = self._serving.clock
            began = clock.monotonic()
            tell_route(request.scope, plain_path(endpoint))
            reply = await self._reply(endpoint, request)
            took_s = clock.monotonic() - began
            level = logging.DEBUG if endpoint.method == "GET" else logging.INFO
            log.log(
                level,
                "request method=%s path=%r status=%d seconds=%.3f",
                endpoint.method,
                _path(request),
                reply.status,
                took_s,
            )
            return response_of(reply)

        return handle

    async def _reply(self, endpoint: AnyEndpoint, request: Request) -> Reply:
        try:
            query = requests.query_of(request.scope["query_string"], endpoint.query)
            raw, body = await self._body(endpoint, request)
            return await self._answered(endpoint, request, query, raw, body)
        except CkptgovError as error:
            return refusal(error)
        except ClientDisconnect:
            return Reply(status=400, body=b"")  # nobody hears it
        except Exception as error:
            return unforeseen(f"{endpoint.method} {endpoint.path}", error)

    async def _body(self, endpoint: AnyEndpoint, request: Request) -> tuple[bytes, Struct]:
        if not endpoint.has_body:
            return b"", requests.Body()
        # Who may not send it does not make us hold it.
        await self._pools[Cost.CATALOG].run(
            partial(self._admitted, endpoint, request), limit_s=self._limits.request_s
        )
        raw = await self._read(endpoint, request)
        if raw and not _says_json(request.headers.get("content-type", "")):
            raise NotJson("the body: say 'Content-Type: application/json'")
        if endpoint.is_raw:
            return raw, requests.Body()
        return raw, requests.body_of(raw, endpoint.body)

    async def _read(self, endpoint: AnyEndpoint, request: Request) -> bytes:
        most = endpoint.most_body_bytes
        told = request.headers.get("content-length", "")
        if told.isascii() and told.isdigit() and (len(told) > 18 or int(told) > most):
            raise TooLarge(f"the body: more than {most} bytes")
        if most > LARGE_BYTES:
            if self._large == 0:
                raise Busy("the service has more large requests under way than it takes on")
            self._large -= 1
        try:
            async with asyncio.timeout(self._limits.body_s):
                return await _read_up_to(request, most)
        except TimeoutError as error:
            raise TimedOut("the body did not arrive in time") from error
        finally:
            if most > LARGE_BYTES:
                self._large += 1

    async def _answered(
        self, endpoint: AnyEndpoint, request: Request, query: Struct, raw: bytes, body: Struct
    ) -> Reply:
        """The reply; while it is pending and the caller waits, asked again when something moved."""
        clock = self._serving.clock
        wait_s = endpoint.wait_s(query, body) if endpoint.wait_s is not None else 0.0
        until = clock.monotonic() + wait_s
        work = partial(self._run, endpoint, request, query, raw, body, is_waiting=wait_s > 0)
        cost = endpoint.cost if endpoint.cost_of is None else endpoint.cost_of(body)
        while True:
            seen, reply = await self._in_pool(endpoint, cost, request, raw, work)
            left_s = until - clock.monotonic()
            is_asked = endpoint.watched is not None and left_s > 0 and not self._watch.is_over
            if not reply.is_pending or not is_asked:
                return reply
            await self._watch.changed(
                _watch_key(endpoint, request),
                self._pools[cost],
                partial(self._looked, endpoint, request, query, body),
                seen=seen,
                limit_s=left_s,
            )
            if await request.is_disconnected():
                return reply

    async def _in_pool(
        self,
        endpoint: AnyEndpoint,
        cost: Cost,
        request: Request,
        raw: bytes,
        work: Callable[[], tuple[object, Reply]],
    ) -> tuple[object, Reply]:
        if cost is Cost.NOTHING:
            return work()
        is_long = cost is Cost.STORAGE
        limit_s = endpoint.limit_s or (
            self._limits.storage_s if is_long else self._limits.request_s
        )
        # The same change asked for twice by one caller, while it is under way, is one change.
        shared = None
        if is_long and endpoint.method != "GET":
            shared = (endpoint.path, _path(request), raw, request.headers.get("authorization"))
        return await self._pools[cost].run(work, limit_s=limit_s, shared=shared)

    def _run(
        self,
        endpoint: AnyEndpoint,
        request: Request,
        query: Struct,
        raw: bytes,
        body: Struct,
        *,
        is_waiting: bool,
    ) -> tuple[object, Reply]:
        """In a thread. What is watched is read first: what changes meanwhile is asked again."""
        call = self._call(endpoint, request, query, raw, body)
        watches = is_waiting and endpoint.watched is not None
        try:
            seen = endpoint.watched(call) if watches and endpoint.watched is not None else None
            reply = endpoint.run(call)
        except CkptgovError as error:
            return None, refusal(error)
        if _is_said_by_people(endpoint):
            with suppress(CkptgovError):  # then it is learnt with the next look, as by others
                self._answers.catch_up()
        return seen, reply

    def _looked(
        self, endpoint: AnyEndpoint, request: Request, query: Struct, body: Struct
    ) -> object:
        assert endpoint.watched is not None
        return endpoint.watched(self._call(endpoint, request, query, b"", body))

    def _call(
        self, endpoint: AnyEndpoint, request: Request, query: Struct, raw: bytes, body: Struct
    ) -> Call[Any, Any]:
        return Call(
            serving=self._serving,
            answers=self._answers,
            restarts=self._restarts,
            metrics=self._metrics,
            caller=self._admitted(endpoint, request),
            path={name: value.replace(SLASH, "/") for name, value in request.path_params.items()},
            query=query,
            body=body,
            raw=raw,
            accept=request.headers.get("accept", ""),
        )

    def _admitted(self, endpoint: AnyEndpoint, request: Request) -> Caller:
        """Who asks, where they may; asked anew each time, so that a revoked token is out at once.

        Raises:
            Unauthorized, NotAllowed: they may not.
        """
        if not endpoint.rights:
            return Caller(name="anyone", rights=frozenset())
        caller = self._caller(request.headers.get("authorization"))
        require_one_of(caller, endpoint.rights)
        if endpoint.for_every_team:
            require_every_team(caller)
        return caller

    def _caller(self, authorization: str | None) -> Caller:
        """Whoever is not known yet is not told what the catalog says of itself."""
        with untold_errors():
            return caller_of(
                self._serving.catalog,
                authorization,
                now_ns=self._serving.clock.now_ns(),
                is_open=self._serving.is_open,
            )


def response_of(reply: Reply) -> Response:
    """A reply as the server sends it. Answers are never anybody's to keep."""
    headers = {"Cache-Control": "no-store", **dict(reply.headers)}
    return Response(
        content=reply.body, status_code=reply.status, media_type=reply.media, headers=headers
    )


def plain_path(endpoint: AnyEndpoint) -> str:
    """The path as people write it: ``/v1/runs/{run}/latest``."""
    return endpoint.path.replace("{run:run}", "{run}")


def _is_said_by_people(endpoint: AnyEndpoint) -> bool:
    """Whether somebody who changes something may ask at once what became of it."""
    return endpoint.method != "GET" and Right.AGENT not in endpoint.rights


def _says_json(content_type: str) -> bool:
    kind, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().replace('"', "")
    return kind.strip().lower() == "application/json" and charset in ("", "charset=utf-8")


async def _read_up_to(request: Request, most: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise TooLarge(f"the body: more than {most} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _path(request: Request) -> str:
    """The decoded path. ``request.url`` is made of what the caller says its host is."""
    return str(request.scope["path"])


def _watch_key(endpoint: AnyEndpoint, request: Request) -> tuple[Hashable, ...]:
    """What is watched, and in whose name: a look is made as one caller would."""
    told = request.headers.get("authorization", "")
    return (endpoint.method, _path(request), request.scope["query_string"], told)
