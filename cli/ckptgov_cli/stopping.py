"""Stopping a long command between two pieces, so that what arrived is kept and reported."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ckptgov_cli import output

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM or Ctrl-C asked to stop. A second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # whoever runs us there handles signals
        return
    asked = threading.Event()

    def ask(signum: int, frame: FrameType | None) -> None:
        del frame
        if asked.is_set():
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        asked.set()
        output.talk("stopping; what has arrived is kept (once more ends at once)")

    previous = [(signum, signal.signal(signum, ask)) for signum in _SIGNALS]
    try:
        yield asked.is_set
    finally:
        for signum, handler in previous:
            signal.signal(signum, handler)
