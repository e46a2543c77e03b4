"""Where blocking work runs: a bounded number of threads, and a bounded number of requests waiting.

Nothing that waits for storage or the catalog runs on the event loop. A request that takes longer
than its limit is told so: queued, it is never begun; begun, its thread goes on to the end, so that
what it does is done as a whole.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ckptgov.errors import CkptgovError, TimedOut
from ckptgov.model.closing import Closing
from ckptgov.service.refusals import Busy

log = logging.getLogger(__name__)
T = TypeVar("T")


class Pool(Closing):
    """``threads`` at work, and at most ``waiting`` requests behind them."""

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._name = name
        self._most = threads + waiting
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._count = 0
        self._shared: dict[Hashable, Future[object]] = {}

    async def run(
        self, work: Callable[[], T], *, limit_s: float, shared: Hashable | None = None
    ) -> T:
        """Run ``work`` in a thread. The same ``shared`` while one runs: its answer is waited for.

        Raises:
            TimedOut: not within ``limit_s``.
            Busy: too many are waiting already.
        """
        future = self._joined(shared) or self._submit(work, shared)
        mine = asyncio.wrap_future(future)
        done, _ = await asyncio.wait({mine}, timeout=limit_s)
        if done:
            return mine.result()  # type: ignore[return-value]
        if shared is None:
            future.cancel()
        mine.add_done_callback(_forget)
        raise TimedOut(
            f"not done within {limit_s:g} s",
            hint="what was begun goes on to its end; ask again later",
        )

    def _joined(self, shared: Hashable | None) -> Future[object] | None:
        with self._lock:
            return self._shared.get(shared) if shared is not None else None

    def _submit(self, work: Callable[[], T], shared: Hashable | None) -> Future[object]:
        with self._lock:
            if self._count >= self._most:
                raise Busy("the service has more under way than it takes on")
            self._count += 1
        try:
            future: Future[object] = self._executor.submit(work)
        except RuntimeError as error:  # shut down
            self._leave(shared)
            raise Busy("the service is going down") from error
        if shared is not None:
            with self._lock:
                self._shared[shared] = future
        future.add_done_callback(lambda done: self._left(done, shared))
        return future

    def _left(self, done: Future[object], shared: Hashable | None) -> None:
        self._leave(shared)
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, CkptgovError):
            log.debug("work failed pool=%s error=%s", self._name, type(error).__name__)

    def _leave(self, shared: Hashable | None) -> None:
        with self._lock:
            self._count -= 1
            if shared is not None:
                self._shared.pop(shared, None)

    def close(self) -> None:
        """Begin nothing more; what is under way goes on to its end."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _forget(mine: asyncio.Future[object]) -> None:
    """An answer nobody waits for any more is no error of the loop."""
    if not mine.cancelled():
        mine.exception()
