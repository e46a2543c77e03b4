"""The metric families: from what one scrape saw to series, names and their meaning."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ckptgov.catalog.facts import PlaceFacts
from ckptgov.model.cluster import ActivityFacts, NodeFacts, TaskKind
from ckptgov.model.pacing import FlowFacts, FlowState
from ckptgov.model.settings import Settings
from ckptgov.service.census import Newest
from ckptgov.service.keeping_census import Keeping
from ckptgov.service.spaces import Space
from ckptgov.service.sums import Sums, out_of_reach

MOST_RUNS = 2000
"""Runs with series of their own: those with the newest checkpoints. The others are counted."""
_REASONS = {"flows": "flows", "rate": "rate", "an": "order", "nothing": "unheard"}
"""First words of why a flow waits (``planning.bandwidth_admission``) to a closed set."""


class Seen(Struct, frozen=True, kw_only=True):
    """What the catalog said at one scrape, and the time by its own clock."""

    now_ns: int
    settings: Settings
    newest: list[Newest]
    sums: list[Sums]
    places: dict[str, PlaceFacts]
    nodes: tuple[NodeFacts, ...]
    activities: tuple[ActivityFacts, ...]
    flows: tuple[FlowFacts, ...]
    open_tasks: Tally[tuple[str, str]]
    decided: tuple[int, int] | None
    keeping: Keeping

    @property
    def unreachable(self) -> frozenset[str]:
        """Places on nodes that are dead or silent."""
        return frozenset(
            one.place for one in self.places.values() if one.node in self.nodes_out_of_reach
        )

    @property
    def nodes_out_of_reach(self) -> frozenset[str]:
        timeout_s = self.settings.service.node_timeout_s
        return frozenset(
            one.node for one in self.nodes if not one.is_reachable(self.now_ns, timeout_s=timeout_s)
        )


Rows = Iterable[tuple[tuple[str, ...], float]]


def gauge(name: str, text: str, labelled: dict[tuple[str, ...], Rows]) -> GaugeMetricFamily:
    """One gauge; ``labelled`` has one entry, label names to rows of label values and a value."""
    ((labels, rows),) = labelled.items()
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric([_text(one) for one in values], value)
    return family


def plain(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _text(value: str) -> str:
    """Names of runs may hold bytes that are not UTF-8."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def of_runs(seen: Seen) -> Iterator[Metric]:
    known = [one for one in seen.newest if one.is_known]
    known.sort(key=lambda one: one.age_s(seen.now_ns))
    shown = known[:MOST_RUNS]
    yield gauge(
        "ckptgov_restorable_age_seconds",
        "Age of a run's newest restorable checkpoint; of a run without one, since it was made.",
        {("run",): [((one.run,), one.age_s(seen.now_ns)) for one in shown]},
    )
    yield gauge(
        "ckptgov_run_restorable",
        "Whether a run has any restorable checkpoint.",
        {("run",): [((one.run,), one.sealed_at_ns is not None) for one in shown]},
    )
    yield gauge(
        "ckptgov_newest_step",
        "Step of a run's newest restorable checkpoint.",
        {("run",): [((one.run,), one.step) for one in shown if one.step is not None]},
    )
    yield gauge(
        "ckptgov_load_failures",
        "Checkpoints of a run whose newest report says that they could not be loaded.",
        {("run",): [((one.run,), one.load_failures) for one in shown]},
    )
    yield plain("ckptgov_runs", "Registered runs.", len(seen.newest))
    yield plain(
        "ckptgov_runs_unjudged",
        "Runs that could not be judged, their journal's place being out of reach.",
        len(seen.newest) - len(known),
    )
    yield plain(
        "ckptgov_runs_not_shown",
        "Runs without series of their own: there are too many.",
        len(known) - len(shown),
    )


def of_tiers(seen: Seen, free: dict[str, Space]) -> Iterator[Metric]:
    for name, text, tallies in (
        (
            "ckptgov_tier_checkpoint_bytes",
            "Bytes of checkpoints at a tier, sealed or not.",
            (one.bytes for one in seen.sums),
        ),
        (
            "ckptgov_unverified_bytes",
            "Bytes of checkpoints at a tier that were not compared with a manifest as they are.",
            (one.unverified for one in seen.sums),
        ),
        (
            "ckptgov_undrained_bytes",
            "Bytes at a tier of checkpoints without a whole verified copy on a shared tier.",
            (one.undrained for one in seen.sums),
        ),
        (
            "ckptgov_corrupt_copies",
            "Copies at a tier whose bytes differ from their manifest.",
            (one.corrupt for one in seen.sums),
        ),
    ):
        yield gauge(name, text, {("tier", "node"): _by_tier(seen, tallies)})
    tiers = seen.settings.tiers
    sized = _told_by_nodes(seen)
    sized |= {(one.name, one.node or ""): free[one.root] for one in tiers if one.root in free}
    yield gauge(
        "ckptgov_tier_free_bytes",
        "Bytes that may still be written to a tier's file system.",
        {("tier", "node"): [(at, space[0]) for at, space in sized.items()]},
    )
    yield gauge(
        "ckptgov_tier_size_bytes",
        "Size of a tier's file system.",
        {("tier", "node"): [(at, space[1]) for at, space in sized.items()]},
    )
    yield gauge(
        "ckptgov_tier_quota_bytes",
        "What a tier may hold, where a quota is configured.",
        {
            ("tier", "node"): [
                ((one.name, one.node or ""), one.quota_bytes)
                for one in tiers
                if one.quota_bytes is not None
            ]
        },
    )


