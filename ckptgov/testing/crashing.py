"""A storage whose process dies at a chosen point: walk through all of them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence

from ckptgov.model.files import Attributes, Entry, FileStat, OpenFile, Token
from ckptgov.storage._remove_by_calls import remove_by_calls
from ckptgov.storage.contract import (
    ArrivalProof,
    Delivery,
    PendingDelivery,
    Removed,
    Storage,
    Traits,
)
from ckptgov.storage.mounts import FileSystem


class Crash(BaseException):
    """The process is dead from here on. No ``Exception``: nothing may tidy up after it."""


class CrashingStorage:
    """``inner``, until the mutating call number ``crash_at`` (from 0), which is not done.

    From then on every call raises :class:`Crash` too, as a dead process does nothing any more:
    look at ``inner`` for what it left. ``calls`` names the mutating calls that were done, so a
    run with ``crash_at=None`` tells how many points there are; each piece of a delivery is one.
    What was being delivered is left as by a dead process: held by nobody.
    """

    def __init__(self, inner: Storage, crash_at: int | None = None) -> None:
        self._inner = inner
        self._crash_at = crash_at
        self._is_dead = False
        self._deliveries: builtins.list[Delivery] = []
        self.calls: builtins.list[tuple[str, str]] = []

    @property
    def root(self) -> str:
        return self._inner.root

    def list(self, path: str) -> Sequence[Entry]:
        self._alive()
        return self._inner.list(path)

    def stat(self, path: str) -> FileStat:
        self._alive()
        return self._inner.stat(path)

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        self._alive()
        return self._inner.stat_many(directory, names, birth=birth)

    def read_link(self, path: str) -> str:
        self._alive()
        return self._inner.read_link(path)

    def open(self, path: str) -> OpenFile:
        self._alive()
        return self._inner.open(path)

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        self._mutate("publish", path)
        return self._inner.publish(path, chunks)

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        self._mutate("replace", path)
        return self._inner.replace(path, chunks)

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        self._mutate("make_dirs", path)
        self._inner.make_dirs(path, like=like)

    def remove(self, path: str, *, only: Token | None = None) -> None:
        self._mutate("remove", path)
        self._inner.remove(path, only=only)

    def remove_dir(self, path: str) -> None:
        self._mutate("remove_dir", path)
        self._inner.remove_dir(path)

    def remove_tree(
        self,
        directory: str,
        *,
        keeps: Callable[[Entry], bool] | None = None,
        gone: Callable[[int], None] | None = None,
    ) -> Removed:
        # By its single calls, so that a process can die between any two of them.
        return remove_by_calls(self, directory, keeps=keeps, gone=gone)

    @property
    def traits(self) -> Traits:
        return self._inner.traits

    def attributes(self, path: str) -> Attributes:
        self._alive()
        return self._inner.attributes(path)

    def receive(
        self,
        path: str,
        size_bytes: int,
        *,
        attributes: Attributes | None = None,
        digest: str | None = None,
    ) -> Delivery:
        self._mutate("receive", path)
        delivery = self._inner.receive(path, size_bytes, attributes=attributes, digest=digest)
        self._deliveries.append(delivery)
        return CrashingDelivery(delivery, path, alive=self._alive, mutate=self._mutate)

    def pending(self, directory: str) -> Sequence[PendingDelivery]:
        self._alive()
        return self._inner.pending(directory)

    def forget(self, pending: PendingDelivery) -> None:
        self._mutate("forget", pending.path)
        self._inner.forget(pending)

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        self._mutate("rename_dir", source)
        self._inner.rename_dir(source, target, parents=parents)

    def rename(
        self,
        source: str,
        target: str,
        *,
        only: Token | None = None,
        durable: bool = True,
        parents: bool = True,
    ) -> None:
        self._mutate("rename", source)
        self._inner.rename(source, target, only=only, durable=durable, parents=parents)

    def link(self, source: str, target: str) -> None:
        self._mutate("link", target)
        self._inner.link(source, target)

    def sync_dir(self, path: str) -> None:
        self._alive()
        self._inner.sync_dir(path)

    def filesystem(self) -> FileSystem:
        self._alive()
        return self._inner.filesystem()

    def close(self) -> None:
        self._inner.close()

    def _mutate(self, call: str, path: str) -> None:
        self._alive()
        if len(self.calls) == self._crash_at:
            self._is_dead = True
            for delivery in self._deliveries:
                delivery.abandon()
            raise Crash(f"at {call} {path}")
        self.calls.append((call, path))

    def _alive(self) -> None:
        if self._is_dead:
            raise Crash("long since")


class CrashingDelivery:
    """A delivery to a :class:`CrashingStorage`: ``write``, ``finish`` and ``discard`` count."""

    def __init__(
        self,
        inner: Delivery,
        path: str,
        *,
        alive: Callable[[], None],
        mutate: Callable[[str, str], None],
    ) -> None:
        self._inner = inner
        self._path = path
        self._alive = alive
        self._mutate = mutate

    @property
    def sent_bytes(self) -> int:
        return self._inner.sent_bytes

    @property
    def resumed_bytes(self) -> int:
        return self._inner.resumed_bytes

    def stands(self, offset: int, length: int) -> bool:
        self._alive()
        return self._inner.stands(offset, length)

    def matches(self, offset: int, piece: memoryview) -> bool:
        self._alive()
        return self._inner.matches(offset, piece)

    def write(self, offset: int, piece: memoryview) -> None:
        self._mutate("write", self._path)
        self._inner.write(offset, piece)

    def finish(self) -> tuple[FileStat, ArrivalProof]:
        self._mutate("finish", self._path)
        return self._inner.finish()

    def abandon(self) -> None:
        self._alive()
        self._inner.abandon()

    def discard(self) -> None:
        self._mutate("discard", self._path)
        self._inner.discard()
