"""Writing one file into an open directory: temp name, bytes, fsync, name, fsync.

Works on a directory descriptor and plain names, so nothing here can leave the directory. The
bytes' source is iterated outside of any error translation: its errors are not the tier's.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct

from ckptgov.errors import StorageError
from ckptgov.model.files import FileStat
from ckptgov.storage._oserrors import os_error, translated
from ckptgov.storage._paths import printable
from ckptgov.storage._stat import lstat
from ckptgov.storage.contract import TEMP_PREFIX

_MAY_BE_REFUSED = (
    errno.EPERM,
    errno.EACCES,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_WRITEBACK_BYTES = 32 * 2**20


class Temp(Struct, frozen=True, kw_only=True):
    """A written, synced and closed file that has only its temporary name yet."""

    name: str
    device: int
    inode: int

    def is_at(self, dir_fd: int, name: str) -> bool:
        found = lstat(dir_fd, name)
        return found is not None and (found.device, found.inode) == (self.device, self.inode)


def publish_at(dir_fd: int, name: str, chunks: Iterable[bytes], where: str) -> FileStat:
    """``Storage.publish`` within one directory; ``where`` is the full path for messages."""
    with translated(where):
        if lstat(dir_fd, name) is not None:
            raise os_error(errno.EEXIST)
    temp = _write_temp(dir_fd, chunks, where, like=None)
    return name_temp(dir_fd, temp, name, where)


def name_temp(dir_fd: int, temp: Temp, name: str, where: str) -> FileStat:
    """Give a temporary file its free name, durably; the temporary name goes in any case."""
    with translated(where):
        try:
            _link_new(dir_fd, temp, name, where)
        finally:
            unlink_quietly(dir_fd, temp.name)
        try:
            sync_directory(dir_fd)
        except BaseException:
            # Nobody was told yet: back to "nothing there", as after a power cut here.
            if temp.is_at(dir_fd, name):
                unlink_quietly(dir_fd, name)
            raise
    return _arrived(dir_fd, temp, name, where)


def replace_at(dir_fd: int, name: str, chunks: Iterable[bytes], where: str) -> FileStat:
    """``Storage.replace`` within one directory."""
    with translated(where):
        old = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    temp = _write_temp(dir_fd, chunks, where, like=old)
    with translated(where):
        try:
            os.rename(temp.name, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except BaseException:
            unlink_quietly(dir_fd, temp.name)
            raise
        sync_directory(dir_fd)
    return _arrived(dir_fd, temp, name, where)


def sync_directory(dir_fd: int) -> None:
    """Fsync of a directory opened for reading."""
    try:
        os.fsync(dir_fd)
    except OSError as error:
        # EINVAL: this file system has nothing to sync for a directory (fsync(2)).
        if error.errno != errno.EINVAL:
            raise


def take_after(fd: int, like: os.stat_result, mode_bits: int) -> None:
    """Give what ``fd`` has open the group, mode and owner of ``like``, as far as allowed.

    Nothing happens to what this process did not just make itself.
    """
    mine = os.fstat(fd)
    if mine.st_uid != os.geteuid():
        return
    if mine.st_gid != like.st_gid:
        give(fd, -1, like.st_gid)
    os.fchmod(fd, like.st_mode & mode_bits)
    if mine.st_uid != like.st_uid:
        give(fd, like.st_uid, -1)


def give(fd: int, uid: int, gid: int) -> None:
    """Change owner or group (-1: neither) where this process may."""
    try:
        os.fchown(fd, uid, gid)
    except OSError as error:
        if error.errno not in _MAY_BE_REFUSED:
            raise


def _write_temp(
    dir_fd: int, chunks: Iterable[bytes], where: str, *, like: os.stat_result | None
) -> Temp:
    name = f"{TEMP_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with translated(where):
        try:
            fd = os.open(name, flags, 0o666, dir_fd=dir_fd)
        except FileExistsError as error:  # nobody guesses it: not to be told as "path is taken"
            raise StorageError(f"{printable(where)}: the temporary name {name} is taken") from error
    try:
        written = _fill(fd, chunks, where, like)
    except BaseException:
        # After a failed write, fsync or close the kernel may have dropped the bytes and say so
        # only once: the file is abandoned, never synced again.
        unlink_quietly(dir_fd, name)
        raise
    return Temp(name=name, device=written.st_dev, inode=written.st_ino)


def _fill(
    fd: int, chunks: Iterable[bytes], where: str, like: os.stat_result | None
) -> os.stat_result:
    """Write, sync and close; the descriptor is closed in any case."""
    try:
        _write_all(fd, chunks, where)
        with translated(where):
            if like is not None:
                take_after(fd, like, 0o666)
            os.fsync(fd)
            written = os.fstat(fd)
    except BaseException:
        with suppress(OSError):
            os.close(fd)
        raise
    with translated(where):
        os.close(fd)
    return written


def _write_all(fd: int, chunks: Iterable[bytes], where: str) -> None:
    written = started = 0
    for chunk in chunks:
        with translated(where), memoryview(chunk) as rest:
            done = 0
            while done < len(rest):
                done += os.write(fd, rest[done:])
            written += done
            if written - started >= _WRITEBACK_BYTES:
                _start_writeback(fd, started, written - started)
                started = written


def _start_writeback(fd: int, offset: int, length: int) -> None:
    # Measured on ext4: the disk works while we still hash, twice the bandwidth of one big fsync.
    from ckptgov.storage import _linux  # late: ctypes costs start-up time

    _linux.start_writeback(fd, offset, length)


def _link_new(dir_fd: int, temp: Temp, name: str, where: str) -> None:
    # link, not rename: it refuses to replace an existing name.
    try:
        os.link(temp.name, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
    except FileExistsError:
        # NFS sends a call again whose answer was lost: then the one in our way are we.
        if not temp.is_at(dir_fd, name):
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_new(dir_fd, temp.name, name, where)


def _rename_new(dir_fd: int, source: str, target: str, where: str) -> None:
    from ckptgov.storage import _linux

    try:
        _linux.rename_new(dir_fd, os.fsencode(source), os.fsencode(target))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL):
            raise
        raise StorageError(
            f"{printable(where)}: neither hard links nor a rename that refuses a taken name here",
            hint="such a tier cannot hold manifests or journals; use another one",
        ) from error


def unlink_quietly(dir_fd: int, name: str) -> None:
    """Best effort: the error that brought us here is the one to tell."""
    with suppress(OSError):
        os.unlink(name, dir_fd=dir_fd)


def _arrived(dir_fd: int, temp: Temp, name: str, where: str) -> FileStat:
    with translated(where):
        found = lstat(dir_fd, name)
    if found is None or (found.device, found.inode) != (temp.device, temp.inode):
        raise StorageError(f"{printable(where)}: someone else changed the name as it was written")
    return found
