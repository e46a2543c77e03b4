"""How fast a place fills, and when it will be full: samples in, figures out.

The slope is the median of the slopes between all pairs of points (Theil 1950, Sen 1968): a clean-up
or one huge save in between moves it little, where least squares would follow them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct

DAY_NS = 86_400 * 10**9
SPAN_NS = 7 * DAY_NS
"""Older samples say nothing about now."""

LEAST_SPAN_NS = DAY_NS // 4
LEAST_POINTS = 3
_POINTS = 168
"""Samples are thinned to one an hour: all pairs of a week are then 14,000."""


class Sample(Struct, frozen=True):
    """What was in use at one time. Which bytes count is the caller's matter, always the same."""

    at_ns: int
    used_bytes: int


class Growth(Struct, frozen=True, kw_only=True):
    """``bytes_per_day`` is negative where more goes than comes. ``full_in_days``: None where
    nothing limits, or nothing grows; 0 where it is full already."""

    bytes_per_day: float
    full_in_days: float | None


def growth(samples: Iterable[Sample], *, now_ns: int, room_bytes: int | None) -> Growth | None:
    """How a place fills by the samples of the last week; None where they are too few to tell.

    They may come in any order. Those from the future (the clock was set back) do not count.
    ``room_bytes`` is what may still be written there, None where nothing limits.
    """
    points = _thinned(samples, now_ns)
    if len(points) < LEAST_POINTS or points[-1].at_ns - points[0].at_ns < LEAST_SPAN_NS:
        return None
    per_day = _slope(points) * DAY_NS
    if room_bytes is None or per_day <= 0:
        return Growth(bytes_per_day=per_day, full_in_days=None)
    return Growth(bytes_per_day=per_day, full_in_days=max(0, room_bytes) / per_day)


def _thinned(samples: Iterable[Sample], now_ns: int) -> list[Sample]:
    """The newest of each hour back from now, oldest first."""
    newest: dict[int, Sample] = {}
    width_ns = SPAN_NS // _POINTS
    for one in samples:
        age_ns = now_ns - one.at_ns
        if not 0 <= age_ns <= SPAN_NS:
            continue
        known = newest.setdefault(age_ns // width_ns, one)
        if (one.at_ns, one.used_bytes) > (known.at_ns, known.used_bytes):
            newest[age_ns // width_ns] = one
    return sorted(newest.values(), key=lambda one: one.at_ns)


def _slope(points: Sequence[Sample]) -> float:
    """Bytes per ns; points are of different times."""
    return median(
        (later.used_bytes - earlier.used_bytes) / (later.at_ns - earlier.at_ns)
        for index, later in enumerate(points)
        for earlier in points[:index]
        if later.at_ns > earlier.at_ns
    )
