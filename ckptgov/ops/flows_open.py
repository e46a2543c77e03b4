"""One open flow of this process: its pacers, and what there is to tell of it."""

from __future__ import annotations

import threading

from msgspec.structs import replace

from ckptgov.catalog.flowfacts import Beat, FlowOwner
from ckptgov.model.clock import Clock
from ckptgov.model.pacing import FlowRequest, Pacer
from ckptgov.ops.flows_pacer import FlowPacer, Terms
from ckptgov.planning.bandwidth import Rates

NO_ANSWER = "the arbiter, which does not answer"

_MEASURE_S = 0.5
_HUNGRY = 0.25  # who waits less of its time for its rate than this could not use much more
_CALM_BEATS = 3


class OpenFlow:
    """A flow while it is open. Its pacers may be used by several threads."""

    def __init__(
        self, request: FlowRequest, clock: Clock, terms: Terms, wait_limit_s: float | None
    ) -> None:
        self.request = request
        self._clock = clock
        self._terms = terms
        pacers = [
            FlowPacer(
                clock,
                is_read=is_read,
                terms=lambda: self._terms,
                what=request.what,
                wait_limit_s=wait_limit_s,
            )
            for is_read in (True, False)
        ]
        self._reading, self._writing = pacers
        self._lock = threading.Lock()
        self._moved_bytes = 0
        self._told = (0, clock.monotonic(), 0)  # moved bytes then, when, bytes/s
        self._wanted: Rates | None = None
        self._calm_beats = 0
        self.is_registered = False
        self.heard_at = clock.monotonic()
        """When it last told what was surely heard: its silence is counted from then at the
        earliest. While it was not heard yet: from before it was registered."""
        self.is_news = False
        """What it heard last is not known yet to act on."""

    @property
    def terms(self) -> Terms:
        """What it may take, as it last heard."""
        return self._terms

    @property
    def reading(self) -> Pacer:
        """To be asked before bytes leave the source."""
        return self._reading

    @property
    def writing(self) -> Pacer:
        """To be asked before bytes leave for the target."""
        return self._writing

    @property
    def waits_for(self) -> str:
        """Why nothing may move now, in words; empty while it may."""
        terms = self._terms
        if terms.at(self._clock.monotonic()) is not None:
            return ""
        return terms.waits_for or NO_ANSWER

    def moved(self, count_bytes: int) -> None:
        """These bytes arrived."""
        with self._lock:
            self._moved_bytes += count_bytes

    def close(self) -> None:
        """Nothing more may be taken."""
        self._reading.close()
        self._writing.close()

    def beat(self, owner: FlowOwner) -> Beat:
        """What there is to tell of this flow now."""
        self._measure()
        return Beat(
            flow_id=self.request.flow_id,
            owner=owner,
            moved_bytes=self._moved_bytes,
            measured_bytes_per_s=self._told[2],
            wanted=self._wanted,
            read_push_backs=self._reading.push_backs,
            write_push_backs=self._writing.push_backs,
        )

    def hear(self, terms: Terms) -> None:
        """Go on under other terms."""
        is_new = terms.seq != self._terms.seq

        def apply() -> None:
            self._terms = terms

        # Both must have settled at the old rates before the terms change.
        self._reading.change(lambda: self._writing.change(apply, is_new=is_new), is_new=is_new)

    def lose(self) -> None:
        """The catalog does not answer: who was not let in says what it waits for."""
        if self._terms.rates is None:
            self._terms = replace(self._terms, waits_for=NO_ANSWER)

    def _measure(self) -> None:
        moved, then, _ = self._told
        now = self._clock.monotonic()
        elapsed_s = now - then
        if elapsed_s < _MEASURE_S:
            return
        self._told = (self._moved_bytes, now, int((self._moved_bytes - moved) / elapsed_s))
        taken = [self._reading.collect(), self._writing.collect()]
        waited_s = max(one.waited_s for one in taken)
        if waited_s > _HUNGRY * elapsed_s or self._terms.rates is None:
            self._calm_beats, self._wanted = 0, None
            return
        self._calm_beats += 1
        if self._calm_beats >= _CALM_BEATS:
            moving = int(2 * max(one.bytes for one in taken) / elapsed_s) + 2**20
            calls = [int(2000 * one.calls / elapsed_s) + 1000 for one in taken]
            self._wanted = Rates(moving, moving, calls[0], calls[1])
