"""HTTP calls to one agent: kept connections, time limits, and what is worth another try."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar
from urllib.parse import urlsplit

from ckptgov.errors import SlowDown, StorageError, TransientStorageError, UsageError
from ckptgov.model.clock import Clock
from ckptgov.storage._paths import printable
from ckptgov.storage.backoff import RetryPolicy, waits
from ckptgov.storage.peer_messages import (
    CONTENT_TYPE,
    MAX_ANSWER_BYTES,
    Refusal,
    decode,
    error_of,
)

T = TypeVar("T")

_IDLE = 8
_STRANGER_TRIES = 3
_CONNECT_S = 5.0
_SHUNNED_S = 30.0
"""An agent that was given up is not called for so long: a restore of a thousand shards has other
sources, and must not wait for this one a thousand times."""

_LONGEST_WAIT_S = 30.0
_ERROR_BYTES = 2**16
_LOOK = "look at the node, its agent and the network between"


class Line:
    """One connection, and whether it was used before (the agent may have closed it since)."""

    __slots__ = ("connection", "is_used")

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        self.is_used = False


class Calls:
    """Calls to the agent at ``url``; threads may share them.

    ``timeout_s`` bounds each step of sending and receiving, never a whole transfer.
    Redirects and proxies are not followed: the token is shown to this agent alone.

    Raises:
        UsageError: ``url`` is no ``http(s)://HOST:PORT``.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        clock: Clock,
        random: Callable[[], float],
        policy: RetryPolicy,
        timeout_s: float,
    ) -> None:
        self.url = url
        self._kind, self._host, self._port = _parsed(url)
        self._headers = {"Authorization": f"Bearer {token}", "Accept": CONTENT_TYPE}
        self._clock = clock
        self._random = random
        self._policy = policy
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: list[Line] = []
        self._is_known = False
        self._shunned_until_s = 0.0
        self._is_closed = False

    def ask(self, method: str, target: str, where: str, *, body: bytes | None = None) -> bytes:
        """The body of a call's answer.

        Raises:
            FileNotFoundError, NotADirectoryError, IsADirectoryError: the agent says so.
            StorageError: anything else; transient where the tries ended.
        """

        def once() -> bytes:
            with self.answer(method, target, where, body=body) as response:
                return _read(response, MAX_ANSWER_BYTES, where)

        return self.again(once)

    def again(self, operation: Callable[[], T]) -> T:
        """What ``operation`` returns, tried again after what may pass.

        An agent that never answered yet is given up soon: its node may be gone.
        """
        pauses = waits(self._policy, self._random)
        begun_s, tries = self._clock.monotonic(), 0
        if begun_s < self._shunned_until_s:
            raise Silent(f"the agent at {self.url} did not answer, just now", hint=_LOOK)
        while True:
            tries += 1
            try:
                return operation()
            except TransientStorageError as error:
                pause_s, now_s = next(pauses, None), self._clock.monotonic()
                is_stranger = not self._is_known and tries >= _STRANGER_TRIES
                if pause_s is None or is_stranger or now_s - begun_s > self._policy.elapsed_s:
                    if isinstance(error, Silent):
                        self._is_known, self._shunned_until_s = False, now_s + _SHUNNED_S
                    raise
                if isinstance(error, Busy):
                    pause_s = max(pause_s, error.after_s)
            self._clock.sleep(pause_s)

    @contextmanager
    def answer(
        self,
        method: str,
        target: str,
        where: str,
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """The response of one call while the block lasts; its line is kept if all was read."""
        response, line = self.begin(method, target, where, body=body, headers=headers)
        try:
            yield response
        finally:
            self.end(line, response)

    def begin(
        self,
        method: str,
        target: str,
        where: str,
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[http.client.HTTPResponse, Line]:
        """Send one call and return its response if it is no refusal; ``end`` must follow."""
        while True:
            line = self._take(where)
            was_used = line.is_used
            try:
                line.is_used = True
                self._connect(line.connection)
                line.connection.request(
                    method, target, body=body, headers={**self._headers, **(headers or {})}
                )
                response = line.connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                line.connection.close()
                if was_used and isinstance(error, ConnectionError | http.client.BadStatusLine):
                    continue  # closed since it was used last; says nothing about the agent
                raise self._silent(where, error) from error
            except BaseException:
                line.connection.close()
                raise
            self._is_known = True
            try:
                self._require_answer(response, where)
            except BaseException:
                self.end(line, response)
                raise
            return response, line

    def end(self, line: Line, response: http.client.HTTPResponse) -> None:
        """Keep the line of a response that was read to its end; else close it."""
        is_whole = response.isclosed()
        with suppress(OSError):
            response.close()
        with self._lock:
            if is_whole and not self._is_closed and len(self._idle) < _IDLE:
                self._idle.append(line)
                return
        line.connection.close()

    def close(self) -> None:
        """Close what is kept; a later call raises StorageError."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for line in idle:
            line.connection.close()

    def _take(self, where: str) -> Line:
        with self._lock:
            if self._is_closed:
                raise StorageError(f"{printable(where)}: this storage was closed")
            if self._idle:
                return self._idle.pop()
        return Line(self._kind(self._host, self._port, timeout=_CONNECT_S))

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        if connection.sock is None:
            connection.connect()
            _limit(connection, self._timeout_s)

    def _require_answer(self, response: http.client.HTTPResponse, where: str) -> None:
        """Raise what a refusal says; one that is not ours says nothing about files."""
        is_ours = response.getheader("Content-Type") == CONTENT_TYPE
        if is_ours and response.status in (200, 206):
            return
        if not is_ours:
            raise self._not_ours(response.status, where)
        raw = _read(response, _ERROR_BYTES, where)
        error = error_of(decode(raw, Refusal, where), where)
        if isinstance(error, SlowDown):
            raise Busy(error, _seconds(response.getheader("Retry-After")))
        raise error

    def _not_ours(self, status: int, where: str) -> StorageError:
        message = f"{printable(where)}: what answers at {self.url} is no agent (HTTP {status})"
        if status in (429, 500, 502, 503, 504):  # a proxy in front of it
            return TransientStorageError(message)
        return StorageError(message, hint="look at the address the node's agent tells")

    def _silent(self, where: str, error: Exception) -> Silent:
        return Silent(
            f"{printable(where)}: the agent at {self.url} does not answer "
            f"({printable(str(error)) or type(error).__name__})",
            hint=_LOOK,
        )


class Silent(TransientStorageError):
    """No answer came."""


class Busy(SlowDown):
    """The agent asks to come back in ``after_s`` seconds."""

    def __init__(self, error: SlowDown, after_s: float) -> None:
        super().__init__(error.message, hint=error.hint)
        self.after_s = after_s


def _limit(connection: http.client.HTTPConnection, timeout_s: float) -> None:
    connection.sock.settimeout(timeout_s)


def _parsed(url: str) -> tuple[type[http.client.HTTPConnection], str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{printable(url)}: no address of an agent ({error})") from error
    is_plain = not (parts.username or parts.path.strip("/") or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not host or not is_plain:
        raise UsageError(f"{printable(url)}: an agent's address is http://HOST:PORT")
    if parts.scheme == "https":
        return http.client.HTTPSConnection, host, port or 443
    return http.client.HTTPConnection, host, port or 80


def _read(response: http.client.HTTPResponse, most_bytes: int, where: str) -> bytes:
    """The whole body, which must be as long as announced."""
    if (response.length or 0) > most_bytes:
        raise StorageError(f"{printable(where)}: the answer has {response.length} bytes")
    try:
        raw = response.read(most_bytes + 1)
    except (OSError, http.client.HTTPException) as error:
        raise TransientStorageError(f"{printable(where)}: the answer broke off") from error
    if len(raw) > most_bytes or response.length:
        raise TransientStorageError(f"{printable(where)}: the answer broke off")
    return raw


def _seconds(text: str | None) -> float:
    plain = text is not None and text.isascii() and text.isdigit() and len(text) < 6
    return min(float(text), _LONGEST_WAIT_S) if plain and text is not None else 0.0
