"""What an agent and those who read its disk say to each other: MessagePack over HTTP.

Names are bytes, as the kernel has them: a text would lose those that are not UTF-8. A refusal
always carries ``CONTENT_TYPE``; without it another program answered, and its 404 means nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec
from msgspec import Struct

from ckptgov.errors import (
    CouldNotLook,
    PathEscapes,
    SlowDown,
    StorageError,
    TransientStorageError,
)
from ckptgov.model.files import Entry, EntryKind, Token
from ckptgov.storage._paths import printable

T = TypeVar("T")

PREFIX = "/v1/peer"
CONTENT_TYPE = "application/vnd.ckptgov.peer+msgpack"
MAX_NAMES = 4096
"""Names asked for at once."""

MAX_BODY_BYTES = 4 * 2**20
MAX_ANSWER_BYTES = 256 * 2**20


class Verb(StrEnum):
    """What may be asked; nothing of it changes anything."""

    LIST = "list"
    STAT = "stat"
    STATS = "stats"  # POST: names in one directory
    LINK = "link"
    ATTRIBUTES = "attributes"
    OPEN = "open"  # fstat of what open() would read
    BYTES = "bytes"  # a range of it, under If-Match
    FILESYSTEM = "filesystem"


class Listed(Struct, frozen=True, array_like=True):
    """One name in a directory."""

    name: bytes
    kind: EntryKind


class AskedStats(Struct, frozen=True):
    """Names in one directory to be looked at."""

    directory: bytes
    names: list[bytes]
    birth: bool = False


class Told(StrEnum):
    """Why a call was refused."""

    ABSENT = "absent"
    NO_DIRECTORY = "no-directory"
    IS_DIRECTORY = "is-directory"
    ESCAPES = "escapes"
    CHANGED = "changed"
    FAILED = "failed"
    TRANSIENT = "transient"
    BUSY = "busy"
    NO_ROOT = "no-root"  # the tier's own directory is missing: nothing is known of its files
    STRANGER = "stranger"  # another node, or a tier that it does not have
    UNAUTHORIZED = "unauthorized"
    MEANINGLESS = "meaningless"


STATUS = {
    Told.ABSENT: 404,
    Told.NO_DIRECTORY: 409,
    Told.IS_DIRECTORY: 409,
    Told.ESCAPES: 403,
    Told.CHANGED: 412,
    Told.FAILED: 500,
    Told.TRANSIENT: 502,
    Told.BUSY: 503,
    Told.NO_ROOT: 503,
    Told.STRANGER: 421,
    Told.UNAUTHORIZED: 401,
    Told.MEANINGLESS: 400,
}

_BUILT_INS: dict[Told, tuple[type[OSError], int]] = {
    Told.ABSENT: (FileNotFoundError, errno.ENOENT),
    Told.NO_DIRECTORY: (NotADirectoryError, errno.ENOTDIR),
    Told.IS_DIRECTORY: (IsADirectoryError, errno.EISDIR),
}


class Refusal(Struct, frozen=True):
    """A call that was not answered, in words."""

    told: Told
    message: str = ""
    hint: str | None = None


class Changed(StorageError):
    """The file is not the one that was opened any more."""

    kind = "changed-while-read"


def refusal_of(error: Exception) -> Refusal:
    """How an error of the contract is told to whoever asked."""
    for told, (kind, _) in _BUILT_INS.items():
        if isinstance(error, kind):
            return Refusal(told)
    message = str(error).encode("utf-8", "backslashreplace").decode()
    hint = error.hint if isinstance(error, CouldNotLook) else None
    told = Told.FAILED
    match error:
        case PathEscapes():
            told = Told.ESCAPES
        case SlowDown():
            told = Told.BUSY
        case TransientStorageError():
            told = Told.TRANSIENT
        case Changed():
            told = Told.CHANGED
    return Refusal(told, message, hint)


def error_of(refusal: Refusal, where: str) -> Exception:
    """The error that a refusal stands for; only ``ABSENT`` says that something is not there."""
    shown = printable(where)
    message = f"{shown}: {printable(refusal.message) or refusal.told.value}"
    hint = refusal.hint
    match refusal.told:
        case Told.ABSENT | Told.NO_DIRECTORY | Told.IS_DIRECTORY:
            kind, code = _BUILT_INS[refusal.told]
            return kind(code, os.strerror(code), where)
        case Told.ESCAPES:
            return PathEscapes(message, hint=hint)
        case Told.CHANGED:
            return Changed(f"{shown}: changed or removed since it was opened")
        case Told.TRANSIENT:
            return TransientStorageError(message, hint=hint)
        case Told.BUSY:
            return SlowDown(message, hint=hint or "many read from this node; it comes later")
        case Told.UNAUTHORIZED:
            return StorageError(  # not being allowed to look is not "none"
                f"{shown}: the agent does not take our token",
                hint="give both the same CKPTGOV_PEER_TOKEN",
            )
        case _:
            return StorageError(message, hint=hint)


def token_text(token: Token) -> str:
    """What ``If-Match`` carries: all that says whether the bytes may have changed (no ctime)."""
    return f'"{token.bytes:x}-{token.mtime_ns:x}-{token.inode:x}"'


def listed(entries: Sequence[Entry]) -> list[Listed]:
    """Entries as they go over the wire."""
    return [Listed(os.fsencode(one.name), one.kind) for one in entries]


def entries_of(found: Sequence[Listed]) -> list[Entry]:
    """And back."""
    return [Entry(os.fsdecode(one.name), one.kind) for one in found]


def path_text(path: str) -> str:
    """A path as a part of a URL's query."""
    return quote_from_bytes(os.fsencode(path), safe="/")


def path_of(text: str) -> str:
    """And back, byte for byte; what is no path is refused by the storage that is asked."""
    return os.fsdecode(unquote_to_bytes(text))


def encode(value: object) -> bytes:
    """A body of ours."""
    return msgspec.msgpack.encode(value)


def decode(raw: bytes, kind: type[T], where: str) -> T:
    """What a body holds.

    Raises:
        StorageError: it holds something else.
    """
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise StorageError(
            f"{printable(where)}: makes no sense here ({error})",
            hint="are both of the same version of ckptgov?",
        ) from error
