"""Time comes in from outside: wall time for stamps, monotonic time for durations."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that stamps or waits is given."""

    def now_ns(self) -> int:
        """Wall clock, ns since the epoch. For stamps only: it never orders checkpoints."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
