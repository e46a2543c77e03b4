"""What every store of keys does alike: names lie nowhere, so there is nothing to make or sync."""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import cast

from ckptgov.errors import StorageError
from ckptgov.model.closing import Closing
from ckptgov.model.files import Entry, EntryKind, FileStat, Token
from ckptgov.storage._paths import split
from ckptgov.storage._remove_by_calls import Calls, remove_by_calls
from ckptgov.storage.contract import Removed


def directory_stat() -> FileStat:
    """A common beginning of keys as a directory; it has no times and no owner."""
    return FileStat(
        kind=EntryKind.DIR,
        bytes=0,
        mtime_ns=0,
        ctime_ns=0,
        inode=0,
        device=0,
        mode=stat.S_IFDIR | 0o755,
        uid=0,
        gid=0,
    )


class KeyedStorage:
    """The calls of the contract that are about directories and links."""

    @property
    def root(self) -> str:
        raise NotImplementedError

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        split(path)
        split(like or "")

    def sync_dir(self, path: str) -> None:
        split(path)

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        raise StorageError(f"{self.root}: this kind of storage has no directories to rename")

    def rename(
        self,
        source: str,
        target: str,
        *,
        only: Token | None = None,
        durable: bool = True,
        parents: bool = True,
    ) -> None:
        raise StorageError(f"{self.root}: this kind of storage has no names to move")

    def remove_tree(
        self,
        directory: str,
        *,
        keeps: Callable[[Entry], bool] | None = None,
        gone: Callable[[int], None] | None = None,
    ) -> Removed:
        if not split(directory):
            raise StorageError(f"{self.root}: the root is never removed")
        return remove_by_calls(cast(Calls, self), directory, keeps=keeps, gone=gone)

    def link(self, source: str, target: str) -> None:
        raise StorageError(f"{self.root}: this kind of storage has no hard links")


class KeyedFile(Closing):
    """An open object: durable since it can be opened, and cached nowhere on this side."""

    def sync(self) -> None:
        return

    def drop_cache(self, offset: int, length: int) -> None:
        del offset, length


class OnceDelivery:
    """A delivery of which nothing outlives it."""

    @property
    def resumed_bytes(self) -> int:
        return 0

    def stands(self, offset: int, length: int) -> bool:
        del offset, length
        return False

    def matches(self, offset: int, piece: memoryview) -> bool:
        del offset, piece
        return False
