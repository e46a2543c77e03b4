"""Files beneath one directory of a POSIX file system, local or shared."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ckptgov.errors import StorageError
from ckptgov.model.closing import Closing
from ckptgov.model.files import Attributes, Entry, EntryKind, FileStat, Token
from ckptgov.storage._entries import (
    enter,
    entry_kind,
    link_file,
    move_directory,
    move_file,
    require_kind,
    require_token,
)
from ckptgov.storage._oserrors import os_error, translate, translated
from ckptgov.storage._paths import kind_of, printable, raw, require_name, split, split_file
from ckptgov.storage._posix_file import PosixFile
from ckptgov.storage._resolve import DIR_PATH, DIR_READ, Parts, Resolution, Resolver
from ckptgov.storage._stat import lstat
from ckptgov.storage._write import publish_at, replace_at, sync_directory
from ckptgov.storage.contract import TEMP_PREFIX, PendingDelivery, Removed, Traits
from ckptgov.storage.mounts import FileSystem, filesystem_of_fd, mounts_at_or_below

if TYPE_CHECKING:
    from ckptgov.storage._delivery import PosixDelivery
    from ckptgov.storage._temporary import Leftovers


class PosixStorage(Closing):
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
        self._leftovers: Leftovers | None = None
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

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()

    def list(self, path: str) -> Sequence[Entry]:
        with (
            self._directory(split(path), DIR_READ) as (fd, where),
            translated(where),
            os.scandir(fd) as found,
        ):
            entries = [Entry(entry.name, entry_kind(entry)) for entry in found]
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
            require_kind(fd, name, where, EntryKind.FILE)
            return replace_at(fd, name, chunks, where)

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        parts = split(path)
        example = None
        if like is not None:
            with self._directory(split(like), DIR_PATH) as (fd, _):
                example = os.fstat(fd)
        self._make(parts, like=example)

    def remove(self, path: str, *, only: Token | None = None) -> None:
        with self._parent(split_file(path), DIR_READ) as (fd, name, where):
            found = require_kind(fd, name, where, EntryKind.FILE, EntryKind.SYMLINK)
            require_token(found, only, where)
            with translated(where):
                os.unlink(name, dir_fd=fd)
                sync_directory(fd)

    def remove_dir(self, path: str) -> None:
        parts = split(path)
        if not parts:
            raise StorageError(f"{printable(self._root)}: the root is never removed")
        with self._parent(parts, DIR_READ) as (fd, name, where):
            require_kind(fd, name, where, EntryKind.DIR)
            with translated(where):
                os.rmdir(name, dir_fd=fd)
                sync_directory(fd)

    def remove_tree(
        self,
        directory: str,
        *,
        keeps: Callable[[Entry], bool] | None = None,
        gone: Callable[[int], None] | None = None,
    ) -> Removed:
        from ckptgov.storage import _remove_tree

        parts = split(directory)
        if not parts:
            raise StorageError(f"{printable(self._root)}: the root is never removed")
        removal = _remove_tree.Removal(
            self._root, is_network=self._is_network(), keeps=keeps, gone=gone
        )
        try:
            with self._parent(parts, DIR_READ) as (fd, name, where), translated(where):
                return removal.of(fd, name, directory)
        except FileNotFoundError:
            return Removed()

    @property
    def traits(self) -> Traits:
        return Traits()

    def attributes(self, path: str) -> Attributes:
        with self._parent(split_file(path)) as (fd, name, where), translated(where):
            require_kind(fd, name, where, EntryKind.FILE)
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        return Attributes(
            mode=found.st_mode & 0o777,
            uid=found.st_uid,
            gid=found.st_gid,
            mtime_ns=found.st_mtime_ns,
        )

    def receive(
        self,
        path: str,
        size_bytes: int,
        *,
        attributes: Attributes | None = None,
        digest: str | None = None,
    ) -> PosixDelivery:
        from ckptgov.storage import _delivery, _temporary  # late: hashlib costs start-up time

        parts = split_file(path)
        self._leftovers = self._leftovers or _temporary.Leftovers()
        self._make(parts[:-1], like=None)
        with self._parent(parts, DIR_READ) as (fd, name, where):
            return _delivery.receive_at(
                fd, name, size_bytes, where, attributes=attributes, leftovers=self._leftovers
            )

    def pending(self, directory: str) -> Sequence[PendingDelivery]:
        from ckptgov.storage import _pending

        return _pending.beneath(self._directory, split(directory))

    def forget(self, pending: PendingDelivery) -> None:
        from ckptgov.storage import _pending

        parts = split_file(pending.handle)
        if not parts[-1].startswith(TEMP_PREFIX):
            raise StorageError(f"{printable(self._where(parts))}: no temporary name; left alone")
        with (
            suppress(FileNotFoundError),
            self._parent(parts, DIR_READ) as (fd, name, where),
            translated(where),
        ):
            _pending.remove(fd, name, where)

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        old, new = split(source), split(target)
        if not old:
            raise StorageError(f"{printable(self._root)}: the root is never moved")
        with self._parent(old, DIR_READ) as (old_fd, old_name, where):
            require_kind(old_fd, old_name, where, EntryKind.DIR)
            if new[: len(old)] == old and new != old:
                raise StorageError(f"{printable(where)}: no directory is moved into itself")
            if not new:
                raise os_error(errno.EEXIST)
            self._require_no_mount(old)
            if parents:
                self._make(new[:-1], like=None)
            with self._parent(new, DIR_READ) as (new_fd, new_name, there), translated(there):
                move_directory(old_fd, old_name, new_fd, new_name, there)

    def rename(
        self,
        source: str,
        target: str,
        *,
        only: Token | None = None,
        durable: bool = True,
        parents: bool = True,
    ) -> None:
        old, new = split_file(source), split_file(target)
        with self._parent(old, DIR_READ) as (old_fd, old_name, where):
            found = require_kind(old_fd, old_name, where, EntryKind.FILE, EntryKind.SYMLINK)
            require_token(found, only, where)
            if parents:
                self._make(new[:-1], like=None)
            with self._parent(new, DIR_READ) as (new_fd, new_name, there), translated(there):
                move_file(old_fd, old_name, new_fd, new_name, there, durable=durable)

    def link(self, source: str, target: str) -> None:
        old, new = split_file(source), split_file(target)
        with self._parent(old) as (old_fd, old_name, where):
            require_kind(old_fd, old_name, where, EntryKind.FILE)
            self._make(new[:-1], like=None)
            with self._parent(new, DIR_READ) as (new_fd, new_name, there), translated(there):
                link_file(old_fd, old_name, new_fd, new_name, there)

    def sync_dir(self, path: str) -> None:
        with self._directory(split(path), DIR_READ) as (fd, where), translated(where):
            sync_directory(fd)

    def filesystem(self) -> FileSystem:
        return filesystem_of_fd(self._fd, os.path.realpath(self._root))

    def _is_network(self) -> bool:
        with suppress(StorageError):
            return self.filesystem().is_network
        return False

    def _require_no_mount(self, parts: Parts) -> None:
        """A directory takes what is mounted in it along, and that is not ours to move."""
        real = os.path.realpath(self._root)
        found = mounts_at_or_below("/".join((real.rstrip("/"), *parts)))
        if found:
            raise StorageError(
                f"{printable(found[0])}: is a mount point; nothing that holds one is moved",
                hint="unmount it first",
            )

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
                    child = enter(fd, name, like)
                    os.close(fd)
                    fd = child
            finally:
                os.close(fd)
