"""A service for tests: a real server on loopback in a thread, and whoever asks it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from ckptgov.model.access import Right
from ckptgov.model.clock import SystemClock
from ckptgov.model.settings import Link, TierSettings
from ckptgov.ops.budgets import link_tiers
from ckptgov.ops.scan import scan
from ckptgov.ops.tiers import add_tier
from ckptgov.service.access import make_token
from ckptgov.service.fastpath import FastPath
from ckptgov.service.serving import Serving
from ckptgov.testing.builders.dcp import write_dcp


class Asked:
    """What came back."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        """What kind of error the document tells of."""
        return str(self.document["error"]["kind"])


class Served:
    """A running service. ``ask`` sends one request with a token; by default an admin's."""

    def __init__(self, serving: Serving, url: str) -> None:
        self.serving = serving
        self.url = url
        self.host, self.port = urlsplit(url).hostname or "", urlsplit(url).port
        self.admin = "" if serving.is_open else self.token(Right.ADMIN, label="root")

    def token(
        self,
        *rights: Right,
        teams: tuple[str, ...] = (),
        node: str | None = None,
        label: str = "one",
        ttl_s: float | None = None,
    ) -> str:
        """The text of a new token."""
        return make_token(
            self.serving.catalog,
            label=label,
            rights=rights,
            teams=teams,
            node=node,
            now_ns=self.serving.clock.now_ns(),
            ttl_s=ttl_s,
        ).text

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Asked:
        """Send one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        sent = dict(headers or {})
        secret = self.admin if token is None else token
        if secret and "Authorization" not in sent:
            sent["Authorization"] = f"Bearer {secret}"
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        if data is not None and "Content-Type" not in sent:
            sent["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body=data, headers=sent)
            return Asked(connection.getresponse())
        finally:
            connection.close()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Return once something holds; fails after ten seconds."""
        end = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < end, "it never came to hold"
            time.sleep(0.01)

    def get(self, path: str, **more: Any) -> Asked:
        """A question."""
        return self.ask("GET", path, **more)

    def post(self, path: str, body: object = None, **more: Any) -> Asked:
        """A change; without a body an empty object is sent."""
        return self.ask("POST", path, {} if body is None else body, **more)


@contextmanager
def running(app: ASGIApp) -> Iterator[str]:
    """Serve an ASGI application on a free port of loopback, in a thread, until the block ends."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = _Server(
        uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True
    )
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if isinstance(self.config.app, FastPath):
            await self.config.app.end_waits()
        await super().shutdown(sockets=sockets)


def scanned(serving: Serving, *runs: str) -> None:
    """Scan runs in this process."""
    root = Path(serving.settings().tiers[0].root)
    for run in runs:
        with serving.context() as context:
            answer = scan(context, [str(root / run)], run=run)
        assert answer.error is None, answer.error


def make_home(root: Path, runs: Sequence[str]) -> Path:
    """A home with a scanned tier, lustre, that is flushed to another, s3; all below ``root``.

    In lustre lie runs with whole checkpoints of steps 10 and 20, not scanned yet.
    """
    home = root / "home"
    for name in ("home", "lustre", "s3"):
        (root / name).mkdir()
    for run in runs:
        for step in (10, 20):
            write_dcp(root / "lustre" / run / f"step_{step}", seed=f"{run}{step}")
    with Serving.open(str(home), clock=SystemClock()) as serving, serving.context() as context:
        for name in ("lustre", "s3"):
            add_tier(
                context, TierSettings(name=name, root=str(root / name), ingest=name == "lustre")
            )
        link_tiers(context, Link(source="lustre", target="s3", every=1))
    return home
