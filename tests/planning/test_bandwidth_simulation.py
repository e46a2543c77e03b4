"""The arbiter in simulated time: a thousand flows on 64 nodes, and whatever goes wrong there.

Flows keep the rules that ``ops.flows`` keeps: told and heard once a second, a grant is used for 0.8
of its lease, then the fallback rate, and a flow that was never let in moves nothing.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from ckptgov.model.pacing import Budget, FlowClass, FlowRequest
from ckptgov.planning.bandwidth import (
    FlowView,
    Limits,
    Rates,
    Silence,
    next_pace,
    plan,
    quantum_bytes,
)
from ckptgov.planning.bandwidth_needs import Key, capacity, need_of

MB = 10**6
LEASE_S = 15


@dataclass(slots=True)
class Row:
    """What the catalog knows of a flow, and what the flow itself knows."""

    request: FlowRequest
    arrived: int
    left: int
    keys: tuple[Key, ...]
    granted: Rates | None = None
    held: Rates | None = None
    fallback: Rates | None = None
    beats: int = 0
    seen: tuple[int, int] = (0, 0)  # by the allocator: beats, and when they changed
    terms: Rates | None = None
    terms_fallback: Rates | None = None
    heard_at: int = 0
    moved: dict[int, int] = field(default_factory=dict)
    done_at: int | None = None

    def rate(self, now: int) -> int:
        rates = self.terms if now - self.heard_at < 0.8 * LEASE_S else self.terms_fallback
        if self.terms is None or rates is None:
            return 0
        return min((one for one in rates[:2] if one is not None), default=10**15)


class Cluster:
    """Seconds of the arbiter's life."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.now = 0
        self.rows: dict[str, Row] = {}
        self.done: list[Row] = []
        self.waiting: list[bool] = []
        self.used: dict[Key, list[int]] = defaultdict(list)
        self.paces: dict[str, int] = {}
        self.silent_nodes: set[str] = set()
        self.has_allocator = True
        self.pushed: set[str] = set()

    def add(self, request: FlowRequest) -> None:
        keys = need_of(request, self.limits).byte_keys
        self.rows[request.flow_id] = Row(
            request, self.now, request.bytes, keys, seen=(0, self.now), heard_at=self.now
        )

    def take_over(self) -> None:
        """A new allocator has seen nobody's silence yet."""
        self.has_allocator = True
        for row in self.rows.values():
            row.seen = (row.beats, self.now)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second()

    def second(self) -> None:
        if self.has_allocator:
            self.allocate()
        for row in self.rows.values():
            if row.request.node not in self.silent_nodes:
                row.beats += 1
                row.held = row.granted
                row.terms, row.terms_fallback = row.granted, row.fallback
                row.heard_at = self.now
        self.waiting.append(any(row.terms is None for row in self.rows.values()))
        self.move()
        self.now += 1

    def allocate(self) -> None:
        for subject in sorted({*self.paces, *self.pushed}):
            self.paces[subject] = next_pace(
                self.paces.get(subject, 1000),
                pushed_back=subject in self.pushed,
                fallback_percent=self.limits.fallback_percent,
            )
        self.pushed.clear()
        views = [self.view(row) for row in self.rows.values()]
        silence = {view.request.flow_id: view.silence for view in views}
        for share in plan(self.limits, views, self.paces):
            row = self.rows[share.flow_id]
            if silence[share.flow_id] is Silence.EXPIRED:
                continue
            row.granted, row.fallback = share.rates, share.fallback
            if silence[share.flow_id] is Silence.LOST:
                row.held = share.rates if row.held is not None else None
            elif row.held is None or share.rates is None:
                row.held = row.held if share.rates is None else share.rates
            else:
                row.held = Rates(*map(_larger, row.held, share.rates))

    def view(self, row: Row) -> FlowView:
        if row.seen[0] != row.beats:
            row.seen = (row.beats, self.now)
        age = self.now - row.seen[1]
        silence = Silence.HEARD
        if age >= LEASE_S:
            silence = Silence.EXPIRED if age < 2 * LEASE_S else Silence.LOST
        return FlowView(
            request=row.request,
            waiting_since_ns=row.arrived,
            held=row.held,
            granted=row.granted,
            fallback=row.fallback,
            silence=silence,
        )

    def move(self) -> None:
        used: dict[Key, int] = defaultdict(int)
        for row in list(self.rows.values()):
            moved = min(row.left, row.rate(self.now))
            row.left -= moved
            row.moved[self.now] = moved
            for key in row.keys:
                used[key] += moved
            if not row.left:
                row.done_at = self.now
                self.done.append(self.rows.pop(row.request.flow_id))
        for key, amount in used.items():
            history = self.used[key]
            history.extend([0] * (self.now - len(history)))
            history.append(amount)

    def worst_excess(self) -> float:
        """By how many quanta the worst 10 s of any resource exceeded its budget."""
        worst = 0.0
        for key, history in self.used.items():
            budget = capacity(self.limits, key)
            for start in range(max(1, len(history) - 9)):
                over = sum(history[start : start + 10]) - 10 * budget
                worst = max(worst, over / quantum_bytes(budget))
        return worst


