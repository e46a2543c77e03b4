"""Temporary files beneath a directory: told, and removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from ckptgov.errors import StorageError
from ckptgov.model.files import EntryKind
from ckptgov.storage._entries import require_kind
from ckptgov.storage._locks import OPEN_FLAGS, Lock, lock_file
from ckptgov.storage._oserrors import translated
from ckptgov.storage._paths import printable, raw
from ckptgov.storage._resolve import DIR_READ, Parts
from ckptgov.storage._stat import lstat
from ckptgov.storage._write import sync_directory
from ckptgov.storage.contract import TEMP_PREFIX, PendingDelivery

Opener = Callable[[Parts, int], AbstractContextManager[tuple[int, str]]]
"""(parts of a directory, flags) -> its descriptor while it is open, and its full path."""


def beneath(opened: Opener, top: Parts) -> list[PendingDelivery]:
    """Every one at or below a directory, sorted by path.

    What vanishes meanwhile is left out; a directory that may not be looked into is an error.
    """
    found: list[PendingDelivery] = []
    waiting = [top]
    while waiting:
        parts = waiting.pop()
        try:
            with opened(parts, DIR_READ) as (fd, where), translated(where):
                waiting.extend((*parts, name) for name in _look(fd, parts, found))
        except (FileNotFoundError, NotADirectoryError):
            if parts == top:
                raise
    return sorted(found, key=lambda pending: raw(pending.handle))


def _look(dir_fd: int, parts: Parts, found: list[PendingDelivery]) -> list[str]:
    """Add the temporary files of one directory; its directories' names."""
    below: list[str] = []
    with os.scandir(dir_fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            elif entry.name.startswith(TEMP_PREFIX):
                found.extend(_tell(dir_fd, entry.name, "/".join((*parts, entry.name))))
    return below


def _tell(dir_fd: int, name: str, path: str) -> list[PendingDelivery]:
    found = lstat(dir_fd, name)
    if found is None or found.kind is not EntryKind.FILE:
        return []
    pending = PendingDelivery(
        path=path,  # the name's digest is in it, not the name
        handle=path,
        bytes=found.bytes,
        started_at_ns=found.mtime_ns,
        is_held=_is_held(dir_fd, name),
    )
    return [pending]


def remove(dir_fd: int, name: str, where: str) -> None:
    """Remove one, durably. OSError, FileNotFoundError when it is gone already."""
    require_kind(dir_fd, name, where, EntryKind.FILE)
    fd = os.open(name, os.O_RDONLY | OPEN_FLAGS, dir_fd=dir_fd)
    try:
        # Shared is enough to keep others from it, and needs no right to write.
        if lock_file(fd, shared=True) is Lock.HELD:
            raise StorageError(
                f"{printable(where)}: in use by a living process", hint="wait for it, or end it"
            )
        os.unlink(name, dir_fd=dir_fd)
        sync_directory(dir_fd)
    finally:
        os.close(fd)


def _is_held(dir_fd: int, name: str) -> bool:
    """Whether a lock on it is held; False also where nothing tells."""
    try:
        fd = os.open(name, os.O_RDONLY | OPEN_FLAGS, dir_fd=dir_fd)
    except OSError:
        return False
    try:
        # Shared, so that two who look do not see each other.
        return lock_file(fd, shared=True) is Lock.HELD
    finally:
        os.close(fd)
