"""Sending written bytes on to the device while more are being written."""

from __future__ import annotations

from ckptgov.storage import _linux

WINDOW_BYTES = 32 * 2**20


class Writeback:
    """Sends written bytes on to the device, so that few of them are only in the page cache.

    Each window is begun when it is full, and the one before it awaited then: at most two of them
    have not left, and an error is told while the file is being written.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: tuple[int, int] | None = None
        self._begin = self._end = self._collected_bytes = 0

    @property
    def room_bytes(self) -> int:
        """What may be written before the window is full."""
        return max(1, WINDOW_BYTES - self._collected_bytes)

    def wrote(self, offset: int, length: int) -> None:
        if not self._collected_bytes:
            self._begin = self._end = offset
        self._begin = min(self._begin, offset)
        self._end = max(self._end, offset + length)
        self._collected_bytes += length
        if self._collected_bytes >= WINDOW_BYTES:
            self._turn()

    def _turn(self) -> None:
        window = self._begin, self._end - self._begin
        _linux.start_writeback(self._fd, *window)
        if self._before is not None:
            _linux.await_writeback(self._fd, *self._before)
        self._before, self._collected_bytes = window, 0
