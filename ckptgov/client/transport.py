"""One request to the service: sent, sent again where that is safe, answered or refused.

Everything that is not an answer of the service is ``Silent``: a kind of "could not look". What the
service itself says, an error's document included, is handed on.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import msgspec

from ckptgov.client.address import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, Replica, ServiceAddress
from ckptgov.errors import (
    CkptgovError,
    CouldNotLook,
    Interrupted,
    NeverAny,
    NotAllowed,
    TransientStorageError,
)
from ckptgov.model.clock import Clock, SystemClock
from ckptgov.wire.decode_errors import error_of, is_error

if TYPE_CHECKING:
    from ckptgov.wire.documents import Document

CONNECT_S = 5.0
ANSWER_S = 30.0
PATIENCE_S = 15.0
"""What may be repeated is begun again for so long; every replica is tried once at least."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
MOST_ANSWER_BYTES = 256 * 2**20
_PIECE_BYTES = 2**20
_PASSING = frozenset({429, 502, 503, 504})
"""Statuses of whatever stands before the service that say: later."""

Query = Mapping[str, str | int | float | bool | None]


class Silent(CouldNotLook):
    """No answer of the service arrived: it is down, out of reach, or something else answered.

    ``passing``: a later try may fare better. ``may_be_done``: the request may have been carried
    out all the same. ``said``: what the service itself gave as the reason, if anything.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        passing: bool,
        may_be_done: bool = True,
        said: CkptgovError | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.passing = passing
        self.may_be_done = may_be_done
        self.said = said


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the service said: a document, the very bytes of it, and the status it came with."""

    status: int
    document: Document
    raw: bytes


def _jitter() -> float:
    return int.from_bytes(os.urandom(2), "big") / 65536


class Transport:
    """Requests to one service. Not for several threads at once: each has one of its own.

    ``talk`` hears once that a request is sent again; ``jitter`` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        address: ServiceAddress,
        *,
        clock: Clock | None = None,
        patience_s: float = PATIENCE_S,
        answer_s: float = ANSWER_S,
        jitter: Callable[[], float] = _jitter,
        talk: Callable[[str], None] | None = None,
    ) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._patience_s = patience_s
        self._answer_s = answer_s
        self._jitter = jitter
        self._talk = talk
        self._first = 0
        self._kept: tuple[Replica, http.client.HTTPConnection] | None = None

    def another(self, *, patience_s: float, answer_s: float) -> Transport:
        """One more to the same service, for another thread; it has its own connection."""
        return Transport(
            self._address,
            clock=self._clock,
            patience_s=patience_s,
            answer_s=answer_s,
            jitter=self._jitter,
        )

    def close(self) -> None:
        """Let go of the connection."""
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None

    def get(self, path: str, query: Query | None = None, *, wait_s: float = 0.0) -> Document:
        """The document at a path. ``wait_s``: how long the service may take on purpose.

        Raises:
            Silent: no answer.
            CkptgovError: the service's own error.
        """
        return answered(self.ask("GET", path, query=query, wait_s=wait_s))

    def send(
        self,
        method: str,
        path: str,
        body: Document | None = None,
        *,
        query: Query | None = None,
        is_repeatable: bool = False,
        wait_s: float = 0.0,
    ) -> Document:
        """Change something. ``is_repeatable``: doing it twice is doing it once."""
        return answered(
            self.ask(
                method, path, body=body, query=query, is_repeatable=is_repeatable, wait_s=wait_s
            )
        )

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Document | None = None,
        is_repeatable: bool | None = None,
        wait_s: float = 0.0,
        answer_s: float | None = None,
    ) -> Reply:
        """The service's reply, whatever it says.

        ``answer_s``: how long one replica has to answer, where that is not the usual time.

        Raises:
            Silent: none of the replicas gave one in time.
            NotAllowed: no token, or none that the service knows.
        """
        repeatable = method == "GET" if is_repeatable is None else is_repeatable
        target = _target(path, query)
        raw = None if body is None else msgspec.json.encode(body)
        limit_s = (self._answer_s if answer_s is None else answer_s) + wait_s
        give_up = self._clock.monotonic() + self._patience_s
        tried, pause_s = 0, FIRST_PAUSE_S
        while True:
            replica = self._address.replicas[self._first]
            try:
                return self._once(replica, method, target, raw, repeatable, limit_s)
            except Silent as error:
                silent = error
                tried += 1
                is_round = tried % len(self._address.replicas) == 0
                again = silent.passing and (repeatable or not silent.may_be_done)
                if not again or (is_round and self._clock.monotonic() >= give_up):
                    raise silent.said or silent from silent.__cause__
            self._first = (self._first + 1) % len(self._address.replicas)
            if is_round:
                if self._talk is not None and tried == len(self._address.replicas):
                    self._talk(f"{silent.message}; asking again for {self._patience_s:.0f} s")
                self._clock.sleep(pause_s * (0.5 + self._jitter()))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _once(
        self,
        replica: Replica,
        method: str,
        target: str,
        raw: bytes | None,
        repeatable: bool,
        limit_s: float,
    ) -> Reply:
        connection = self._connection(replica, is_new=not repeatable)
        deadline = self._clock.monotonic() + limit_s
        try:
            if connection.sock is not None:
                connection.sock.settimeout(limit_s)
            connection.request(
                method, replica.prefix + target, body=raw, headers=self._headers(raw)
            )
            with closing(connection.getresponse()) as response:
                body = self._read(response, replica, deadline)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise _unanswered(replica, error) from error
        except BaseException:
            self.close()
            raise
        if response.will_close:
            self.close()
        return _reply(replica, response.status, body)

    def _connection(self, replica: Replica, *, is_new: bool) -> http.client.HTTPConnection:
        """An open one; a kept one may be dead, which only a request to be repeated may find out."""
        if self._kept is not None:
            if self._kept[0] == replica and not is_new:
                return self._kept[1]
            self.close()
        kind = http.client.HTTPSConnection if replica.is_tls else http.client.HTTPConnection
        connection = kind(replica.host, replica.port, timeout=CONNECT_S)
        try:
            connection.connect()
        except (OSError, ValueError) as error:  # ValueError: a name no resolver takes
            connection.close()
            raise Silent(
                f"{replica}: cannot be reached: {_words(error)}",
                hint="is the service running, and CKPTGOV_URL right?",
                passing=True,
                may_be_done=False,
            ) from error
        self._kept = (replica, connection)
        return connection

    def _headers(self, raw: bytes | None) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "ckptgov"}
        if raw is not None:
            headers["Content-Type"] = "application/json"
        if self._address.token is not None:
            headers["Authorization"] = f"Bearer {self._address.token}"
        return headers

    def _read(self, response: http.client.HTTPResponse, replica: Replica, deadline: float) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while piece := response.read1(_PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > MOST_ANSWER_BYTES:
                raise _strange(replica, f"answers with more than {MOST_ANSWER_BYTES} bytes")
            if self._clock.monotonic() > deadline:
                raise TimeoutError("the answer did not end in time")
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        return b"".join(pieces)


def answered(reply: Reply) -> Document:
    """The document, where it is no refusal; one with a 2xx status may tell of an error itself.

    Raises:
        CkptgovError: what the service says went wrong.
    """
    if reply.status >= 400:
        raise error_of(reply.document)
    return reply.document


def whole(reply: Reply, member: str) -> Document:
    """An answer that has ``member``, whatever error it tells of beside what was done.

    Raises:
        CkptgovError: it is nothing but an error.
    """
    if is_error(reply.document) and member not in reply.document:
        raise error_of(reply.document)
    return reply.document


def path_of(*parts: str) -> str:
    """A path under ``/v1`` from names that may hold anything, a run's slash included."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _target(path: str, query: Query | None) -> str:
    told = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in (query or {}).items()
        if value is not None and value is not False
    }
    return f"{path}?{urlencode(told)}" if told else path


def _reply(replica: Replica, status: int, body: bytes) -> Reply:
    document = _document(body)
    if status == 401:
        raise _unknown_token(document)
    if 300 <= status < 400:
        raise _strange(replica, f"sends us elsewhere (status {status})")
    if document is None or (status >= 400 and not is_error(document)):
        what = f"answers with status {status} and no document of ours"
        raise _strange(replica, what, passing=status in _PASSING or not body)
    if status >= 400:
        _check(replica, status, error_of(document), document["error"]["kind"])
    return Reply(status=status, document=document, raw=body)


def _check(replica: Replica, status: int, error: CkptgovError, kind: str) -> None:
    """What is asked again elsewhere, and what is not believed.

    Raises:
        Silent: "never any" without its own status, a replica that goes down, has too much to do or
            waits for its catalog, or a service too old for the question.
    """
    if isinstance(error, NeverAny) and status != 404:
        raise _strange(replica, f"says 'never any' with status {status}")
    if kind == "no-such-endpoint":
        raise _strange(replica, "does not know what was asked (another version?)")
    if isinstance(error, Interrupted):
        raise Silent(f"{replica}: is going down: {error.message}", passing=True)
    if kind == TransientStorageError.kind:  # its catalog, mostly: being restarted
        raise Silent(f"{replica}: {error.message}", hint=error.hint, passing=True)
    if kind == "busy":
        raise Silent(f"{replica}: {error.message}", passing=True, may_be_done=False, said=error)


def _document(body: bytes) -> Document | None:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unknown_token(document: Document | None) -> NotAllowed:
    said = error_of(document).message if document is not None and is_error(document) else ""
    return NotAllowed(
        said or "the service asks for a token that it knows",
        hint=f"set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}; 'ckptgov token add' makes one",
    )


def _strange(replica: Replica, what: str, *, passing: bool = False) -> Silent:
    return Silent(
        f"{replica}: {what}",
        hint="does CKPTGOV_URL lead to ckptgov, or to something before it?",
        passing=passing,
    )


def _unanswered(replica: Replica, error: Exception) -> Silent:
    return Silent(
        f"{replica}: gave no answer: {_words(error)}",
        hint="is the service running, and CKPTGOV_URL right?",
        passing=True,
    )


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, http.client.RemoteDisconnected):
        return "the connection was closed"
    if isinstance(error, http.client.IncompleteRead):
        return "the answer broke off"
    return str(error) or type(error).__name__
