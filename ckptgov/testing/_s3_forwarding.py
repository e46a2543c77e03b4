"""The connections of :mod:`ckptgov.testing.s3_proxy`: take, change, forward, change back."""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ckptgov.testing.s3_proxy import Call, Fault, S3Proxy, Trouble

_CHUNK = 2**18
_HOP = frozenset(("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"))
_SIGNED = frozenset(("authorization", "x-amz-date", "host", "expect", "content-length"))
_CONDITIONS = frozenset(("if-match", "if-none-match"))
_CHECKSUMS = re.compile(r"x-amz-checksum-.*|x-amz-sdk-checksum-algorithm|content-md5")
_PART_CHECKSUM = re.compile(rb"<(Checksum[A-Z0-9]+)>[^<]*</\1>")
_LISTED = re.compile(
    rb"<(Contents|CommonPrefixes|Upload|Version|DeleteMarker|Part)>.*?</\1>", re.DOTALL
)
_LISTS = ("list-type", "uploads", "versions")
_ERRORS = {
    Trouble.SLOW_DOWN: (503, "SlowDown", "Please reduce your request rate."),
    Trouble.INTERNAL_ERROR: (500, "InternalError", "We encountered an internal error."),
}


class Upstream:
    """The store: where it is, and how a request to it is signed."""

    def __init__(self, url: str, access_key: str, secret_key: str, region: str) -> None:
        split = urlsplit(url)
        self.host, self.port = split.hostname or "127.0.0.1", split.port or 80
        self._credentials = Credentials(access_key, secret_key)
        self._region = region

    def sign(self, method: str, target: str, headers: dict[str, str]) -> dict[str, str]:
        """The headers of a request to the store. What was not signed stays unsigned."""
        host = f"{self.host}:{self.port}"
        if "authorization" not in headers:
            return headers
        kept = {name: text for name, text in headers.items() if name not in _SIGNED}
        request = AWSRequest(method, f"http://{host}{target}", headers=kept)
        _Signer(self._credentials, "s3", self._region).add_auth(request)
        return {**dict(request.headers.items()), "Host": host}


class _Signer(S3SigV4Auth):
    """Signs with the digest of the body that the client told: the body is not here yet."""

    def payload(self, request: AWSRequest) -> Any:
        return self._told

    def add_auth(self, request: AWSRequest) -> None:
        self._told = request.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        super().add_auth(request)


