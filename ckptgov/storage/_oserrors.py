"""OSError -> the errors of the contract."""

from __future__ import annotations

import errno
import os
from types import TracebackType

from ckptgov.errors import PathEscapes, StorageError, TransientStorageError
from ckptgov.storage._paths import printable

_BUILT_INS: dict[int, type[OSError]] = {
    errno.ENOENT: FileNotFoundError,
    errno.EEXIST: FileExistsError,
    errno.ENOTDIR: NotADirectoryError,
    errno.EISDIR: IsADirectoryError,
}

_TRANSIENT = {
    errno.EIO: "the device or server failed; look at the kernel log",
    errno.ESTALE: "the server lost the file's handle; try again, else remount",
    errno.ETIMEDOUT: "the server did not answer in time",
    errno.EAGAIN: None,
    errno.EINTR: None,
    errno.EBUSY: None,
    errno.ENOTCONN: "the file system's server or daemon is gone; remount",
    errno.ESHUTDOWN: "the server evicted this client; remount if it stays so",
    errno.ECONNRESET: None,
    errno.ECONNREFUSED: None,
    errno.EHOSTDOWN: None,
    errno.EHOSTUNREACH: None,
    errno.ENETUNREACH: None,
}

_HINTS = {
    errno.EACCES: "run as a user who may, or ask the owner; permissions are never changed",
    errno.EPERM: "run as a user who may, or ask the owner; permissions are never changed",
    errno.EROFS: "the file system is mounted read-only; remount it, or use another tier",
    errno.ENOSPC: "free space or inodes on the tier",
    errno.EDQUOT: "raise the quota, or free some of it",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "the machine has too many open files (fs.file-max)",
}


def translate(error: OSError, where: str) -> Exception:
    """What to raise from ``error``, that happened at the full path ``where``."""
    code = error.errno or 0
    reason = error.strerror or str(error)
    if code in _BUILT_INS:
        return _BUILT_INS[code](code, reason, where)
    shown = printable(where)
    if code in (errno.ELOOP, errno.EXDEV):
        return PathEscapes(f"{shown}: leaves its root, or a symlink stands in it ({reason})")
    if code in _TRANSIENT:
        return TransientStorageError(f"{shown}: {reason}", hint=_TRANSIENT[code])
    return StorageError(f"{shown}: {reason}", hint=_HINTS.get(code))


class translated:
    """Raise every OSError of the block as the contract's error, with the OSError as its cause.

    Not a generator: a look at many shards enters this six times for each.
    """

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise translate(error, self._where) from error


def os_error(code: int) -> OSError:
    """An OSError as a failed system call gives it."""
    return OSError(code, os.strerror(code))
