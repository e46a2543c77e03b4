"""Entries of an open directory: their kind, and directories made, moved and linked durably.

Each works on directory descriptors and plain names, so nothing here can leave a directory.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from ckptgov.errors import StaleState, StorageError
from ckptgov.model.files import EntryKind, FileStat, Token
from ckptgov.storage._oserrors import os_error, translated
from ckptgov.storage._paths import printable
from ckptgov.storage._resolve import DIR_PATH, DIR_READ, step
from ckptgov.storage._stat import lstat
from ckptgov.storage._write import sync_directory, take_after, unlink_quietly

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


def enter(dir_fd: int, name: str, like: os.stat_result | None) -> int:
    """Open a directory in a directory, made durably if it is missing."""
    with suppress(FileNotFoundError):
        return step(dir_fd, name, DIR_PATH)
    try:
        os.mkdir(name, 0o777 if like is None else like.st_mode & 0o777, dir_fd=dir_fd)
    except FileExistsError:  # another process was quicker
        return step(dir_fd, name, DIR_PATH)
    try:
        return _settle(dir_fd, name, like)
    except BaseException:
        # Left behind it would look made and durable to the next caller.
        with suppress(OSError):
            os.rmdir(name, dir_fd=dir_fd)
        raise


def _settle(dir_fd: int, name: str, like: os.stat_result | None) -> int:
    child = step(dir_fd, name, DIR_READ)
    try:
        if like is not None:
            take_after(child, like, 0o7777)
        sync_directory(child)
        parent = os.open(".", DIR_READ, dir_fd=dir_fd)
        try:
            sync_directory(parent)
        finally:
            os.close(parent)
    except BaseException:
        os.close(child)
        raise
    return child


def entry_kind(entry: os.DirEntry[str]) -> EntryKind:
    # From d_type; where the file system leaves it unknown each of these does one lstat.
    if entry.is_file(follow_symlinks=False):
        return EntryKind.FILE
    if entry.is_dir(follow_symlinks=False):
        return EntryKind.DIR
    return EntryKind.SYMLINK if entry.is_symlink() else EntryKind.OTHER


def require_kind(dir_fd: int, name: str, where: str, *kinds: EntryKind) -> FileStat:
    """The entry as it is, if it is of one of these kinds."""
    with translated(where):
        found = lstat(dir_fd, name)
        if found is None:
            raise os_error(errno.ENOENT)
        if found.kind in kinds:
            return found
        match found.kind:
            case EntryKind.SYMLINK:
                raise os_error(errno.ELOOP)
            case EntryKind.DIR:
                raise os_error(errno.EISDIR)
            case EntryKind.FILE:
                raise os_error(errno.ENOTDIR)
    raise StorageError(f"{printable(where)}: neither a file nor a directory; left alone")


def require_token(found: FileStat, only: Token | None, where: str) -> None:
    """Raise StaleState where the entry is another one than was meant."""
    if only is not None and not found.token.same_content(only):
        raise StaleState(f"{printable(where)}: another file has this name by now; left alone")


def move_directory(source_fd: int, source: str, target_fd: int, target: str, where: str) -> None:
    """``Storage.rename_dir`` between two directories opened for reading."""
    from ckptgov.storage import _linux  # late: ctypes costs start-up time

    try:
        _linux.move_new(source_fd, os.fsencode(source), target_fd, os.fsencode(target))
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise _across(where) from error
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        _move_plainly(source_fd, source, target_fd, target)
    sync_directory(target_fd)
    sync_directory(source_fd)


def _move_plainly(source_fd: int, source: str, target_fd: int, target: str) -> None:
    """Where the kernel or the file system (NFS, Lustre) has no rename that refuses a taken name.

    rename(2) itself never replaces a directory that holds anything, nor a file by a directory.
    An empty directory that appears after the look would be replaced, and nothing is lost by that.
    """
    if lstat(target_fd, target) is not None:
        raise os_error(errno.EEXIST)
    try:
        os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR, errno.EEXIST):
            raise os_error(errno.EEXIST) from error
        raise


def move_file(
    source_fd: int, source: str, target_fd: int, target: str, where: str, *, durable: bool
) -> None:
    """``Storage.rename`` between two directories opened for reading."""
    from ckptgov.storage import _linux  # late: ctypes costs start-up time

    try:
        _linux.move_new(source_fd, os.fsencode(source), target_fd, os.fsencode(target))
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise _across(where) from error
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        _move_file_plainly(source_fd, source, target_fd, target)
    if durable:
        sync_directory(target_fd)
        sync_directory(source_fd)


def _move_file_plainly(source_fd: int, source: str, target_fd: int, target: str) -> None:
    """Without a rename that refuses a taken name: two names for a moment, or a look before."""
    try:
        os.link(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd, follow_symlinks=False)
    except FileExistsError:
        # NFS sends a call again whose answer was lost; or we were killed between the two names.
        if not _is_one_file(source_fd, source, target_fd, target):
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if lstat(target_fd, target) is not None:
            raise os_error(errno.EEXIST) from error
        os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
        return
    os.unlink(source, dir_fd=source_fd)


def link_file(source_fd: int, source: str, target_fd: int, target: str, where: str) -> None:
    """``Storage.link`` between two directories; the target's is opened for reading."""
    if lstat(target_fd, target) is not None:
        raise os_error(errno.EEXIST)
    try:
        os.link(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd, follow_symlinks=False)
    except FileExistsError:
        # NFS sends a call again whose answer was lost: then the one in our way are we.
        if not _is_one_file(source_fd, source, target_fd, target):
            raise
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise _across(where) from error
        if error.errno not in _NO_LINKS:
            raise
        raise StorageError(
            f"{printable(where)}: no hard link can be made here ({error.strerror})",
            hint="the tier has none, or the file is another user's (fs.protected_hardlinks)",
        ) from error
    try:
        sync_directory(target_fd)
    except BaseException:
        unlink_quietly(target_fd, target)  # nobody was told of it yet
        raise


def _is_one_file(one_fd: int, one: str, other_fd: int, other: str) -> bool:
    first, second = lstat(one_fd, one), lstat(other_fd, other)
    return (
        first is not None
        and second is not None
        and (first.device, first.inode) == (second.device, second.inode)
    )


def _across(where: str) -> StorageError:
    return StorageError(
        f"{printable(where)}: another file system is mounted in between",
        hint="a tier is one file system; give the other one a tier of its own",
    )
