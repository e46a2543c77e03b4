"""A claim that is held while a command runs: renewed beside it, let go of at its end.

Killed (SIGKILL), nobody lets go of it: it runs out by itself. The command dies with us, for it
must not read on what nothing keeps any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from ckptgov.errors import CkptgovError
from ckptgov.integrations.supervising import Ended, supervise
from ckptgov.model.clock import Clock

PATIENCE_S = 30.0
"""How long the end of a command is held up by a claim that does not let itself be ended."""

_RENEWED_AT = 1 / 2  # of its time
_TRIED_AGAIN_AFTER = 1 / 20


class Held:
    """Calls ``renew`` well before the claim's time is over, from a thread of its own.

    What goes wrong is only said through ``talk``: the command goes on, and the claim stands until
    its time is over. ``wait`` is asked to wait so many seconds, and tells whether the end came
    sooner; it is the event's own where nothing else is given.
    """

    def __init__(
        self,
        *,
        ttl_s: float,
        renew: Callable[[], None],
        release: Callable[[], None],
        talk: Callable[[str], None],
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._ttl_s = ttl_s
        self._renew = renew
        self._release = release
        self._talk = talk
        self._wait = wait
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def end(self, patience_s: float = PATIENCE_S) -> None:
        """Let go of the claim; after so long, leave it to run out."""
        self._ended.set()
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self._talk(f"the lease could not be ended within {patience_s:.0f} s; it runs out")

    def _run(self) -> None:
        pause_s = self._ttl_s * _RENEWED_AT
        while not self._wait(self._ended, pause_s):
            is_renewed = self._told(self._renew, "renewed")
            pause_s = self._ttl_s * (_RENEWED_AT if is_renewed else _TRIED_AGAIN_AFTER)
        self._told(self._release, "ended")

    def _told(self, change: Callable[[], None], word: str) -> bool:
        try:
            change()
        except CkptgovError as error:
            self._talk(f"the lease could not be {word}: {error.message}")
            return False
        except Exception as error:  # whatever it is, the command goes on
            self._talk(f"the lease could not be {word}: {type(error).__name__}: {error}")
            return False
        return True


def run_leased(
    words: Sequence[str],
    environ: Mapping[str, str],
    *,
    clock: Clock,
    ttl_s: float,
    renew: Callable[[], None],
    release: Callable[[], None],
    talk: Callable[[str], None],
) -> int:
    """Run a command under a claim that was taken just now; its exit code, or 128 + its signal.

    ``renew`` and ``release`` are called from another thread.

    Raises:
        UsageError: it cannot be started; the claim is ended.
    """
    held = Held(ttl_s=ttl_s, renew=renew, release=release, talk=talk)
    is_over = False

    def at_end(ended: Ended) -> None:
        nonlocal is_over
        del ended
        is_over = True
        held.end()

    try:
        return supervise(words, environ, clock=clock, watch=_never, at_end=at_end).code
    finally:
        if not is_over:
            held.end()


def _never(lived_s: float) -> None:
    del lived_s
