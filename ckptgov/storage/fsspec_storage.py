"""The ``Storage`` contract on any file system that fsspec knows.

Like an object store: keys are ``<address>/<path>``, each path percent-encoded; there are no links,
no directories to rename and no attributes that travel; a directory is there while something lies
in it. What is written lies under a temporary key first and is then moved to its free name, or
created there in one call that refuses a taken one where the file system is known to have that.
Between the last look at a name and the move another process may take it: ``is_exclusive`` tells
whether that can happen. An interrupted delivery is never resumed.

A token is the file's ETag, or whatever of the kind the file system tells, else its modification
time and size. Where it tells neither, nothing could prove that a file stayed as it was, and every
look at a file raises StorageError.
"""

from __future__ import annotations

import builtins
import errno
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ckptgov.errors import StorageError
from ckptgov.model.clock import Clock, SystemClock
from ckptgov.model.files import Attributes, EntryKind, FileStat, Token
from ckptgov.storage._entries import require_token
from ckptgov.storage._fsspec_delivery import FsspecDelivery
from ckptgov.storage._fsspec_look import kind_of
from ckptgov.storage._fsspec_tree import EXCLUSIVE, FsspecTree, os_error_at
from ckptgov.storage._keyed import KeyedStorage
from ckptgov.storage._paths import split, split_file
from ckptgov.storage.contract import TEMP_PREFIX, Delivery, PendingDelivery, Traits
from ckptgov.storage.mounts import FileSystem

PIECE_BYTES = 8 * 2**20
_JOINED_BYTES = 256 * 2**20
_TICK_NS = 1_000_000_000  # most tell whole seconds
_TRIES = 3
_CLOCK = SystemClock()


