"""Two ways to open a path beneath a root, with one behaviour.

Both raise OSError: ELOOP for a symlink where none may stand or too many of them, EXDEV for one
that leaves the root. Both act on directory descriptors, so swapping a directory for a symlink
while they work makes them fail and never lands them elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from enum import StrEnum

from ckptgov.errors import StorageError
from ckptgov.storage._oserrors import os_error
from ckptgov.storage._paths import MAX_LINKS

DIR_PATH = os.O_PATH | os.O_DIRECTORY
"""Flags for a directory that is only a place to act in."""
DIR_READ = os.O_RDONLY | os.O_DIRECTORY
"""Flags for a directory that is listed or fsynced."""

Parts = tuple[str, ...]
Opener = Callable[[int, Parts, int, bool], int]
"""(root descriptor, parts, flags, follow symlinks beneath the root) -> descriptor."""


class Resolution(StrEnum):
    """How paths are resolved; AUTO takes openat2 where the kernel has it."""

    AUTO = "auto"
    OPENAT2 = "openat2"
    WALK = "walk"


class Resolver:
    """Opens paths beneath an open root directory in the chosen way."""

    def __init__(self, resolution: Resolution) -> None:
        self._resolution = resolution
        self._deep: Opener | None = None
        if resolution is Resolution.OPENAT2 and not _has_openat2():
            raise StorageError("this kernel has no openat2", hint="use Linux 5.6, or the walk")

    def open(self, root_fd: int, parts: Parts, flags: int, *, follow: bool = False) -> int:
        """A descriptor of the entry. Symlinks are refused, or with ``follow`` kept beneath."""
        if len(parts) < 2 and not follow and self._resolution is not Resolution.OPENAT2:
            # One step from the root needs no resolving, and then no ctypes either.
            return walk(root_fd, parts, flags, follow)
        if self._deep is None:
            self._deep = self._choose()
        return self._deep(root_fd, parts, flags, follow)

    def _choose(self) -> Opener:
        match self._resolution:
            case Resolution.WALK:
                return walk
            case Resolution.OPENAT2:
                return confined()
            case Resolution.AUTO:
                return confined() if _has_openat2() else walk


def _has_openat2() -> bool:
    from ckptgov.storage import _linux  # late: ctypes costs start-up time

    return _linux.has_openat2()


def confined() -> Opener:
    """Resolution by the kernel (openat2(2))."""
    from ckptgov.storage import _linux

    beneath = _linux.RESOLVE_BENEATH | _linux.RESOLVE_NO_MAGICLINKS
    plain = beneath | _linux.RESOLVE_NO_SYMLINKS

    def opened(root_fd: int, parts: Parts, flags: int, follow: bool) -> int:
        path = os.fsencode("/".join(parts) or ".")
        return _linux.openat2(root_fd, path, flags, beneath if follow else plain)

    return opened


def walk(root_fd: int, parts: Parts, flags: int, follow: bool) -> int:
    """Resolution by hand: one O_NOFOLLOW step at a time, links read and followed as text."""
    trail = [root_fd]
    pending = list(reversed(parts))
    links = 0
    try:
        while pending:
            name = pending.pop()
            if name == "..":  # only out of a link's text: back along the way we came
                if len(trail) == 1:
                    raise os_error(errno.EXDEV)
                os.close(trail.pop())
                continue
            try:
                fd = step(trail[-1], name, DIR_PATH if pending else flags)
            except OSError as error:
                links += 1
                if error.errno != errno.ELOOP or not follow or links > MAX_LINKS:
                    raise
                pending.extend(_link_parts(trail[-1], name))
                continue
            if not pending:
                return fd
            trail.append(fd)
        return os.open(".", flags, dir_fd=trail[-1])
    finally:
        for fd in trail[1:]:
            os.close(fd)


def step(dir_fd: int, name: str, flags: int) -> int:
    """Open one entry of a directory; ELOOP for a symlink, whatever the flags."""
    try:
        fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=dir_fd)
    except NotADirectoryError as error:
        if _is_link(dir_fd, name):  # O_DIRECTORY looks first
            raise os_error(errno.ELOOP) from error
        raise
    if flags & os.O_PATH and stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise os_error(errno.ELOOP)
    return fd


def _is_link(dir_fd: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _link_parts(dir_fd: int, name: str) -> list[str]:
    """What to resolve in the place of a link, last part first."""
    try:
        text = os.readlink(name, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.EINVAL:  # no link any more: look again
            return [name]
        raise
    if text.startswith("/"):
        raise os_error(errno.EXDEV)
    return [part for part in reversed(text.split("/")) if part not in ("", ".")]
