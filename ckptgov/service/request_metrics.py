"""Requests by route and status, and how long they took: ASGI middleware around the whole API.

The label is the route's template, never the path: a path is chosen by whoever sends it. Whoever
answers says which template it was (``tell_route``); what nobody speaks for is ``other``.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OTHER = "other"
ROUTE = "ckptgov.route"
"""Key in the scope. A list, so that what is put into it shows in copies of the scope as well."""
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"})
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5, 10, 30, 60)


def tell_route(scope: Scope, template: str) -> None:
    """Say which route answers this request; where nobody counts requests, nothing happens."""
    told = scope.get(ROUTE)
    if isinstance(told, list):
        told[:] = [template]


class RequestMetrics:
    """Counts and times every HTTP request to the application it is put around."""

    def __init__(
        self, registry: CollectorRegistry, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}
        self._count = Counter(
            "ckptgov_http_requests",
            "Requests by route, method and status.",
            ("route", "method", "status"),
            registry=registry,
        )
        self._took = Histogram(
            "ckptgov_http_request_duration_seconds",
            "How long requests took, waits that were asked for included.",
            ("route", "method"),
            buckets=_BUCKETS,
            registry=registry,
        )

    def around(self, app: ASGIApp) -> ASGIApp:
        """The same application, its requests counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await self._counted(app, scope, receive, send)
            else:
                await app(scope, receive, send)

        return counted

    async def _counted(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        began = self._clock()
        status = "500"  # what a server says for an application that broke before it answered
        told: list[str] = []

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await app({**scope, ROUTE: told}, receive, noted)
        finally:
            route = told[0] if told else OTHER
            method = scope["method"] if scope["method"] in _METHODS else OTHER
            count, took = self._series(route, method, status)
            count.inc()
            took.observe(self._clock() - began)

    def _series(self, route: str, method: str, status: str) -> tuple[Counter, Histogram]:
        """Looking one up by its labels costs more than counting."""
        key = (route, method, status)
        found = self._known.get(key)
        if found is None:
            count = self._count.labels(route=route, method=method, status=status)
            took = self._took.labels(route=route, method=method)
            found = self._known[key] = (count, took)
        return found
