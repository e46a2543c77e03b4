"""A service in this process, and the command line that asks it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from ckptgov.model.clock import SystemClock
from ckptgov.service.app import create_app
from ckptgov.service.serving import Serving
from ckptgov.service.workers import Workers
from ckptgov_cli.main import main


class Answer:
    """What a user gets from one command."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.out, self.err = code, os.fsdecode(out), os.fsdecode(err)

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"exit {self.code}\n{self.out}\n{self.err}"


class Cli:
    """Runs ``ckptgov`` in this process, with the service or without."""

    def __init__(
        self, capture: pytest.CaptureFixture[bytes], patch: pytest.MonkeyPatch, home: Path
    ) -> None:
        self._capture = capture
        self._patch = patch
        self.home = home
        self.url: str | None = None

    def __call__(self, *words: object, home: Path | None = None) -> Answer:
        """As the environment of the test says."""
        self._patch.setenv("CKPTGOV_HOME", str(home or self.home))
        self._capture.readouterr()
        code = main([str(word) for word in words])
        return Answer(code, *self._capture.readouterr())

    def here(self, *words: object) -> Answer:
        """Where the state lies, without the service."""
        self._patch.delenv("CKPTGOV_URL", raising=False)
        return self(*words)

    def asks(self, *words: object, home: Path | None = None) -> Answer:
        """Through the service, from a host without any state."""
        assert self.url is not None
        self._patch.setenv("CKPTGOV_URL", self.url)
        empty = self.home.parent / "nothing"
        return self(*words, home=home or empty)


@contextmanager
def serving(home: Path, *, is_open: bool = True) -> Iterator[tuple[str, Serving]]:
    """The API and its workers over a home, on a free port of loopback."""
    with ExitStack() as stack:
        served = stack.enter_context(Serving.open(str(home), clock=SystemClock(), is_open=is_open))
        workers = Workers(served, holder="test")
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(served),
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=1,
            )
        )
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True
        )
        workers.start()
        stack.callback(workers.close, grace_s=5.0)
        thread.start()
        while not server.started and thread.is_alive():
            thread.join(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", served
        finally:
            server.should_exit = True
            thread.join(20)
