"""An open file of an fsspec file system: read in windows, watched for changes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from ckptgov.errors import StorageError
from ckptgov.model.files import FileStat
from ckptgov.storage._keyed import KeyedFile

_WINDOW_BYTES = 8 * 2**20


class Home(Protocol):
    """What an open file needs of its storage."""

    def calling(self, path: str) -> AbstractContextManager[Any]: ...
    def key(self, path: str) -> str: ...
    def stat(self, path: str) -> FileStat: ...


class FsspecFile(KeyedFile):
    """``OpenFile`` on a key. ``stat`` looks anew, so that a change since opening is seen.

    Threads may share it; each read that leaves the window asks for the next one.
    """

    def __init__(self, home: Home, path: str, found: FileStat) -> None:
        self._home = home
        self._path = path
        self._bytes = found.bytes
        self._window = (0, b"")  # replaced as a whole: threads may read it meanwhile

    def stat(self) -> FileStat:
        return self._home.stat(self._path)

    def read_at(self, offset: int, length: int) -> bytes:
        wanted = max(0, min(length, self._bytes - offset))
        if wanted == 0:
            return b""
        start, window = self._window
        if not start <= offset <= offset + wanted <= start + len(window):
            start = offset
            window = self._fetch(offset, min(self._bytes, offset + max(wanted, _WINDOW_BYTES)))
            self._window = (start, window)
        return window[offset - start : offset - start + wanted]

    def read_into(self, buffer: memoryview, offset: int) -> int:
        piece = self.read_at(offset, buffer.nbytes)
        buffer.cast("B")[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._window = (0, b"")

    def _fetch(self, start: int, end: int) -> bytes:
        with self._home.calling(self._path) as fs:
            window: bytes = fs.cat_file(self._home.key(self._path), start=start, end=end)
        if len(window) != end - start:
            raise StorageError(
                f"{self._path}: {len(window)} bytes where {end - start} should be: it changed "
                "since it was opened, or the server ended early",
            )
        return window
