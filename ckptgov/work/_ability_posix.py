"""The probes that need system calls of their own, on a directory that the caller just made."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ckptgov.errors import TimedOut
from ckptgov.model.clock import Clock

_FICLONE = 0x40049409  # ioctl_ficlone(2); the number holds on x86, arm and riscv
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.EBADF)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_RACES, _WAIT_S = 60, 120.0
_LONGEST_STAMP_S = 3.0  # FAT counts in steps of two seconds
_STEPS = 3
_GIVEN_NS = 1_234_567_890_123_456_789
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def _new_file(directory: str, name: str) -> Iterator[int]:
    fd = os.open(os.path.join(directory, name), _NEW, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def locks_hold_between(here: str, there: str) -> bool:
    """Whether a lock taken through one mount holds on the other, and no longer than it should."""
    with _new_file(here, "lock") as first:
        os.fsync(first)
        os.listdir(there)  # a client that has cached the names looks again
        second = os.open(os.path.join(there, "lock"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if not _lock(first) or _lock(second):
                return False
            fcntl.flock(first, fcntl.LOCK_UN)
            return _lock(second)
        finally:
            os.close(second)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def names_are_given_once(here: str, there: str) -> bool:
    """Whether a name that both mounts link to at the same instant goes to one of them only.

    Publishing ends in this call. Raced for alone, a file system that lies is caught nearly every
    time; whole publishings seldom meet closely enough.
    """
    roots, given = (here, there), (set[int](), set[int]())
    start, broken = threading.Barrier(2), list[OSError]()

    def run(side: int) -> None:
        try:
            for race in range(_RACES):
                start.wait(_WAIT_S)
                if _take(roots[side], side, race):
                    given[side].add(race)
        except threading.BrokenBarrierError:
            return  # the other one broke
        except OSError as error:
            broken.append(error)
            start.abort()

    for side, root in enumerate(roots):
        with _new_file(root, f"racer{side}"):
            pass
    threads = [threading.Thread(target=run, args=(side,)) for side in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    return not given[0] & given[1]


def _take(root: str, side: int, race: int) -> bool:
    name = os.path.join(root, f"race{race}")
    try:
        try:
            os.link(os.path.join(root, f"racer{side}"), name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.close(os.open(name, _NEW, 0o600))
    except FileExistsError:
        return False
    return True


def reflinks(directory: str) -> bool:
    """Whether a file can share its blocks with another one."""
    with _new_file(directory, "reflink.from") as source, _new_file(directory, "reflink") as target:
        os.write(source, bytes(4096))
        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as error:
            if error.errno in _CANNOT:
                return False
            raise
        return os.pread(target, 4097, 0) == bytes(4096)


def syncs_directories(directory: str) -> bool:
    """Whether fsync(2) takes a directory."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno in _CANNOT:
            return False
        raise
    finally:
        os.close(fd)
    return True


def time_granularity_ns(directory: str, clock: Clock) -> int:
    """The least step that the mtime of a file written again and again was seen to take."""
    stamps = [_stamp(directory)]
    for _ in range(_STEPS):
        stamps.append(_next_stamp(directory, stamps[-1], clock))
    return min(late - early for early, late in itertools.pairwise(stamps))


def _next_stamp(directory: str, last_ns: int, clock: Clock) -> int:
    until = clock.monotonic() + _LONGEST_STAMP_S
    while (now_ns := _stamp(directory)) <= last_ns:
        if clock.monotonic() > until:
            raise TimedOut(f"mtime stood still for {_LONGEST_STAMP_S:g} s of writing")
    return now_ns


def _stamp(directory: str) -> int:
    path = os.path.join(directory, "times")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(fd, b"x", 0)
    finally:
        os.close(fd)  # some file systems stamp only here
    return os.stat(path).st_mtime_ns


def keeps_given_times(directory: str) -> bool:
    """Whether an mtime set to the ns is told back to the ns."""
    with _new_file(directory, "given") as fd:
        os.utime(fd, ns=(_GIVEN_NS, _GIVEN_NS))
        return os.stat(os.path.join(directory, "given")).st_mtime_ns == _GIVEN_NS