@contextlib.contextmanager
def serve(proxy: S3Proxy, upstream: Upstream) -> Iterator[str]:
    """Listen until the end of the block; yields the address."""
    server = _Server(proxy, upstream)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        server.hang_up()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, proxy: S3Proxy, upstream: Upstream) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.proxy = proxy
        self.upstream = upstream
        self._open: set[socket.socket] = set()

    def finish_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        try:
            super().finish_request(request, client_address)
        finally:
            self._open.discard(request)

    def hang_up(self) -> None:
        """Close every connection, whatever it is doing."""
        for one in tuple(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away is the daily bread of a test; nothing is printed."""


class _Dropped(Exception):
    """The connection ends here, on purpose."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def handle_expect_100(self) -> bool:
        return True  # said only once the body is wanted

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent."""

    def _serve(self) -> None:
        call = Call.parse(self.command, self.path)
        troubles = self.server.proxy.arrived(call)
        try:
            self._obey(call, troubles)
        except (_Dropped, OSError, http.client.HTTPException):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def _obey(self, call: Call, troubles: dict[Trouble, Fault]) -> None:
        if delay := troubles.get(Trouble.DELAY):
            time.sleep(delay.delay_s)
        for trouble, told in _ERRORS.items():
            if trouble in troubles:
                return self._answer_error(call, *told)
        if Trouble.DROP_BEFORE in troubles:
            raise _Dropped
        if Trouble.STALL in troubles:
            self.server.proxy.stall()
            raise _Dropped
        self._forward(call, troubles)

    def _answer_error(self, call: Call, status: int, code: str, message: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        call.status = status
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")  # the request's body is still on its way
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = True

    def _forward(self, call: Call, troubles: dict[Trouble, Fault]) -> None:
        upstream = self.server.upstream
        asked = {name.lower(): text for name, text in self.headers.items()}
        headers, body = self._changed(call, dict(asked), troubles)
        connection = http.client.HTTPConnection(upstream.host, upstream.port)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, text in upstream.sign(self.command, self.path, headers).items():
                if name.lower() not in (*_HOP, "expect", "content-length"):
                    connection.putheader(name, text)
            self._send_body(call, connection, body)
            answer = connection.getresponse()
            if Trouble.DROP_AFTER in troubles:
                answer.read()
                raise _Dropped
            self._give_back(call, answer, asked, troubles)
        finally:
            connection.close()

    def _changed(
        self, call: Call, headers: dict[str, str], troubles: dict[Trouble, Fault]
    ) -> tuple[dict[str, str], bytes | None]:
        """The headers to send on, and the body where it had to be changed."""
        if Trouble.IGNORE_CONDITIONS in troubles:
            headers = {name: text for name, text in headers.items() if name not in _CONDITIONS}
        if Trouble.ACCEPT_WRONG_CHECKSUMS not in troubles:
            return headers, None
        headers = {name: text for name, text in headers.items() if not _CHECKSUMS.fullmatch(name)}
        if call.method != "POST" or "uploadId" not in call.query:
            return headers, None
        body = _PART_CHECKSUM.sub(b"", b"".join(self._body(call)))
        return {**headers, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}, body

    def _send_body(
        self, call: Call, connection: http.client.HTTPConnection, body: bytes | None
    ) -> None:
        length = self.headers.get("Content-Length")
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        elif length is not None:
            connection.putheader("Content-Length", length)
        connection.endheaders(body)
        if body is None:
            for chunk in self._body(call):
                connection.send(chunk)

    def _body(self, call: Call) -> Iterator[bytes]:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        left = int(self.headers.get("Content-Length", 0))
        while left:
            chunk = self.rfile.read1(min(left, _CHUNK))
            if not chunk:
                raise _Dropped
            left -= len(chunk)
            call.sent_bytes += len(chunk)
            yield chunk

    def _give_back(
        self,
        call: Call,
        answer: http.client.HTTPResponse,
        asked: dict[str, str],
        troubles: dict[Trouble, Fault],
    ) -> None:
        call.status = answer.status
        headers = {name: text for name, text in answer.getheaders() if name.lower() not in _HOP}
        if Trouble.ACCEPT_WRONG_CHECKSUMS in troubles and call.method == "PUT":
            headers |= {name: text for name, text in asked.items() if "-checksum-" in name}
        if self.command == "HEAD" or answer.status in (204, 304):
            return self._head(answer, headers)
        is_list = call.method == "GET" and any(name in call.query for name in _LISTS)
        if is_list or answer.length is None:
            body = _relisted(answer.read(), troubles) if is_list else answer.read()
            chunks, length = iter((body,)), len(body)
        else:
            chunks, length = _chunks(answer), answer.length
        headers["Content-Length"] = str(length)
        self._give_body(call, answer, headers, chunks, length, troubles)

    def _head(self, answer: http.client.HTTPResponse, headers: dict[str, str]) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()

    def _give_body(
        self,
        call: Call,
        answer: http.client.HTTPResponse,
        headers: dict[str, str],
        chunks: Iterator[bytes],
        length: int,
        troubles: dict[Trouble, Fault],
    ) -> None:
        bodily = call.method == "GET" and answer.status in (200, 206)
        if not bodily:
            troubles = {}
        halved = {Trouble.TRUNCATE_BODY, Trouble.SHORT_BODY, Trouble.STALL_BODY} & troubles.keys()
        if Trouble.SHORT_BODY in troubles:
            headers["Content-Length"] = str(length // 2)
        self._head(answer, headers)
        given = 0
        for chunk in chunks:
            piece = chunk[: length // 2 - given] if halved else chunk
            if Trouble.FLIP_BYTE in troubles:
                piece = _flipped(piece, length // 2 - given)
            given += len(piece)
            call.received_bytes += len(piece)  # before the client can ask
            self.wfile.write(piece)
            if halved and given == length // 2:
                break
        if Trouble.STALL_BODY in troubles:
            self.server.proxy.stall()
        if halved - {Trouble.SHORT_BODY}:
            raise _Dropped


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while chunk := answer.read1(_CHUNK):
        yield chunk


def _flipped(piece: bytes, at: int) -> bytes:
    if not 0 <= at < len(piece):
        return piece
    return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]


def _relisted(body: bytes, troubles: dict[Trouble, Fault]) -> bytes:
    """A page of a listing with its entries moved or missing."""
    listed = [found.group() for found in _LISTED.finditer(body)]
    if not listed or not {Trouble.SHUFFLE_LIST, Trouble.SHORT_LIST} & troubles.keys():
        return body
    kept = list(listed)
    if Trouble.SHORT_LIST in troubles:
        kept = kept[: -max(1, len(kept) // 4)]
        body = re.sub(rb"<IsTruncated>true<", b"<IsTruncated>false<", body)
        body = re.sub(rb"<NextContinuationToken>[^<]*</NextContinuationToken>", b"", body)
        body = re.sub(rb"<KeyCount>\d+<", b"<KeyCount>%d<" % len(kept), body)
    if Trouble.SHUFFLE_LIST in troubles:
        before = list(kept)
        random.shuffle(kept)
        kept = kept[::-1] if kept == before else kept
    first = body.index(listed[0])
    return body[:first] + b"".join(kept) + _LISTED.sub(b"", body[first:])
