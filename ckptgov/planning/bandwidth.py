"""One round of the arbiter: budgets and flows in, a grant or a reason to wait for each flow out.

Strict classes with floors; inside a class in order; weighted max-min fair among those that move.
What flows may be using, as far as they were heard, never adds up to more than a budget: what one
flow gives up goes to another only after it was heard to have given it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ckptgov.model.pacing import FlowRequest
from ckptgov.planning.bandwidth_admission import (
    ORDER,
    RANKS,
    UNHEARD,
    Candidate,
    FlowView,
    Gate,
    Silence,
    Wait,
    WaitCause,
    admit,
)
from ckptgov.planning.bandwidth_needs import (
    UNLIMITED,
    Key,
    Limits,
    Need,
    Rates,
    capacity,
    fallback_of,
    limits_of,
    need_of,
)
from ckptgov.planning.bandwidth_sharing import Line, fill, share

__all__ = [
    "ORDER",
    "UNHEARD",
    "UNLIMITED",
    "FlowView",
    "Limits",
    "Rates",
    "Share",
    "Silence",
    "Wait",
    "WaitCause",
    "fallback_rates",
    "is_free",
    "limits_of",
    "next_pace",
    "plan",
    "quantum_bytes",
    "subjects_of",
]

FULL_PACE = 1000
_MAX_WEIGHT = 10_000
_ENDLESS = 2**62


class Share(Struct, frozen=True, kw_only=True):
    """What one flow is to be granted. ``rates`` None: it waits, and ``wait`` says for what."""

    flow_id: str
    rates: Rates | None
    fallback: Rates
    wait: Wait | None = None


def plan(
    limits: Limits, flows: Iterable[FlowView], paces: Mapping[str, int] | None = None
) -> tuple[Share, ...]:
    """The grants to be written now, by flow id; equal input in any order gives equal output.

    ``paces`` says for a subject how much of its budget is given while its store pushes back, in
    thousandths.
    """
    views = sorted(flows, key=lambda one: one.request.flow_id)
    everyone = _candidates(views, limits)
    caps = _capacities(everyone, limits, paces or {})
    heard = [one for one in everyone if one.view.silence is Silence.HEARD]
    silent = [one for one in everyone if one.view.silence is not Silence.HEARD]
    room = _without_silent(caps, silent)
    gate = Gate(limits, dict(room))
    for one in silent:
        if _keeps_slot(one):
            gate.take_slots(one)
    chosen = admit(heard, gate)
    lines = {one.view.request.flow_id: _lines(one) for one in chosen}
    share([line for three in lines.values() for line in three], room)
    given = _step(everyone, chosen, lines, caps, limits)
    return tuple(_share_of(one, given) for one in everyone)


def next_pace(permille: int, *, pushed_back: bool, fallback_percent: int) -> int:
    """The pace of one tier a control period later: x 0.7 when it pushed back, else 2 % more.

    Never above the budget, never below the share that is kept aside of it.
    """
    lowest = fallback_percent * 10
    if pushed_back:
        return max(lowest, permille * 7 // 10)
    return min(FULL_PACE, max(lowest, permille + 20))


def quantum_bytes(bytes_per_s: int) -> int:
    """How much may leave at once at this rate: a quarter of a second, 1 to 64 MiB."""
    return min(64 * 2**20, max(2**20, bytes_per_s // 4))


def is_free(request: FlowRequest, limits: Limits) -> bool:
    """Whether no budget concerns this flow."""
    return need_of(request, limits).is_free


def fallback_rates(request: FlowRequest, limits: Limits) -> Rates:
    """What this flow may take once it may move and hears nothing more."""
    need = need_of(request, limits)
    return need.rates(fallback_of(need, limits))


def subjects_of(request: FlowRequest, limits: Limits) -> tuple[str | None, str | None]:
    """The subjects of its source and its target, as ``paces`` names them."""
    source, target = request.source, request.target
    return (
        None if source is None else limits.tier(source, request.node),
        None if target is None else limits.tier(target, request.node),
    )


def _candidates(views: Iterable[FlowView], limits: Limits) -> list[Candidate]:
    known: dict[tuple[str | None, str | None, str, bool], tuple[Need, tuple[int, int, int]]] = {}
    found = []
    for view in views:
        one = view.request
        way = (one.source, one.target, one.node, one.is_companion)
        if way not in known:
            need = need_of(one, limits)
            known[way] = (need, fallback_of(need, limits))
        found.append(Candidate(view, *known[way]))
    return found


def _capacities(
    everyone: Sequence[Candidate], limits: Limits, paces: Mapping[str, int]
) -> dict[Key, int]:
    keys = {key for one in everyone for keys in one.need.key_sets for key in keys}
    return {key: capacity(limits, key, paces.get(key[0], FULL_PACE)) for key in keys}


def _keeps_slot(one: Candidate) -> bool:
    """A flow that is lost gives its slot up, so that a stopped process does not block a tier."""
    return one.view.silence is Silence.EXPIRED and one.view.held is not None


def _levels(need: Need, rates: Rates) -> tuple[int, int, int]:
    """The three rates behind the four; no limit counts as endless."""
    moved = [
        _ENDLESS if rate is None else rate
        for rate, keys in zip(rates[:2], (need.read_keys, need.write_keys), strict=True)
        if keys
    ]
    calls = [_ENDLESS if rate is None else rate for rate in rates[2:]]
    return (max(moved, default=0), calls[0], calls[1])


def _in_use(one: Candidate) -> tuple[int, int, int]:
    """The most this flow may take of its resources by now."""
    view = one.view
    if view.held is None:
        return (0, 0, 0)
    if view.silence is Silence.LOST and view.fallback is not None:
        return _levels(one.need, view.fallback)
    return _levels(one.need, view.held)


def _draw(room: dict[Key, int], need: Need, levels: tuple[int, int, int]) -> None:
    for keys, level in zip(need.key_sets, levels, strict=True):
        for key in keys:
            room[key] -= level


def _without_silent(caps: Mapping[Key, int], silent: Iterable[Candidate]) -> dict[Key, int]:
    room = dict(caps)
    for one in silent:
        _draw(room, one.need, _in_use(one))
    return {key: max(0, left) for key, left in room.items()}


def _lines(one: Candidate) -> tuple[Line, Line, Line]:
    wanted = _levels(one.need, one.view.wanted)
    made = [
        Line(
            rank=one.rank,
            weight=min(_MAX_WEIGHT, max(1, one.view.request.weight)),
            keys=keys,
            least=least,
            most=None if most >= _ENDLESS else max(most, least),
        )
        for keys, least, most in zip(one.need.key_sets, one.least, wanted, strict=True)
    ]
    return (made[0], made[1], made[2])


def _step(
    everyone: Sequence[Candidate],
    chosen: Sequence[Candidate],
    lines: Mapping[str, tuple[Line, Line, Line]],
    caps: Mapping[Key, int],
    limits: Limits,
) -> dict[str, tuple[int, int, int]]:
    """From the rates aimed at to those that can be granted now.

    Less takes effect when it is heard; more is given out of what nobody may be using. A flow
    that does not move yet begins when its slots and its fallback rates are free.
    """
    left = dict(caps)
    gate = Gate(limits, left)
    for one in everyone:
        _draw(left, one.need, _in_use(one))
        if one.view.held is not None and one.view.silence is not Silence.LOST:
            gate.take_slots(one)
    started = [one for one in chosen if one.view.held is not None or _begins(one, gate)]
    raises = {one.view.request.flow_id: _raises(one, lines) for one in started}
    for rank in sorted(set(RANKS.values())):
        fill([each for one in started if one.rank == rank for each in raises[_id(one)]], left)
    given = {}
    for one in started:
        aims = [line.rate for line in lines[_id(one)]]
        starts = _start(one)
        more = [line.rate for line in raises[_id(one)]]
        levels = [
            min(aim, start + extra) for aim, start, extra in zip(aims, starts, more, strict=True)
        ]
        given[_id(one)] = (levels[0], levels[1], levels[2])
    return given


def _begins(one: Candidate, gate: Gate) -> bool:
    one.wait = gate.obstacle(one)
    if one.wait is None:
        gate.enter(one)
    return one.wait is None


def _id(one: Candidate) -> str:
    return one.view.request.flow_id


def _start(one: Candidate) -> tuple[int, int, int]:
    return one.least if one.view.held is None else _in_use(one)


def _raises(one: Candidate, lines: Mapping[str, tuple[Line, Line, Line]]) -> list[Line]:
    """How far each rate is still below what it aims at."""
    return [
        Line(rank=line.rank, weight=line.weight, keys=line.keys, most=max(0, line.rate - start))
        for line, start in zip(lines[_id(one)], _start(one), strict=True)
    ]


def _share_of(one: Candidate, given: Mapping[str, tuple[int, int, int]]) -> Share:
    view = one.view
    fallback = one.need.rates(one.least)
    if view.silence is Silence.HEARD:
        levels = given.get(_id(one))
        rates = None if levels is None else one.need.rates(levels)
        return Share(flow_id=_id(one), rates=rates, fallback=fallback, wait=one.wait)
    if view.held is None:
        return Share(flow_id=_id(one), rates=None, fallback=fallback, wait=UNHEARD)
    kept = view.fallback if view.fallback is not None else fallback
    rates = view.granted if view.silence is Silence.EXPIRED else kept
    return Share(flow_id=_id(one), rates=rates, fallback=kept)
