"""Files beneath one directory of a POSIX file system, local or shared."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from ckptgov.errors import StorageError
from ckptgov.model.files import Entry, EntryKind, FileStat
from ckptgov.storage._oserrors import os_error, translate, translated
from ckptgov.storage._paths import kind_of, printable, raw, require_name, split, split_file
from ckptgov.storage._posix_file import PosixFile
from ckptgov.storage._resolve import DIR_PATH, DIR_READ, Parts, Resolution, Resolver, step
from ckptgov.storage._stat import lstat
from ckptgov.storage._write import publish_at, replace_at, sync_directory, take_after
from ckptgov.storage.mounts import FileSystem, filesystem_of_fd


class PosixStorage:
    """The ``Storage`` contract on a directory.

    The root is opened once: what is mounted or renamed over its path later is not looked at.
    Every call resolves its path anew beneath that root and acts on what it opened. Threads may
    share one storage; close it only when none uses it.

    Raises:
        FileNotFoundError, NotADirectoryError: ``root`` is no directory.
        StorageError: it may not be opened, or the kernel lacks the asked resolution.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, resolution: Resolution = Resolution.AUTO
    ) -> None:
        self._fd = -1
        self._root = os.path.abspath(root)
        self._resolver = Resolver(resolution)
        with translated(self._root):
            self._fd = os.open(self._root, DIR_READ)

    @property
    def root(self) -> str:
        return self._root

    def close(self) -> None:
        """Give the root's descriptor back; every later call raises StorageError."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()

    def list(self, path: str) -> Sequence[Entry]:
        with (
            self._directory(split(path), DIR_READ) as (fd, where),
            translated(where),
            os.scandir(fd) as found,
        ):
            entries = [Entry(entry.name, _entry_kind(entry)) for entry in found]
        entries.sort(key=lambda entry: raw(entry.name))
        return entries

    def stat(self, path: str) -> FileStat:
        parts = split(path) or (".",)
        try:  # spelled out, not by the context managers: a look asks this once per shard
            if len(parts) == 1:
                found = lstat(self._fd, parts[-1], birth=True)
            else:
                fd = self._resolver.open(self._fd, parts[:-1], DIR_PATH)
                try:
                    found = lstat(fd, parts[-1], birth=True)
                finally:
                    os.close(fd)
            if found is None:
                raise os_error(errno.ENOENT)
        except OSError as error:
            raise translate(error, self._where(parts)) from error
        return found

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        for name in names:
            require_name(name)
        with self._directory(split(directory), DIR_PATH) as (fd, where), translated(where):
            return [lstat(fd, name, birth=birth) for name in names]

    def read_link(self, path: str) -> str:
        with self._parent(split_file(path)) as (fd, name, where), translated(where):
            return os.readlink(name, dir_fd=fd)

    def open(self, path: str) -> PosixFile:
        parts = split_file(path)
        where = self._where(parts)
        with translated(where):
            # Look before opening for real: opening a device or a FIFO can have effects.
            os.close(self._open_regular(parts, os.O_PATH, where))
            # A FIFO may have taken its place since; O_NONBLOCK never waits for its writer.
            fd = self._open_regular(parts, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, where)
            os.set_blocking(fd, True)
        return PosixFile(fd, where)

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        parts = split_file(path)
        self._make(parts[:-1], like=None)
        with self._parent(parts, DIR_READ) as (fd, name, where):
            return publish_at(fd, name, chunks, where)

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        with self._parent(split_file(path), DIR_READ) as (fd, name, where):
            _require_kind(fd, name, where, EntryKind.FILE)
            return replace_at(fd, name, chunks, where)

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        parts = split(path)
        example = None
        if like is not None:
            with self._directory(split(like), DIR_PATH) as (fd, _):
                example = os.fstat(fd)
        self._make(parts, like=example)

    def remove(self, path: str) -> None:
        with self._parent(split_file(path), DIR_READ) as (fd, name, where):
            _require_kind(fd, name, where, EntryKind.FILE, EntryKind.SYMLINK)
            with translated(where):
                os.unlink(name, dir_fd=fd)
                sync_directory(fd)

    def remove_dir(self, path: str) -> None:
        parts = split(path)
        if not parts:
            raise StorageError(f"{printable(self._root)}: the root is never removed")
        with self._parent(parts, DIR_READ) as (fd, name, where):
            _require_kind(fd, name, where, EntryKind.DIR)
            with translated(where):
                os.rmdir(name, dir_fd=fd)
                sync_directory(fd)

    def sync_dir(self, path: str) -> None:
        with self._directory(split(path), DIR_READ) as (fd, where), translated(where):
            sync_directory(fd)

    def filesystem(self) -> FileSystem:
        return filesystem_of_fd(self._fd, os.path.realpath(self._root))

    def _where(self, parts: Parts) -> str:
        return "/".join((self._root.rstrip("/"), *parts)) or "/"

    @contextmanager
    def _directory(self, parts: Parts, flags: int) -> Iterator[tuple[int, str]]:
        """The directory itself, open, and its full path."""
        where = self._where(parts)
        with translated(where):
            fd = self._resolver.open(self._fd, parts, flags)
        try:
            yield fd, where
        finally:
            os.close(fd)

    @contextmanager
    def _parent(self, parts: Parts, flags: int = DIR_PATH) -> Iterator[tuple[int, str, str]]:
        """The directory that holds an entry, open, the entry's name and its full path."""
        name, where = parts[-1], self._where(parts)
        if len(parts) == 1:
            yield self._fd, name, where
            return
        with translated(where):
            fd = self._resolver.open(self._fd, parts[:-1], flags)
        try:
            yield fd, name, where
        finally:
            os.close(fd)

    def _open_regular(self, parts: Parts, flags: int, where: str) -> int:
        fd = self._resolver.open(self._fd, parts, flags, follow=True)
        try:
            kind = kind_of(os.fstat(fd).st_mode)
            if kind is EntryKind.DIR:
                raise os_error(errno.EISDIR)
            if kind is not EntryKind.FILE:
                raise StorageError(f"{printable(where)}: not a regular file; not opened")
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _make(self, parts: Parts, *, like: os.stat_result | None) -> None:
        try:
            with self._directory(parts, DIR_PATH):
                return
        except FileNotFoundError:
            pass
        with translated(self._where(parts)):
            fd = self._resolver.open(self._fd, (), DIR_PATH)
            try:
                for name in parts:
                    child = _enter(fd, name, like)
                    os.close(fd)
                    fd = child
            finally:
                os.close(fd)


def _enter(dir_fd: int, name: str, like: os.stat_result | None) -> int:
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


def _entry_kind(entry: os.DirEntry[str]) -> EntryKind:
    # From d_type; where the file system leaves it unknown each of these does one lstat.
    if entry.is_file(follow_symlinks=False):
        return EntryKind.FILE
    if entry.is_dir(follow_symlinks=False):
        return EntryKind.DIR
    return EntryKind.SYMLINK if entry.is_symlink() else EntryKind.OTHER


def _require_kind(dir_fd: int, name: str, where: str, *kinds: EntryKind) -> None:
    with translated(where):
        found = lstat(dir_fd, name)
        if found is None:
            raise os_error(errno.ENOENT)
        if found.kind in kinds:
            return
        match found.kind:
            case EntryKind.SYMLINK:
                raise os_error(errno.ELOOP)
            case EntryKind.DIR:
                raise os_error(errno.EISDIR)
            case EntryKind.FILE:
                raise os_error(errno.ENOTDIR)
    raise StorageError(f"{printable(where)}: neither a file nor a directory; left alone")
