"""A file on its way to an fsspec file system: one stream into a temporary key, then its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

from ckptgov.errors import StorageError
from ckptgov.model.files import FileStat
from ckptgov.storage._keyed import OnceDelivery
from ckptgov.storage.contract import ArrivalProof

_HELD_PIECES = 16


class Home(Protocol):
    """What a delivery needs of its storage."""

    def calling(self, path: str) -> AbstractContextManager[Any]: ...
    def key(self, path: str) -> str: ...
    def stat(self, path: str) -> FileStat: ...
    def begin_temp(self, path: str) -> str: ...
    def end_temp(self, temp: str, *, drop: bool) -> None: ...
    def settle(self, temp: str, path: str) -> FileStat: ...


class FsspecDelivery(OnceDelivery):
    """Pieces go out in order. Those that come early are held, at most sixteen; the latest one is
    held too, so that it can be handed over again. An earlier one cannot, but for the first: the
    stream then begins anew, and all that follows must be handed over again as well.
    """

    def __init__(self, home: Home, path: str, size_bytes: int) -> None:
        if size_bytes < 0:
            raise StorageError(f"{path}: no file has {size_bytes} bytes")
        self._home = home
        self._path = path
        self._size_bytes = size_bytes
        self._temp: str | None = home.begin_temp(path)
        self._stream: Any = None
        self._held: dict[int, bytes] = {}
        self._position = 0
        self._sent_bytes = 0

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes

    def write(self, offset: int, piece: memoryview) -> None:
        with self._working() as temp:
            if offset < 0 or offset + piece.nbytes > self._size_bytes:
                raise self._error(f"bytes {offset}+{piece.nbytes} of {self._size_bytes}")
            if offset == 0 < self._position:
                temp = self._begin_again(temp)
            if offset < self._position:
                raise self._error(f"byte {offset} has gone out already", hint="begin the file anew")
            self._held[offset] = piece.tobytes()
            self._sent_bytes += piece.nbytes
            self._send(temp, but=offset)
            if len(self._held) > _HELD_PIECES:
                raise self._error(
                    f"too many pieces wait for byte {self._position}",
                    hint="hand the pieces over in their order",
                )

    def finish(self) -> tuple[FileStat, ArrivalProof]:
        with self._working() as temp:
            self._send(temp, but=None)
            if self._position < self._size_bytes:
                raise self._error(f"byte {self._position} was not written")
            with self._home.calling(self._path) as fs:
                (self._stream or self._open(fs, temp)).close()
            arrived = self._home.stat(temp).bytes
            if arrived != self._size_bytes:
                raise self._error(f"{arrived} of {self._size_bytes} bytes arrived")
            found = self._home.settle(temp, self._path)
        self._temp, self._stream = None, None
        self._home.end_temp(temp, drop=False)
        return found, ArrivalProof.NONE

    def abandon(self) -> None:
        self.discard()  # what was sent could not be gone on with

    def discard(self) -> None:
        temp, self._temp = self._temp, None
        if temp is None:
            return
        self._held.clear()
        self._break_off()
        self._home.end_temp(temp, drop=True)

    def _begin_again(self, temp: str) -> str:
        self._break_off()
        self._home.end_temp(temp, drop=True)
        self._held.clear()
        self._position = 0
        self._temp = self._home.begin_temp(self._path)
        return self._temp

    def _send(self, temp: str, *, but: int | None) -> None:
        while self._position in self._held and self._position != but:
            piece = self._held.pop(self._position)
            if not piece:
                return
            with self._home.calling(self._path) as fs:
                self._stream = self._stream or self._open(fs, temp)
                self._stream.write(piece)
            self._position += len(piece)

    def _open(self, fs: Any, temp: str) -> Any:
        return fs.open(self._home.key(temp), "wb")

    def _break_off(self) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        with suppress(Exception), self._home.calling(self._path):
            stream.close()

    @contextmanager
    def _working(self) -> Iterator[str]:
        """With the temporary path; an error ends the delivery."""
        if self._temp is None:
            raise self._error("this delivery is over", hint="begin the file anew")
        try:
            yield self._temp
        except BaseException:
            self.discard()
            raise

    def _error(self, text: str, *, hint: str | None = None) -> StorageError:
        return StorageError(f"{self._path}: {text}", hint=hint)
