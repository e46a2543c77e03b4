"""An open file on another node's disk: one state of one path, read in ranges."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from contextlib import suppress

from ckptgov.errors import StorageError, TransientStorageError
from ckptgov.model.files import FileStat
from ckptgov.storage._paths import printable
from ckptgov.storage._peer_calls import Calls, Line
from ckptgov.storage._ranged import RangedFile
from ckptgov.storage.peer_messages import Changed, token_text


class PeerFile(RangedFile):
    """``OpenFile`` of what a path led to when it was opened.

    The agent keeps nothing open: every range is asked for under the condition that size, mtime
    and inode are still those, and ``Changed`` is raised where they are not. Bytes of two files are
    never mixed.
    """

    MOST_BYTES = 16 * 2**20

    def __init__(
        self,
        calls: Calls,
        target: str,
        found: FileStat,
        where: str,
        stat: Callable[[], FileStat],
    ) -> None:
        super().__init__(found.bytes)
        self._calls = calls
        self._target = target
        self._found = found
        self._where = where
        self._stat = stat

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

    def sync(self) -> None:
        """Refused: whoever writes there makes it durable."""
        raise StorageError(f"{printable(self._where)}: read only: another node's disk")

    def drop_cache(self, offset: int, length: int) -> None:
        del offset, length

    def _call(self, operation: Callable[[], None]) -> None:
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
