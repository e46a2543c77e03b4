"""An open file that is read in ranges asked for over a network."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, Protocol

from ckptgov.model.closing import Closing

_DIRECT_BYTES = 8 * 2**20
"""Reads of this size get a request of their own; smaller ones go on with a stream."""

_FIRST_BYTES = 2**20


class Body(Protocol):
    """The body of one answer. ``position`` is where in the file the next byte comes from."""

    position: int
    end: int

    def read_into(self, buffer: memoryview) -> int:
        """Some bytes, at least one; raises where the answer broke off."""
        ...

    def close(self) -> None: ...


class RangedFile(Closing):
    """What reads of one state of a file have in common, wherever its bytes come from.

    Threads may share it. Large reads are independent requests and may run in parallel. Small ones
    share a stream that goes on where the last one ended: it asks for 1 MiB after a jump and for
    more as it is used, up to ``MOST_BYTES``.
    """

    MOST_BYTES: ClassVar[int]

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._stream: Body | None = None
        self._window_bytes = _FIRST_BYTES

    def _get(self, start: int, end: int) -> Body:
        """Ask for bytes ``start`` to ``end`` of the state that was opened."""
        raise NotImplementedError

    def _call(self, operation: Callable[[], None]) -> None:
        """Do it, again where what failed may pass; it goes on from what arrived."""
        raise NotImplementedError

    def read_at(self, offset: int, length: int) -> bytes:
        buffer = bytearray(max(0, min(length, self._size_bytes - offset)))
        with memoryview(buffer) as view:
            self.read_into(view, offset)
        return bytes(buffer)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        count = min(buffer.nbytes, self._size_bytes - offset)
        if count <= 0:
            return 0
        with buffer.cast("B") as whole, whole[:count] as view:
            if count >= _DIRECT_BYTES:
                self._fetch(view, offset)
            else:
                with self._lock:
                    self._read_on(view, offset)
        return count

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

        self._call(on)

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

        self._call(on)

    def _stream_at(self, offset: int, at_least: int) -> Body:
        if self._stream is not None and self._stream.position == offset:
            if offset < self._stream.end:
                return self._stream
            self._window_bytes = min(4 * self._window_bytes, self.MOST_BYTES)
        else:
            self._window_bytes = _FIRST_BYTES
        self._drop()
        end = min(offset + max(at_least, self._window_bytes), self._size_bytes)
        self._stream = self._get(offset, end)
        return self._stream

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
