"""``GET /v1/runs/{run}/latest`` from memory, before any framework: what launchers ask in masses.

Byte for byte what the application behind gives. Whatever is not plainly this question from a
caller who was seen to be allowed it, with an answer in memory, goes to that application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache

from msgspec import Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ckptgov.errors import CkptgovError, UsageError
from ckptgov.model.access import Right
from ckptgov.service.access import is_loopback
from ckptgov.service.answers import Answers
from ckptgov.service.calls import Reply, wants_path
from ckptgov.service.known_callers import KnownCallers
from ckptgov.service.request_metrics import tell_route
from ckptgov.service.serving import Serving
from ckptgov.wire import requests
from ckptgov.wire.requests import LatestQuery

LATEST_ROUTE = "/v1/runs/{run}/latest"
_BEFORE, _AFTER = "/v1/runs/", "/latest"
_NOT_ALLOWED = frozenset({401, 403})
_MOST_READ = 4096
_MOST_PATH_BYTES = 1024
_MOST_HEADER_BYTES = 4096


class _Unread:
    """Stands for a request of a kind that was not met before."""


_UNREAD = _Unread()


class _Asked(Struct, frozen=True, kw_only=True):
    """What a request plainly asks."""

    run: str
    question: LatestQuery
    is_plain: bool
    authorization: bytes


class FastPath:
    """An ASGI application before the API, or before what every request of it passes.

    ``verbs``: parts of a path that are no run's name.
    """

    def __init__(
        self,
        app: ASGIApp,
        serving: Serving,
        answers: Answers,
        *,
        verbs: Collection[str],
        end_waits: Callable[[], Awaitable[None]],
    ) -> None:
        self.end_waits = end_waits
        """To be awaited when the server begins to go down: who waits is told how things stand."""
        self._app = app
        self._answers = answers
        self._is_open = serving.is_open
        self._callers = KnownCallers(serving, answers)
        self._verbs = frozenset(verbs)
        self._read: dict[tuple[str, bytes, bytes, bytes], _Asked | None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self._asked(scope)
        if asked is None:
            await self._app(scope, receive, send)
            return
        reply = self._remembered(asked)
        if reply is None and not self._answers.is_fresh and await self._answers.until_fresh():
            reply = self._remembered(asked)
        if reply is None:
            await self._behind(asked, scope, receive, send)
            return
        tell_route(scope, LATEST_ROUTE)
        await send(
            {"type": "http.response.start", "status": reply.status, "headers": headers_of(reply)}
        )
        await send({"type": "http.response.body", "body": reply.body})

    def _asked(self, scope: Scope) -> _Asked | None:
        """What is asked, if it is the question and nothing about the request needs a closer look.

        Browsers' requests (they say where they come from), long ones and those with escapes in
        the path are looked at by what stands behind.
        """
        if scope["type"] != "http" or scope["method"] != "GET":
            return None
        path: str = scope["path"]
        if not path.endswith(_AFTER):
            return None
        authorization = accept = b""
        size = 0
        for name, value in reversed(scope["headers"]):  # of several the first counts
            size += len(name) + len(value)
            if name == b"authorization":
                authorization = value
            elif name == b"accept":
                accept = value
            elif name == b"origin" or (
                name == b"host" and self._is_open and not names_this_machine(value)
            ):
                return None
        if size > _MOST_HEADER_BYTES:
            return None
        key = (path, scope["query_string"], authorization, accept)
        asked = self._read.get(key, _UNREAD)
        if isinstance(asked, _Unread):
            if len(self._read) >= _MOST_READ:
                self._read.clear()
            asked = self._read[key] = self._parsed(scope, *key)
        return asked

    def _parsed(
        self, scope: Scope, path: str, query: bytes, authorization: bytes, accept: bytes
    ) -> _Asked | None:
        raw = scope.get("raw_path") or path.encode("utf-8", "surrogatepass")
        is_odd = (
            scope.get("root_path") or b"%" in raw or not (path.isascii() and path.isprintable())
        )
        if is_odd or len(raw) + len(query) > _MOST_PATH_BYTES or not path.startswith(_BEFORE):
            return None
        run = path[len(_BEFORE) : -len(_AFTER)]
        first, slash, second = run.partition("/")
        if not first or (slash and (not second or "/" in second or second in self._verbs)):
            return None
        question = _question(query)
        if question is None:
            return None
        return _Asked(
            run=run,
            question=question,
            is_plain=wants_path(accept.decode("latin-1")),
            authorization=authorization,
        )

    def _remembered(self, asked: _Asked) -> Reply | None:
        caller = self._callers.caller_of(asked.authorization)
        if caller is None or not caller.may(Right.READ) or not caller.sees(asked.run):
            return None
        told = self._answers.ready(asked.run, asked.question)
        return told.reply_to(is_plain=asked.is_plain) if told is not None else None

    async def _behind(self, asked: _Asked, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer, and remember a caller whom it let in."""
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await self._app(scope, receive, noting)
        is_new = self._callers.caller_of(asked.authorization) is None
        if is_new and status not in _NOT_ALLOWED:
            await asyncio.to_thread(self._learn, asked.authorization)

    def _learn(self, authorization: bytes) -> None:
        try:
            self._callers.learn(authorization)
        except CkptgovError:
            return  # the next one tries again


@lru_cache(maxsize=4096)
def _question(query: bytes) -> LatestQuery | None:
    """What stands behind the "?"; None: the application says what is wrong with it."""
    try:
        return requests.query_of(query, LatestQuery)
    except UsageError:
        return None


@lru_cache(maxsize=256)
def names_this_machine(host: bytes) -> bool:
    """Whether a ``Host`` names this machine itself, port aside."""
    name = host.decode("latin-1")
    return is_loopback(name if name.endswith("]") else name.rpartition(":")[0] or name)


def headers_of(reply: Reply) -> list[tuple[bytes, bytes]]:
    """The headers that the application behind sends, in its order."""
    return [
        (b"cache-control", b"no-store"),
        *((name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers),
        (b"content-length", str(len(reply.body)).encode()),
        (b"content-type", reply.media.encode()),
    ]
