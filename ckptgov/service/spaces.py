"""Free space of tiers, asked in threads: a mount that hangs must not hang whoever wants to know."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ckptgov.errors import StorageError
from ckptgov.model.settings import TierSettings
from ckptgov.ops.room import free_and_total

WAIT_S = 0.5

Space = tuple[int, int]


class Spaces:
    """The last answer of each tier's file system; at most one question to each is under way."""

    def __init__(
        self,
        *,
        wait_s: float = WAIT_S,
        measure: Callable[[TierSettings], Space | None] = free_and_total,
    ) -> None:
        self._wait_s = wait_s
        self._measure = measure
        self._asking: dict[str, threading.Thread] = {}
        self._known: dict[str, Space | None] = {}

    def of(self, tiers: Iterable[TierSettings]) -> dict[str, Space]:
        """(free bytes, size) by root. A tier that did not answer in time is not among them."""
        wanted = [one for one in tiers if not one.is_url]
        for one in wanted:
            if one.root not in self._asking:
                self._ask(one)
        found: dict[str, Space] = {}
        for one in wanted:
            thread = self._asking[one.root]
            thread.join(self._wait_s)
            if thread.is_alive():
                continue
            del self._asking[one.root]
            space = self._known.pop(one.root, None)
            if space is not None:
                found[one.root] = space
        return found

    def _ask(self, tier: TierSettings) -> None:
        def work() -> None:
            try:
                self._known[tier.root] = self._measure(tier)
            except StorageError:
                self._known[tier.root] = None

        thread = threading.Thread(target=work, name="free-space", daemon=True)
        self._asking[tier.root] = thread
        thread.start()
