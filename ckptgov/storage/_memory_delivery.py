"""The ``Delivery`` contract on nodes: as on a file system, under a temporary name."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator, Set
from contextlib import contextmanager

from ckptgov.errors import StorageError
from ckptgov.model.files import Attributes, FileStat
from ckptgov.storage import _tree
from ckptgov.storage._covered import Covered
from ckptgov.storage._memory_tree import MemoryTree, Parts
from ckptgov.storage._oserrors import os_error
from ckptgov.storage._paths import raw
from ckptgov.storage._tree import Node
from ckptgov.storage.contract import TEMP_PREFIX, ArrivalProof, PendingDelivery


class MemoryDelivery:
    """One file on its way into a tree; a later one of its path goes on after ``abandon``."""

    def __init__(
        self, tree: MemoryTree, parts: Parts, size_bytes: int, attributes: Attributes | None
    ) -> None:
        self._tree = tree
        self._parts = parts
        self._size_bytes = size_bytes
        self._attributes = attributes
        self._covered = Covered()
        self._is_open = True
        self._sent_bytes = self._resumed_bytes = 0
        if size_bytes < 0:
            raise StorageError(f"{tree.where(parts)}: no file has {size_bytes} bytes")
        with tree.at(parts):
            tree.make(parts[:-1], like=None)
            if parts[-1] in tree.find(parts[:-1]).children:
                raise os_error(errno.EEXIST)
            self._temp, self._node = self._begin()
            self._old_bytes = len(self._node.content)
            tree.held.add(self._node.inode)

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes

    @property
    def resumed_bytes(self) -> int:
        return self._resumed_bytes

    def stands(self, offset: int, length: int) -> bool:
        return 0 < offset + length <= self._old_bytes

    def matches(self, offset: int, piece: memoryview) -> bool:
        with self._working(offset, piece.nbytes) as end:
            if not self.stands(offset, piece.nbytes):
                return False
            if self._node.content[offset:end] != piece.tobytes():
                return False
            self._covered.add(offset, end)
            self._resumed_bytes += piece.nbytes
            return True

    def write(self, offset: int, piece: memoryview) -> None:
        with self._working(offset, piece.nbytes) as end:
            before = self._node.content[:offset].ljust(offset, b"\0")
            self._node.content = before + piece.tobytes() + self._node.content[end:]
            self._covered.add(offset, end)
            self._sent_bytes += piece.nbytes

    def finish(self) -> tuple[FileStat, ArrivalProof]:
        with self._working(0, 0):
            missing = self._covered.first_gap(self._size_bytes)
            if missing is not None:
                raise StorageError(f"byte {missing} was neither written nor compared")
            directory = self._tree.find(self._parts[:-1])
            _tree.require_dir(directory)
            if self._parts[-1] in directory.children:
                raise os_error(errno.EEXIST)
            if directory.children.get(self._temp) is not self._node:
                raise StorageError("someone else took the temporary name away")
            self._tree.leave((*self._parts[:-1], self._temp))
            self._tree.enter(directory, self._parts[-1], self._node)
            self._node.links = 1
            self._settle()
            self._release()
            return self._node.look(), ArrivalProof.NONE

    def abandon(self) -> None:
        if self._is_open and self._node.content:
            self._release()
        self.discard()

    def discard(self) -> None:
        if self._is_open:
            self._release()
            self._tree.drop((*self._parts[:-1], self._temp))

    def _begin(self) -> tuple[str, Node]:
        prefix = f"{TEMP_PREFIX}d{hashlib.sha256(raw(self._parts[-1])).hexdigest()[:16]}-"
        directory = self._tree.find(self._parts[:-1])
        for name, node in directory.children.items():
            if (
                name.startswith(prefix)
                and node.is_file
                and node.inode not in self._tree.held
                and len(node.content) <= self._size_bytes
            ):
                return name, node
        node = self._tree.node(_tree.FILE_MODE)
        name = f"{prefix}{node.inode:016x}"
        self._tree.enter(directory, name, node)
        return name, node

    def _settle(self) -> None:
        node, attributes = self._node, self._attributes
        stamp_ns = self._tree.now_ns()
        node.ctime_ns = node.mtime_ns = stamp_ns
        if attributes is not None:
            node.mode = node.mode & ~0o7777 | attributes.mode & 0o777
            node.uid, node.gid = attributes.uid, attributes.gid
            node.mtime_ns = attributes.mtime_ns

    @contextmanager
    def _working(self, offset: int, length: int) -> Iterator[int]:
        """Under the tree's lock, with where the piece ends; an error ends the delivery."""
        where = self._tree.where(self._parts)
        if not self._is_open:
            raise StorageError(f"{where}: this delivery is over", hint="begin the file anew")
        try:
            with self._tree.at(self._parts):
                if offset < 0 or offset + length > self._size_bytes:
                    raise StorageError(
                        f"{where}: bytes {offset}+{length} of a file of {self._size_bytes}"
                    )
                yield offset + length
        except Exception:
            self.discard()
            raise

    def _release(self) -> None:
        self._is_open = False
        self._tree.held.discard(self._node.inode)


def left_beneath(top: Node, parts: Parts, held: Set[int]) -> Iterator[PendingDelivery]:
    """What lies under a temporary name at or below a directory."""
    for name, node in top.children.items():
        path = "/".join((*parts, name))
        if node.is_dir:
            yield from left_beneath(node, (*parts, name), held)
        elif node.is_file and name.startswith(TEMP_PREFIX):
            yield PendingDelivery(
                path=path,
                handle=path,
                bytes=len(node.content),
                started_at_ns=node.mtime_ns,
                is_held=node.inode in held,
            )
