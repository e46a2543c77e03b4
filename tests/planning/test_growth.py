"""How fast a place fills: one huge save or one clean-up does not decide it."""

from __future__ import annotations

import random

import pytest

from ckptgov.planning.growth import DAY_NS, LEAST_SPAN_NS, SPAN_NS, Sample, growth

NOW = 100 * DAY_NS
GB = 10**9


def line(
    days: float, per_day: int, *, every_ns: int = DAY_NS // 24, start: int = 0
) -> list[Sample]:
    """Samples that end now and grow evenly."""
    count = int(days * DAY_NS // every_ns)
    return [
        Sample(NOW - back * every_ns, start + per_day * (count - back) * every_ns // DAY_NS)
        for back in range(count, -1, -1)
    ]


def test_even_growth_is_told_exactly_with_the_days_to_full() -> None:
    told = growth(line(7, 10 * GB), now_ns=NOW, room_bytes=70 * GB)
    assert told is not None
    assert told.bytes_per_day == pytest.approx(10 * GB)
    assert told.full_in_days == pytest.approx(7.0)


@pytest.mark.parametrize("samples", [[], line(7, GB)[:2], line(0.2, GB, every_ns=DAY_NS // 288)])
def test_too_few_or_too_close_samples_tell_nothing(samples: list[Sample]) -> None:
    assert growth(samples, now_ns=NOW, room_bytes=1) is None


def test_the_shortest_span_that_tells() -> None:
    third = LEAST_SPAN_NS // 2
    samples = [Sample(NOW - LEAST_SPAN_NS + index * third, index) for index in range(3)]
    assert growth(samples, now_ns=NOW, room_bytes=1) is not None
    assert growth([*samples[1:], samples[2]], now_ns=NOW, room_bytes=1) is None


def test_what_shrinks_or_stands_still_is_never_full() -> None:
    for per_day in (0, -GB):
        told = growth(line(7, per_day, start=100 * GB), now_ns=NOW, room_bytes=GB)
        assert told is not None
        assert told.bytes_per_day == pytest.approx(per_day)
        assert told.full_in_days is None


def test_without_a_limit_nothing_is_ever_full() -> None:
    told = growth(line(7, GB), now_ns=NOW, room_bytes=None)
    assert told is not None
    assert told.full_in_days is None


def test_what_is_full_already_is_full_in_0_days() -> None:
    for room in (0, -5):
        told = growth(line(7, GB), now_ns=NOW, room_bytes=room)
        assert told is not None
        assert told.full_in_days == 0


def test_one_huge_save_hardly_moves_it() -> None:
    samples = line(7, 10 * GB)
    jump = [
        Sample(one.at_ns, one.used_bytes + (2000 * GB if index >= 150 else 0))
        for index, one in enumerate(samples)
    ]
    told = growth(jump, now_ns=NOW, room_bytes=GB)
    assert told is not None
    assert told.bytes_per_day < 25 * GB


def test_one_sample_that_is_wrong_does_not_count() -> None:
    samples = line(7, 10 * GB)
    samples[80] = Sample(samples[80].at_ns, 10**15)
    told = growth(samples, now_ns=NOW, room_bytes=GB)
    assert told is not None
    assert told.bytes_per_day == pytest.approx(10 * GB, rel=0.01)


def test_only_the_last_week_counts_and_nothing_from_the_future() -> None:
    old = [Sample(NOW - SPAN_NS - hour * DAY_NS // 24 - 1, 10**15) for hour in range(50)]
    future = [Sample(NOW + hour * DAY_NS // 24 + 1, 10**15) for hour in range(50)]
    told = growth([*old, *line(7, GB), *future], now_ns=NOW, room_bytes=GB)
    assert told == growth(line(7, GB), now_ns=NOW, room_bytes=GB)


def test_the_order_of_samples_does_not_matter() -> None:
    samples = line(7, 3 * GB, every_ns=DAY_NS // 288)
    shuffled = list(samples)
    random.Random(7).shuffle(shuffled)
    assert growth(shuffled, now_ns=NOW, room_bytes=GB) == growth(samples, now_ns=NOW, room_bytes=GB)


def test_a_week_of_samples_each_minute_is_thinned_first() -> None:
    samples = line(7, 5 * GB, every_ns=60 * 10**9)
    told = growth(samples, now_ns=NOW, room_bytes=10 * GB)
    assert told is not None
    assert told.bytes_per_day == pytest.approx(5 * GB, rel=0.01)
