"""Waiting for something to change without holding a thread for each who waits.

Everybody who waits for the same thing shares one loop that looks at it: a thousand launchers that
wait for one seal cost as much as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from ckptgov.errors import CkptgovError, NotAllowed
from ckptgov.service.pools import Pool

LOOK_EVERY_S = 0.1
_LOOK_LIMIT_S = 10.0


class Watch:
    """Shared looks at what may change; used from one event loop."""

    def __init__(self, *, every_s: float = LOOK_EVERY_S) -> None:
        self._every_s = every_s
        self._watched: dict[Hashable, _Watched] = {}
        self.is_over = False

    async def end(self) -> None:
        """The service goes down: nobody waits for anything any more."""
        self.is_over = True
        for one in list(self._watched.values()):
            await one.end()

    async def changed(
        self,
        key: Hashable,
        pool: Pool,
        look: Callable[[], object],
        *,
        seen: object,
        limit_s: float,
    ) -> bool:
        """Return True once ``look`` tells something else than ``seen``, False after ``limit_s``.

        All who give the same ``key`` are served by one of their looks, in ``pool``, which tells
        None of nothing. Who waits for what they may not see (any more) has waited enough.
        """
        if self.is_over:
            return False
        one = self._watched.get(key)
        if one is None:
            one = self._watched[key] = _Watched(key, pool, look, every_s=self._every_s)
        one.waiting += 1
        try:
            async with asyncio.timeout(limit_s):
                await one.until_other_than(seen)
                return True
        except TimeoutError:
            return False
        finally:
            one.waiting -= 1
            if not one.waiting:
                one.stop()
                if self._watched.get(key) is one:
                    del self._watched[key]


class _Watched:
    def __init__(
        self, key: Hashable, pool: Pool, look: Callable[[], object], *, every_s: float
    ) -> None:
        self.waiting = 0
        self._key = ("watch", key)
        self._pool = pool
        self._look = look
        self._every_s = every_s
        self._told: object = None
        self._is_over = False
        self._looked = asyncio.Condition()
        self._task = asyncio.get_running_loop().create_task(self._go_on())

    async def until_other_than(self, seen: object) -> None:
        async with self._looked:
            await self._looked.wait_for(lambda: self._is_over or self._is_other_than(seen))

    def _is_other_than(self, seen: object) -> bool:
        return self._told is not None and self._told != seen

    def stop(self) -> None:
        self._task.cancel()

    async def end(self) -> None:
        """Let everybody go on who waits."""
        self._is_over = True
        async with self._looked:
            self._looked.notify_all()

    async def _go_on(self) -> None:
        while True:
            try:
                # One that hangs is waited for on and on: the next would hang beside it.
                told = await self._pool.run(self._look, limit_s=_LOOK_LIMIT_S, shared=self._key)
            except NotAllowed as error:
                told = error  # something else than ever before: who waits is to ask anew
            except CkptgovError:
                told = None  # not to be looked at just now: whoever waits goes on waiting
            if told is not None:
                await self._tell(told)
            await asyncio.sleep(self._every_s)

    async def _tell(self, told: object) -> None:
        async with self._looked:
            self._told = told
            self._looked.notify_all()
