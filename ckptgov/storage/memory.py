"""A tree in memory that keeps the whole contract, with setters that tests need."""

from __future__ import annotations

import builtins
import errno
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from ckptgov.errors import StorageError
from ckptgov.model.files import Entry, EntryKind, FileStat
from ckptgov.storage import _tree
from ckptgov.storage._oserrors import os_error, translated
from ckptgov.storage._paths import kind_of, raw, require_name, split, split_file
from ckptgov.storage._tree import MemoryFile, Node
from ckptgov.storage.mounts import FileSystem

Parts = tuple[str, ...]


class MemoryStorage:
    """The ``Storage`` contract without a file system. Threads may share it.

    ``name`` stands for the root's path; ``now_ns`` gives every time stamp. The ``put_*`` calls,
    ``touch`` and ``refuse`` are not part of the contract: they are what other processes, the
    operator and broken disks do to a tree.
    """

    def __init__(
        self,
        name: str = "memory",
        *,
        now_ns: Callable[[], int] = time.time_ns,
        granularity_ns: int = 1,
    ) -> None:
        self._name = name
        self._now_ns = now_ns
        self._granularity_ns = granularity_ns
        self._inodes = itertools.count(1)
        self._lock = threading.RLock()
        self._refused: dict[Parts, StorageError] = {}
        self._root = self._node(_tree.DIR_MODE)

    @property
    def root(self) -> str:
        return self._name

    def list(self, path: str) -> Sequence[Entry]:
        parts = split(path)
        with self._at(parts):
            directory = self._find(parts)
            _tree.require_dir(directory)
            entries = [Entry(name, kind_of(node.mode)) for name, node in directory.children.items()]
        return sorted(entries, key=lambda entry: raw(entry.name))

    def stat(self, path: str) -> FileStat:
        parts = split(path)
        with self._at(parts):
            return self._find(parts).look()

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        for name in names:
            require_name(name)
        parts = split(directory)
        with self._at(parts):
            node = self._find(parts)
            _tree.require_dir(node)
            found = [node.children.get(name) for name in names]
            return [None if each is None else each.look() for each in found]

    def read_link(self, path: str) -> str:
        parts = split_file(path)
        with self._at(parts):
            node = self._find(parts)
            if not node.is_link:
                raise os_error(errno.EINVAL)
            return node.text

    def open(self, path: str) -> MemoryFile:
        parts = split_file(path)
        with self._at(parts):
            node = _tree.follow(self._root, parts)
            if node.is_dir:
                raise os_error(errno.EISDIR)
            if not node.is_file:
                raise StorageError(f"{self._where(parts)}: not a regular file; not opened")
            return MemoryFile(node)

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        parts = split_file(path)
        with self._at(parts):
            self._make(parts[:-1], like=None)
            if parts[-1] in self._find(parts[:-1]).children:
                raise os_error(errno.EEXIST)
        content = b"".join(chunks)  # not under the lock: the source may look at this very tree
        with self._at(parts):
            directory = self._find(parts[:-1])
            _tree.require_dir(directory)
            if parts[-1] in directory.children:
                raise os_error(errno.EEXIST)
            node = self._node(_tree.FILE_MODE, content=content)
            self._enter(directory, parts[-1], node)
            return node.look()

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        parts = split_file(path)
        with self._at(parts):
            _require_kind(self._find(parts), EntryKind.FILE)
        content = b"".join(chunks)
        with self._at(parts):
            old = self._find(parts)
            _require_kind(old, EntryKind.FILE)
            node = self._node(old.mode, content=content)
            node.uid, node.gid = old.uid, old.gid
            self._enter(self._find(parts[:-1]), parts[-1], node)
            return node.look()

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        example = None
        if like is not None:
            with self._at(split(like)):
                example = self._find(split(like))
                _tree.require_dir(example)
        with self._at(split(path)):
            self._make(split(path), like=example)

    def remove(self, path: str) -> None:
        parts = split_file(path)
        with self._at(parts):
            _require_kind(self._find(parts), EntryKind.FILE, EntryKind.SYMLINK)
            self._leave(parts)

    def remove_dir(self, path: str) -> None:
        parts = split(path)
        if not parts:
            raise StorageError(f"{self._name}: the root is never removed")
        with self._at(parts):
            node = self._find(parts)
            _require_kind(node, EntryKind.DIR)
            if node.children:
                raise os_error(errno.ENOTEMPTY)
            self._leave(parts)

    def sync_dir(self, path: str) -> None:
        parts = split(path)
        with self._at(parts):
            _tree.require_dir(self._find(parts))

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

    # What others do to the tree.

    def put_file(
        self,
        path: str,
        content: bytes,
        *,
        mtime_ns: int | None = None,
        btime_ns: int | None = None,
    ) -> FileStat:
        """Write a file as a trainer does: parents made, an existing file overwritten in place."""
        parts = split_file(path)
        with self._at(parts):
            self._make(parts[:-1], like=None)
            directory = self._find(parts[:-1])
            node = directory.children.get(parts[-1])
            if node is None or not node.is_file:
                node = self._node(_tree.FILE_MODE)
                self._enter(directory, parts[-1], node)
            node.content = bytes(content)
            node.ctime_ns = self._now_ns()
            node.mtime_ns = node.ctime_ns if mtime_ns is None else mtime_ns
            node.btime_ns = node.btime_ns if btime_ns is None else btime_ns
            return node.look()

    def put_link(self, path: str, text: str) -> None:
        """Make a symlink with this text, whatever it leads to."""
        self._put(path, self._node(_tree.LINK_MODE, text=text))

    def put_fifo(self, path: str) -> None:
        """Make an entry that is neither file, directory nor symlink."""
        self._put(path, self._node(_tree.FIFO_MODE))

    def touch(
        self,
        path: str,
        *,
        mtime_ns: int | None = None,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> None:
        """Set times, permission bits and owner as utime, chmod and chown do; ctime becomes now."""
        parts = split(path)
        with self._at(parts):
            node = self._find(parts)
            node.mtime_ns = node.mtime_ns if mtime_ns is None else mtime_ns
            node.mode = node.mode if mode is None else node.mode & ~0o7777 | mode
            node.uid = node.uid if uid is None else uid
            node.gid = node.gid if gid is None else gid
            node.ctime_ns = self._now_ns()

    def refuse(self, path: str, error: StorageError | None) -> None:
        """Let every call at ``path`` or beneath it raise ``error``; None ends that."""
        if error is None:
            self._refused.pop(split(path), None)
        else:
            self._refused[split(path)] = error

    def _put(self, path: str, node: Node) -> None:
        parts = split_file(path)
        with self._at(parts):
            self._make(parts[:-1], like=None)
            self._enter(self._find(parts[:-1]), parts[-1], node)

    @contextmanager
    def _at(self, parts: Parts) -> Iterator[None]:
        with self._lock, translated(self._where(parts)):
            for length in range(len(parts) + 1):
                if error := self._refused.get(parts[:length]):
                    raise error
            yield

    def _where(self, parts: Parts) -> str:
        return "/".join((self._name, *parts))

    def _node(self, mode: int, *, content: bytes = b"", text: str = "") -> Node:
        now_ns = self._now_ns()
        return Node(
            mode=mode,
            inode=next(self._inodes),
            mtime_ns=now_ns,
            ctime_ns=now_ns,
            btime_ns=now_ns,
            content=content,
            text=text,
        )

    def _find(self, parts: Parts) -> Node:
        node = self._root
        for name in parts:
            node = _tree.child(node, name)
        return node

    def _make(self, parts: Parts, *, like: Node | None) -> None:
        here = self._root
        for name in parts:
            if name not in here.children:
                node = self._node(_tree.DIR_MODE if like is None else like.mode)
                if like is not None:
                    node.uid, node.gid = like.uid, like.gid
                node.parent = here
                self._enter(here, name, node)
            here = here.children[name]
            _tree.require_dir(here)

    def _enter(self, directory: Node, name: str, node: Node) -> None:
        directory.children[name] = node
        directory.mtime_ns = directory.ctime_ns = self._now_ns()

    def _leave(self, parts: Parts) -> None:
        directory = self._find(parts[:-1])
        del directory.children[parts[-1]]
        directory.mtime_ns = directory.ctime_ns = self._now_ns()


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
