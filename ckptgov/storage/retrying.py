"""Failed calls made again, where making them twice does no harm."""

from __future__ import annotations

import builtins
import copy
import errno
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from ckptgov.errors import SlowDown, StorageError, TransientStorageError
from ckptgov.model.clock import Clock
from ckptgov.model.files import Attributes, Entry, FileStat, OpenFile, Token
from ckptgov.storage._paths import printable
from ckptgov.storage._wrapper import WrappedDelivery, WrappedFile, WrappedStorage, retries_itself
from ckptgov.storage.backoff import RetryPolicy, waits
from ckptgov.storage.contract import ArrivalProof, Delivery, PendingDelivery, Removed, Storage
from ckptgov.storage.mounts import FileSystem

Found = TypeVar("Found")

_EIO_TRIES = 3


class RetryingStorage(WrappedStorage):
    """``inner``, whose looks and reads are made again after a TransientStorageError.

    Not what changes the tier: an answer that was lost does not tell whether it was done, and after
    a failed write or fsync a file is begun anew by whoever moves it. A file whose handle went
    stale is opened again, and read on only while it is the same one. An EIO is asked again twice
    at most. On a network file system an absent name is looked for once more after a listing of
    its directory: a client remembers names that another one has renamed over (JuiceFS: for the
    whole entry cache time; a listing ends that).

    A backend that retries by itself (``retries_itself``) is handed through as it is.
    ``on_push_back`` is called for every SlowDown, whatever the call.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        policy: RetryPolicy,
        clock: Clock,
        random: Callable[[], float],
        on_push_back: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(inner)
        self.on_push_back = on_push_back
        self._policy = policy
        self._clock = clock
        self._random = random
        self._is_through = retries_itself(inner)
        self._is_network: bool | None = None

    # Looks and reads: again.

    def list(self, path: str) -> Sequence[Entry]:
        return self._looked(path, lambda: self.inner.list(path))

    def stat(self, path: str) -> FileStat:
        return self._looked(path, lambda: self.inner.stat(path))

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        def look(names: Sequence[str]) -> builtins.list[FileStat | None]:
            return self._looked(
                directory, lambda: self.inner.stat_many(directory, names, birth=birth)
            )

        found = look(names)
        absent = [at for at, stat in enumerate(found) if stat is None]
        if absent and self._may_be_stale():
            self.again(lambda: self.inner.list(directory))
            for at, stat in zip(absent, look([names[at] for at in absent]), strict=True):
                found[at] = stat
        return found

    def read_link(self, path: str) -> str:
        return self._looked(path, lambda: self.inner.read_link(path))

    def open(self, path: str) -> OpenFile:
        if self._is_through:
            return self.inner.open(path)
        return self._looked(path, lambda: RetryingFile(self, path, self.inner.open(path)))

    def attributes(self, path: str) -> Attributes:
        return self._looked(path, lambda: self.inner.attributes(path))

    def pending(self, directory: str) -> Sequence[PendingDelivery]:
        return self.again(lambda: self.inner.pending(directory))

    def forget(self, pending: PendingDelivery) -> None:
        self.again(lambda: self.inner.forget(pending))

    def sync_dir(self, path: str) -> None:
        # After an EIO a second fsync proves nothing.
        self.again(lambda: self.inner.sync_dir(path), eio_tries=1)

    def filesystem(self) -> FileSystem:
        return self.again(self.inner.filesystem)

    # What changes the tier: once.

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        return self.once(lambda: self.inner.publish(path, chunks))

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        return self.once(lambda: self.inner.replace(path, chunks))

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        self.once(lambda: self.inner.make_dirs(path, like=like))

    def remove(self, path: str, *, only: Token | None = None) -> None:
        self.once(lambda: self.inner.remove(path, only=only))

    def remove_dir(self, path: str) -> None:
        self.once(lambda: self.inner.remove_dir(path))

    def remove_tree(
        self,
        directory: str,
        *,
        keeps: Callable[[Entry], bool] | None = None,
        gone: Callable[[int], None] | None = None,
    ) -> Removed:
        return self.once(lambda: self.inner.remove_tree(directory, keeps=keeps, gone=gone))

    def receive(
        self,
        path: str,
        size_bytes: int,
        *,
        attributes: Attributes | None = None,
        digest: str | None = None,
    ) -> Delivery:
        delivery = self.once(
            lambda: self.inner.receive(path, size_bytes, attributes=attributes, digest=digest)
        )
        return delivery if self._is_through else RetryingDelivery(self, delivery)

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        self.once(lambda: self.inner.rename_dir(source, target, parents=parents))

    def rename(
        self,
        source: str,
        target: str,
        *,
        only: Token | None = None,
        durable: bool = True,
        parents: bool = True,
    ) -> None:
        self.once(
            lambda: self.inner.rename(source, target, only=only, durable=durable, parents=parents)
        )

    def link(self, source: str, target: str) -> None:
        self.once(lambda: self.inner.link(source, target))

    # How.

    def again(self, call: Callable[[], Found], *, eio_tries: int = _EIO_TRIES) -> Found:
        """What ``call`` gives, tried as often as the policy says."""
        if self._is_through:
            return call()
        tries, pauses = 0, waits(self._policy, self._random)
        while True:
            tries += 1
            try:
                return self.once(call)
            except TransientStorageError as error:
                pause_s = next(pauses, None)
                if pause_s is None or (code_of(error) == errno.EIO and tries >= eio_tries):
                    raise _given_up(error, tries) from error.__cause__ or error
            self._clock.sleep(pause_s)

    def once(self, call: Callable[[], Found]) -> Found:
        """What ``call`` gives; whoever paces is told when the store asks for less."""
        try:
            return call()
        except SlowDown:
            if self.on_push_back is not None and not self._is_through:
                self.on_push_back()
            raise

    def _looked(self, path: str, call: Callable[[], Found]) -> Found:
        try:
            return self.again(call)
        except FileNotFoundError:
            if not self._may_be_stale():
                raise
        self.again(lambda: self._refresh(path))
        return self.again(call)

    def _may_be_stale(self) -> bool:
        """Whether an absent name may only be remembered as absent."""
        if self._is_through:
            return False
        if self._is_network is None:
            self._is_network = self.filesystem().is_network
        return self._is_network

    def _refresh(self, path: str) -> None:
        """List the directory above, and those above it as far as they seem absent too."""
        if not path:
            return
        above = path.rpartition("/")[0]
        try:
            self.inner.list(above)
        except FileNotFoundError:
            self._refresh(above)
            with suppress(FileNotFoundError):
                self.inner.list(above)


class RetryingFile(WrappedFile):
    """An open file whose reads are made again. Threads may share it."""

    def __init__(self, storage: RetryingStorage, path: str, inner: OpenFile) -> None:
        super().__init__(inner)
        self._storage = storage
        self._path = path
        self._token: Token = inner.stat().token
        self._lock = threading.Lock()
        self._stale: list[OpenFile] = []

    def stat(self) -> FileStat:
        return self._storage.again(lambda: self._asked(lambda file: file.stat()))

    def read_at(self, offset: int, length: int) -> bytes:
        return self._storage.again(lambda: self._asked(lambda file: file.read_at(offset, length)))

    def read_into(self, buffer: memoryview, offset: int) -> int:
        return self._storage.again(lambda: self._asked(lambda file: file.read_into(buffer, offset)))

    def close(self) -> None:
        with self._lock:
            stale, self._stale = self._stale, []
        for file in stale:
            with suppress(StorageError):  # only read from, and known to be broken
                file.close()
        super().close()

    def _asked(self, call: Callable[[OpenFile], Found]) -> Found:
        file = self._inner
        try:
            return call(file)
        except TransientStorageError as error:
            if code_of(error) != errno.ESTALE:
                raise
            self._reopen(file)
            raise  # so that the wait before the next try is kept

    def _reopen(self, stale: OpenFile) -> None:
        with self._lock:
            if self._inner is not stale:  # another thread was quicker
                return
            file = self._storage.inner.open(self._path)
            if not file.stat().token.same_content(self._token):
                file.close()
                where = printable(f"{self._storage.root}/{self._path}")
                raise StorageError(f"{where}: another file has taken its place as it was read")
            self._stale.append(stale)
            self._inner = file


class RetryingDelivery(WrappedDelivery):
    """A delivery, whose calls are never made again; only push-backs are passed on."""

    def __init__(self, storage: RetryingStorage, inner: Delivery) -> None:
        super().__init__(inner)
        self._storage = storage

    def matches(self, offset: int, piece: memoryview) -> bool:
        return self._storage.once(lambda: self._inner.matches(offset, piece))

    def write(self, offset: int, piece: memoryview) -> None:
        self._storage.once(lambda: self._inner.write(offset, piece))

    def finish(self) -> tuple[FileStat, ArrivalProof]:
        return self._storage.once(self._inner.finish)


def code_of(error: BaseException) -> int | None:
    """The errno behind an error, if there is one."""
    cause = error.__cause__
    return cause.errno if isinstance(cause, OSError) else None


def _given_up(error: TransientStorageError, tries: int) -> TransientStorageError:
    if tries == 1:
        return error
    told = copy.copy(error)  # a backend may raise one and the same again
    told.message = f"{error.message} (tried {tries} times)"
    told.args = (told.message,)
    return told