def _larger(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def jain(values: Iterable[int]) -> float:
    listed = list(values)
    squares = sum(one * one for one in listed)
    return 1.0 if not squares else sum(listed) ** 2 / (len(listed) * squares)


def limits(**budgets: Budget) -> Limits:
    named = {f"tier {name}": budget for name, budget in budgets.items()}
    named.update({f"node n{index}": Budget(write_bytes_per_s=800 * MB) for index in range(64)})
    return Limits(budgets=named)


def many(rng: random.Random, count: int) -> list[tuple[int, FlowRequest]]:
    """Flows of checkpoints of 25 runs in all classes, and the second each of them comes."""
    classes = list(FlowClass)
    flows = []
    for index in range(count):
        checkpoint = index // 8
        flow_class = classes[rng.choices(range(5), (1, 5, 60, 30, 10))[0]]
        flows.append(
            (
                checkpoint * 2 % 200,
                FlowRequest(
                    flow_id=f"f{index:04}",
                    what=f"run{checkpoint % 25}/step_{checkpoint}",
                    flow_class=flow_class,
                    source="s3" if flow_class is FlowClass.RESTORE else "nvme",
                    target="nvme" if flow_class is FlowClass.RESTORE else "s3",
                    node=f"n{rng.randrange(64)}",
                    bytes=rng.randrange(5_000, 20_000) * MB,
                    order=(checkpoint,),
                ),
            )
        )
    return flows


S3 = Budget(read_bytes_per_s=4000 * MB, write_bytes_per_s=5000 * MB, flows=32)


FAULTS_FROM = 100


@pytest.fixture(scope="module")
def life() -> Cluster:
    """A thousand flows come within 200 s; after 100 of them things begin to go wrong."""
    cluster = Cluster(limits(s3=S3))
    odd = {f"n{index}" for index in range(0, 64, 3)}
    at = {
        FAULTS_FROM: lambda: setattr(cluster, "silent_nodes", odd),
        FAULTS_FROM + 40: lambda: setattr(cluster, "silent_nodes", set()),
        FAULTS_FROM + 60: lambda: setattr(cluster, "has_allocator", False),
        FAULTS_FROM + 80: cluster.take_over,
        FAULTS_FROM + 90: lambda: cluster.pushed.add("tier s3"),
        FAULTS_FROM + 92: lambda: cluster.pushed.add("tier s3"),
    }
    flows = many(random.Random(7), 1000)
    for second in range(FAULTS_FROM + 120):
        for _, request in (one for one in flows if one[0] == second):
            cluster.add(request)
        at.get(second, lambda: None)()
        cluster.second()
    return cluster


def test_a_thousand_flows_on_64_nodes_never_exceed_a_budget(life: Cluster) -> None:
    excess = life.worst_excess()
    print(f"{len(life.done)} of 1000 flows done; worst 10 s: {excess:.3f} quanta above budget")
    assert excess <= 1
    assert len(life.done) > 100


def test_of_a_thousand_flows_those_of_one_checkpoint_move_equally(life: Cluster) -> None:
    worst, groups = 1.0, 0
    for start in range(5, FAULTS_FROM - 10, 5):
        window = range(start, start + 10)
        moved: dict[tuple[FlowClass, tuple[int, ...]], list[int]] = defaultdict(list)
        for row in (*life.rows.values(), *life.done):
            is_whole = row.done_at is None or row.done_at >= window.stop
            at_node = life.used[f"node {row.request.node}", "write"]
            # Flows that share a full node get their equal part of that, not of the tier.
            is_whole = is_whole and max(at_node[start : window.stop], default=0) < 790 * MB
            if is_whole and all(row.moved.get(second) for second in window):
                group = (row.request.flow_class, row.request.order)
                moved[group].append(sum(row.moved[second] for second in window))
        for amounts in moved.values():
            if len(amounts) > 1:
                worst, groups = min(worst, jain(amounts)), groups + 1
    print(f"Jain fairness inside a class, worst of {groups} windows and checkpoints: {worst:.4f}")
    assert groups > 10
    assert worst >= 0.99


def test_with_a_thousand_flows_the_tier_is_used_while_anyone_waits(life: Cluster) -> None:
    used = life.used["tier s3", "write"][3:FAULTS_FROM]
    waits = life.waiting[3:FAULTS_FROM]
    busy = [amount for amount, waiting in zip(used, waits, strict=True) if waiting]
    share = sum(busy) / (len(busy) * 5000 * MB)
    print(f"use of the tier in {len(busy)} s while someone waits: {share:.2%}")
    assert len(busy) > 50
    assert share >= 0.95


def backlog(count: int, **changes: object) -> list[FlowRequest]:
    """Flows that will not end soon."""
    fields = {"flow_class": FlowClass.DURABLE, "bytes": 10**15} | changes
    return [
        FlowRequest(
            flow_id=f"{fields['flow_class']}-{index:03}",
            what="run/step",
            source="nvme",
            target="s3",
            node=f"n{index % 64}",
            **fields,
        )
        for index in range(count)
    ]


def test_equal_flows_of_a_class_move_equally() -> None:
    cluster = Cluster(limits(s3=S3))
    for request in backlog(40) + backlog(10, flow_class=FlowClass.BACKGROUND):
        cluster.add(request)
    cluster.run(30)
    for flow_class in (FlowClass.DURABLE, FlowClass.BACKGROUND):
        moved = [
            sum(amount for second, amount in row.moved.items() if second >= 10)
            for row in cluster.rows.values()
            if row.request.flow_class is flow_class and row.terms is not None
        ]
        fairness = jain(moved)
        print(f"{len(moved)} flows of class {flow_class}: Jain {fairness:.4f}")
        assert fairness >= 0.99


def test_a_heavier_flow_moves_by_its_weight() -> None:
    cluster = Cluster(Limits(budgets={"tier s3": Budget(write_bytes_per_s=600 * MB)}))
    light, heavy = backlog(1), backlog(1, flow_class=FlowClass.DURABLE, weight=3)
    cluster.add(light[0])
    cluster.add(FlowRequest(**_fields(heavy[0]) | {"flow_id": "heavy"}))
    cluster.run(60)
    rates = {row.request.flow_id: row.rate(60) for row in cluster.rows.values()}
    assert rates["heavy"] >= 0.9 * 450 * MB
    assert rates["durable-000"] >= 0.9 * 150 * MB


def test_a_tier_is_used_while_anyone_waits_for_it() -> None:
    cluster = Cluster(limits(s3=S3))
    rng = random.Random(3)
    for index, request in enumerate(backlog(200)):
        size = rng.randrange(5_000, 12_000) * MB
        cluster.add(FlowRequest(**_fields(request) | {"bytes": size, "order": (index // 8,)}))
    used, waited = [], 0
    while any(row.terms is None for row in cluster.rows.values()) and cluster.now < 300:
        cluster.second()
        if cluster.now > 2:  # nobody was admitted before the first round
            used.append(cluster.used["tier s3", "write"][-1])
            waited += 1
    share = sum(used) / (len(used) * 5000 * MB)
    print(f"use of the tier over {waited} s while someone waits: {share:.3%}")
    assert share >= 0.95


def test_every_class_keeps_its_floor_and_the_most_urgent_gets_the_rest() -> None:
    cluster = Cluster(Limits(budgets={"tier s3": S3}))
    for flow_class in FlowClass:
        for request in backlog(20, flow_class=flow_class):
            cluster.add(request)
    cluster.run(20)
    rates: dict[FlowClass, int] = defaultdict(int)
    for row in cluster.rows.values():
        rates[row.request.flow_class] += row.rate(19)
    print({flow_class.value: rate // MB for flow_class, rate in rates.items()})
    for flow_class in list(FlowClass)[1:]:
        assert rates[flow_class] >= 0.0499 * 5000 * MB
    assert rates[FlowClass.EMERGENCY] >= 0.75 * 5000 * MB


def _mean_time_to_durable(limits: Limits, *, in_order: bool) -> float:
    cluster = Cluster(limits)
    for node in range(64):
        for part in range(2):
            cluster.add(
                FlowRequest(
                    flow_id=f"n{node}-{part}",
                    what=f"run{node}/step_1",
                    flow_class=FlowClass.DURABLE,
                    source="nvme",
                    target="s3",
                    node=f"n{node}",
                    bytes=2000 * MB,
                    order=(node,) if in_order else (),
                )
            )
    while cluster.rows and cluster.now < 400:
        cluster.second()
    finished: dict[str, int] = defaultdict(int)
    for row in cluster.done:
        assert row.done_at is not None
        finished[row.request.what] = max(finished[row.request.what], row.done_at + 1)
    assert len(finished) == 64
    return sum(finished.values()) / 64


def test_flushing_in_order_makes_checkpoints_durable_sooner_than_sharing_equally() -> None:
    budget = Budget(write_bytes_per_s=2000 * MB)
    ordered = _mean_time_to_durable(Limits(budgets={"tier s3": budget}), in_order=True)
    shared = Budget(write_bytes_per_s=2000 * MB, flows=128)
    equal = _mean_time_to_durable(Limits(budgets={"tier s3": shared}), in_order=False)
    print(f"mean time to durable: {ordered:.1f} s in order, {equal:.1f} s sharing equally")
    assert ordered < 0.7 * equal


def test_without_an_allocator_flows_keep_what_they_were_granted_while_they_are_heard() -> None:
    cluster = Cluster(limits(s3=S3))
    for request in backlog(64):
        cluster.add(request)
    cluster.run(10)
    cluster.has_allocator = False
    cluster.run(40)
    cluster.take_over()
    cluster.run(40)
    assert cluster.worst_excess() <= 1
    assert min(cluster.used["tier s3", "write"][5:]) >= 0.95 * 5000 * MB


def test_when_all_nodes_are_silent_their_fallback_is_within_the_budget_and_not_nothing() -> None:
    cluster = Cluster(limits(s3=S3))
    for request in backlog(64):
        cluster.add(request)
    cluster.run(10)
    cluster.silent_nodes = {f"n{index}" for index in range(64)}
    cluster.run(60)
    rate = cluster.used["tier s3", "write"][-1]
    print(f"all silent: {rate // MB} MB/s of 5000 MB/s")
    assert 0.09 * 5000 * MB <= rate <= 0.1 * 5000 * MB
    assert cluster.worst_excess() <= 1


def test_what_a_silent_node_held_is_given_on_after_one_lease_more_and_it_comes_back() -> None:
    cluster = Cluster(Limits(budgets={"tier s3": Budget(write_bytes_per_s=400 * MB)}))
    for request in backlog(4):
        cluster.add(request)
    cluster.run(5)
    cluster.silent_nodes = {"n0"}
    cluster.run(2 * LEASE_S - 2)
    others = [row for row in cluster.rows.values() if row.request.node != "n0"]
    assert {row.rate(cluster.now) for row in others} == {100 * MB}
    cluster.run(8)
    assert {row.rate(cluster.now) for row in others} == {130 * MB}
    cluster.silent_nodes = set()
    cluster.run(8)
    assert {row.rate(cluster.now) for row in cluster.rows.values()} == {100 * MB}
    assert cluster.worst_excess() <= 0


def test_a_store_that_pushes_back_is_given_less_at_once_and_all_again_within_a_minute() -> None:
    cluster = Cluster(limits(s3=S3))
    for request in backlog(64):
        cluster.add(request)
    cluster.run(5)
    cluster.pushed.add("tier s3")
    cluster.run(2)
    assert cluster.used["tier s3", "write"][-1] <= 0.72 * 5000 * MB
    cluster.run(58)
    assert cluster.used["tier s3", "write"][-1] >= 0.99 * 5000 * MB


@pytest.mark.parametrize("refusals", [1, 100])
def test_a_pace_stays_between_the_fallback_and_the_budget(refusals: int) -> None:
    pace = 1000
    for _ in range(refusals):
        pace = next_pace(pace, pushed_back=True, fallback_percent=10)
        assert 100 <= pace <= 700
    for _ in range(100):
        pace = next_pace(pace, pushed_back=False, fallback_percent=10)
    assert pace == 1000


def _fields(request: FlowRequest) -> dict[str, object]:
    return {name: getattr(request, name) for name in request.__struct_fields__}
