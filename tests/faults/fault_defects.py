"""Changes to the program, made in the process that is to run it."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any

_SHUTDOWN = 0x8004587D
"""_IOR('X', 125, __u32): EXT4_IOC_SHUTDOWN (linux/fs/ext4/ext4.h), XFS_IOC_GOINGDOWN (xfs_fs.h)."""

_NO_LOG_FLUSH = 2
"""Nothing more reaches the disk, not even what the journal holds."""

_CALLS = ("mkdir", "write", "fsync", "fchmod", "link", "rename", "replace", "unlink")


def cut_power(directory: str | os.PathLike[str]) -> None:
    """From now on the file system of ``directory`` writes nothing and refuses everything."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH.to_bytes(4, "little"))
    finally:
        os.close(fd)


def cut_power_at(number: int, directory: str, tally: str) -> None:
    """The power fails before the ``number``-th call (from 1) that changes something.

    How many calls there were is kept in the file ``tally``.
    """
    counter = itertools.count(1)
    turn = threading.Lock()
    told = os.open(tally, os.O_WRONLY | os.O_CREAT, 0o600)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with turn:
                this = next(counter)
                os.pwrite(told, str(this).encode(), 0)
                if this == number:
                    cut_power(directory)
                    os._exit(1)
            return real(*arguments, **named)

        return call

    for name in _CALLS:
        setattr(os, name, counted(getattr(os, name)))


def never_sync_shards() -> None:
    """ckptgov without the guard: it seals what the page cache holds."""
    from ckptgov.storage import posix
    from ckptgov.storage._posix_file import PosixFile

    PosixFile.sync = lambda self: None
    posix.PosixStorage.sync_dir = lambda self, path: None


def same_random_names() -> None:
    """Temporary names and ids are the same in every process that does the same."""
    counter = itertools.count()

    def urandom(size: int) -> bytes:
        return hashlib.shake_256(str(next(counter)).encode()).digest(size)

    os.urandom = urandom
