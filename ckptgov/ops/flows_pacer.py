"""Pacing one flow: what it may take now, and token buckets that make it wait for more.

A bucket begins empty and holds at most one quantum, so that what left since the beginning never
exceeds the rate times the time. Everything is counted in whole bytes and thousandths of calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec import Struct

from ckptgov.errors import LeaseLost, TimedOut
from ckptgov.model.clock import Clock
from ckptgov.planning.bandwidth import Rates, quantum_bytes

POLL_S = 0.1
"""A waiting flow looks this often whether its rate changed."""

PUSH_BACK_S = 1.0
_SHORTEST_S = 0.002
_FULL = 1000


class Terms(Struct, frozen=True, kw_only=True):
    """What a flow may take, on its own monotonic clock.

    ``rates`` until ``fresh_until``, then ``fallback`` until ``usable_until``, then nothing: by
    then others may have been given it. ``rates`` None: it waits.
    """

    rates: Rates | None
    fallback: Rates | None
    fresh_until: float
    usable_until: float
    waits_for: str = ""
    seq: int = -1

    def at(self, now: float) -> Rates | None:
        """The rates in force."""
        if self.rates is None or now >= self.usable_until:
            return None
        return self.rates if now < self.fresh_until else self.fallback


class Bucket:
    """Tokens that come in at a rate, up to ``cap``."""

    __slots__ = ("_at_ns", "tokens")

    def __init__(self, now_ns: int) -> None:
        self.tokens = 0
        self._at_ns = now_ns

    def settle(self, now_ns: int, rate: int, cap: int) -> None:
        """Put in what came in since the last time."""
        earned = max(0, now_ns - self._at_ns) * rate // 10**9
        if self.tokens + earned >= cap:
            self.tokens, self._at_ns = cap, now_ns
        elif earned:
            self.tokens += earned
            self._at_ns += earned * 10**9 // rate

    def pause(self, now_ns: int) -> None:
        """Nothing comes in, and what was there is given up."""
        self.tokens, self._at_ns = 0, now_ns


class Taken(Struct, frozen=True):
    """What went through a pacer since it was last asked, and how long that had to wait."""

    bytes: int = 0
    calls: int = 0
    waited_s: float = 0.0


class FlowPacer:
    """One direction of one flow; ``is_read`` chooses its rates out of the terms."""

    def __init__(
        self,
        clock: Clock,
        *,
        is_read: bool,
        terms: Callable[[], Terms],
        what: str,
        wait_limit_s: float | None = None,
    ) -> None:
        self._clock = clock
        self._first = 0 if is_read else 1
        self._terms = terms
        self._what = what
        self._wait_limit_s = wait_limit_s
        self._turn = threading.Lock()  # of those that wait, one pays at a time
        self._lock = threading.Lock()
        now_ns = self._now_ns()
        self._bytes, self._calls = Bucket(now_ns), Bucket(now_ns)
        self._pace = _FULL
        self._pushed_at = -PUSH_BACK_S
        self._taken = Taken()
        self._is_closed = False
        self.push_backs = 0

    def take(self, count_bytes: int, *, requests: int = 0) -> None:
        """Wait until this much may leave. See ``model.Pacer``.

        Raises:
            LeaseLost: the flow was closed.
            TimedOut: it had to wait longer than it was allowed to.
        """
        with self._turn:
            began = self._clock.monotonic()
            left, calls = count_bytes, requests * 1000
            while True:
                with self._lock:
                    left, calls, wait_s = self._pay(left, calls)
                    if not wait_s:
                        done = Taken(count_bytes, requests)
                        self._taken = _sum(self._taken, done)
                        return
                self._check_wait(began)
                self._clock.sleep(wait_s)

    def push_back(self) -> None:
        """The store asked for less: go slower at once; the arbiter hears of it next time."""
        with self._lock:
            self.settle()
            self.push_backs += 1
            now = self._clock.monotonic()
            if now - self._pushed_at >= PUSH_BACK_S:  # threads refused together count once
                self._pushed_at = now
                self._pace = self._pace * 7 // 10

    def settle(self) -> None:
        """Account for the time so far at the rate so far, before the rate changes."""
        rates = self._rates()
        now_ns = self._now_ns()
        for bucket, rate, cap in (
            (self._bytes, *_with_cap(rates, 0)),
            (self._calls, *_with_cap(rates, 1)),
        ):
            if rate is None or not rate:
                bucket.pause(now_ns)
            else:
                bucket.settle(now_ns, rate, cap)

    def change(self, apply: Callable[[], None], *, is_new: bool) -> None:
        """Let the terms change by ``apply``; ``is_new`` terms know of the push-backs so far."""
        with self._lock:
            self.settle()
            apply()
            self._pace = _FULL if is_new else min(_FULL, self._pace + 20)

    def collect(self) -> Taken:
        """What was taken since the last call."""
        with self._lock:
            taken, self._taken = self._taken, Taken()
            return taken

    def close(self) -> None:
        """Whoever still waits stops waiting with LeaseLost."""
        self._is_closed = True

    def _pay(self, left: int, calls: int) -> tuple[int, int, float]:
        """Pay what can be paid now; what is left of both, and how long to wait (0: it is done)."""
        if self._is_closed:
            raise LeaseLost(f"the flow of {self._what} was closed")
        rates = self._rates()
        self.settle()
        if rates is None:
            return left, calls, POLL_S
        waits = [0.0]
        rest = []
        for amount, bucket, (rate, cap) in (
            (left, self._bytes, _with_cap(rates, 0)),
            (calls, self._calls, _with_cap(rates, 1)),
        ):
            paid = amount if rate is None else min(amount, bucket.tokens)
            if rate is not None:
                bucket.tokens -= paid
            rest.append(amount - paid)
            if amount > paid:
                waits.append(min(amount - paid, cap) / rate if rate else POLL_S)
        wait_s = max(waits)
        if wait_s:
            wait_s = min(POLL_S, max(_SHORTEST_S, wait_s))
            self._taken = _sum(self._taken, Taken(0, 0, wait_s))
        return rest[0], rest[1], wait_s

    def _rates(self) -> tuple[int | None, int | None] | None:
        """Bytes/s and calls per 1000 s in force, a push-back of late taken off."""
        now = self._clock.monotonic()
        terms = self._terms()
        rates = terms.at(now)
        if rates is None:
            return None
        fallback = terms.fallback if terms.fallback is not None else rates
        picked = []
        for place in (self._first, self._first + 2):
            rate, least = rates[place], fallback[place]
            slow = rate if rate is None else max(least or 0, rate * self._pace // _FULL)
            picked.append(slow if rate is None or slow is None else min(rate, slow))
        return picked[0], picked[1]

    def _check_wait(self, began: float) -> None:
        if self._wait_limit_s is None or self._clock.monotonic() - began < self._wait_limit_s:
            return
        reason = self._terms().waits_for or "its rate"
        raise TimedOut(f"{self._what}: waited {self._wait_limit_s:g} s for {reason}")

    def _now_ns(self) -> int:
        return int(self._clock.monotonic() * 1e9)


def _with_cap(rates: tuple[int | None, int | None] | None, place: int) -> tuple[int | None, int]:
    """One rate and how many tokens may gather at it; rate 0 while nothing may leave."""
    if rates is None:
        return 0, 0
    rate = rates[place]
    if rate is None:
        return None, 0
    return rate, quantum_bytes(rate) if place == 0 else max(1000, rate // 4)


def _sum(one: Taken, other: Taken) -> Taken:
    return Taken(one.bytes + other.bytes, one.calls + other.calls, one.waited_s + other.waited_s)
