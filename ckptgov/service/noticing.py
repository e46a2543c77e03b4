"""What the service notices by itself, out of what is counted: what a person should look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ckptgov.catalog.facts import PlaceFacts
from ckptgov.model.cluster import ActivityFacts
from ckptgov.model.policy import DAY_S
from ckptgov.service.alerts import Alert
from ckptgov.service.census import Census
from ckptgov.service.keeping_census import Keeping

LOAD_FAILURES = 2
"""So many checkpoints of one run reported unloadable are no accident."""
PLAN_WAITS_S = DAY_S
RESISTS_S = 3600.0
FULL_IN_S = 3 * DAY_S


def alerts_of(census: Census, activities: Sequence[ActivityFacts], now_ns: int) -> Iterator[Alert]:
    """What stands now of what the service notices by itself."""
    for activity in activities:
        if activity.is_late(now_ns):
            since_ns = activity.succeeded_at_ns
            when = "never succeeded" if not since_ns else _ago("last succeeded", since_ns, now_ns)
            why = f" ({activity.error})" if activity.error else ""
            yield Alert(
                name="activity-late",
                text=f"{activity.name} {when}, later than every {activity.slo_s:.0f} s{why}",
                about=(("activity", activity.name),),
            )
    for run in census.newest():
        if run.load_failures >= LOAD_FAILURES:
            yield Alert(
                name="load-failures",
                text=f"{run.run}: {run.load_failures} checkpoints were reported unloadable",
                about=(("run", run.run),),
            )
    places = census.places()
    for sums in census.sums():
        for place, count in sorted(sums.corrupt.items()):
            if place in places:
                yield _corrupt(sums.run, places[place], count)
    yield from _of_retention(census.keeping(), places, now_ns)


def _of_retention(told: Keeping, places: Mapping[str, PlaceFacts], now_ns: int) -> Iterator[Alert]:
    since_ns = told.waiting_since_ns
    if since_ns is not None and now_ns - since_ns > PLAN_WAITS_S * 1e9:
        text = _ago("nothing goes before a person approves a plan; it was made", since_ns, now_ns)
        yield Alert(name="plan-waits", text=text)
    for place, since_ns in told.resisting:
        if now_ns - since_ns > RESISTS_S * 1e9 and place in places:
            text = _ago("what is to go does not; first seen", since_ns, now_ns)
            yield _at("removals-resist", places[place].tier, places[place].node, text)
    for one in told.newest.outlooks if told.newest is not None else ():
        if one.over_bytes > 0 or one.over_files > 0:
            text = f"{one.over_bytes} bytes and {one.over_files} files above its limit may not go"
            yield _at("tier-over-limit", one.tier, one.node, text)
    for room in told.rooms:
        if room.full_in_s is not None and room.full_in_s < FULL_IN_S:
            place_facts = places[room.sample.place]
            text = f"full in {room.full_in_s / DAY_S:.1f} days, as it filled in the last week"
            yield _at("tier-fills-up", place_facts.tier, place_facts.node, text)


def _at(name: str, tier: str, node: str | None, text: str, **about: str) -> Alert:
    """What stands at one tier."""
    about |= {"tier": tier}
    if node is not None:
        about["node"] = node
    return Alert(name=name, text=f"{_where(tier, node)}: {text}", about=tuple(about.items()))


def _where(tier: str, node: str | None) -> str:
    return f"tier {tier}" + (f" on node {node}" if node else "")


def _corrupt(run: str, place: PlaceFacts, count: int) -> Alert:
    text = f"{count} copies of {run} differ from their manifests; none is offered"
    return _at("corrupt-copy", place.tier, place.node, text, run=run)


def _ago(what: str, at_ns: int, now_ns: int) -> str:
    return f"{what} {(now_ns - at_ns) / 1e9:.0f} s ago"
