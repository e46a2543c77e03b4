"""lstat beneath an open directory, as FileStat."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from ckptgov.model.files import FileStat
from ckptgov.storage._paths import kind_of


def lstat(dir_fd: int, name: str, *, birth: bool = False) -> FileStat | None:
    """One entry of a directory, a symlink itself; None when absent. Raises OSError.

    ``birth`` asks for the birth time too, where kernel and file system know it.
    """
    try:
        if birth and (found := _statx()(dir_fd, os.fsencode(name))):
            return found
        return from_stat(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
    except FileNotFoundError:
        return None


@functools.cache
def _statx() -> Callable[[int, bytes], FileStat | None]:
    from ckptgov.storage import _linux  # late: ctypes costs start-up time

    return _linux.statx


def from_stat(found: os.stat_result) -> FileStat:
    """The same facts; no birth time."""
    return FileStat(
        kind=kind_of(found.st_mode),
        bytes=found.st_size,
        mtime_ns=found.st_mtime_ns,
        ctime_ns=found.st_ctime_ns,
        inode=found.st_ino,
        device=found.st_dev,
        mode=found.st_mode,
        uid=found.st_uid,
        gid=found.st_gid,
        links=found.st_nlink,
    )
