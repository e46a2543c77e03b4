"""What the service itself notices, told to a webhook: once when it begins, once when it ends.

Telling never holds anything up: alerts queue, one thread posts them and tries again.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from msgspec import Struct

from ckptgov.model.clock import Clock
from ckptgov.model.closing import Closing
from ckptgov.service import logs

POST_TIMEOUT_S = 10.0
TRIES = 12
"""With the pauses below, a receiver may be away for about ten minutes."""
_LONGEST_PAUSE_S = 60.0
_QUEUED = 1000

Post = Callable[[str, bytes], int]
Key = tuple[str, tuple[tuple[str, str], ...]]


class Alert(Struct, frozen=True, kw_only=True):
    """Something that a person should look at. ``name`` and ``about`` tell its episodes apart."""

    name: str
    text: str
    about: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> Key:
        return self.name, self.about


class Notifier(Closing):
    """Posts each alert once per episode, as JSON, to the address the settings name then.

    ``post`` returns the status of the answer and raises OSError where there was none.
    """

    def __init__(
        self,
        url: Callable[[], str | None],
        *,
        clock: Clock,
        post: Post | None = None,
        in_background: bool = True,
    ) -> None:
        self._url = url
        self._clock = clock
        self._post = post or post_json
        self._in_background = in_background
        self._standing: dict[Key, Alert] = {}
        self._queue: deque[bytes] = deque(maxlen=_QUEUED)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def notice(self, alerts: Iterable[Alert]) -> None:
        """All that stands now: what is new is told, and what stood before and does not."""
        now = {one.key: one for one in alerts}
        with self._lock:
            begun = [one for key, one in now.items() if key not in self._standing]
            ended = [one for key, one in self._standing.items() if key not in now]
            self._standing = now
        for status, those in (("firing", begun), ("resolved", ended)):
            for one in those:
                self._tell(one, status)

    def forget(self) -> None:
        """Another process notices from now on; nothing is told to be over."""
        with self._lock:
            self._standing = {}

    def close(self) -> None:
        """Stop; what could not be told yet is dropped."""
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(POST_TIMEOUT_S)

    def deliver(self) -> None:
        """Post what is queued; returns when the queue is empty or this is closed."""
        while not self._closed.is_set():
            with self._lock:
                if not self._queue:
                    return
                body = self._queue.popleft()
            self._deliver(body)

    def _tell(self, alert: Alert, status: str) -> None:
        is_firing = status == "firing"
        level = logging.WARNING if is_firing else logging.INFO
        logs.tell(
            "alert" if is_firing else "alert-over", f"{alert.name}: {alert.text}", level=level
        )
        if self._url() is None:
            return
        document = {
            "version": 1,
            "status": status,
            "alert": alert.name,
            "text": alert.text,
            "labels": dict(alert.about),
            "at_ns": self._clock.now_ns(),
        }
        with self._lock:
            self._queue.append(json.dumps(document).encode("ascii"))
        self._wake.set()
        self._start()

    def _start(self) -> None:
        with self._lock:
            if not self._in_background or self._thread is not None or self._closed.is_set():
                return
            self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._closed.is_set():
            self.deliver()
            self._wake.wait()
            self._wake.clear()

    def _deliver(self, body: bytes) -> None:
        for number in range(TRIES):
            url = self._url()
            if url is None or self._closed.is_set():
                return
            trouble = self._try(url, body)
            if trouble is None:
                return
            is_last = number == TRIES - 1
            logs.tell(
                "notify-failed",
                f"{_host_of(url)}: {trouble}" + ("; given up" if is_last else ""),
                level=logging.WARNING,
            )
            if not is_last:
                self._pause(min(_LONGEST_PAUSE_S, 2.0**number))

    def _try(self, url: str, body: bytes) -> str | None:
        try:
            status = self._post(url, body)
        except (OSError, ValueError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        return None if 200 <= status < 300 else f"status {status}"

    def _pause(self, seconds: float) -> None:
        if self._in_background:
            self._closed.wait(seconds)
        else:
            self._clock.sleep(seconds)


def post_json(url: str, body: bytes) -> int:
    """POST a JSON document; the status of the answer. Redirects are not followed.

    Raises:
        ValueError: no http or https address.
        OSError, HTTPException: no answer.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("no http:// or https:// address")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=POST_TIMEOUT_S)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(
            "POST", path, body=body, headers=_headers(parts.username, parts.password)
        )
        answer = connection.getresponse()
        answer.read(65536)
        return answer.status
    finally:
        connection.close()


def _headers(user: str | None, password: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "User-Agent": f"ckptgov/{socket.gethostname()}"}
    if user is not None:
        from base64 import b64encode

        secret = f"{user}:{password or ''}".encode()
        headers["Authorization"] = "Basic " + b64encode(secret).decode("ascii")
    return headers


def _host_of(url: str) -> str:
    """What may be logged of an address: its path and query may be the secret."""
    return urlsplit(url).hostname or "notify_url"
