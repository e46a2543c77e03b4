"""A tree in memory that keeps the whole contract, with setters that tests need."""

from __future__ import annotations

import builtins
import errno
from collections.abc import Callable, Iterable, Sequence

from ckptgov.errors import StorageError
from ckptgov.model.files import Attributes, Entry, EntryKind, FileStat, Token
from ckptgov.storage import _tree
from ckptgov.storage._entries import require_token
from ckptgov.storage._memory_delivery import MemoryDelivery, left_beneath
from ckptgov.storage._memory_tree import MemoryTree
from ckptgov.storage._oserrors import os_error
from ckptgov.storage._paths import kind_of, raw, require_name, split, split_file
from ckptgov.storage._remove_by_calls import remove_by_calls
from ckptgov.storage._tree import MemoryFile, Node
from ckptgov.storage.contract import TEMP_PREFIX, PendingDelivery, Removed, Traits
from ckptgov.storage.mounts import FileSystem


class MemoryStorage(MemoryTree):
    """The ``Storage`` contract without a file system. Threads may share it.

    ``name`` stands for the root's path; ``now_ns`` gives every time stamp. What ``MemoryTree``
    offers is not part of the contract.
    """

    @property
    def root(self) -> str:
        return self._name

    def list(self, path: str) -> Sequence[Entry]:
        parts = split(path)
        with self.at(parts):
            directory = self.find(parts)
            _tree.require_dir(directory)
            entries = [Entry(name, kind_of(node.mode)) for name, node in directory.children.items()]
        return sorted(entries, key=lambda entry: raw(entry.name))

    def stat(self, path: str) -> FileStat:
        parts = split(path)
        with self.at(parts):
            return self.find(parts).look()

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        for name in names:
            require_name(name)
        parts = split(directory)
        with self.at(parts):
            node = self.find(parts)
            _tree.require_dir(node)
            found = [node.children.get(name) for name in names]
            return [None if each is None else each.look() for each in found]

    def read_link(self, path: str) -> str:
        parts = split_file(path)
        with self.at(parts):
            node = self.find(parts)
            if not node.is_link:
                raise os_error(errno.EINVAL)
            return node.text

    def open(self, path: str) -> MemoryFile:
        parts = split_file(path)
        with self.at(parts):
            node = _tree.follow(self._root, parts)
            if node.is_dir:
                raise os_error(errno.EISDIR)
            if not node.is_file:
                raise StorageError(f"{self.where(parts)}: not a regular file; not opened")
            return MemoryFile(node)

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        parts = split_file(path)
        with self.at(parts):
            self.make(parts[:-1], like=None)
            if parts[-1] in self.find(parts[:-1]).children:
                raise os_error(errno.EEXIST)
        content = b"".join(chunks)  # not under the lock: the source may look at this very tree
        with self.at(parts):
            directory = self.find(parts[:-1])
            _tree.require_dir(directory)
            if parts[-1] in directory.children:
                raise os_error(errno.EEXIST)
            node = self.node(_tree.FILE_MODE, content=content)
            self.enter(directory, parts[-1], node)
            return node.look()

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        parts = split_file(path)
        with self.at(parts):
            _require_kind(self.find(parts), EntryKind.FILE)
        content = b"".join(chunks)
        with self.at(parts):
            old = self.find(parts)
            _require_kind(old, EntryKind.FILE)
            node = self.node(old.mode, content=content)
            node.uid, node.gid = old.uid, old.gid
            self.enter(self.find(parts[:-1]), parts[-1], node)
            return node.look()

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        example = None
        if like is not None:
            with self.at(split(like)):
                example = self.find(split(like))
                _tree.require_dir(example)
        with self.at(split(path)):
            self.make(split(path), like=example)

    def remove(self, path: str, *, only: Token | None = None) -> None:
        parts = split_file(path)
        with self.at(parts):
            node = self.find(parts)
            _require_kind(node, EntryKind.FILE, EntryKind.SYMLINK)
            require_token(node.look(), only, self.where(parts))
            self.leave(parts)

    def remove_dir(self, path: str) -> None:
        parts = split(path)
        if not parts:
            raise StorageError(f"{self._name}: the root is never removed")
        with self.at(parts):
            node = self.find(parts)
            _require_kind(node, EntryKind.DIR)
            if node.children:
                raise os_error(errno.ENOTEMPTY)
            self.leave(parts)

    def remove_tree(
        self,
        directory: str,
        *,
        keeps: Callable[[Entry], bool] | None = None,
        gone: Callable[[int], None] | None = None,
    ) -> Removed:
        if not split(directory):
            raise StorageError(f"{self._name}: the root is never removed")
        return remove_by_calls(self, directory, keeps=keeps, gone=gone)

    @property
    def traits(self) -> Traits:
        return Traits()

    def attributes(self, path: str) -> Attributes:
        parts = split_file(path)
        with self.at(parts):
            node = self.find(parts)
            _require_kind(node, EntryKind.FILE)
            return Attributes(
                mode=node.mode & 0o777, uid=node.uid, gid=node.gid, mtime_ns=node.mtime_ns
            )

    def receive(
        self,
        path: str,
        size_bytes: int,
        *,
        attributes: Attributes | None = None,
        digest: str | None = None,
    ) -> MemoryDelivery:
        return MemoryDelivery(self, split_file(path), size_bytes, attributes)

    def pending(self, directory: str) -> Sequence[PendingDelivery]:
        parts = split(directory)
        with self.at(parts):
            top = self.find(parts)
            _tree.require_dir(top)
            found = [*left_beneath(top, parts, self.held)]
        return sorted(found, key=lambda pending: raw(pending.handle))

    def forget(self, pending: PendingDelivery) -> None:
        parts = split_file(pending.handle)
        if not parts[-1].startswith(TEMP_PREFIX):
            raise StorageError(f"{self.where(parts)}: no temporary name; left alone")
        with self.at(parts):
            try:
                node = self.find(parts)
            except FileNotFoundError:
                return
            _require_kind(node, EntryKind.FILE)
            if node.inode in self.held:
                raise StorageError(f"{self.where(parts)}: in use by a living process")
            self.leave(parts)

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        old, new = split(source), split(target)
        if not old:
            raise StorageError(f"{self._name}: the root is never moved")
        with self.at(old), self.at(new):
            node = self.find(old)
            _require_kind(node, EntryKind.DIR)
            if new[: len(old)] == old and new != old:
                raise StorageError(f"{self.where(old)}: no directory is moved into itself")
            node.parent = self._free(new, parents=parents)
            self.leave(old)
            self.enter(node.parent, new[-1], node)

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
        with self.at(old), self.at(new):
            node = self.find(old)
            _require_kind(node, EntryKind.FILE, EntryKind.SYMLINK)
            require_token(node.look(), only, self.where(old))
            directory = self._free(new, parents=parents)
            self.leave(old)
            node.links += 1  # leave() took one away
            node.ctime_ns = self._now_ns()
            self.enter(directory, new[-1], node)

    def link(self, source: str, target: str) -> None:
        old, new = split_file(source), split_file(target)
        with self.at(old), self.at(new):
            node = self.find(old)
            _require_kind(node, EntryKind.FILE)
            self.enter(self._free(new), new[-1], node)
            node.links += 1

    def _free(self, parts: tuple[str, ...], *, parents: bool = True) -> Node:
        """The directory of a free name, made if it is missing; EEXIST where it is taken."""
        if not parts:
            raise os_error(errno.EEXIST)
        if parents:
            self.make(parts[:-1], like=None)
        directory = self.find(parts[:-1])
        if parts[-1] in directory.children:
            raise os_error(errno.EEXIST)
        return directory

    def sync_dir(self, path: str) -> None:
        parts = split(path)
        with self.at(parts):
            _tree.require_dir(self.find(parts))

    def close(self) -> None:
        """Nothing is held open; the tree stays."""

    def filesystem(self) -> FileSystem:
        return FileSystem(
            type="memory",
            source=self._name,
            mount_point=self._name,
            is_network=False,
            granularity_ns=self._granularity_ns,
        )


def _require_kind(node: Node, *kinds: EntryKind) -> None:
    kind = kind_of(node.mode)
    if kind in kinds:
        return
    match kind:
        case EntryKind.SYMLINK:
            raise os_error(errno.ELOOP)
        case EntryKind.DIR:
            raise os_error(errno.EISDIR)
        case EntryKind.FILE:
            raise os_error(errno.ENOTDIR)
    raise StorageError("neither a file nor a directory; left alone")
