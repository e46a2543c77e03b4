"""The lock that tells a living process from a dead one (flock(2)): it ends with its holder.

A stopped process keeps it. Where a file system has no such locks, or keeps them to one machine,
it tells nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
from enum import StrEnum

OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""A temporary name may have been given to anything: opening it neither waits nor follows."""

_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EBADF)


class Lock(StrEnum):
    """What came of asking for a lock."""

    OURS = "ours"
    HELD = "held"
    UNSUPPORTED = "unsupported"


def lock_file(fd: int, *, shared: bool = False) -> Lock:
    """Ask once, without waiting. Other failures raise OSError.

    EBADF counts as unsupported: NFS makes an exclusive lock need a descriptor for writing.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return Lock.HELD
        if error.errno in _UNSUPPORTED:
            return Lock.UNSUPPORTED
        raise
    return Lock.OURS
