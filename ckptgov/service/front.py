"""What every request passes before anything of it is read: its size, its path, where it is from."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes, urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from ckptgov.errors import NotAllowed, UsageError
from ckptgov.service.access import is_loopback
from ckptgov.service.calls import Reply
from ckptgov.service.refusals import refusal

SLASH = "\x1f"
"""Stands in a decoded path for a slash that was written ``%2F``: part of a name, no separator.

No name holds it: control characters are refused.
"""

MOST_PATH_BYTES = 4096
MOST_QUERY_BYTES = 8192
MOST_HEADER_BYTES = 32768


class Front:
    """An ASGI application before another one.

    ``is_open``: the service does not ask for tokens, so a page of a stranger, shown by a browser on
    this machine, could ask too. Such requests say where they come from, and are refused.
    """

    def __init__(self, app: ASGIApp, *, is_open: bool) -> None:
        self._app = app
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            check_sizes(scope)
            if self._is_open:
                check_origin(scope)
            scope["path"] = path_of(raw_path(scope))
        except (UsageError, NotAllowed) as error:
            await send_reply(refusal(error), send)
            return
        await self._app(scope, receive, send)


def check_sizes(scope: Scope) -> None:
    """Raises UsageError for a request line or headers larger than any honest one."""
    if len(raw_path(scope)) > MOST_PATH_BYTES or len(scope["query_string"]) > MOST_QUERY_BYTES:
        raise UsageError("the path or query is too long")
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEADER_BYTES:
        raise UsageError("the headers are too long")


def raw_path(scope: Scope) -> bytes:
    """The path as it was sent, before anything was decoded."""
    raw = scope.get("raw_path")
    return bytes(raw) if raw is not None else scope["path"].encode("utf-8", "surrogatepass")


def path_of(raw: bytes) -> str:
    """The decoded path, with SLASH for each encoded slash.

    Raises:
        UsageError: it is not UTF-8, or holds control characters.
    """
    try:
        parts = [unquote_to_bytes(part).decode("utf-8") for part in raw.split(b"/")]
    except UnicodeDecodeError as error:
        raise UsageError("the path is not UTF-8") from error
    if any(ord(char) < 0x20 or char == "\x7f" for part in parts for char in part):
        raise UsageError("a control character stands in the path")
    return "/".join(part.replace("/", SLASH) for part in parts)


def check_origin(scope: Scope) -> None:
    """Raises NotAllowed for what a browser sends for another site's page, or under another name."""
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    origin = headers.get(b"origin")
    if origin is not None and not is_loopback(_host(origin)):
        raise NotAllowed("this service serves no pages of other sites")
    host = headers.get(b"host")
    if host is not None and not is_loopback(_host(f"//{host}")):
        raise NotAllowed("started without tokens, this service answers to loopback names only")


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


async def send_reply(reply: Reply, send: Send) -> None:
    """Send a reply without a framework."""
    headers = [
        (b"content-type", reply.media.encode()),
        (b"content-length", str(len(reply.body)).encode()),
        (b"cache-control", b"no-store"),
        *((name.lower().encode(), value.encode()) for name, value in reply.headers),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
