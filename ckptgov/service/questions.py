"""Which runs somebody asks for, noted aside: a question keeps its run alive and costs nothing.

Whoever answers only looks a run up in memory; a thread writes it to the catalog, at most once an
hour for each run. What could not be written is lost: the next hour's question tells the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ckptgov.catalog.catalog import Catalog
from ckptgov.model.closing import Closing
from ckptgov.ops import lives

ONCE_S = 3600.0
_FORGET_EVERY_S = 60.0


class Questions(Closing):
    """The questions of one process, from any number of threads. ``start`` begins the writing."""

    def __init__(self, catalog: Catalog, *, monotonic: Callable[[], float]) -> None:
        self._catalog = catalog
        self._monotonic = monotonic
        self._noted: dict[str, float] = {}
        self._lock = threading.Lock()  # of changes to what is noted
        self._new: deque[str] = deque()
        self._wake = threading.Event()
        self._is_ending = False
        self._thread: threading.Thread | None = None

    def note(self, run_id: str) -> None:
        """Somebody asks for a run; never waits for the catalog."""
        if run_id in self._noted:
            return
        with self._lock:
            if run_id in self._noted:
                return
            self._noted[run_id] = self._monotonic()
        self._new.append(run_id)
        self._wake.set()

    def write(self) -> None:
        """Write what is new, and forget what was noted an hour ago."""
        while self._new and not self._is_ending:
            lives.asked(self._catalog, self._new.popleft())
        before = self._monotonic() - ONCE_S
        with self._lock:
            self._noted = {run: at for run, at in self._noted.items() if at > before}

    def start(self) -> None:
        """Write from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="questions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write no more."""
        self._is_ending = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._is_ending:
            self._wake.wait(_FORGET_EVERY_S)
            self._wake.clear()
            self.write()
