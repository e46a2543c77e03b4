"""Du: bytes per tier, run, state and age, what lies there besides, and how fast it all grows.

Sealed copies and sightings are counted from the catalog, page by page; left-overs from storage
just now. What cannot be looked at is told, and never counted as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.facts import PlaceFacts, RunFacts
from ckptgov.errors import CkptgovError, PartlyDone, UnknownRun, UsageError
from ckptgov.model.settings import TierSettings
from ckptgov.model.usage import (
    UNSEALED,
    Age,
    AgeUsage,
    DuAnswer,
    LeftKind,
    LeftUsage,
    StateUsage,
    TierUsage,
)
from ckptgov.ops.capacity import TierFill, growth_at, tier_fill
from ckptgov.ops.context import Context
from ckptgov.ops.placed import placed
from ckptgov.ops.room import LeftOver, free_and_total, left_at
from ckptgov.ops.run_usage import run_usage

_DAY_NS = 86_400 * 10**9
_AGES = (
    (1 * _DAY_NS, Age.DAY),
    (7 * _DAY_NS, Age.WEEK),
    (30 * _DAY_NS, Age.MONTH),
    (90 * _DAY_NS, Age.QUARTER),
)


class _Sum(Struct):
    checkpoints: int = 0
    bytes: int = 0


_Sums = dict[str, dict[str, dict[Age, _Sum]]]
"""By place, state and age."""


def du(context: Context, *, run: str | None = None, tier: str | None = None) -> DuAnswer:
    """Bytes at every configured tier, or at one; of every run, or of one.

    Raises:
        UsageError: no such tier is configured.
        UnknownRun: no such run is registered.
    """
    tiers = [one for one in context.settings.tiers if tier in (None, one.name)]
    if tier is not None and not tiers:
        raise UsageError(f"no tier {tier!r} is configured", hint="'ckptgov tier list' shows them")
    runs = _runs(context, run)
    places = _places(context, tiers)
    counted: dict[str, list[StateUsage]] = {one.place: [] for one in places.values()}
    saved_at_ns: dict[str, int] = {}
    for one in runs:
        for place, states in _states(context, one, list(places.values()), saved_at_ns):
            counted[place] += states
    used = tuple(
        _usage(context, tier, runs, places.get(index), counted, only=run)
        for index, tier in enumerate(tiers)
    )
    return DuAnswer(
        tiers=used,
        runs=tuple(run_usage(context, runs, tiers, saved_at_ns)),
        error=_error_of(used),
    )


def _runs(context: Context, name: str | None) -> tuple[RunFacts, ...]:
    if name is None:
        return context.catalog.runs()
    found = context.catalog.run_by_name(name)
    if found is None:
        raise UnknownRun(f"no run {name!r} is registered", hint="'ckptgov run list' shows the runs")
    return (found,)


def _places(context: Context, tiers: Sequence[TierSettings]) -> dict[int, PlaceFacts]:
    """The current place of each tier that was ever met, by the tier's position."""
    found = {}
    for index, tier in enumerate(tiers):
        place = context.catalog.place_by_root(tier.root, node=tier.node)
        if place is not None:
            found[index] = place
    return found


def _error_of(used: Sequence[TierUsage]) -> CkptgovError | None:
    failed = [one.error for one in used if one.error is not None]
    failed += [error for one in used for _what, error in one.failures]
    if not failed:
        return None
    return PartlyDone(
        f"{len(failed)} could not be looked at, and what is there is not counted; "
        f"first: {failed[0].message}",
        hint=failed[0].hint,
    )


def _usage(
    context: Context,
    tier: TierSettings,
    runs: Sequence[RunFacts],
    known: PlaceFacts | None,
    counted: Mapping[str, Sequence[StateUsage]],
    *,
    only: str | None,
) -> TierUsage:
    usage = TierUsage(
        tier=tier.name,
        node=tier.node,
        root=tier.root,
        states=() if known is None else tuple(counted[known.place]),
        quota_bytes=tier.quota_bytes,
    )
    try:
        place = context.place(tier)
        space = free_and_total(tier) if context.is_here(tier) else None
        left, failures = left_at(context, place, runs)
        usage = replace(
            usage,
            left=tuple(_summed(one for one in left if only in (None, one.run))),
            failures=tuple(failures),
            free_bytes=None if space is None else space[0],
            total_bytes=None if space is None else space[1],
        )
        return _growing(context, tier, usage) if context.is_here(tier) else usage
    except CkptgovError as error:
        return replace(usage, error=error)


def _growing(context: Context, tier: TierSettings, usage: TierUsage) -> TierUsage:
    fill: TierFill = tier_fill(context, tier)
    if fill.error is not None:
        return usage
    told = growth_at(context, fill)
    return replace(
        usage,
        files=fill.files,
        free_files=fill.free_files,
        grows_bytes_per_day=None if told is None else told.bytes_per_day,
        full_in_days=None if told is None else told.full_in_days,
    )


def _states(
    context: Context,
    run: RunFacts,
    places: Sequence[PlaceFacts],
    saved_at_ns: dict[str, int],
) -> Iterator[tuple[str, list[StateUsage]]]:
    """One run's sums at each place, by state; its newest seal goes into ``saved_at_ns``."""
    run_id, now_ns = run.identity.run_id, context.catalog.now_ns()
    sums: _Sums = {one.place: {} for one in places}

    def add(place: str, state: str, since_ns: int, size: int) -> None:
        ages = sums[place].setdefault(state, {})
        one = ages.setdefault(_age(now_ns - since_ns), _Sum())
        one.checkpoints += 1
        one.bytes += size

    for each in placed(context, run_id, places):
        saved_at_ns[run_id] = max(each.sealed.sealed_at_ns, saved_at_ns.get(run_id, 0))
        add(each.copy.place, each.copy.state.value, each.sealed.sealed_at_ns, each.bytes)
    for seen in context.catalog.sightings(run_id):
        if seen.place in sums:
            add(seen.place, UNSEALED, seen.first_seen_at_ns, seen.bytes)
    for place, states in sums.items():
        yield place, [_state(run.identity.name, each, states[each]) for each in sorted(states)]


def _state(run: str, state: str, ages: Mapping[Age, _Sum]) -> StateUsage:
    return StateUsage(
        run=run,
        state=state,
        checkpoints=sum(one.checkpoints for one in ages.values()),
        bytes=sum(one.bytes for one in ages.values()),
        ages=tuple(
            AgeUsage(age=age, checkpoints=ages[age].checkpoints, bytes=ages[age].bytes)
            for age in Age
            if age in ages
        ),
    )


def _age(age_ns: int) -> Age:
    return next((age for limit_ns, age in _AGES if age_ns < limit_ns), Age.OLDER)


def _summed(left: Iterable[LeftOver]) -> Iterator[LeftUsage]:
    sums: dict[tuple[str, LeftKind], list[LeftOver]] = {}
    for one in left:
        sums.setdefault((one.run or "", one.kind), []).append(one)
    for (run, kind), those in sorted(sums.items()):
        size = sum(one.bytes for one in those)
        yield LeftUsage(run=run or None, kind=kind, items=len(those), bytes=size)
