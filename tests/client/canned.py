"""A server that says whatever a test wants it to, and a clock that stands still."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

from ckptgov.client.address import Replica

HANG = b"hang"
"""Instead of an answer: nothing, with the connection held open."""
CLOSE = b""
"""Instead of an answer: the connection is closed."""


def said(
    status: int, body: object, *, kind: str = "application/json", length: int | None = None
) -> bytes:
    """An answer as it goes over the wire; ``length`` lies about its size."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(raw) if length is None else length}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + raw


def refused(kind: str, exit_code: int, message: str = "so") -> dict[str, object]:
    """An error's document."""
    told = {"kind": kind, "exit_code": exit_code, "message": message, "hint": None}
    return {"error": told, "passed_over": [], "notes": []}


class Canned:
    """Answers connection after connection from a list; the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.requests: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    @property
    def replica(self) -> Replica:
        return Replica(is_tls=False, host="127.0.0.1", port=self.port)

    @property
    def url(self) -> str:
        return str(self.replica)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for one in self._held:
            one.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.requests.append(_read(connection))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if answer == HANG:
                self._held.append(connection)
                continue
            with contextlib.suppress(OSError):  # whoever asked may have heard enough
                connection.sendall(answer)
            connection.close()


def _read(connection: socket.socket) -> bytes:
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = connection.recv(65536)
        if not piece:
            return raw
        raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


class FakeClock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []

    def now_ns(self) -> int:
        return int(self.now_s * 1e9)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds
