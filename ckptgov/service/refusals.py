"""Errors as replies: the document of the command line, and the status that its class stands for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from ckptgov.errors import CkptgovError, StorageError, TransientStorageError, UsageError
from ckptgov.model.facts import Note, Verdict
from ckptgov.service.access import Unauthorized
from ckptgov.service.calls import NoSuch, Reply
from ckptgov.wire.documents import Document, error_document

log = logging.getLogger(__name__)

STATUS_OF_CODE = {
    2: 400,
    3: 200,  # partly done: the document holds the error beside what was done
    4: 404,  # there never was one
    5: 409,
    6: 409,
    7: 409,
    8: 403,
    9: 503,
    10: 507,
    11: 504,
    12: 409,
    143: 503,
}
"""By exit code, as the errors have them; whatever is not here is 500."""

WORDS_OF_STATUS = {
    400: "the request is wrong; nothing was done",
    401: "no token, or none that is in force",
    403: "the token may not do this",
    404: "there never was one; of a thing named in the path (kind no-such-…): it is not there",
    405: "not with this method",
    409: "none may be offered, several are meant, a safety rule forbids it, or a lease is lost",
    411: "a body's length must be told",
    413: "the body is too large",
    415: "a body is JSON, and says so",
    500: "not foreseen; what happened is in the service's log",
    503: "could not look: storage, catalog or service did not answer, or no such run is known",
    504: "it took too long; what was begun is finished or undone as a whole",
    507: "no room at the tier",
}


class TooLarge(UsageError):
    """A body beyond what any request of the endpoint needs."""

    kind = "too-large"


class NotJson(UsageError):
    """A body that does not say it is JSON; no page of a browser can send one that does."""

    kind = "not-json"


class WrongMethod(UsageError):
    """The path is there, the method is not."""

    kind = "wrong-method"


class Busy(TransientStorageError):
    """More is under way than this process takes on; another replica may have room."""

    kind = "busy"


def status_of(error: CkptgovError) -> int:
    """The status that stands for an error."""
    match error:
        case Unauthorized():
            return 401
        case NoSuch():
            return 404
        case WrongMethod():
            return 405
        case TooLarge():
            return 413
        case NotJson():
            return 415
        case _:
            return STATUS_OF_CODE.get(error.exit_code, 500)


def status_of_answer(told: Document) -> int:
    """The status of an answer that tells of an error beside what was done, or of none."""
    return STATUS_OF_CODE.get(told["error"]["exit_code"], 500) if "error" in told else 200


def refusal(
    error: CkptgovError,
    *,
    verdicts: Iterable[Verdict] = (),
    notes: Iterable[Note] = (),
    headers: tuple[tuple[str, str], ...] = (),
    is_pending: bool = False,
) -> Reply:
    """The reply that says why not."""
    status = status_of(error)
    told = error_document(error, verdicts=verdicts, notes=notes)
    more: tuple[tuple[str, str], ...] = ()
    if status == 401:
        more = (("WWW-Authenticate", "Bearer"),)
    if isinstance(error, TransientStorageError):
        more = (("Retry-After", "1"),)
    return Reply(
        status=status,
        body=msgspec.json.encode(told),
        headers=(*headers, *more),
        is_pending=is_pending,
    )


def unforeseen(what: str, error: BaseException) -> Reply:
    """The reply for what nobody foresaw: nothing of it is told, all of it is logged."""
    log.error("request failed what=%r error=%s", what, type(error).__name__, exc_info=error)
    return refusal(
        CkptgovError("the service failed", hint="its log says where; nothing is known from this")
    )


@contextmanager
def untold_errors() -> Iterator[None]:
    """What the catalog says of its server and files goes to the log, not to strangers.

    Raises:
        TransientStorageError: it failed in the block.
    """
    try:
        yield
    except StorageError as error:
        log.warning("catalog failed error=%s text=%s", error.kind, error.message)
        raise TransientStorageError("the catalog does not answer", hint="try again") from error
