"""One flow's pacers: what leaves in a time, whatever its terms turn into meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckptgov.errors import LeaseLost, TimedOut
from ckptgov.ops.flows_pacer import FlowPacer, Terms
from ckptgov.planning.bandwidth import UNLIMITED, Rates

MB = 2**20


class SteppedClock:
    """Time passes only by sleeping; ``at`` holds what happens meanwhile."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.at: list[tuple[float, Callable[[], None]]] = []

    def now_ns(self) -> int:
        return int(self.now * 1e9)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        for due, act in list(self.at):
            if due <= self.now:
                self.at.remove((due, act))
                act()


class Paced:
    """A pacer for writing, with terms that a test may change."""

    def __init__(self, **fields: object) -> None:
        self.clock = SteppedClock()
        self.terms = terms(**fields)
        self.pacer = FlowPacer(
            self.clock, is_read=False, terms=lambda: self.terms, what="run/step_1"
        )

    def after(self, seconds: float, **fields: object) -> None:
        changed = terms(**fields)

        def act() -> None:
            self.pacer.change(lambda: setattr(self, "terms", changed), is_new=True)

        self.clock.at.append((self.clock.now + seconds, act))

    def time_of(self, count_bytes: int, requests: int = 0) -> float:
        began = self.clock.now
        self.pacer.take(count_bytes, requests=requests)
        return self.clock.now - began


def terms(
    rate: int | None = 10 * MB,
    fallback: int = MB,
    calls: int | None = None,
    *,
    waits: bool = False,
    fresh_until: float = 1e9,
    usable_until: float = 1e9,
) -> Terms:
    return Terms(
        rates=None if waits else Rates(None, rate, None, calls),
        fallback=Rates(None, fallback, None, calls),
        fresh_until=fresh_until,
        usable_until=usable_until,
        waits_for="flows of tier s3: 4 of 4" if waits else "",
    )


def test_bytes_leave_at_the_rate_and_the_bucket_begins_empty() -> None:
    assert Paced().time_of(100 * MB) == pytest.approx(10, rel=0.01)


def test_small_takes_add_up_to_the_rate() -> None:
    paced = Paced()
    for _ in range(1000):
        paced.pacer.take(MB // 10)
    assert paced.clock.now - 1000 == pytest.approx(10, rel=0.01)


def test_after_a_rest_no_more_than_one_quantum_leaves_at_once() -> None:
    paced = Paced()
    paced.clock.now += 3600
    assert paced.time_of(5 * MB // 2) == 0
    assert paced.time_of(10 * MB) == pytest.approx(1, rel=0.01)


def test_a_take_of_nothing_does_not_wait() -> None:
    assert Paced().time_of(0) == 0


def test_without_a_limit_nothing_waits() -> None:
    assert Paced(rate=None).time_of(2**50, requests=10**9) == 0


def test_requests_are_paced_beside_the_bytes() -> None:
    assert Paced(rate=None, calls=5000).time_of(2**40, requests=50) == pytest.approx(10, rel=0.01)


def test_a_lower_rate_takes_effect_while_a_take_waits() -> None:
    paced = Paced()
    paced.after(1, rate=MB)
    assert paced.time_of(20 * MB) == pytest.approx(11, abs=0.3)


def test_a_higher_rate_takes_effect_while_a_take_waits() -> None:
    paced = Paced(rate=1)
    paced.after(1, rate=10 * MB)
    assert paced.time_of(20 * MB) == pytest.approx(3, abs=0.2)


def test_nothing_leaves_before_the_flow_is_let_in() -> None:
    paced = Paced(waits=True)
    paced.after(5)
    assert paced.time_of(10 * MB) == pytest.approx(6, abs=0.2)


def test_a_flow_that_is_stopped_gives_up_what_it_had_gathered() -> None:
    paced = Paced()
    paced.clock.now += 60
    paced.after(0.01, waits=True)
    paced.clock.sleep(0.1)
    paced.after(5)
    assert paced.time_of(10 * MB) == pytest.approx(6, abs=0.2)


def test_a_grant_that_runs_out_leaves_the_fallback_rate() -> None:
    paced = Paced(fresh_until=1010)
    assert paced.time_of(110 * MB) == pytest.approx(20.5, abs=0.6)


def test_a_process_that_was_stopped_past_its_grant_gathered_nothing_at_the_old_rate() -> None:
    paced = Paced(rate=1000 * MB, fallback=MB, fresh_until=1010)
    paced.pacer.take(MB)
    paced.clock.now += 60
    assert paced.time_of(11 * MB) == pytest.approx(10, rel=0.05)


def test_a_flow_that_is_unheard_for_very_long_stops() -> None:
    paced = Paced(usable_until=1005)
    paced.after(100)
    assert paced.time_of(60 * MB) == pytest.approx(101, abs=0.3)


def test_a_push_back_slows_the_flow_at_once() -> None:
    paced = Paced()
    paced.pacer.push_back()
    assert paced.time_of(70 * MB) == pytest.approx(10, rel=0.02)
    assert paced.pacer.push_backs == 1


def test_threads_that_are_refused_together_slow_it_once() -> None:
    paced = Paced()
    for _ in range(100):
        paced.pacer.push_back()
    assert paced.time_of(70 * MB) == pytest.approx(10, rel=0.02)


def test_push_backs_never_slow_it_below_its_fallback() -> None:
    paced = Paced()
    for _ in range(20):
        paced.pacer.push_back()
        paced.clock.now += 1
    paced.pacer.take(3 * MB)
    assert paced.time_of(10 * MB) == pytest.approx(10, rel=0.02)


def test_a_closed_flow_takes_nothing_more() -> None:
    paced = Paced(waits=True)
    paced.clock.at.append((1003, paced.pacer.close))
    with pytest.raises(LeaseLost, match="was closed"):
        paced.pacer.take(1)
    assert paced.clock.now < 1004


def test_a_bounded_wait_ends_and_says_what_for() -> None:
    clock = SteppedClock()
    waiting = terms(waits=True)
    pacer = FlowPacer(clock, is_read=True, terms=lambda: waiting, what="run", wait_limit_s=7)
    with pytest.raises(TimedOut, match=r"run: waited 7 s for flows of tier s3: 4 of 4"):
        pacer.take(1)
    assert clock.now == pytest.approx(1007, abs=0.2)


def test_reading_and_writing_have_rates_of_their_own() -> None:
    clock = SteppedClock()
    both = Terms(
        rates=Rates(10 * MB, None, None, None),
        fallback=UNLIMITED,
        fresh_until=1e9,
        usable_until=1e9,
    )
    for is_read, took in ((True, 10), (False, 0)):
        pacer = FlowPacer(clock, is_read=is_read, terms=lambda: both, what="run")
        began = clock.now
        pacer.take(100 * MB)
        assert clock.now - began == pytest.approx(took, rel=0.01)
