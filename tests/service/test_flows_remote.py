"""Agents of several machines under one service's budgets, whatever of the way between is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.flowfacts import FlowOwner
from ckptgov.errors import CouldNotLook, LeaseLost, NotAllowed, UsageError
from ckptgov.model.pacing import Budget, FlowClass, FlowRequest
from ckptgov.model.settings import Scope, Settings, TierSettings
from ckptgov.ops import flows_open, flows_remote, processes
from ckptgov.ops.flows import FlowDesk, OpenFlow
from ckptgov.ops.flows_door import close_flows, hear_beats, open_flow
from ckptgov.ops.flows_remote import RemoteDesk
from ckptgov.planning.bandwidth import UNLIMITED, limits_of
from ckptgov.wire import flows as wire

MB = 10**6
BUDGET = 100 * MB
NODES = ("a", "b", "c")


class SteppedClock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 5000.0

    def now_ns(self) -> int:
        return int(self.now * 1e9)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def settings_of(budget: Budget) -> Settings:
    shared = TierSettings(name="s3", root="s3://b", budget=budget)
    disks = [TierSettings(name="nvme", root="/nvme", scope=Scope.NODE, node=node) for node in NODES]
    return Settings(home="/h", tiers=(shared, *disks))


def request(flow_id: str, node: str, **changes: Any) -> FlowRequest:
    fields: dict[str, Any] = {
        "flow_id": flow_id,
        "what": f"run/{flow_id}",
        "flow_class": FlowClass.DURABLE,
        "source": "nvme",
        "target": "s3",
        "node": node,
        "bytes": 1000 * MB,
    }
    return FlowRequest(**(fields | changes))


class Way:
    """The network between one agent and the service; what goes over it is JSON."""

    def __init__(self, service: Service, node: str) -> None:
        self.service = service
        self.node = node
        self.is_cut = False
        self.loses_answer: Callable[[], bool] = lambda: False
        self.late: list[tuple[str, str]] = []
        self.keeps_late = False
        self.calls: list[str] = []

    def post(self, path: str, document: Any) -> Any:
        self.calls.append(path)
        sent = json.dumps(document)
        if self.is_cut or self.service.is_down:
            if self.keeps_late:
                self.late.append((path, sent))
            raise CouldNotLook("no answer came")
        answer = self.service.answer(path, json.loads(sent), self.node)
        if self.loses_answer():
            raise CouldNotLook("the answer was lost")
        return json.loads(json.dumps(answer))

    def deliver_late(self) -> None:
        """What was on its way comes in after all, and nobody hears the answers."""
        late, self.late = self.late, []
        for path, sent in late:
            self.service.answer(path, json.loads(sent), self.node)


class Service:
    """One catalog, the desk that computes for everybody, and the agents' ways to it."""

    def __init__(self, home: Path, stack: ExitStack, budget: Budget) -> None:
        self.stack = stack
        self.clock = SteppedClock()
        self.is_down = False
        self.settings = settings_of(budget)
        self.catalog = stack.enter_context(
            Catalog.open(
                str(home / "catalog.sqlite"), fs_type="ext4", is_network=False, clock=self.clock
            )
        )
        self.desk = stack.enter_context(
            FlowDesk(self.catalog, self.settings, self.clock, in_background=False)
        )
        self.ways = {node: Way(self, node) for node in NODES}
        self.desks = {node: self.agent(node) for node in NODES}
        self.flows: list[OpenFlow] = []

    def agent(self, node: str) -> RemoteDesk:
        return self.stack.enter_context(
            RemoteDesk(
                self.ways[node].post,
                Settings(home="/h"),  # an agent's own file may know of no budget
                self.clock,
                node=node,
                in_background=False,
            )
        )

    def answer(self, path: str, document: Any, node: str) -> Any:
        match path:
            case "/v1/flows/open":
                told = wire.from_document(document, wire.OpenFlow)
                open_flow(self.catalog, limits_of(self.settings), told, node=node)
                return {}
            case "/v1/flows/beat":
                beats = wire.from_document(document, wire.FlowBeats)
                return wire.to_document(hear_beats(self.catalog, beats, node=node))
            case _:
                closed = wire.from_document(document, wire.CloseFlows)
                return wire.to_document(close_flows(self.catalog, closed, node=node))

    def open(self, node: str, flow_id: str, **changes: Any) -> OpenFlow:
        flow = self.stack.enter_context(self.desks[node].open(request(flow_id, node, **changes)))
        self.flows.append(flow)
        return flow

    def beats(self, count: int = 3, *, nodes: tuple[str, ...] = NODES) -> None:
        for _ in range(count):
            if not self.is_down:
                self.desk.step()
            for node in nodes:
                self.desks[node].step()
            self.clock.now += 1

    def rate(self, flow: OpenFlow) -> int:
        """Bytes/s that it may write now."""
        rates = flow.terms.at(self.clock.now)
        return 0 if rates is None else rates.write_bytes_per_s or 0

    def total(self) -> int:
        return sum(self.rate(flow) for flow in self.flows)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Service]]:
    # Flows here mostly stand still; they count as wanting more all the same.
    monkeypatch.setattr(flows_open, "_CALM_BEATS", 10**9)
    with ExitStack() as stack:

        def call(budget: Budget | None = None) -> Service:
            given = Budget(write_bytes_per_s=BUDGET, flows=4) if budget is None else budget
            return Service(tmp_path, stack, given)

        yield call


