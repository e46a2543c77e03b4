"""The metric families of retention: plans, what is on its way out, room, runs that fell silent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import Metric

from ckptgov.catalog.facts import PlaceFacts
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import Action, PlanState, TierOutlook
from ckptgov.ops.stored_plans import STANDING
from ckptgov.service.families import Rows, Seen, gauge, plain
from ckptgov.service.keeping_census import REASONS, NewestPlan

_TIER = ("tier", "node")
_STATES = (CopyState.CONDEMNED, CopyState.TRASHING, CopyState.TRASHED)
_Tier = tuple[str, ...]


def of_plans(seen: Seen) -> Iterator[Metric]:
    told = seen.keeping
    yield gauge(
        "ckptgov_plans",
        "Plans that may yet be carried out, by state.",
        {("state",): [((one.value,), told.plans[one]) for one in STANDING]},
    )
    since_ns = told.waiting_since_ns
    yield plain(
        "ckptgov_plan_waiting_seconds",
        "For how long a plan over all runs, or those before it, has waited for approval; 0: none.",
        0 if since_ns is None else max(0, seen.now_ns - since_ns) / 1e9,
    )
    newest = told.newest
    for name, text, counts in (
        (
            "ckptgov_plan_entries",
            "Copies that the newest plan over all runs lets go, by its state.",
            newest.entries if newest else Counter(),
        ),
        (
            "ckptgov_plan_bytes",
            "Bytes that they free.",
            newest.bytes if newest else Counter(),
        ),
    ):
        yield gauge(name, text, {("state", "action"): _by_action(newest, counts)})
    refusals = newest.refusals if newest else Counter[str]()
    yield gauge(
        "ckptgov_plan_refusals",
        "What keeps the newest plan over all runs from being applied as it is, by reason.",
        {("reason",): [((one,), refusals[one]) for one in REASONS]},
    )
    dead, size = told.dead
    yield plain("ckptgov_dead_runs", "Runs that nothing was heard of for long.", dead)
    yield plain("ckptgov_dead_run_bytes", "Bytes of those runs at all tiers.", size)


def _by_action(newest: NewestPlan | None, counts: Counter[Action]) -> Rows:
    return [
        ((state.value, action.value), counts[action] if newest and newest.state is state else 0)
        for state in PlanState
        if state is not PlanState.STALE
        for action in Action
    ]


def of_removals(seen: Seen) -> Iterator[Metric]:
    copies: Counter[_Tier] = Counter()
    size: Counter[_Tier] = Counter()
    resisting: Counter[_Tier] = Counter()
    for one in seen.keeping.leaving:
        at = _at(seen.places, one.place)
        if at is not None:
            copies[*at, one.state.value] += one.copies
            size[*at, one.state.value] += one.bytes
            resisting[at] += one.resisting
    tiers = _tiers(seen)
    staged = [(*at, state.value) for at in tiers for state in _STATES]
    for name, text, counts in (
        ("ckptgov_removals", "Copies on their way out, by state.", copies),
        ("ckptgov_removal_bytes", "Bytes of those copies, still taken.", size),
    ):
        yield gauge(name, text, {(*_TIER, "state"): [(at, counts[at]) for at in staged]})
    yield gauge(
        "ckptgov_removals_resisting",
        "Copies on their way out that did not go when it was tried last.",
        {_TIER: [(at, resisting[at]) for at in tiers]},
    )


def of_capacity(seen: Seen) -> Iterator[Metric]:
    rooms = [
        (at, one)
        for one in seen.keeping.rooms
        if (at := _at(seen.places, one.sample.place)) is not None
    ]
    yield gauge(
        "ckptgov_tier_used_bytes",
        "Bytes in use at a tier when it was last measured: what its limits are of.",
        {_TIER: [(at, one.sample.used_bytes) for at, one in rooms]},
    )
    yield gauge(
        "ckptgov_tier_full_in_seconds",
        "When a tier will be full, as it filled in the last week; none where it does not fill.",
        {_TIER: [(at, one.full_in_s) for at, one in rooms if one.full_in_s is not None]},
    )
    outlooks = seen.keeping.newest.outlooks if seen.keeping.newest else ()
    tiers = _tiers(seen)
    limited = [one for one in outlooks if one.limit_bytes is not None]
    yield gauge(
        "ckptgov_tier_limit_bytes",
        "The lowest limit that policies have for a tier, as of the newest plan over all runs.",
        {_TIER: _lowest(limited)},
    )
    for name, text, over in (
        (
            "ckptgov_tier_over_limit_bytes",
            "Bytes above a limit at a tier that nothing can free, as of that plan.",
            lambda one: one.over_bytes,
        ),
        (
            "ckptgov_tier_over_limit_files",
            "Files above a limit at a tier that nothing can free, as of that plan.",
            lambda one: one.over_files,
        ),
    ):
        yield gauge(name, text, {_TIER: _highest(tiers, outlooks, over)})


def _lowest(limited: Iterable[TierOutlook]) -> Rows:
    limits: dict[_Tier, float] = {}
    for one in limited:
        at, limit = (one.tier, one.node or ""), one.limit_bytes
        assert limit is not None, "only those with a limit"
        limits[at] = min(limit, limits.get(at, limit))
    return limits.items()


def _highest(
    tiers: Iterable[_Tier], outlooks: Iterable[TierOutlook], over: Callable[[TierOutlook], int]
) -> Rows:
    found: dict[_Tier, float] = dict.fromkeys(tiers, 0)
    for one in outlooks:
        at = (one.tier, one.node or "")
        found[at] = max(over(one), found.get(at, 0))
    return found.items()


def _tiers(seen: Seen) -> list[_Tier]:
    """Every configured tier and current place has a row, 0 included."""
    known = {(one.name, one.node or "") for one in seen.settings.tiers}
    known |= {(one.tier, one.node or "") for one in seen.places.values() if one.is_current}
    return sorted(known)


def _at(places: dict[str, PlaceFacts], place: str) -> _Tier | None:
    """The labels of a place; None for a disk that was replaced."""
    found = places.get(place)
    if found is None or not found.is_current:
        return None
    return found.tier, found.node or ""
