"""The temporary file that a delivery collects in: one left by a dead process, or a new one."""

from __future__ import annotations

import hashlib
import os
import stat
import threading

from msgspec import Struct

from ckptgov.errors import StorageError
from ckptgov.storage._locks import OPEN_FLAGS, Lock, lock_file
from ckptgov.storage._write import Temp, unlink_quietly
from ckptgov.storage.contract import TEMP_PREFIX

PIECE_BYTES = 2**20
"""A file of one piece is sent again rather than looked for: that would cost a listing each."""

_ATTEMPTS = 16
_FLAGS = os.O_RDWR | OPEN_FLAGS
_MANY_NAMES = 1024
_REMEMBERED_DIRECTORIES = 16


class Opened(Struct, frozen=True, kw_only=True):
    """A temporary file and how far an earlier delivery got in it."""

    name: str
    fd: int
    is_locked: bool
    old_bytes: int = 0


class Leftovers:
    """Names of temporary files by directory. Threads may share it.

    A small directory is listed each time it is asked for. A large one only once, as each of its
    files is asked for: what others leave there later is not found, and sent again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[int, int], list[str]] = {}

    def beginning_with(self, dir_fd: int, prefix: str) -> list[str]:
        """Names that lie, or lay, in an open directory."""
        key = _identity(dir_fd)
        with self._lock:
            names = self._seen.get(key)
        if names is None:
            names = self._look(dir_fd, key)
        return sorted(name for name in names if name.startswith(prefix))

    def add(self, dir_fd: int, name: str) -> None:
        """Tell of one that is left behind from now on."""
        key = _identity(dir_fd)
        with self._lock:
            if key in self._seen:
                self._seen[key].append(name)

    def _look(self, dir_fd: int, key: tuple[int, int]) -> list[str]:
        every = os.listdir(dir_fd)
        names = [name for name in every if name.startswith(TEMP_PREFIX)]
        if len(every) >= _MANY_NAMES:
            with self._lock:
                while len(self._seen) >= _REMEMBERED_DIRECTORIES:
                    self._seen.pop(next(iter(self._seen)))
                self._seen[key] = names
        return names


def _identity(dir_fd: int) -> tuple[int, int]:
    found = os.fstat(dir_fd)
    return found.st_dev, found.st_ino


def begin(dir_fd: int, name: str, size_bytes: int, mode: int, leftovers: Leftovers) -> Opened:
    prefix = f"{TEMP_PREFIX}d{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}-"
    if size_bytes > PIECE_BYTES:
        for old in leftovers.beginning_with(dir_fd, prefix):
            if taken := _take_up(dir_fd, old, size_bytes):
                return taken
    for _ in range(_ATTEMPTS):
        if made := _make(dir_fd, f"{prefix}{os.urandom(8).hex()}", mode):
            return made
    raise StorageError(f"{_ATTEMPTS} new files were locked by others at once")


def _make(dir_fd: int, name: str, mode: int) -> Opened | None:
    """A new file; None where another process was quicker to lock it and now owns it."""
    try:
        fd = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, mode, dir_fd=dir_fd)
    except FileExistsError as error:  # nobody guesses it: not to be told as "path is taken"
        raise StorageError(f"the temporary name {name} is taken") from error
    try:
        lock = lock_file(fd)
    except BaseException:
        os.close(fd)
        unlink_quietly(dir_fd, name)
        raise
    if lock is Lock.HELD:
        os.close(fd)
        return None
    return Opened(name=name, fd=fd, is_locked=lock is Lock.OURS)


def _take_up(dir_fd: int, name: str, size_bytes: int) -> Opened | None:
    """An earlier delivery's file, if it surely is ours and nobody works on it."""
    try:
        fd = os.open(name, _FLAGS, dir_fd=dir_fd)
    except OSError:  # gone, or someone else's: then a new one serves
        return None
    try:
        is_locked = lock_file(fd) is Lock.OURS
        found = os.fstat(fd)
        # Only after locking: its owner may have finished and removed the name until then.
        if (
            is_locked
            and _is_plainly_ours(found)
            and 0 < found.st_size <= size_bytes
            and Temp(name=name, device=found.st_dev, inode=found.st_ino).is_at(dir_fd, name)
        ):
            return Opened(name=name, fd=fd, is_locked=True, old_bytes=found.st_size)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _is_plainly_ours(found: os.stat_result) -> bool:
    """Nobody else's file, and under no second name: a published one is never written to."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