@pytest.fixture
def service(start: Callable[..., Service]) -> Service:
    return start()


def test_flows_of_several_machines_share_one_budget(service: Service) -> None:
    flows = [service.open(node, f"f-{node}") for node in NODES]
    service.beats(6)
    assert [service.rate(flow) for flow in flows] == [pytest.approx(BUDGET / 3, rel=0.01)] * 3
    assert {one.request.node for one in service.desk.facts()} == set(NODES)


def test_the_service_computes_although_it_moves_nothing_itself(service: Service) -> None:
    flow = service.open("a", "f1")
    assert flow.waits_for
    service.beats(2)
    assert service.rate(flow) == BUDGET


def test_always_computing_needs_no_flow_of_its_own(start: Callable[..., Service]) -> None:
    service = start()
    desk = FlowDesk(
        service.catalog, service.settings, service.clock, beat_s=0.001, always_computes=True
    )
    with desk:
        thread = desk._thread
        assert thread is not None
        assert thread.is_alive()


def test_the_budgets_are_the_services_and_not_the_agents_own(service: Service) -> None:
    flow = service.open("a", "f1")
    assert service.rate(flow) == 0, "its own settings know of no budget; it waits all the same"


def test_a_flow_that_was_let_in_goes_on_at_its_fallback_rate_while_the_service_is_away(
    service: Service,
) -> None:
    flow = service.open("a", "f1")
    service.beats()
    service.is_down = True
    service.beats(10)
    assert service.rate(flow) == BUDGET
    service.beats(3)
    assert service.rate(flow) == BUDGET // 10 // 4
    service.beats(600)
    assert service.rate(flow) == BUDGET // 10 // 4
    service.is_down = False
    service.beats()
    assert service.rate(flow) == BUDGET


def test_what_was_never_let_in_moves_nothing_while_the_service_is_away(service: Service) -> None:
    service.is_down = True
    flow = service.open("a", "f1")
    service.beats(50)
    assert service.rate(flow) == 0
    assert "does not answer" in flow.waits_for
    service.is_down = False
    service.beats()
    assert service.rate(flow) == BUDGET


def test_a_flow_without_a_budget_never_waits_once_the_service_said_so(
    start: Callable[..., Service],
) -> None:
    service = start(Budget())
    flow = service.open("a", "f1")
    service.beats(1)
    assert flow.terms.at(service.clock.now) == UNLIMITED
    service.is_down = True
    later = service.open("a", "f2")
    service.beats(100)
    assert later.terms.at(service.clock.now) == UNLIMITED
    other = service.open("b", "f3")
    assert other.terms.at(service.clock.now) is None, "this machine was never told"


# Nothing that is lost on the way makes the service believe that a flow takes less than it does.


