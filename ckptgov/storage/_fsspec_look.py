"""What an fsspec file system tells of a file, and of a failure, in the contract's words.

Every implementation has names and types of its own for the same things; those here were read in
the sources of the ones that fsspec lists.
"""

from __future__ import annotations

import errno
import ftplib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import Any, TypeVar

from ckptgov.errors import CkptgovError, SlowDown, StorageError, TransientStorageError
from ckptgov.model.files import EntryKind, FileStat
from ckptgov.storage._oserrors import translate
from ckptgov.storage._paths import printable

T = TypeVar("T")

# Not "uid": sftp, smb and local files tell their owner so.
_ETAGS = ("ETag", "etag", "e_tag", "generation", "md5Hash", "content_md5", "blob_id", "oid")
_TIMES = (
    "LastModified",
    "last_modified",
    "updated",
    "mtime",
    "modified",
    "modificationTime",
    "last_write_time",
    "modify",
)
_BUILT_INS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
_MILLISECONDS_FROM = 10**11  # as seconds that is the year 5138
_PUSH_BACK, _PASSING = (429, 503), (408, 500, 502, 504)


def kind_of(told: Mapping[str, Any]) -> EntryKind:
    """The kind of an entry, a symlink itself."""
    if told.get("islink") or told.get("type") in ("link", "OS.unix=slink"):
        return EntryKind.SYMLINK
    match told.get("type"):
        case "file":
            return EntryKind.FILE
        case "directory":
            return EntryKind.DIR
    return EntryKind.OTHER


def file_stat(told: Mapping[str, Any], modified: object, where: str) -> FileStat:
    """A look at a file. ``modified``: what the file system tells when asked for just that.

    Raises:
        StorageError: it tells neither an ETag, nor a time, nor a size. Such a token would hold for
            ever, whatever happens to the file.
    """
    size = told.get("size")
    mtime_ns = _first(as_ns(told.get(name)) for name in _TIMES) or as_ns(modified)
    etag = _first(_text(told.get(name)) for name in _ETAGS)
    if not isinstance(size, int) or (etag is None and mtime_ns is None):
        raise StorageError(
            f"{where}: the store tells neither ETag nor modification time, or no size",
            hint="nothing could show that a file changed; use another address of the same store",
        )
    return FileStat(
        kind=EntryKind.FILE,
        bytes=size,
        mtime_ns=mtime_ns or 0,
        ctime_ns=0,
        inode=0,
        device=0,
        mode=stat.S_IFREG | 0o644,
        uid=0,
        gid=0,
        etag=f"m-{mtime_ns}-{size}" if etag is None else etag,
    )


def as_ns(told: object) -> int | None:
    """A time in ns: a datetime (UTC where it says no zone), seconds or milliseconds since 1970,
    or text in ISO 8601 or as FTP writes it (RFC 3659: ``20261129210000.123``).
    """
    if isinstance(told, datetime):
        return _moment_ns(told)
    if isinstance(told, int | float) and not isinstance(told, bool):
        told = told / 1000 if told >= _MILLISECONDS_FROM else told
        return round(told * 10**6) * 1000  # a float has no more digits
    if isinstance(told, str):
        return _text_ns(told)
    return None


def _text_ns(told: str) -> int | None:
    digits, _, fraction = told.partition(".")
    if len(digits) == 14 and digits.isdecimal():
        told = f"{digits[:8]}T{digits[8:]}" + (f".{fraction[:6]:0<6}" if fraction else "")
    try:
        return _moment_ns(datetime.fromisoformat(told))
    except ValueError:
        return None


def _moment_ns(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp()) * 10**9 + aware.microsecond * 1000


def _text(told: object) -> str | None:
    if isinstance(told, date) or told is None or told == "":
        return None
    return str(told).strip('"') if isinstance(told, str | int) else str(told)


def _first(found: Iterator[T | None]) -> T | None:
    return next((each for each in found if each is not None), None)


@contextmanager
def told_as_storage(where: str) -> Iterator[None]:
    """Raise what a file system raises as the contract's errors, with it as the cause."""
    try:
        yield
    except CkptgovError:
        raise
    except Exception as error:
        raise translated(error, where) from error


def translated(error: Exception, where: str) -> Exception:
    """What to raise from an error of some library."""
    shown = printable(where)
    for built_in in _BUILT_INS:
        if isinstance(error, built_in):
            return _again(built_in, where)
    reason = f"{shown}: {type(error).__name__}: {error}"
    status = _status(error)
    if status in _PUSH_BACK:
        return SlowDown(reason)
    passing = (TimeoutError, ConnectionError, EOFError, ftplib.error_temp)
    if status in _PASSING or isinstance(error, passing):
        return TransientStorageError(reason)
    if isinstance(error, NotImplementedError):
        return StorageError(f"{shown}: this kind of storage cannot do it", hint="use another tier")
    if isinstance(error, OSError) and error.errno:
        return translate(error, where)
    return StorageError(reason)


def _again(built_in: type[OSError], where: str) -> OSError:
    code = {
        FileNotFoundError: errno.ENOENT,
        FileExistsError: errno.EEXIST,
        NotADirectoryError: errno.ENOTDIR,
        IsADirectoryError: errno.EISDIR,
    }[built_in]
    return built_in(code, os.strerror(code), where)


def _status(error: Exception) -> int | None:
    for name in ("status", "status_code", "code"):
        found = getattr(error, name, None)
        if isinstance(found, int):
            return found
        if isinstance(found, str) and found.isdecimal():
            return int(found)
    return None
