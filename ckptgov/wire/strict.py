"""Frozen messages to JSON and back, strictly: for messages between processes of ours.

Names of files may hold bytes that are not UTF-8; in a message such a text is a SUB character and
the hexadecimal of its bytes, so that every name comes back as it was.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ckptgov.errors import Malformed

MAX_MESSAGE_BYTES = 8 * 2**20
"""What one request between an agent and the service may weigh."""

_MARK = "\x1a"
_T = TypeVar("_T")


class Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message; a member it does not know is an error, not ignored."""


def encode(message: Struct) -> bytes:
    """The message as JSON; bytes become base64."""
    return msgspec.json.encode(_told(msgspec.to_builtins(message)))


def decode(raw: bytes, kind: type[_T], *, what: str, cap_bytes: int | None = None) -> _T:
    """The message in ``raw``; ``what`` names it in errors.

    Raises:
        Malformed: too large, not JSON, a member missing, unknown or of another type.
    """
    cap = MAX_MESSAGE_BYTES if cap_bytes is None else cap_bytes
    if len(raw) > cap:
        raise Malformed(f"{what}: {len(raw)} bytes, more than the {cap} allowed")
    try:
        return msgspec.convert(_heard(msgspec.json.decode(raw)), kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"{what}: {error}") from error


def _told(value: Any) -> Any:
    match value:
        case str():
            return _escaped(value)
        case list() | tuple():
            return [_told(each) for each in value]
        case dict():
            return {key: _told(each) for key, each in value.items()}
        case _:
            return value


def _escaped(text: str) -> str:
    if text.isascii() and not text.startswith(_MARK):
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return _MARK + text.encode("utf-8", "surrogateescape").hex()
    return text if not text.startswith(_MARK) else _MARK + text.encode("utf-8").hex()


def _heard(value: Any) -> Any:
    match value:
        case str():
            if not value.startswith(_MARK):
                return value
            return bytes.fromhex(value[1:]).decode("utf-8", "surrogateescape")
        case list():
            return [_heard(each) for each in value]
        case dict():
            return {key: _heard(each) for key, each in value.items()}
        case _:
            return value
