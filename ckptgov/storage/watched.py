"""Calls that neither answer nor fail, given up after a while."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ckptgov.model.clock import Clock
from ckptgov.model.files import Attributes, Entry, FileStat, OpenFile, Token
from ckptgov.storage._watch import Call, Calls, Watch
from ckptgov.storage._wrapper import WrappedDelivery, WrappedFile, WrappedStorage
from ckptgov.storage.contract import ArrivalProof, Delivery, PendingDelivery, Removed, Storage
from ckptgov.storage.mounts import FileSystem


class WatchedStorage(WrappedStorage):
    """``inner``, each of whose calls is given up when it made no progress for ``stall_s``.

    The unit is one call, on a piece of at most 64 MiB: a slow tier that answers each is never
    given up, nor a removal of a tree that gets on. While ``publish`` or ``replace`` waits for their
    source's bytes, nothing runs out.
    Wrap what is to be watched innermost, below whatever retries or paces: their waits are not the
    tier's.

    A call that is given up raises TimedOut (exit 11) and stays behind in a daemon thread, which
    never keeps the process from ending. Its file or delivery answers nothing more, and **its
    buffer must be given up**: the call may still write into it, or send it, much later. What is
    closed, abandoned or discarded then, is once the call came back.
    """

    def __init__(self, inner: Storage, *, stall_s: float, clock: Clock) -> None:
        super().__init__(inner)
        self._watch = Watch(inner.root, stall_s=stall_s, clock=clock)

    def list(self, path: str) -> Sequence[Entry]:
        return self._watch.run("list", path, lambda: self.inner.list(path))

    def stat(self, path: str) -> FileStat:
        return self._watch.run("stat", path, lambda: self.inner.stat(path))

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        return self._watch.run(
            "stat_many", directory, lambda: self.inner.stat_many(directory, names, birth=birth)
        )

    def read_link(self, path: str) -> str:
        return self._watch.run("read_link", path, lambda: self.inner.read_link(path))

    def open(self, path: str) -> OpenFile:
        file = self._watch.run("open", path, lambda: self.inner.open(path))
        return WatchedFile(file, self._watch, path)

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        return self._watch.feed("publish", path, chunks, partial(self.inner.publish, path))

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        return self._watch.feed("replace", path, chunks, partial(self.inner.replace, path))

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        self._watch.run("make_dirs", path, lambda: self.inner.make_dirs(path, like=like))

    def remove(self, path: str, *, only: Token | None = None) -> None:
        self._watch.run("remove", path, lambda: self.inner.remove(path, only=only))

    def remove_dir(self, path: str) -> None:
        self._watch.run("remove_dir", path, lambda: self.inner.remove_dir(path))

    def remove_tree(
        self,
        directory: str,
        *,
        keeps: Callable[[Entry], bool] | None = None,
        gone: Callable[[int], None] | None = None,
    ) -> Removed:
        call: Call[Removed] = Call(
            lambda: self.inner.remove_tree(directory, keeps=keeps, gone=call.beaten(gone))
        )
        return self._watch.wait("remove_tree", directory, call)

    def attributes(self, path: str) -> Attributes:
        return self._watch.run("attributes", path, lambda: self.inner.attributes(path))

    def receive(
        self,
        path: str,
        size_bytes: int,
        *,
        attributes: Attributes | None = None,
        digest: str | None = None,
    ) -> Delivery:
        delivery = self._watch.run(
            "receive",
            path,
            lambda: self.inner.receive(path, size_bytes, attributes=attributes, digest=digest),
        )
        return WatchedDelivery(delivery, self._watch, path)

    def pending(self, directory: str) -> Sequence[PendingDelivery]:
        return self._watch.run("pending", directory, lambda: self.inner.pending(directory))

    def forget(self, pending: PendingDelivery) -> None:
        self._watch.run("forget", pending.path, lambda: self.inner.forget(pending))

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        self._watch.run(
            "rename_dir", source, lambda: self.inner.rename_dir(source, target, parents=parents)
        )

    def rename(
        self,
        source: str,
        target: str,
        *,
        only: Token | None = None,
        durable: bool = True,
        parents: bool = True,
    ) -> None:
        self._watch.run(
            "rename",
            source,
            lambda: self.inner.rename(source, target, only=only, durable=durable, parents=parents),
        )

    def link(self, source: str, target: str) -> None:
        self._watch.run("link", target, lambda: self.inner.link(source, target))

    def sync_dir(self, path: str) -> None:
        self._watch.run("sync_dir", path, lambda: self.inner.sync_dir(path))

    def filesystem(self) -> FileSystem:
        return self._watch.run("filesystem", "", self.inner.filesystem)

    def close(self) -> None:
        self._watch.run("close", "", self.inner.close)


class WatchedFile(WrappedFile):
    """An open file whose calls are watched. Threads may share it."""

    def __init__(self, inner: OpenFile, watch: Watch, path: str) -> None:
        super().__init__(inner)
        self._calls = Calls(watch, path)

    def stat(self) -> FileStat:
        return self._calls.run("fstat", self._inner.stat)

    def read_at(self, offset: int, length: int) -> bytes:
        return self._calls.run("read", lambda: self._inner.read_at(offset, length))

    def read_into(self, buffer: memoryview, offset: int) -> int:
        own = memoryview(buffer)  # the caller may release his, also when the call is given up
        return self._calls.run("read", lambda: self._inner.read_into(own, offset))

    def sync(self) -> None:
        self._calls.run("fsync", self._inner.sync)

    def drop_cache(self, offset: int, length: int) -> None:
        self._calls.run("drop_cache", lambda: self._inner.drop_cache(offset, length))

    def close(self) -> None:
        self._calls.end("close", self._inner.close)


class WatchedDelivery(WrappedDelivery):
    """A delivery whose calls are watched."""

    def __init__(self, inner: Delivery, watch: Watch, path: str) -> None:
        super().__init__(inner)
        self._calls = Calls(watch, path)

    def stands(self, offset: int, length: int) -> bool:
        return self._calls.run("stands", lambda: self._inner.stands(offset, length))

    def matches(self, offset: int, piece: memoryview) -> bool:
        own = memoryview(piece)
        return self._calls.run("matches", lambda: self._inner.matches(offset, own))

    def write(self, offset: int, piece: memoryview) -> None:
        own = memoryview(piece)
        self._calls.run("write", lambda: self._inner.write(offset, own))

    def finish(self) -> tuple[FileStat, ArrivalProof]:
        return self._calls.run("finish", self._inner.finish)

    def abandon(self) -> None:
        self._calls.end("abandon", self._inner.abandon)

    def discard(self) -> None:
        self._calls.end("discard", self._inner.discard)