def _told_by_nodes(seen: Seen) -> dict[tuple[str, str], Space]:
    """The room on nodes' own disks, which nobody else measures."""
    sized: dict[tuple[str, str], Space] = {}
    for one in seen.keeping.rooms:
        place, sample = seen.places.get(one.sample.place), one.sample
        if place is None or place.node is None or not place.is_current:
            continue
        if sample.free_bytes is not None and sample.total_bytes is not None:
            sized[place.tier, place.node] = (sample.free_bytes, sample.total_bytes)
    return sized


def _by_tier(seen: Seen, tallies: Iterable[Tally[str]]) -> Rows:
    """Every configured tier and current place has a row, 0 included: alerts compare numbers."""
    known = {(one.name, one.node or "") for one in seen.settings.tiers}
    known |= {(one.tier, one.node or "") for one in seen.places.values() if one.is_current}
    totals: dict[tuple[str, str], float] = dict.fromkeys(sorted(known), 0)
    for tally in tallies:
        for place, count in tally.items():
            at = seen.places.get(place)
            if at is not None and at.is_current:
                totals[(at.tier, at.node or "")] += count
    return totals.items()


def of_flows(seen: Seen) -> Iterator[Metric]:
    granted: Tally[tuple[str, str]] = Tally()
    moving: Tally[tuple[str, str]] = Tally()
    for tier in seen.settings.tiers:
        for direction in ("read", "write"):
            granted[(tier.name, direction)] = moving[(tier.name, direction)] = 0
    for one in seen.flows:
        ends = (("read", one.request.source), ("write", one.request.target))
        for direction, tier_name in ends:
            if tier_name is not None and (tier_name, direction) in granted:
                granted[(tier_name, direction)] += one.rate_bytes_per_s
                moving[(tier_name, direction)] += one.measured_bytes_per_s
    yield gauge(
        "ckptgov_flow_granted_bytes_per_second",
        "Rates granted to flows, by tier.",
        {("tier", "direction"): granted.items()},
    )
    yield gauge(
        "ckptgov_flow_moving_bytes_per_second",
        "Rates that flows were measured at, by tier.",
        {("tier", "direction"): moving.items()},
    )
    states = Tally({state.value: 0 for state in FlowState})
    states.update(one.state.value for one in seen.flows)
    yield gauge(
        "ckptgov_flows", "Flows by state.", {("state",): [((s,), n) for s, n in states.items()]}
    )
    waiting = Tally(dict.fromkeys((*_REASONS.values(), "arbiter"), 0))
    waiting.update(_reason(one) for one in seen.flows if one.state is FlowState.WAITING)
    yield gauge(
        "ckptgov_flows_waiting",
        "Flows that wait, by what for.",
        {("reason",): [((reason,), count) for reason, count in waiting.items()]},
    )


def _reason(flow: FlowFacts) -> str:
    return _REASONS.get(flow.waits_for.partition(" ")[0], "arbiter")


def of_activities(seen: Seen) -> Iterator[Metric]:
    """Those turned off promise nothing. A success at 0 means that there never was one."""
    on = [one for one in seen.activities if one.every_s > 0]
    stamps: tuple[tuple[str, str, Callable[[ActivityFacts], float]], ...] = (
        (
            "ckptgov_activity_last_success_timestamp_seconds",
            "When an activity last succeeded; 0: never.",
            lambda one: one.succeeded_at_ns / 1e9,
        ),
        (
            "ckptgov_activity_known_since_timestamp_seconds",
            "Since when an activity is to run.",
            lambda one: one.known_since_ns / 1e9,
        ),
        (
            "ckptgov_activity_slo_seconds",
            "After how long without success an activity is late.",
            lambda one: one.slo_s,
        ),
        (
            "ckptgov_activity_failures",
            "Failures of an activity in a row.",
            lambda one: one.failures,
        ),
        (
            "ckptgov_activity_late",
            "Whether an activity is later than it may be.",
            lambda one: one.is_late(seen.now_ns),
        ),
    )
    for name, text, value in stamps:
        yield gauge(name, text, {("activity",): [((one.name,), value(one)) for one in on]})


def of_nodes(seen: Seen) -> Iterator[Metric]:
    """A silent node is told as silent, whatever it was said to be."""
    states = Tally(dict.fromkeys(("active", "cordoned", "drained", "dead", "silent"), 0))
    for one in seen.nodes:
        is_silent = one.node in seen.nodes_out_of_reach and one.state.value != "dead"
        states["silent" if is_silent else one.state.value] += 1
    yield gauge(
        "ckptgov_nodes", "Nodes by state.", {("state",): [((s,), n) for s, n in states.items()]}
    )
    count, size = out_of_reach(seen.sums, seen.unreachable)
    yield plain(
        "ckptgov_unreachable_only_copies",
        "Checkpoints of which something lies only on nodes that are dead or silent.",
        count,
    )
    yield plain("ckptgov_unreachable_only_copies_bytes", "Bytes of those checkpoints.", size)


def of_work(seen: Seen) -> Iterator[Metric]:
    yield gauge(
        "ckptgov_tasks",
        "Open tasks by kind and state.",
        {
            ("kind", "state"): [
                ((kind.value, state), seen.open_tasks[(kind.value, state)])
                for kind in TaskKind
                for state in ("queued", "claimed")
            ]
        },
    )
    if seen.decided is not None:
        for name, text, count in (
            ("ckptgov_restart_decisions", "Restarts decided, later epochs included.", 0),
            ("ckptgov_restart_step_overs", "Decisions after a checkpoint failed to load.", 1),
        ):
            yield CounterMetricFamily(name, text, value=seen.decided[count])
