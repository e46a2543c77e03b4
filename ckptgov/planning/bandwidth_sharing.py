"""Sharing rates out: weighted max-min over every resource a line needs, strict classes, floors.

A line is one rate of one flow. All numbers are whole; what rounding leaves over is fewer units
than there are lines times resources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ckptgov.planning.bandwidth_needs import Key

FLOOR_PERCENT = 5
"""Of every resource, for each class that somebody moves for."""

_UNIT = 2**20  # a level is a rate per unit of weight, in this fraction


@dataclass(slots=True)
class Line:
    """``rate`` is what it was given; never below ``least``, never above ``most``."""

    rank: int  # of its class: lower is more urgent
    weight: int
    keys: tuple[Key, ...]
    least: int = 0
    most: int | None = None
    rate: int = 0


Room = dict[Key, int]


def share(lines: Sequence[Line], room: Mapping[Key, int]) -> None:
    """Set the rate of every line; what a resource cannot give to one class goes on to the next.

    ``room`` must hold the ``least`` of all lines together.
    """
    left = dict(room)
    ranks = sorted({line.rank for line in lines})
    by_rank = {rank: [line for line in lines if line.rank == rank] for rank in ranks}
    reserves = {rank: _reserve(by_rank[rank], room) for rank in ranks}
    for place, rank in enumerate(ranks):
        lower = [reserves[other] for other in ranks[place + 1 :]]
        _fill_above_least(by_rank[rank], _available(by_rank[rank], left, lower))
        for line in by_rank[rank]:
            _draw(left, line.keys, line.rate)
    for rank in ranks:  # floors that nobody could use
        fill(by_rank[rank], left)


def fill(lines: Iterable[Line], left: Room) -> None:
    """Raise all lines together, each by its weight, until a resource or a line is full.

    Draws from ``left``. Each line ends at its ``most`` or on a resource with nothing to share.
    """
    active = [line for line in lines if line.keys and (line.most is None or line.rate < line.most)]
    while active:
        weights: dict[Key, int] = defaultdict(int)
        for line in active:
            for key in line.keys:
                weights[key] += line.weight
        levels = {key: max(0, left[key]) * _UNIT // weight for key, weight in weights.items()}
        level = min(levels.values())
        wishes = [_wish(line) for line in active]
        level = min([level, *(wish for wish in wishes if wish is not None)])
        for line in active:
            gain = level * line.weight // _UNIT
            line.rate += gain
            _draw(left, line.keys, gain)
        active = [
            line
            for line, wish in zip(active, wishes, strict=True)
            if (wish is None or wish > level) and all(levels[key] > level for key in line.keys)
        ]


def total(lines: Iterable[Line], key: Key, *, of_least: bool = False) -> int:
    """What the lines take, or must be left, of one resource."""
    return sum(
        (line.least if of_least else line.rate) * line.keys.count(key)
        for line in lines
        if key in line.keys
    )


def _fill_above_least(lines: list[Line], room: Room) -> None:
    """Share, and give those that would get less than their least exactly that instead."""
    low: list[Line] = []
    free = lines
    while True:
        left = dict(room)
        for line in low:
            line.rate = line.least
            _draw(left, line.keys, line.least)
        for line in free:
            line.rate = 0
        fill(free, left)
        below = [line for line in free if line.rate < line.least]
        if not below:
            return
        low += below
        free = [line for line in free if line.rate >= line.least]


def _available(lines: list[Line], left: Room, lower: list[Room]) -> Room:
    """What a class may use while the floors of the less urgent ones are kept."""
    least: Room = defaultdict(int)
    for line in lines:
        for key in line.keys:
            least[key] += line.least
    return {
        key: max(least[key], left[key] - sum(one.get(key, 0) for one in lower)) for key in least
    }


def _reserve(lines: list[Line], room: Mapping[Key, int]) -> Room:
    """What more urgent classes must leave to this one."""
    least: Room = defaultdict(int)
    wishes: dict[Key, int] = defaultdict(int)
    for line in lines:
        for key in line.keys:
            least[key] += line.least
            wishes[key] += room[key] if line.most is None else line.most
    return {
        key: max(least[key], min(wishes[key], room[key] * FLOOR_PERCENT // 100)) for key in least
    }


def _wish(line: Line) -> int | None:
    """The level at which a line is full: rounded up, so that it does get full."""
    if line.most is None:
        return None
    return -((line.rate - line.most) * _UNIT // line.weight)


def _draw(left: Room, keys: tuple[Key, ...], amount: int) -> None:
    for key in keys:
        left[key] -= amount
