"""What wrappers share: a storage, its open files and its deliveries, all handed through."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ckptgov.model.closing import Closing
from ckptgov.model.files import Attributes, Entry, FileStat, OpenFile, Token
from ckptgov.storage.contract import (
    ArrivalProof,
    Delivery,
    PendingDelivery,
    Removed,
    Storage,
    Traits,
)

if TYPE_CHECKING:
    from ckptgov.storage.mounts import FileSystem


class WrappedStorage:
    """``inner`` as it is. A wrapper overrides what it changes."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    @property
    def retries_itself(self) -> bool:
        """Whether a layer below makes failed calls again."""
        return retries_itself(self.inner)

    @property
    def root(self) -> str:
        return self.inner.root

    def list(self, path: str) -> Sequence[Entry]:
        return self.inner.list(path)

    def stat(self, path: str) -> FileStat:
        return self.inner.stat(path)

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        return self.inner.stat_many(directory, names, birth=birth)

    def read_link(self, path: str) -> str:
        return self.inner.read_link(path)

    def open(self, path: str) -> OpenFile:
        return self.inner.open(path)

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        return self.inner.publish(path, chunks)

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        return self.inner.replace(path, chunks)

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        self.inner.make_dirs(path, like=like)

    def remove(self, path: str, *, only: Token | None = None) -> None:
        self.inner.remove(path, only=only)

    def remove_dir(self, path: str) -> None:
        self.inner.remove_dir(path)

    def remove_tree(
        self,
        directory: str,
        *,
        keeps: Callable[[Entry], bool] | None = None,
        gone: Callable[[int], None] | None = None,
    ) -> Removed:
        return self.inner.remove_tree(directory, keeps=keeps, gone=gone)

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    def attributes(self, path: str) -> Attributes:
        return self.inner.attributes(path)

    def receive(
        self,
        path: str,
        size_bytes: int,
        *,
        attributes: Attributes | None = None,
        digest: str | None = None,
    ) -> Delivery:
        return self.inner.receive(path, size_bytes, attributes=attributes, digest=digest)

    def pending(self, directory: str) -> Sequence[PendingDelivery]:
        return self.inner.pending(directory)

    def forget(self, pending: PendingDelivery) -> None:
        self.inner.forget(pending)

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        self.inner.rename_dir(source, target, parents=parents)

    def rename(
        self,
        source: str,
        target: str,
        *,
        only: Token | None = None,
        durable: bool = True,
        parents: bool = True,
    ) -> None:
        self.inner.rename(source, target, only=only, durable=durable, parents=parents)

    def link(self, source: str, target: str) -> None:
        self.inner.link(source, target)

    def sync_dir(self, path: str) -> None:
        self.inner.sync_dir(path)

    def filesystem(self) -> FileSystem:
        return self.inner.filesystem()

    def close(self) -> None:
        self.inner.close()


class WrappedFile(Closing):
    """An open file as it is."""

    def __init__(self, inner: OpenFile) -> None:
        self._inner = inner

    def stat(self) -> FileStat:
        return self._inner.stat()

    def read_at(self, offset: int, length: int) -> bytes:
        return self._inner.read_at(offset, length)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        return self._inner.read_into(buffer, offset)

    def sync(self) -> None:
        self._inner.sync()

    def drop_cache(self, offset: int, length: int) -> None:
        self._inner.drop_cache(offset, length)

    def close(self) -> None:
        self._inner.close()


class WrappedDelivery:
    """A delivery as it is."""

    def __init__(self, inner: Delivery) -> None:
        self._inner = inner

    @property
    def sent_bytes(self) -> int:
        return self._inner.sent_bytes

    @property
    def resumed_bytes(self) -> int:
        return self._inner.resumed_bytes

    def stands(self, offset: int, length: int) -> bool:
        return self._inner.stands(offset, length)

    def matches(self, offset: int, piece: memoryview) -> bool:
        return self._inner.matches(offset, piece)

    def write(self, offset: int, piece: memoryview) -> None:
        self._inner.write(offset, piece)

    def finish(self) -> tuple[FileStat, ArrivalProof]:
        return self._inner.finish()

    def abandon(self) -> None:
        self._inner.abandon()

    def discard(self) -> None:
        self._inner.discard()


def retries_itself(storage: Storage) -> bool:
    """Whether a storage makes failed calls again by itself, so that nobody else should."""
    return bool(getattr(storage, "retries_itself", False))


def connect_push_back(storage: Storage, push_back: Callable[[], None]) -> None:
    """Have every layer that meets a ``SlowDown`` call ``push_back``.

    A layer that can has an attribute ``on_push_back``.
    """
    layer: object | None = storage
    while layer is not None:
        if hasattr(layer, "on_push_back"):
            layer.on_push_back = push_back
        layer = getattr(layer, "inner", None)
