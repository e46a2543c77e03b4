"""An error's document back to the error. Light: whoever asks a service imports it first."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ckptgov import errors
from ckptgov.errors import CkptgovError, Malformed

if TYPE_CHECKING:
    from ckptgov.wire.documents import Document


def is_error(document: Document) -> bool:
    """Whether a document tells of an error, in the form that every command prints."""
    told = document.get("error")
    return (
        isinstance(told, dict)
        and isinstance(told.get("kind"), str)
        and isinstance(told.get("message"), str)
    )


def error_of(document: Document) -> CkptgovError:
    """The error that a document tells of.

    A kind that this version does not know is the nearest one of the same exit code.

    Raises:
        Malformed: the document tells of none.
    """
    if not is_error(document):
        raise Malformed('the answer of the service: "error" is missing or no error')
    told = document["error"]
    hint, code = told.get("hint"), told.get("exit_code")
    return error_of_kind(
        told["kind"],
        told["message"],
        exit_code=code if isinstance(code, int) else 1,
        hint=hint if isinstance(hint, str) else None,
    )


def error_of_kind(
    kind: str, message: str, *, exit_code: int = 1, hint: str | None = None
) -> CkptgovError:
    """An error by its kind; by its exit code where the kind is new."""
    of_kind, of_code = _classes()
    chosen = of_kind.get(kind) or of_code.get(exit_code) or CkptgovError
    return chosen(message, hint=hint)


@cache
def _classes() -> tuple[dict[str, type[CkptgovError]], dict[int, type[CkptgovError]]]:
    """Every class of the tree by kind, and the topmost of each exit code."""
    of_kind: dict[str, type[CkptgovError]] = {}
    of_code: dict[int, type[CkptgovError]] = {}
    level = [CkptgovError]
    while level:
        for one in level:
            of_kind.setdefault(one.kind, one)
            of_code.setdefault(one.exit_code, one)
        level = [
            child
            for one in level
            for child in one.__subclasses__()
            if child.__module__ == errors.__name__
        ]
    return of_kind, of_code
