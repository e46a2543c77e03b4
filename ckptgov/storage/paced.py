"""Bytes and requests that wait for a ``Pacer`` before they leave."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

from ckptgov.model.files import Attributes, Entry, FileStat, OpenFile, Token
from ckptgov.model.pacing import Pacer
from ckptgov.storage._remove_by_calls import remove_by_calls
from ckptgov.storage._wrapper import (
    WrappedDelivery,
    WrappedFile,
    WrappedStorage,
    connect_push_back,
)
from ckptgov.storage.contract import ArrivalProof, Delivery, PendingDelivery, Removed, Storage


class PacedStorage(WrappedStorage):
    """``inner``, within the budgets behind ``read`` and ``write``; None is without limit.

    Bytes are taken before they are read or written. Requests are counted only where each call is
    one, that is where there are no directories; calls that change something take theirs from
    ``write``, the others from ``read``, each from the other one where its own is None. ``moved``
    is told bytes of deliveries after they left. What a backend sends again by itself is taken
    afterwards.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        read: Pacer | None,
        write: Pacer | None,
        moved: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(inner)
        self._read = read
        self._write = write
        self._moved = moved
        told = write or read
        if told is not None:
            connect_push_back(inner, told.push_back)

    def list(self, path: str) -> Sequence[Entry]:
        self._look()
        return self.inner.list(path)

    def stat(self, path: str) -> FileStat:
        self._look()
        return self.inner.stat(path)

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        self._look()
        return self.inner.stat_many(directory, names, birth=birth)

    def read_link(self, path: str) -> str:
        self._look()
        return self.inner.read_link(path)

    def open(self, path: str) -> OpenFile:
        self._look()
        file = self.inner.open(path)
        if self._read is None:
            return file
        return PacedFile(file, self._read, requests=self._requests)

    def attributes(self, path: str) -> Attributes:
        self._look()
        return self.inner.attributes(path)

    def pending(self, directory: str) -> Sequence[PendingDelivery]:
        self._look()
        return self.inner.pending(directory)

    def sync_dir(self, path: str) -> None:
        self._look()
        self.inner.sync_dir(path)

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        self._change()
        return self.inner.publish(path, self._paced(chunks))

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        self._change()
        return self.inner.replace(path, self._paced(chunks))

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        self._change()
        self.inner.make_dirs(path, like=like)

    def remove(self, path: str, *, only: Token | None = None) -> None:
        self._change()
        self.inner.remove(path, only=only)

    def remove_dir(self, path: str) -> None:
        self._change()
        self.inner.remove_dir(path)

    def remove_tree(
        self,
        directory: str,
        *,
        keeps: Callable[[Entry], bool] | None = None,
        gone: Callable[[int], None] | None = None,
    ) -> Removed:
        if self._requests:  # each call is one
            return remove_by_calls(self, directory, keeps=keeps, gone=gone)
        return self.inner.remove_tree(directory, keeps=keeps, gone=gone)

    def receive(
        self,
        path: str,
        size_bytes: int,
        *,
        attributes: Attributes | None = None,
        digest: str | None = None,
    ) -> Delivery:
        self._change()
        delivery = self.inner.receive(path, size_bytes, attributes=attributes, digest=digest)
        return PacedDelivery(
            delivery,
            # Pieces are compared by reading them where they lie in files.
            read=self._read if self.traits.has_directories else None,
            write=self._write,
            requests=self._requests,
            moved=self._moved,
        )

    def forget(self, pending: PendingDelivery) -> None:
        self._change()
        self.inner.forget(pending)

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        self._change()
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
        self._change()
        self.inner.rename(source, target, only=only, durable=durable, parents=parents)

    def link(self, source: str, target: str) -> None:
        self._change()
        self.inner.link(source, target)

    @cached_property
    def _requests(self) -> int:
        """What one call costs in requests."""
        return 0 if self.traits.has_directories else 1

    def _look(self) -> None:
        self._request(self._read or self._write)

    def _change(self) -> None:
        self._request(self._write or self._read)

    def _request(self, pacer: Pacer | None) -> None:
        if pacer is not None and self._requests:
            pacer.take(0, requests=self._requests)

    def _paced(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._write is not None:
                self._write.take(len(chunk))
            yield chunk


class PacedFile(WrappedFile):
    """An open file whose reads wait. Threads may share it."""

    def __init__(self, inner: OpenFile, read: Pacer, *, requests: int) -> None:
        super().__init__(inner)
        self._read = read
        self._requests = requests

    @cached_property
    def _size_bytes(self) -> int:
        return self._inner.stat().bytes

    def read_at(self, offset: int, length: int) -> bytes:
        taken = self._take(offset, length)
        found = self._inner.read_at(offset, length)
        self._take_more(len(found) - taken)
        return found

    def read_into(self, buffer: memoryview, offset: int) -> int:
        taken = self._take(offset, buffer.nbytes)
        count = self._inner.read_into(buffer, offset)
        self._take_more(count - taken)
        return count

    def _take(self, offset: int, length: int) -> int:
        """Take what may be read: a buffer that reaches past the end costs no more than the end."""
        most = max(0, min(length, self._size_bytes - offset))
        self._read.take(most, requests=self._requests)
        return most

    def _take_more(self, count_bytes: int) -> None:
        if count_bytes > 0:  # the file grew
            self._read.take(count_bytes)


class PacedDelivery(WrappedDelivery):
    """A delivery whose pieces wait. Threads may share it where those of ``inner`` may."""

    def __init__(
        self,
        inner: Delivery,
        *,
        read: Pacer | None,
        write: Pacer | None,
        requests: int,
        moved: Callable[[int], None] | None,
    ) -> None:
        super().__init__(inner)
        self._read = read
        self._write = write
        self._requests = requests
        self._moved = moved
        self._lock = threading.Lock()
        self._taken_bytes = self._told_bytes = 0

    def matches(self, offset: int, piece: memoryview) -> bool:
        if self._read is not None:
            self._read.take(piece.nbytes)
        return self._inner.matches(offset, piece)

    def write(self, offset: int, piece: memoryview) -> None:
        if self._write is not None:
            self._write.take(piece.nbytes, requests=self._requests)
        with self._lock:
            self._taken_bytes += piece.nbytes
        self._inner.write(offset, piece)
        self._tell()

    def finish(self) -> tuple[FileStat, ArrivalProof]:
        if self._write is not None and self._requests:
            self._write.take(0, requests=self._requests)
        finished = self._inner.finish()
        self._tell()
        return finished

    def _tell(self) -> None:
        with self._lock:
            sent = self._inner.sent_bytes
            new, self._told_bytes = sent - self._told_bytes, sent
            again, self._taken_bytes = sent - self._taken_bytes, max(sent, self._taken_bytes)
        if new > 0 and self._moved is not None:
            self._moved(new)
        if again > 0 and self._write is not None:
            self._write.take(again)
