"""A directory tree removed by descriptors: nothing here ever resolves a path of several names.

Each directory is opened as a child of the open one that lists it, never through a symlink and
never across a mount, and its entries are unlinked beneath that descriptor. Whatever is swapped
for what meanwhile, only entries of directories that were entered so can go.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Sequence

from ckptgov.errors import CkptgovError, StorageError
from ckptgov.model.files import Entry
from ckptgov.storage._entries import entry_kind
from ckptgov.storage._oserrors import os_error, translate
from ckptgov.storage._paths import printable
from ckptgov.storage._resolve import DIR_READ, step
from ckptgov.storage._write import sync_directory
from ckptgov.storage.contract import Removed

MAX_DEPTH = 200
"""Directories within directories that are followed down; each keeps a descriptor open."""
MAX_LEFT = 100
_WAVE = 1024
_THREADS_FAR = 8  # a server takes many at a time, and each waits for its answer
_ROUNDS = 2
_SWAPPED = (errno.ELOOP, errno.ENOTDIR)


class Removal:
    """One removal. ``root`` is for messages only."""

    def __init__(
        self,
        root: str,
        *,
        is_network: bool,
        keeps: Callable[[Entry], bool] | None,
        gone: Callable[[int], None] | None,
    ) -> None:
        self._root = root
        self._threads = _THREADS_FAR if is_network else 1
        self._keeps = keeps
        self._gone = gone
        self._lock = threading.Lock()
        self._files = self._bytes = 0
        self._left: list[str] = []
        self._error: CkptgovError | OSError | None = None

    def of(self, dir_fd: int, name: str, path: str) -> Removed:
        """Remove a directory of an open one, with all beneath it. Raises OSError if it is none."""
        fd = _enter(dir_fd, name)
        try:
            if self._emptied(fd, path, 1) and self._rmdir(dir_fd, name, fd, path, 1):
                sync_directory(dir_fd)
        finally:
            os.close(fd)
        return Removed(
            files=self._files, bytes=self._bytes, left=tuple(self._left), error=self._error
        )

    def _directory(self, dir_fd: int, name: str, path: str, depth: int) -> bool:
        """Whether it is gone."""
        try:
            fd = _enter(dir_fd, name)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in _SWAPPED:
                return self._unlink(dir_fd, name, path)
            self._resisted(path, error)
            return False
        try:
            if depth > MAX_DEPTH:
                self._resisted(path, StorageError(f"{path}: too deep to be removed"))
                return False
            return self._emptied(fd, path, depth) and self._rmdir(dir_fd, name, fd, path, depth)
        finally:
            os.close(fd)

    def _rmdir(self, dir_fd: int, name: str, fd: int, path: str, depth: int) -> bool:
        for again in reversed(range(_ROUNDS)):
            try:
                os.rmdir(name, dir_fd=dir_fd)
            except FileNotFoundError:
                return True
            except OSError as error:
                if error.errno in _SWAPPED and depth > 1:
                    return self._unlink(dir_fd, name, path)
                # Something came as we left: a writer's file, or what NFS keeps of an open one.
                if not (again and error.errno == errno.ENOTEMPTY):
                    self._resisted(path, error)
                    return False
            else:
                return True
            if not self._emptied(fd, path, depth):
                return False
        return False

    def _emptied(self, fd: int, path: str, depth: int) -> bool:
        """Whether nothing is left in an open directory."""
        try:
            with os.scandir(fd) as found:
                entries = list(found)
        except OSError as error:
            self._resisted(path, error)
            return False
        is_empty = True
        names: list[str] = []
        for entry in entries:
            if _is_directory(entry):
                below = f"{path}/{entry.name}"
                is_empty = self._directory(fd, entry.name, below, depth + 1) and is_empty
            elif self._keeps is not None and self._keeps(Entry(entry.name, entry_kind(entry))):
                is_empty = False
            else:
                names.append(entry.name)
        for wave in _waves(names):
            is_empty = self._unlink_all(fd, wave, path, depth) and is_empty
            if self._gone is not None:
                self._gone(len(wave))
        return is_empty

    def _unlink_all(self, fd: int, names: Sequence[str], path: str, depth: int) -> bool:
        if self._threads == 1 or len(names) < 2 * self._threads:
            return self._count(fd, names, path, depth) == len(names)
        counts: list[int] = []

        def share(number: int) -> None:
            counts.append(self._count(fd, names[number :: self._threads], path, depth))

        threads = [threading.Thread(target=share, args=(n,)) for n in range(self._threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) == len(names)

    def _count(self, fd: int, names: Sequence[str], path: str, depth: int) -> int:
        """Unlink each; how many are gone."""
        return sum(self._unlink(fd, name, f"{path}/{name}", depth) for name in names)

    def _unlink(self, dir_fd: int, name: str, path: str, depth: int = MAX_DEPTH) -> bool:
        try:
            found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            os.unlink(name, dir_fd=dir_fd)
        except FileNotFoundError:
            return True
        except IsADirectoryError as error:
            if depth < MAX_DEPTH:
                return self._directory(dir_fd, name, path, depth + 1)
            self._resisted(path, error)
            return False
        except OSError as error:
            self._resisted(path, error)
            return False
        with self._lock:
            self._files += 1
            if found.st_nlink == 1 and stat.S_ISREG(found.st_mode):
                self._bytes += found.st_size
        return True

    def _resisted(self, path: str, error: CkptgovError | OSError) -> None:
        with self._lock:
            self._error = self._error or _told(error, f"{self._root}/{path}")
            if len(self._left) < MAX_LEFT:
                self._left.append(path)


def _told(error: CkptgovError | OSError, where: str) -> CkptgovError | OSError:
    if isinstance(error, CkptgovError):
        return error
    told = translate(error, where)
    if error.errno == errno.EXDEV:
        told = StorageError(
            f"{printable(where)}: another file system is mounted there; left alone",
            hint="unmount it first",
        )
    assert isinstance(told, CkptgovError | OSError)
    told.__cause__ = error
    return told


def _enter(dir_fd: int, name: str) -> int:
    """Open a directory of a directory; ELOOP for a symlink, EXDEV where a mount begins."""
    from ckptgov.storage import _linux  # late: ctypes costs start-up time

    if _linux.has_openat2():
        resolve = _linux.RESOLVE_BENEATH | _linux.RESOLVE_NO_SYMLINKS | _linux.RESOLVE_NO_XDEV
        return _linux.openat2(dir_fd, os.fsencode(name), DIR_READ, resolve)
    fd = step(dir_fd, name, DIR_READ)
    try:
        if _mount_of(fd) != _mount_of(dir_fd):
            raise os_error(errno.EXDEV)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _mount_of(fd: int) -> tuple[int, str]:
    """Device and mount (proc_pid_fdinfo(5)): a bind mount has the device of what it shows."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        found = re.search(r"^mnt_id:\s*(\d+)$", file.read(), re.MULTILINE)
    return os.fstat(fd).st_dev, found[1] if found else ""


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # its type was not listed, and it went away
        return False


def _waves(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(names), _WAVE):
        yield names[begin : begin + _WAVE]