class FsspecStorage(FsspecTree, KeyedStorage):
    """A tree of files at a URL. Threads may share it; most file systems serve one at a time.

    ``filesystem`` is a ready fsspec file system to use for the URL's path; by default one is made
    from the URL, with the library's own configuration and credentials.

    Raises:
        StorageError: the scheme is unknown, its library missing, or it cannot be reached.
    """

    def __init__(
        self,
        url: str,
        *,
        filesystem: Any = None,
        clock: Clock = _CLOCK,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        super().__init__(url, filesystem=filesystem)
        self._clock = clock
        self._piece_bytes = piece_bytes
        self._live: set[str] = set()

    @property
    def is_exclusive(self) -> bool:
        """Whether publishing refuses a taken name also when another process takes it just now."""
        return self._protocol in EXCLUSIVE

    @property
    def traits(self) -> Traits:
        return Traits(has_directories=False, has_links=False, piece_bytes=self._piece_bytes)

    def filesystem(self) -> FileSystem:
        return FileSystem(
            type=self._protocol,
            source=self._root,
            mount_point=self._root,
            is_network=self._protocol not in ("memory", "file", "local"),
            granularity_ns=_TICK_NS,
        )

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        split_file(path)
        self.require_free(path)
        content = self._joined(path, chunks)
        with self.calling(path) as fs:
            if self.is_exclusive:
                fs.pipe_file(self.key(path), content, mode="create")
                return self.stat(path)
        return self._through_temp(path, content, self.settle)

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        split_file(path)
        before = self._require_file(path)
        content = self._joined(path, chunks)
        for _ in range(_TRIES):
            self._overwrite(path, content)
            found = self.stat(path)
            if not found.token.same_content(before.token):
                return found
            # Two files of one size within one tick of its clock: a token must tell them apart.
            self._clock.sleep(_TICK_NS / 1e9)
        raise StorageError(f"{self._where(path)}: replaced, and looks unchanged to every reader")

    def remove(self, path: str, *, only: Token | None = None) -> None:
        split_file(path)
        found = self._stat_of(path, self._ask_about(path))
        if found.kind is EntryKind.DIR:
            raise os_error_at(errno.EISDIR, self._where(path))
        require_token(found, only, self._where(path))
        self.drop(path)

    def remove_dir(self, path: str) -> None:
        if not split(path):
            raise StorageError(f"{self._root}: the root is never removed")
        found = self._level(path)
        if found.ours or found.others:
            raise StorageError(f"{self._where(path)}: not empty")
        self._drop_empty(path)

    def receive(
        self,
        path: str,
        size_bytes: int,
        *,
        attributes: Attributes | None = None,
        digest: str | None = None,
    ) -> Delivery:
        split_file(path)
        self.require_free(path)
        return FsspecDelivery(self, path, size_bytes)

    def pending(self, directory: str) -> Sequence[PendingDelivery]:
        found: builtins.list[PendingDelivery] = []
        for name, told in self._level(directory).ours.items():
            path = f"{directory}/{name}" if directory else name
            if kind_of(told) is EntryKind.DIR:
                with suppress(FileNotFoundError):
                    found += self.pending(path)
            elif name.startswith(TEMP_PREFIX):
                look = self._stat_or_none(path)
                if look is not None:
                    found.append(self._pending(path, look))
        return found

    def forget(self, pending: PendingDelivery) -> None:
        if not pending.path.rpartition("/")[2].startswith(TEMP_PREFIX):
            raise StorageError(f"{self._where(pending.path)}: no unfinished delivery; left alone")
        with suppress(FileNotFoundError):
            self.remove(pending.path)

    # for deliveries and open files

    def begin_temp(self, path: str) -> str:
        """A temporary path beside ``path``, marked as worked on; its directory is there."""
        directory, slash, _ = path.rpartition("/")
        if directory and not self._is_flat:
            with self.calling(path) as fs:
                fs.makedirs(self.key(directory), exist_ok=True)
        temp = f"{directory}{slash}{TEMP_PREFIX}{secrets.token_hex(8)}"
        self._live.add(temp)
        return temp

    def end_temp(self, temp: str, *, drop: bool) -> None:
        """Nobody works on it any more; with ``drop`` it is removed, where that can be helped."""
        self._live.discard(temp)
        if drop:
            with suppress(StorageError, OSError):
                self.drop(temp)

    def settle(self, temp: str, path: str) -> FileStat:
        """Move a finished temporary file to its name.

        Raises:
            FileExistsError: the name is taken.
        """
        with self.calling(path):
            self.require_free(path)
            return self._move(temp, path)

    def require_free(self, path: str) -> None:
        """Raise FileExistsError where anything has this name."""
        if self._stat_or_none(path) is not None:
            raise os_error_at(errno.EEXIST, self._where(path))

    def drop(self, path: str) -> None:
        """Remove a file, and directories above it that hold nothing any more."""
        with self.calling(path) as fs:
            fs.rm_file(self.key(path))
        self._drop_empty(path.rpartition("/")[0])

    def _drop_empty(self, directory: str) -> None:
        while directory and not self._is_flat:
            try:
                with self.calling(directory) as fs:
                    fs.rmdir(self.key(directory))
            except (StorageError, OSError):
                return  # something lies in it
            directory = directory.rpartition("/")[0]

    def _overwrite(self, path: str, content: bytes) -> None:
        with self.calling(path) as fs:
            if self._is_flat:
                fs.pipe_file(self.key(path), content)
            else:
                self._through_temp(path, content, self._move)

    def _through_temp(
        self, path: str, content: bytes, finish: Callable[[str, str], FileStat]
    ) -> FileStat:
        temp = self.begin_temp(path)
        try:
            with self.calling(path) as fs:
                fs.pipe_file(self.key(temp), content)
            found = finish(temp, path)
        except BaseException:
            self.end_temp(temp, drop=True)
            raise
        self.end_temp(temp, drop=False)
        return found

    def _move(self, temp: str, path: str) -> FileStat:
        with self.calling(path) as fs:
            fs.mv(self.key(temp), self.key(path))
            return self.stat(path)

    def _joined(self, path: str, chunks: Iterable[bytes]) -> bytes:
        content = bytearray()
        for chunk in chunks:
            content += chunk
            if len(content) > _JOINED_BYTES:
                raise StorageError(f"{self._where(path)}: more than is published at once (256 MiB)")
        return bytes(content)

    def _pending(self, path: str, look: FileStat) -> PendingDelivery:
        return PendingDelivery(
            path=path,
            handle=path,
            bytes=look.bytes,
            started_at_ns=look.mtime_ns,
            is_held=path in self._live,
        )
