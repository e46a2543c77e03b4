"""A byte counter on stderr: how much was read or moved, at what rate. Terminals only."""

from __future__ import annotations

import sys
import threading
import time

from ckptgov_cli.output import size


class ByteCounter:
    """Called with bytes from several threads; redraws at most ten times a second."""

    def __init__(self, word: str = "read") -> None:
        self._word = word
        self._lock = threading.Lock()
        self._bytes = 0
        self._begun = time.monotonic()
        self._drawn = 0.0

    def __call__(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            now = time.monotonic()
            if now - self._drawn < 0.1:
                return
            self._drawn = now
            rate = self._bytes / max(now - self._begun, 1e-3)
            sys.stderr.write(f"\r{size(self._bytes)} {self._word}, {size(int(rate))}/s \x1b[K")
            sys.stderr.flush()

    def close(self) -> None:
        """Leave a clean line behind."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
