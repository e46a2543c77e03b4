"""The tree behind :class:`~ckptgov.storage.memory.MemoryStorage`, and what others do to it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckptgov.errors import StorageError
from ckptgov.model.files import FileStat
from ckptgov.storage import _tree
from ckptgov.storage._oserrors import translated
from ckptgov.storage._paths import split, split_file
from ckptgov.storage._tree import Node

Parts = tuple[str, ...]


class MemoryTree:
    """Nodes beneath a root, one lock and one clock for all of them.

    The ``put_*`` calls, ``touch`` and ``refuse`` are what other processes, the operator and
    broken disks do; the rest is for the storage and its deliveries.
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
        self._root = self.node(_tree.DIR_MODE)
        self.held: set[int] = set()  # inodes of deliveries that somebody works on

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
        with self.at(parts):
            self.make(parts[:-1], like=None)
            directory = self.find(parts[:-1])
            node = directory.children.get(parts[-1])
            if node is None or not node.is_file:
                node = self.node(_tree.FILE_MODE)
                self.enter(directory, parts[-1], node)
            node.content = bytes(content)
            node.ctime_ns = self._now_ns()
            node.mtime_ns = node.ctime_ns if mtime_ns is None else mtime_ns
            node.btime_ns = node.btime_ns if btime_ns is None else btime_ns
            return node.look()

    def put_link(self, path: str, text: str) -> None:
        """Make a symlink with this text, whatever it leads to."""
        self.put(path, self.node(_tree.LINK_MODE, text=text))

    def put_fifo(self, path: str) -> None:
        """Make an entry that is neither file, directory nor symlink."""
        self.put(path, self.node(_tree.FIFO_MODE))

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
        with self.at(parts):
            node = self.find(parts)
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

    def put(self, path: str, node: Node) -> None:
        parts = split_file(path)
        with self.at(parts):
            self.make(parts[:-1], like=None)
            self.enter(self.find(parts[:-1]), parts[-1], node)

    # For the storage, under the lock.

    @contextmanager
    def at(self, parts: Parts) -> Iterator[None]:
        with self._lock, translated(self.where(parts)):
            for length in range(len(parts) + 1):
                if error := self._refused.get(parts[:length]):
                    raise error
            yield

    def where(self, parts: Parts) -> str:
        return "/".join((self._name, *parts))

    def node(self, mode: int, *, content: bytes = b"", text: str = "") -> Node:
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

    def find(self, parts: Parts) -> Node:
        node = self._root
        for name in parts:
            node = _tree.child(node, name)
        return node

    def make(self, parts: Parts, *, like: Node | None) -> None:
        here = self._root
        for name in parts:
            if name not in here.children:
                node = self.node(_tree.DIR_MODE if like is None else like.mode)
                if like is not None:
                    node.uid, node.gid = like.uid, like.gid
                node.parent = here
                self.enter(here, name, node)
            here = here.children[name]
            _tree.require_dir(here)

    def enter(self, directory: Node, name: str, node: Node) -> None:
        directory.children[name] = node
        directory.mtime_ns = directory.ctime_ns = self._now_ns()

    def leave(self, parts: Parts) -> None:
        directory = self.find(parts[:-1])
        directory.children.pop(parts[-1]).links -= 1
        directory.mtime_ns = directory.ctime_ns = self._now_ns()

    def drop(self, parts: Parts) -> None:
        """Remove a name if it is there, also where ``refuse`` forbids others to."""
        with self._lock:
            try:
                self.leave(parts)
            except (KeyError, OSError):
                return

    def now_ns(self) -> int:
        """The tree's clock."""
        return self._now_ns()
