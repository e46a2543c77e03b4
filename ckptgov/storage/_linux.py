"""System calls that ``os`` does not offer. Imported late: ctypes costs start-up time.

Structures and numbers from linux/openat2.h, linux/stat.h and linux/fs.h. Errors come out as
OSError; a call that a signal or a concurrent rename interrupted is made again a bounded number of
times.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Callable

from ckptgov.model.files import FileStat
from ckptgov.storage._oserrors import os_error
from ckptgov.storage._paths import kind_of

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

_ATTEMPTS = 64
_NR_OPENAT2 = 437  # the same on every architecture whose table was unified, i.e. all but alpha
_AT_FDCWD = -100
_STATX_FLAGS = 0x100 | 0x800  # AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT
_STATX_BTIME = 0x800
_STATX_MASK = 0x7FF | _STATX_BTIME  # STATX_BASIC_STATS
_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2
_SYNC_FILE_RANGE_WAIT = 1 | 2 | 4  # WAIT_BEFORE, WRITE, WAIT_AFTER
_FALLOC_FL_KEEP_SIZE = 1
_UNSUPPORTED = (errno.ENOSYS, errno.EPERM)  # EPERM: seccomp filters older than the call

# mask blksize attributes nlink uid gid mode ino size blocks attributes_mask,
# then atime btime ctime mtime as (s, ns), then rdev and dev as (major, minor)
_STATX = struct.Struct("=IIQIIIH2xQQQQ" + "qI4x" * 4 + "IIII")
_STATX_BYTES = 256

_libc = ctypes.CDLL(None, use_errno=True)
_How = ctypes.c_uint64 * 3  # struct open_how: flags, mode, resolve
_openat2 = _libc.syscall
_openat2.restype = ctypes.c_long
_openat2.argtypes = (
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(_How),
    ctypes.c_size_t,
)


def _checked(call: Callable[..., int], *arguments: object) -> int:
    """The call's result; OSError when it is negative."""
    for _ in range(_ATTEMPTS):
        result = call(*arguments)
        if result >= 0:
            return result
        code = ctypes.get_errno()
        if code not in (errno.EINTR, errno.EAGAIN):
            break
    raise os_error(code)


def openat2(dir_fd: int, path: bytes, flags: int, resolve: int) -> int:
    """Open ``path`` below ``dir_fd``; resolution is confined as ``resolve`` says."""
    how = _How(flags | os.O_CLOEXEC, 0, resolve)
    return _checked(_openat2, _NR_OPENAT2, dir_fd, path, how, ctypes.sizeof(how))


@functools.cache
def has_openat2() -> bool:
    """Whether the kernel (5.6 or newer) and its filters let this process call openat2."""
    try:
        os.close(openat2(_AT_FDCWD, b"/", os.O_PATH, RESOLVE_NO_MAGICLINKS))
    except OSError:
        return False
    return True


@functools.cache
def _statx_call() -> Callable[..., int] | None:
    call = getattr(_libc, "statx", None)
    if call is None:
        return None
    call.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_char_p,
    )
    return call  # type: ignore[no-any-return]  # ctypes types its functions as Any


def statx(dir_fd: int, name: bytes) -> FileStat | None:
    """lstat with the birth time; None where the machine has no statx."""
    call = _statx_call()
    if call is None:
        return None
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        _checked(call, dir_fd, name, _STATX_FLAGS, _STATX_MASK, buffer)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return _file_stat(buffer.raw)


def _file_stat(raw: bytes) -> FileStat:
    fields = _STATX.unpack_from(raw)
    mask, _, _, links, uid, gid, mode, inode, size = fields[:9]
    birth_s, birth_ns, ctime_s, ctime_ns, mtime_s, mtime_ns = fields[13:19]
    major, minor = fields[21:23]
    return FileStat(
        kind=kind_of(mode),
        bytes=size,
        mtime_ns=mtime_s * 10**9 + mtime_ns,
        ctime_ns=ctime_s * 10**9 + ctime_ns,
        inode=inode,
        device=os.makedev(major, minor),
        mode=mode,
        uid=uid,
        gid=gid,
        links=links,
        btime_ns=birth_s * 10**9 + birth_ns if mask & _STATX_BTIME else None,
    )


def rename_new(dir_fd: int, source: bytes, target: bytes) -> None:
    """Rename within a directory; EEXIST when ``target`` is taken, ENOSYS or EINVAL if unable."""
    move_new(dir_fd, source, dir_fd, target)


def move_new(source_fd: int, source: bytes, target_fd: int, target: bytes) -> None:
    """The same from one directory to another of the same mount."""
    call = getattr(_libc, "renameat2", None)
    if call is None:
        raise os_error(errno.ENOSYS)
    _checked(call, source_fd, source, target_fd, target, _RENAME_NOREPLACE)


def allocate(fd: int, length: int) -> None:
    """Reserve blocks for the first bytes of a file and leave its size; nothing is written.

    Unlike posix_fallocate(3), which writes zeros where the file system cannot reserve, and over
    what an earlier writer left. ENOSYS or EOPNOTSUPP if unable.
    """
    call = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
    if call is None:
        raise os_error(errno.ENOSYS)
    _checked(call, fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(length))


def start_writeback(fd: int, offset: int, length: int) -> None:
    """Advise the kernel to begin writing these bytes out; only ``fsync`` tells of failures."""
    call = getattr(_libc, "sync_file_range", None)
    if call is not None:
        call(fd, ctypes.c_int64(offset), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)


def await_writeback(fd: int, offset: int, length: int) -> None:
    """Write these bytes out and wait for the device. Says nothing of metadata or its cache.

    An error told here is told once: a later ``fsync`` may know nothing of it (the kernel's
    file_fdatawait_range moves the descriptor past the error).
    """
    call = getattr(_libc, "sync_file_range", None)
    if call is None:
        return
    try:
        _checked(call, fd, ctypes.c_int64(offset), ctypes.c_int64(length), _SYNC_FILE_RANGE_WAIT)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP):
            raise
