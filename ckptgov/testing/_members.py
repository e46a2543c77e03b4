"""Processes of a cluster, one command's answer, and waiting for what processes come to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ckptgov.model.closing import Closing
from ckptgov.testing._mounting import FixtureFailed

PATIENCE_S = 120.0
_END_S = 20.0
_POLL_S = 0.2


class Answer(Struct, frozen=True, kw_only=True):
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one document on stdout, of a command with ``--json``."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


def wait_until(what: str, is_so: Callable[[], bool], *, seconds: float = PATIENCE_S) -> None:
    """Ask again and again.

    Raises:
        FixtureFailed: it did not become so in time.
    """
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            raise FixtureFailed(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(_POLL_S)  # processes of their own: there is nothing to be told by


class Member(Closing):
    """One process of the cluster, which may be ended and started anew; its log goes on."""

    def __init__(
        self, name: str, words: Sequence[str], environ: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self.log = log
        self._words = list(words)
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that was started last; None once it was killed."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it; it is not waited for."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words, env=self._environ, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """End it, and what it started, at once."""
        self._signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """It does nothing any more, and does not notice."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a stopped one go on."""
        self._signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """It gives back what it is about; ``close`` waits for it."""
        self.go_on()
        self._signal(signal.SIGTERM)

    def close(self) -> None:
        """Ask it to end, and wait."""
        if self._process is None:
            return
        self.ask_to_end()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
        self._reap()

    def _signal(self, which: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, which)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
        self._process = None
