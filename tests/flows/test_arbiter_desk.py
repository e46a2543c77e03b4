"""Desks of several processes over one catalog, in stepped time: who moves, who waits, and why."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.catalog import sqlite
from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.flowfacts import FlowOwner, RegisteredFlow
from ckptgov.errors import LeaseLost
from ckptgov.model.clock import SystemClock
from ckptgov.model.pacing import Budget, FlowClass, FlowRequest, FlowState
from ckptgov.model.settings import Settings, TierSettings
from ckptgov.ops import flows_arbiter, flows_open
from ckptgov.ops.flows import FlowDesk, OpenFlow
from ckptgov.ops.processes import has_surely_ended, this_process

MB = 10**6
RATES = (None, 20 * MB, None, None)


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


def settings_of(budget: Budget | None = None) -> Settings:
    budget = Budget(write_bytes_per_s=400 * MB, flows=2) if budget is None else budget
    return Settings(home="/h", tiers=(TierSettings(name="s3", root="s3://b", budget=budget),))


def request(flow_id: str, **changes: object) -> FlowRequest:
    fields: dict[str, object] = {
        "flow_id": flow_id,
        "what": f"run/{flow_id}",
        "flow_class": FlowClass.DURABLE,
        "source": "nvme",
        "target": "s3",
        "node": "a",
        "bytes": 1000 * MB,
    }
    return FlowRequest(**(fields | changes))


class Office:
    """Desks that a test drives, one beat at a time."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home = home
        self.path = str(home / "catalog.sqlite")
        self.stack = stack
        self.clock = SteppedClock()
        self.catalog = stack.enter_context(
            Catalog.open(self.path, fs_type="ext4", is_network=False, clock=self.clock)
        )
        self.said: list[str] = []

    def desk(self, settings: Settings | None = None, **options: object) -> FlowDesk:
        desk = FlowDesk(
            self.catalog,
            settings_of() if settings is None else settings,
            self.clock,
            in_background=False,
            talk=self.said.append,
            **options,
        )
        self.stack.callback(desk.close)
        return desk

    def open(self, desk: FlowDesk, flow_id: str, **changes: object) -> OpenFlow:
        return self.stack.enter_context(desk.open(request(flow_id, **changes)))

    def beats(self, *desks: FlowDesk, count: int = 3) -> None:
        for _ in range(count):
            for desk in desks:
                desk.step()
            self.clock.now += 1

    def rates(self) -> dict[str, int | None]:
        """What each flow may write, as far as it was heard."""
        return {
            one.request.flow_id: None if one.held is None else one.held[1]
            for one in self.catalog.flows.registered()
        }

    @contextmanager
    def locked(self) -> Iterator[None]:
        lock = sqlite3.connect(self.path, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            lock.close()


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    monkeypatch.setattr(sqlite, "_FLEETING_PRAGMAS", ("PRAGMA busy_timeout=10",))
    # Flows here mostly stand still; they count as wanting more all the same.
    monkeypatch.setattr(flows_open, "_CALM_BEATS", 10**9)
    with ExitStack() as stack:
        yield Office(tmp_path, stack)


def time_of(office: Office, flow: OpenFlow, count_bytes: int) -> float:
    began = office.clock.now
    flow.writing.take(count_bytes)
    return office.clock.now - began


def test_a_flow_moves_at_what_it_was_granted(office: Office) -> None:
    desk = office.desk()
    flow = office.open(desk, "f1")
    assert flow.waits_for == "the arbiter's next round"
    desk.step()
    assert flow.waits_for == ""
    assert time_of(office, flow, 800 * MB) == pytest.approx(2, rel=0.02)


def test_flows_of_several_processes_share_and_the_last_to_come_waits(office: Office) -> None:
    desks = [office.desk() for _ in range(3)]
    flows = [office.open(desk, f"f{index}") for index, desk in enumerate(desks)]
    office.beats(*desks)
    assert office.rates() == {"f0": 200 * MB, "f1": 200 * MB, "f2": None}
    assert flows[2].waits_for == "flows of tier s3: 2 of 2"


def test_what_waited_moves_when_a_flow_ends(office: Office) -> None:
    desk = office.desk()
    with desk.open(request("f0")), desk.open(request("f1")):
        waiting = office.open(desk, "f2")
        office.beats(desk)
        assert waiting.waits_for
    office.beats(desk, count=2)
    assert office.rates() == {"f2": 400 * MB}
    assert waiting.waits_for == ""


def test_a_flow_without_a_budget_never_waits_and_is_seen(office: Office) -> None:
    desk = office.desk(settings_of(Budget()))
    flow = office.open(desk, "f1")
    assert time_of(office, flow, 2**50) == 0
    (seen,) = desk.facts()
    assert (seen.state, seen.request.flow_id) == (FlowState.MOVING, "f1")


def test_a_flow_without_a_budget_does_not_wait_for_a_catalog_either(office: Office) -> None:
    desk = office.desk(settings_of(Budget()))
    with office.locked():
        flow = office.open(desk, "f1")
        desk.step()
        office.clock.now += 10**6
        assert time_of(office, flow, 2**50) == 0


def test_a_catalog_that_does_not_answer_leaves_the_fallback_rate(office: Office) -> None:
    desk = office.desk()
    flow = office.open(desk, "f1")
    office.beats(desk)
    with office.locked():
        for _ in range(3):
            desk.step()
        office.clock.now += 12
        assert time_of(office, flow, 60 * MB) == pytest.approx(2.9, abs=0.2)
        desk.step()
    desk.step()
    desk.step()
    assert time_of(office, flow, 800 * MB) == pytest.approx(2, abs=0.3)
    assert [text.partition(" (")[0] for text in office.said] == [
        "the catalog does not answer",
        "the catalog answers again",
    ]


def test_a_flow_that_was_never_let_in_waits_for_the_catalog_and_says_so(office: Office) -> None:
    desk = office.desk()
    with office.locked():
        flow = office.open(desk, "f1")
        desk.step()
        assert flow.waits_for == "the arbiter, which does not answer"
        assert "1 not let in yet keep waiting" in office.said[-1]
    desk.step()
    assert flow.waits_for == ""


def test_an_unknown_failure_of_the_catalog_is_survived_too(office: Office) -> None:
    desk = office.desk()
    flow = office.open(desk, "f1")
    office.beats(desk)
    office.catalog.close()
    os.rename(office.path, office.path + ".away")
    desk.step()
    assert time_of(office, flow, 400 * MB) < 1.5
    os.rename(office.path + ".away", office.path)


def test_a_silent_process_keeps_its_share_until_it_surely_fell_back(office: Office) -> None:
    silent, heard = office.desk(), office.desk()
    office.open(silent, "f0")
    office.open(heard, "f1")
    office.beats(silent, heard, count=4)
    office.beats(heard, count=28)
    assert office.rates() == {"f0": 200 * MB, "f1": 200 * MB}
    office.beats(heard, count=8)
    assert office.rates() == {"f0": 20 * MB, "f1": 380 * MB}
    facts = {one.request.flow_id: one for one in heard.facts()}
    assert facts["f0"].state is FlowState.SILENT
    assert facts["f0"].rate_bytes_per_s == 20 * MB
    office.beats(silent, heard, count=4)
    assert office.rates() == {"f0": 200 * MB, "f1": 200 * MB}


def test_a_new_allocator_takes_nobody_for_silent_before_it_listened_for_a_lease(
    office: Office,
) -> None:
    first, second = office.desk(), office.desk()
    office.open(first, "f0")
    office.open(second, "f1")
    office.beats(first, second, count=4)
    office.clock.now += 100  # both were stopped, and the second one comes back first
    office.beats(second, count=3)
    assert office.catalog.flows.allocator().epoch == 2
    assert office.rates() == {"f0": 200 * MB, "f1": 200 * MB}


def test_an_allocator_that_comes_back_forgets_what_it_saw_before(office: Office) -> None:
    first, other = office.desk(), office.desk()
    register(office, "f0", this_process())
    office.beats(first, count=2)
    old = office.catalog.flows.registered()[0]
    office.clock.now += 100
    other.step()
    office.catalog.flows.close(["f0"])  # and opened again under its name
    office.catalog.flows.open(replace(old, granted=RATES, held=RATES, fallback=RATES))
    office.clock.now += 100
    first.step()
    assert office.catalog.flows.allocator().epoch == 3
    assert office.rates() == {"f0": 400 * MB}


def test_an_allocator_that_was_overtaken_while_it_computed_writes_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = office.desk(), office.desk()
    office.open(first, "f0")
    office.open(second, "f1")
    real = flows_arbiter.plan

    def plan_slowly(*arguments: object):
        monkeypatch.setattr(flows_arbiter, "plan", real)
        shares = real(*arguments)
        office.clock.now += 60  # stopped past its lease
        second.step()
        office.seen = office.catalog.flows.registered()
        return [replace(one, rates=None) for one in shares]

    monkeypatch.setattr(flows_arbiter, "plan", plan_slowly)
    first._arbiter.step()
    assert office.catalog.flows.registered() == office.seen
    assert office.catalog.flows.allocator().epoch == 2


def test_a_closed_desk_hands_the_allocators_lease_on(office: Office) -> None:
    first, second = office.desk(), office.desk()
    first.step()
    second.step()
    assert office.catalog.flows.allocator().epoch == 1
    first.close()
    second.step()
    assert office.catalog.flows.allocator().epoch == 2


def test_a_changed_budget_reaches_flows_that_are_under_way(office: Office) -> None:
    now = [settings_of()]
    desk = office.desk(reload=lambda: now[0])
    office.open(desk, "f1")
    office.beats(desk)
    now[0] = settings_of(Budget(write_bytes_per_s=30 * MB))
    office.beats(desk, count=1)
    assert office.rates() == {"f1": 30 * MB}


def test_a_store_that_pushes_back_slows_everybody_down(office: Office) -> None:
    desks = [office.desk(), office.desk()]
    flows = [office.open(desk, f"f{index}") for index, desk in enumerate(desks)]
    office.beats(*desks)
    flows[1].writing.push_back()
    office.beats(*desks, count=2)
    assert office.rates() == {"f0": 140 * MB, "f1": 140 * MB}
    office.beats(*desks, count=20)
    assert office.rates() == {"f0": 200 * MB, "f1": 200 * MB}


def test_a_flow_that_cannot_use_its_share_leaves_it_to_the_others(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows_open, "_CALM_BEATS", 3)
    desk = office.desk()
    slow, fast = office.open(desk, "slow"), office.open(desk, "fast")
    office.beats(desk)
    for _ in range(8):
        slow.writing.take(10 * MB)
        slow.moved(10 * MB)
        fast.writing.take(150 * MB)
        fast.writing.take(100 * MB)
        office.beats(desk, count=1)
    rates = office.rates()
    assert rates["slow"] < 60 * MB
    assert rates["fast"] > 340 * MB


def test_a_flow_the_catalog_no_longer_knows_stops_and_registers_anew(office: Office) -> None:
    desk = office.desk()
    flow = office.open(desk, "f1")
    office.beats(desk)
    office.catalog.flows.close(["f1"])
    desk.step()
    assert flow.waits_for == "the arbiter's next round"
    desk.step()
    assert flow.waits_for == ""


def test_one_flow_id_is_open_once(office: Office) -> None:
    first, second = office.desk(), office.desk()
    office.open(first, "f1")
    for desk in (first, second):
        with pytest.raises(LeaseLost, match="f1"), desk.open(request("f1")):
            pass
    assert [one.request.flow_id for one in office.catalog.flows.registered()] == ["f1"]


def test_the_flow_ends_with_its_block_also_when_the_work_failed(office: Office) -> None:
    desk = office.desk()
    with pytest.raises(ZeroDivisionError), desk.open(request("f1")) as flow:
        raise ZeroDivisionError
    assert office.catalog.flows.registered() == ()
    with pytest.raises(LeaseLost):
        flow.writing.take(1)


def test_a_flow_that_could_not_be_forgotten_is_forgotten_later(office: Office) -> None:
    desk = office.desk()
    with ExitStack() as stack:
        stack.enter_context(desk.open(request("f1")))
        stack.enter_context(office.locked())
        stack.pop_all().close()
    desk.step()
    assert office.catalog.flows.registered() == ()


def owner(**changes: object) -> FlowOwner:
    return replace(this_process(), **changes)


@contextmanager
def child(wait: bool) -> Iterator[FlowOwner]:
    """A process that has ended; without ``wait`` a zombie."""
    process = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    started = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
    if wait:
        process.wait()
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        yield owner(pid=process.pid, started=started)
    finally:
        process.communicate()


def register(office: Office, flow_id: str, of: FlowOwner) -> None:
    office.catalog.flows.open(
        RegisteredFlow(request=request(flow_id), owner=of, opened_at_ns=1, lease_ns=15 * 10**9)
    )


@pytest.mark.parametrize("wait", [True, False], ids=["gone", "zombie"])
def test_flows_of_processes_that_ended_are_reaped(office: Office, wait: bool) -> None:
    with child(wait) as dead:
        register(office, "f1", dead)
        register(office, "f2", this_process())
        assert [one.request.flow_id for one in office.desk().facts()] == ["f2"]
        office.desk().step()
    assert list(office.rates()) == ["f2"]


def test_a_flow_that_a_dead_process_left_behind_is_opened_anew(office: Office) -> None:
    with child(wait=True) as dead:
        register(office, "f1", dead)
        office.open(office.desk(), "f1")
    assert office.catalog.flows.registered()[0].owner == this_process()


def elsewhere(boot: str) -> str:
    return f"{boot}/{this_process().boot.split('/')[1]}"


@pytest.mark.parametrize(
    ("changes", "is_over"),
    [
        ({}, False),
        ({"started": 1}, True),  # another process under its number
        ({"boot": elsewhere("an earlier start")}, True),
        ({"boot": elsewhere("another"), "host": "other"}, False),
        ({"boot": f"{this_process().boot}x"}, False),  # other processes of this machine
    ],
)
def test_only_what_can_be_seen_to_be_over_is_over(
    changes: dict[str, object], is_over: bool
) -> None:
    assert has_surely_ended(owner(**changes), this_process()) is is_over


def test_a_flow_of_a_machine_that_cannot_be_seen_is_given_up_after_a_day(
    office: Office,
) -> None:
    register(office, "f1", owner(host="other", boot="other/x"))
    desk = office.desk(allocator_lease_s=10**6)
    desk.step()
    office.clock.now += 86_000
    desk.step()
    assert list(office.rates()) == ["f1"]
    office.clock.now += 500
    desk.step()
    assert list(office.rates()) == []


def test_the_listing_tells_rates_reasons_and_when_it_will_be_done(office: Office) -> None:
    desk = office.desk(settings_of(Budget(write_bytes_per_s=100 * MB, flows=1)))
    moving = office.open(desk, "f0")
    office.open(desk, "f1", order=(1,))
    desk.step()
    for _ in range(2):
        office.clock.now += 1
        moving.moved(50 * MB)
        desk.step()
    first, second = desk.facts()
    assert (first.state, first.rate_bytes_per_s) == (FlowState.MOVING, 100 * MB)
    assert (first.moved_bytes, first.measured_bytes_per_s) == (100 * MB, 50 * MB)
    assert first.eta_s == pytest.approx(18)
    assert (second.state, second.rate_bytes_per_s, second.eta_s) == (FlowState.WAITING, 0, None)
    assert second.waits_for == "an earlier checkpoint of this class goes first"


def test_a_desk_beats_by_itself(tmp_path: Path) -> None:
    with (
        Catalog.open(
            str(tmp_path / "c.sqlite"), fs_type="ext4", is_network=False, clock=SystemClock()
        ) as catalog,
        FlowDesk(catalog, settings_of(), SystemClock()) as desk,
    ):
        with desk.open(request("f1"), wait_limit_s=60) as flow:
            flow.writing.take(MB)
            assert flow.waits_for == ""
        assert catalog.flows.registered() == ()
    with pytest.raises(LeaseLost), desk.open(request("f2")):
        pass
