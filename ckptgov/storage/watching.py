"""Be told by the kernel that something changed beneath directories (inotify(7)).

A hint and nothing more: what was missed (a queue that overflowed, a directory made before it was
watched, another machine's write) is found by the next look.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

from ckptgov.model.closing import Closing

MAX_WATCHES = 4096
_BUFFER_BYTES = 65536

# inotify.h; deliberately without IN_MODIFY, which a large shard being written causes all the time
_CLOSE_WRITE, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x80, 0x100, 0x200
_ONLYDIR, _DONT_FOLLOW = 0x1000000, 0x2000000
_MASK = _CLOSE_WRITE | _MOVED_TO | _CREATE | _DELETE | _ONLYDIR | _DONT_FOLLOW


class Watching(Closing):
    """Watches directories, not what lies deeper. Where the kernel gives no watches it sees nothing.

    Not for several threads at once, save ``wake``.
    """

    def __init__(self) -> None:
        self._fd = _library().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._by_path: dict[str, int] = {}

    @property
    def is_blind(self) -> bool:
        """Whether the kernel refused: then only looking tells what changed."""
        return bool(self._fd < 0)

    def watch(self, directories: Iterable[str]) -> int:
        """Watch these and no others; how many are."""
        wanted = list(directories)[:MAX_WATCHES]
        for path in self._by_path.keys() - wanted:
            _library().inotify_rm_watch(self._fd, self._by_path.pop(path))
        if self.is_blind:
            return 0
        for path in wanted:
            self._add(path)
        return len(self._by_path)

    def _add(self, path: str) -> None:
        """Anew for a path watched already: another directory may have its name by now."""
        found = _library().inotify_add_watch(self._fd, os.fsencode(path), _MASK)
        if found >= 0:
            self._by_path[path] = found
            return
        self._by_path.pop(path, None)
        if ctypes.get_errno() == errno.ENOSPC:  # the user's limit of watches
            return

    def wait(self, timeout_s: float) -> bool:
        """Wait for a change or ``wake``; whether something changed."""
        sources = [self._woken] if self.is_blind else [self._woken, self._fd]
        ready, _, _ = select.select(sources, [], [], max(0.0, timeout_s))
        if self._woken in ready:
            self._drain(self._woken)
        return self._fd in ready and self._drain(self._fd)

    def wake(self) -> None:
        """End a ``wait`` from another thread or a signal's handler."""
        with suppress(BlockingIOError):
            os.write(self._wake, b"\0")

    def close(self) -> None:
        """Stop watching."""
        for fd in (self._fd, self._woken, self._wake):
            if fd >= 0:
                os.close(fd)
        self._fd = self._woken = self._wake = -1

    def _drain(self, fd: int) -> bool:
        """What the events say does not matter: whoever is told looks."""
        found = False
        with suppress(BlockingIOError):
            while os.read(fd, _BUFFER_BYTES):
                found = True
        return found


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def yield_to_others() -> None:
    """Let this process run and read behind everyone else's, as far as the kernel allows."""
    with suppress(OSError):
        os.nice(10)
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None and sys.platform == "linux":
        _library().syscall(number, _OF_PROCESS, 0, _BEST_EFFORT_LAST)


_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # ioprio_set(2) has no wrapper in libc
_OF_PROCESS = 1
_BEST_EFFORT_LAST = (2 << 13) | 7
