"""Outcomes told beside a running command: in order, in the background, never in its way."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from ckptgov.errors import CkptgovError
from ckptgov.model.journal import RestoreOutcome

Tell = Callable[[RestoreOutcome, str | None], None]


class Teller:
    """Calls ``tell`` for each outcome from a thread of its own.

    What it raises is only said through ``talk``. A storage that hangs costs ``finish`` its
    patience, and the command nothing.
    """

    def __init__(self, tell: Tell, talk: Callable[[str], None]) -> None:
        self._tell = tell
        self._talk = talk
        self._waiting: queue.SimpleQueue[tuple[RestoreOutcome, str | None] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def say(self, outcome: RestoreOutcome, reason: str | None = None) -> None:
        """Have an outcome told soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._waiting.put((outcome, reason))

    def finish(self, patience_s: float) -> None:
        """Wait until everything was told, for so long at most."""
        if self._thread is None:
            return
        self._waiting.put(None)
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self._talk(f"the outcome could not be told within {patience_s:.0f} s")

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            outcome, reason = item
            try:
                self._tell(outcome, reason)
            except CkptgovError as error:
                self._talk(f"'{outcome.value}' could not be told: {error.message}")
            except Exception as error:  # whatever it is, training goes on
                self._talk(f"'{outcome.value}' could not be told: {type(error).__name__}: {error}")
