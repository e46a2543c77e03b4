"""An open file on another node's disk: one state of one path, read in ranges."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from contextlib import suppress

from ckptgov.errors import StorageError, TransientStorageError
from ckptgov.model.closing import Closing
from ckptgov.model.files import FileStat
from ckptgov.storage._paths import printable
from ckptgov.storage._peer_calls import Calls, Line
from ckptgov.storage.peer_messages import Changed, token_text

_DIRECT_BYTES = 8 * 2**20
"""Reads of this size get a request of their own; smaller ones go on with a stream."""

_FIRST_BYTES, _MOST_BYTES = 2**20, 16 * 2**20


class PeerFile(Closing):
    """``OpenFile`` of what a path led to when it was opened.

    The agent keeps nothing open: every range is asked for under the condition that size, mtime
    and inode are still those, and ``Changed`` is raised where they are not. Bytes of two files are
    never mixed. Threads may share it: large reads run in parallel, small ones share a stream that
    goes on where the last one ended.
    """

    def __init__(
        self,
        calls: Calls,
        target: str,
        found: FileStat,
        where: str,
        stat: Callable[[], FileStat],
    ) -> None:
        self._calls = calls
        self._target = target
        self._found = found
        self._where = where
        self._stat = stat
        self._lock = threading.Lock()
        self._stream: _Body | None = None
        self._window_bytes = _FIRST_BYTES

    def stat(self) -> FileStat:
        """As it is now.

        Raises:
            Changed: the path leads to another file, or nowhere.
        """
        try:
            now = self._stat()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise self._changed() from error
        if (now.inode, now.device) != (self._found.inode, self._found.device):
            raise self._changed()
        return now

    def read_at(self, offset: int, length: int) -> bytes:
        buffer = bytearray(max(0, min(length, self._found.bytes - offset)))
        with memoryview(buffer) as view:
            self.read_into(view, offset)
        return bytes(buffer)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        count = min(buffer.nbytes, self._found.bytes - offset)
        if count <= 0:
            return 0
        with buffer.cast("B") as whole, whole[:count] as view:
            if count >= _DIRECT_BYTES:
                self._fetch(view, offset)
            else:
                with self._lock:
                    self._read_on(view, offset)
        return count

    def sync(self) -> None:
        """Refused: whoever writes there makes it durable."""
        raise StorageError(f"{printable(self._where)}: read only: another node's disk")

    def drop_cache(self, offset: int, length: int) -> None:
        del offset, length

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _fetch(self, view: memoryview, offset: int) -> None:
        done = 0

        def on() -> None:
            nonlocal done
            body = self._get(offset + done, offset + len(view))
            try:
                while done < len(view):
                    done += body.read_into(view[done:])
            finally:
                body.close()

        self._again(on)

    def _read_on(self, view: memoryview, offset: int) -> None:
        done = 0

        def on() -> None:
            nonlocal done
            try:
                while done < len(view):
                    body = self._stream_at(offset + done, len(view) - done)
                    done += body.read_into(view[done:])
            except BaseException:
                self._drop()
                raise

        self._again(on)

    def _stream_at(self, offset: int, at_least: int) -> _Body:
        if self._stream is not None and self._stream.position == offset:
            if offset < self._stream.end:
                return self._stream
            self._window_bytes = min(4 * self._window_bytes, _MOST_BYTES)
        else:
            self._window_bytes = _FIRST_BYTES
        self._drop()
        end = min(offset + max(at_least, self._window_bytes), self._found.bytes)
        self._stream = self._get(offset, end)
        return self._stream

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _again(self, operation: Callable[[], None]) -> None:
        try:
            self._calls.again(operation)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise self._changed() from error

    def _get(self, start: int, end: int) -> _Body:
        response, line = self._calls.begin(
            "GET",
            self._target,
            self._where,
            headers={
                "Range": f"bytes={start}-{end - 1}",
                "If-Match": token_text(self._found.token),
            },
        )
        body = _Body(self._calls, response, line, self._where, start, end)
        told = response.getheader("Content-Range")
        if response.length != end - start or told != f"bytes {start}-{end - 1}/{self._found.bytes}":
            body.close()
            raise StorageError(f"{printable(self._where)}: another range came than was asked for")
        return body

    def _changed(self) -> Changed:
        return Changed(f"{printable(self._where)}: changed or removed since it was opened")


class _Body:
    """The body of one answer. ``position`` is where in the file the next byte comes from."""

    def __init__(
        self,
        calls: Calls,
        response: http.client.HTTPResponse,
        line: Line,
        where: str,
        start: int,
        end: int,
    ) -> None:
        self._calls = calls
        self._response = response
        self._line = line
        self._where = where
        self.position = start
        self.end = end

    def read_into(self, buffer: memoryview) -> int:
        """Some bytes, at least one."""
        with buffer[: self.end - self.position] as view:
            try:
                count = self._response.readinto(view)
            except (OSError, http.client.HTTPException) as error:
                raise self._ended() from error
        if count <= 0:
            raise self._ended()
        self.position += count
        return count

    def close(self) -> None:
        with suppress(OSError):
            self._calls.end(self._line, self._response)

    def _ended(self) -> TransientStorageError:
        return TransientStorageError(f"{printable(self._where)}: the answer broke off")
