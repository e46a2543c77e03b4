"""Which bytes of a file were dealt with, as few intervals as they form."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Covered:
    """A set of bytes. Pieces mostly come in order, so it is mostly one interval."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Add the bytes from ``begin`` to before ``end``; what touches is joined."""
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def first_gap(self, size_bytes: int) -> int | None:
        """The first byte below ``size_bytes`` that was not added; None when all were."""
        end = self._ends[0] if self._begins and self._begins[0] == 0 else 0
        return end if end < size_bytes else None