def test_a_grant_whose_answer_was_lost_is_not_counted_as_heard(service: Service) -> None:
    first = service.open("a", "f1")
    service.beats()
    assert service.rate(first) == BUDGET
    service.ways["a"].loses_answer = lambda: True
    second = service.open("b", "f2")
    for _ in range(10):
        service.beats(1)
        assert service.total() <= BUDGET
    assert service.rate(first) == BUDGET, "it did not hear that it is to take less"
    service.ways["a"].loses_answer = lambda: False
    for _ in range(10):
        service.beats(1)
        assert service.total() <= BUDGET
    assert service.rate(second) == pytest.approx(BUDGET / 2, rel=0.01)


def test_a_grant_written_between_reading_and_counting_is_not_counted_as_heard(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = service.open("a", "f1")
    service.beats()
    book, real = service.catalog.flows, service.catalog.flows.registered

    def registered(**wanted: Any) -> Any:
        found = real(**wanted)
        monkeypatch.setattr(book, "registered", real)
        service.open("b", "f2")
        service.desk.step()  # takes from the first to give to the second
        return found

    monkeypatch.setattr(book, "registered", registered)
    service.ways["a"].loses_answer = lambda: True
    service.desks["a"].step()
    (held,) = [one.held for one in real() if one.request.flow_id == "f1"]
    assert held is not None
    assert held[1] == BUDGET == service.rate(first)


def test_beats_that_come_in_late_prolong_nothing_that_is_used(service: Service) -> None:
    way = service.ways["a"]
    flow = service.open("a", "f1")
    service.beats()
    way.is_cut = way.keeps_late = True
    service.open("b", "f2")
    for _ in range(60):
        service.beats(1)
        assert service.total() <= BUDGET
    assert service.rate(flow) == BUDGET // 10 // 4
    way.deliver_late()
    for _ in range(20):
        service.beats(1)
        assert service.total() <= BUDGET


def test_a_grant_is_used_no_longer_than_since_the_service_surely_heard_of_the_flow(
    service: Service,
) -> None:
    flow = service.open("a", "f1")
    service.beats()
    desk, way, real = service.desks["a"], service.ways["a"], service.ways["a"].post
    told: list[str] = []

    def post(path: str, document: Any) -> Any:
        told.append(path)
        if len(told) == 2:  # that it acts on the news never comes through
            raise CouldNotLook("no answer came")
        return real(path, document)

    desk._book._post = post  # type: ignore[attr-defined]
    for index in range(30):
        with service.desks["b"].open(request(f"other-{index}", "b")):
            service.desk.step()
            told.clear()
            way.calls.clear()
            desk.step()
            (row,) = [
                one for one in service.catalog.flows.registered() if one.request.flow_id == "f1"
            ]
            assert flow.terms.fresh_until <= row.beat_at_ns / 1e9 + 0.8 * 15
        service.clock.now += 1


def test_a_flow_whose_grant_changes_all_the_time_is_heard_all_the_time(service: Service) -> None:
    service.open("a", "f1")
    service.beats()
    for index in range(10):
        with service.desks["b"].open(request(f"other-{index}", "b")):
            service.beats(1, nodes=("b",))
            service.beats(1)
            (row,) = [
                one for one in service.catalog.flows.registered() if one.request.flow_id == "f1"
            ]
            assert row.beat_at_ns == int((service.clock.now - 1) * 1e9)
            assert row.held == row.granted


def test_an_opening_whose_answer_was_lost_is_made_again(service: Service) -> None:
    way = service.ways["a"]
    lost = iter([True])
    way.loses_answer = lambda: next(lost, False)
    flow = service.open("a", "f1")
    service.beats()
    assert service.rate(flow) == BUDGET
    assert len(service.desk.facts()) == 1


def test_a_flow_that_the_service_lost_stops_and_is_registered_anew(service: Service) -> None:
    flow = service.open("a", "f1")
    service.beats()
    service.catalog.flows.close(["f1"])
    service.desks["a"].step()
    assert service.rate(flow) == 0
    service.beats()
    assert service.rate(flow) == BUDGET


# Silent flows of other machines.


def test_a_silent_flow_of_another_machine_is_brought_to_its_fallback_rate_and_no_lower(
    service: Service,
) -> None:
    silent = service.open("a", "f1")
    service.beats()
    service.ways["a"].is_cut = True
    other = service.open("b", "f2")
    for _ in range(120):
        service.beats(1)
        assert service.total() <= BUDGET
    assert service.rate(silent) == BUDGET // 10 // 4
    assert service.rate(other) == BUDGET - BUDGET // 10 // 4


def test_a_machine_of_the_same_name_is_not_taken_for_this_one_after_a_restart(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = processes.this_process()
    elsewhere = FlowOwner(host=me.host, boot="another-boot/ns", pid=me.pid, started=me.started)
    monkeypatch.setattr(flows_remote, "this_process", lambda: elsewhere)
    desk = service.desks["a"] = service.agent("a")
    desk._owner = elsewhere
    flow = service.open("a", "f1")
    service.beats(5)
    assert service.rate(flow) == BUDGET


def test_what_a_killed_agent_left_behind_is_given_back_by_the_next_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.open("a", "f1")
    service.beats()
    dead = replace(processes.this_process(), pid=2**22 + 1)
    for one in service.catalog.flows.registered():
        service.catalog.flows.close([one.request.flow_id])
        left = replace(one.owner, pid=dead.pid, boot="seen-from-the-agent-only/ns")
        service.catalog.flows.open(replace(one, owner=left))
    monkeypatch.setattr(flows_remote, "has_surely_ended", lambda owner, me: owner.pid == dead.pid)
    service.flows.clear()
    service.desks["a"] = service.agent("a")
    service.desk.step()
    assert [one.request.flow_id for one in service.catalog.flows.registered()] == ["f1"]
    service.open("a", "f2")
    service.beats()
    assert [one.request.flow_id for one in service.catalog.flows.registered()] == ["f2"]


# Work goes on in turn while the service is away.


def test_a_flow_takes_over_what_is_kept_aside_for_one_that_ended(service: Service) -> None:
    desk = service.desks["a"]
    with desk.open(request("f1", "a")) as first:
        service.beats()
        service.is_down = True
        service.beats(2)
    assert first.terms.rates is not None
    for index in range(5):
        with desk.open(request(f"next-{index}", "a")) as flow:
            service.beats(20)
            assert service.rate(flow) == BUDGET // 10 // 4
    with desk.open(request("last", "a")) as one, desk.open(request("too-many", "a")) as other:
        service.beats(5)
        assert service.rate(one) + service.rate(other) == BUDGET // 10 // 4
    other_way = service.open("a", "other-way", target=None, source="s3")
    service.beats(5)
    assert service.rate(other_way) == 0


def test_nothing_is_taken_over_once_the_service_may_have_forgotten_it(service: Service) -> None:
    desk, way = service.desks["a"], service.ways["a"]
    with desk.open(request("f1", "a")):
        service.beats()
        way.loses_answer = lambda: True
    assert service.catalog.flows.registered() == ()
    flow = service.open("a", "f2")
    service.beats(5)
    assert service.rate(flow) == 0


def test_what_was_taken_over_ends_before_the_service_forgets_whose_it_was(
    service: Service,
) -> None:
    desk = service.desks["a"]
    with desk.open(request("f1", "a")):
        service.beats()
        service.is_down = True
        service.beats(2)
    heir = service.open("a", "heir")
    service.beats(2)
    assert service.rate(heir) > 0
    service.is_down = desk._is_lost = False  # as if it had been found in the very moment before
    at_closing: list[int] = []
    real = service.catalog.flows.close

    def close(flow_ids: Any) -> None:
        at_closing.append(service.rate(heir))
        real(flow_ids)

    service.catalog.flows.close = close  # type: ignore[method-assign]
    desk.step()
    assert at_closing == [0]
    service.beats(4)
    assert service.rate(heir) == BUDGET


# Whatever happens: never more than the budget leaves, over all machines.


@pytest.mark.parametrize("seed", range(5))
def test_what_leaves_all_machines_together_stays_within_the_budget(
    start: Callable[..., Service], seed: int
) -> None:
    service = start(Budget(write_bytes_per_s=BUDGET, flows=3))
    draw = random.Random(seed)
    for way in service.ways.values():
        way.keeps_late = True
        way.loses_answer = lambda: draw.random() < 0.15
    living: list[tuple[ExitStack, OpenFlow]] = []
    sent: list[tuple[float, int]] = []
    for tick in range(300):
        if draw.random() < 0.1 and len(living) < 7:
            stack, node = ExitStack(), draw.choice(NODES)
            flow = stack.enter_context(
                service.desks[node].open(
                    request(f"f{tick}", node, flow_class=draw.choice(list(FlowClass)))
                )
            )
            living.append((stack, flow))
        if living and draw.random() < 0.05:
            living.pop(draw.randrange(len(living)))[0].close()
        if draw.random() < 0.01:
            service.is_down = not service.is_down
        for way in service.ways.values():
            if draw.random() < 0.02:
                way.is_cut = not way.is_cut
            if draw.random() < 0.05 and not service.is_down:
                way.deliver_late()
        if not service.is_down and draw.random() < 0.5:
            service.desk.step()
        for desk in service.desks.values():
            if draw.random() < 0.5:
                desk.step()
        # At the pacers: whatever they let out now has left.
        left = sum(10**12 - flow.writing._pay(10**12, 0)[0] for _, flow in living)
        sent.append((service.clock.now, left))
        service.clock.now += 0.5
    for stack, _ in living:
        stack.close()
    assert sum(count for _, count in sent) > 0.02 * BUDGET * 150, "work went on"
    for begin in range(0, len(sent) - 20):
        window = sent[begin + 1 : begin + 21]
        # A bucket that stood full when the window began lets out one quantum more.
        assert sum(count for _, count in window) <= 10 * BUDGET + BUDGET // 4 + 8 * 2**20


# What the service lets in.


def beats_of(process: wire.Process, *beats: wire.FlowBeat) -> wire.FlowBeats:
    return wire.FlowBeats(owner=process, beats=beats)


ME = wire.Process(host="h", boot="b", pid=1, started=1)


def opening(flow_id: str = "f1", node: str = "a", **changes: Any) -> wire.OpenFlow:
    fields: dict[str, Any] = {"request": request(flow_id, node), "owner": ME, "lease_s": 15.0}
    return wire.OpenFlow(**(fields | changes))


def test_an_agent_speaks_for_its_own_nodes_flows_only(service: Service) -> None:
    limits = limits_of(service.settings)
    with pytest.raises(NotAllowed):
        open_flow(service.catalog, limits, opening(node="b"), node="a")
    open_flow(service.catalog, limits, opening(node="b"), node="b")
    beat = wire.FlowBeat(flow_id="f1", acts_on=-1, moved_bytes=0, measured_bytes_per_s=0)
    with pytest.raises(NotAllowed):
        hear_beats(service.catalog, beats_of(ME, beat), node="a")
    for told in (
        wire.CloseFlows(flow_ids=("f1",)),
        wire.CloseFlows(ended=(wire.EndedFlow(flow_id="f1", beats=0),)),
    ):
        with pytest.raises(NotAllowed):
            close_flows(service.catalog, told, node="a")
    assert len(service.catalog.flows.registered()) == 1


def test_a_flow_id_in_use_by_another_process_is_refused(service: Service) -> None:
    limits = limits_of(service.settings)
    open_flow(service.catalog, limits, opening(), node="a")
    open_flow(service.catalog, limits, opening(), node="a")
    other = wire.Process(host="h", boot="b", pid=2, started=1)
    with pytest.raises(LeaseLost):
        open_flow(service.catalog, limits, opening(owner=other), node="a")


@pytest.mark.parametrize(
    "told",
    [
        opening(lease_s=0.0),
        opening(lease_s=86400.0),
        opening(lease_s=float("nan")),
        opening(flow_id=""),
        opening(flow_id="x" * 300),
        opening(flow_id="a\nb"),
    ],
)
def test_a_flow_that_makes_no_sense_is_refused(service: Service, told: wire.OpenFlow) -> None:
    with pytest.raises(UsageError):
        open_flow(service.catalog, limits_of(service.settings), told, node=None)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"owner":1}', b"\xff", b"[" * 100_000])
def test_a_message_that_is_none_is_refused(raw: bytes) -> None:
    for kind in (wire.OpenFlow, wire.FlowBeats):
        with pytest.raises(UsageError):
            wire.decode(raw, kind)
