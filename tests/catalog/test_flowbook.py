"""Flows, their grants and the one who writes them: every change is fenced or the flow's own."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from ckptgov.catalog.flowfacts import Allocator, Beat, FlowOwner, GrantChange, RegisteredFlow
from ckptgov.errors import LeaseLost, StaleState, TransientStorageError
from ckptgov.model.pacing import FlowClass, FlowRequest

ME = FlowOwner(host="a\udcff", boot="b1/pid:[1]", pid=7, started=99)
TTL_NS = 5_000
FAST, SLOW = (None, 100, None, None), (None, 10, None, None)


def flow(flow_id: str = "f1", **changes: object) -> RegisteredFlow:
    request = FlowRequest(
        flow_id=flow_id,
        what="team/llm\udcfe step 5",
        flow_class=FlowClass.DURABLE,
        source="nvme",
        target=None,
        node="n\udcff",
        bytes=2**50,
        weight=3,
        order=(4, -1),
        is_companion=True,
    )
    fields: dict[str, object] = {"owner": ME, "opened_at_ns": 5, "lease_ns": 15}
    return RegisteredFlow(request=request, **(fields | changes))


def beat(flow_id: str = "f1", **changes: object) -> Beat:
    fields: dict[str, object] = {"owner": ME, "moved_bytes": 9, "measured_bytes_per_s": 3}
    return Beat(flow_id=flow_id, **(fields | changes))


@pytest.fixture
def book(catalog):
    return catalog.flows


@pytest.fixture
def held(book) -> Allocator:
    return book.take_allocator("p1", TTL_NS)


def test_a_flow_comes_back_as_it_was_registered(book) -> None:
    one = flow(granted=FAST, held=FAST, fallback=SLOW, waits_for="x", beat_at_ns=8)
    book.open(one)
    assert book.registered() == (one,)


def test_a_flow_of_an_id_that_is_taken_is_refused(book) -> None:
    book.open(flow())
    with pytest.raises(FileExistsError, match="f1"):
        book.open(flow(opened_at_ns=6))
    assert book.registered()[0].opened_at_ns == 5


def test_a_beat_tells_and_hears_and_changes_its_own_row_only(book, held, clock) -> None:
    book.open(flow())
    book.open(flow("f2"))
    book.write_grants(held, [GrantChange(flow_id="f1", rates=FAST, fallback=SLOW)])
    clock.at_ns = 77
    heard = book.beat([beat(wanted=FAST, read_push_backs=2)])
    assert set(heard) == {"f1"}
    assert (heard["f1"].rates, heard["f1"].fallback, heard["f1"].seq) == (FAST, SLOW, 1)
    first, second = book.registered()
    assert (first.beats, first.beat_at_ns, first.moved_bytes) == (1, 77, 9)
    assert (first.wanted, first.read_push_backs, first.write_push_backs) == (FAST, 2, 0)
    assert second == flow("f2")


def test_a_flow_that_is_not_registered_or_not_ones_own_hears_nothing(book) -> None:
    book.open(flow())
    other = FlowOwner(host="a", boot="b1/pid:[1]", pid=7, started=100)
    assert book.beat([beat("f9"), beat(owner=other)]) == {}
    assert book.registered()[0].beats == 0


def test_what_a_flow_may_be_using_falls_only_when_it_was_heard(book, held) -> None:
    book.open(flow())
    for rates in (FAST, SLOW):
        book.write_grants(held, [GrantChange(flow_id="f1", rates=rates, fallback=SLOW)])
        assert book.registered()[0].held == FAST
    book.beat([beat()])
    assert book.registered()[0].held == SLOW
    book.write_grants(held, [GrantChange(flow_id="f1", rates=None, fallback=SLOW)])
    assert book.registered()[0].held == SLOW
    book.beat([beat()])
    assert book.registered()[0].held is None


def test_a_flow_that_acts_on_an_older_grant_is_told_the_newest_and_does_not_count_as_heard(
    book, held
) -> None:
    book.open(flow())
    for rates in (FAST, SLOW):
        book.write_grants(held, [GrantChange(flow_id="f1", rates=rates, fallback=SLOW)])
    assert book.beat([beat(acts_on=1)])["f1"].seq == 2
    assert (book.registered()[0].beats, book.registered()[0].held) == (0, FAST)
    book.beat([beat(acts_on=2)])
    assert (book.registered()[0].beats, book.registered()[0].held) == (1, SLOW)


def test_flows_can_be_asked_for_by_id_and_by_host(book) -> None:
    one, other = flow("f1"), flow("f2", owner=FlowOwner(host="h2", boot="b", pid=1, started=1))
    book.open(one)
    book.open(other)
    assert book.registered(flow_ids=["f2", "f3"]) == (other,)
    assert book.registered(host="h2") == (other,)
    assert book.registered(flow_ids=[]) == ()


def test_no_limit_counts_for_more_than_any_limit(book, held) -> None:
    book.open(flow(granted=FAST, held=FAST))
    endless = (None, None, None, None)
    book.write_grants(held, [GrantChange(flow_id="f1", rates=endless, fallback=endless)])
    book.write_grants(held, [GrantChange(flow_id="f1", rates=SLOW, fallback=SLOW)])
    assert book.registered()[0].held == endless


def test_a_flow_that_was_lost_is_reclaimed_unless_it_was_heard_meanwhile(book, held) -> None:
    book.open(flow(granted=FAST, held=FAST, fallback=SLOW))
    reclaim = GrantChange(flow_id="f1", rates=SLOW, fallback=SLOW, reclaim_at_beat=0)
    book.beat([beat()])
    with pytest.raises(StaleState, match="heard again"):
        book.write_grants(held, [reclaim], {"tier s3": 700})
    assert book.registered()[0].held == FAST
    assert book.paces() == {}
    again = GrantChange(flow_id="f1", rates=SLOW, fallback=SLOW, reclaim_at_beat=1)
    book.write_grants(held, [again])
    assert book.registered()[0].held == SLOW


def test_grants_for_flows_that_ended_are_passed_over(book, held) -> None:
    book.write_grants(held, [GrantChange(flow_id="gone", rates=FAST, fallback=SLOW)])
    assert book.registered() == ()


def test_closing_forgets_a_flow_and_twice_is_no_error(book) -> None:
    book.open(flow())
    book.open(flow("f2"))
    book.close(["f1"])
    book.close(["f1"])
    assert [one.request.flow_id for one in book.registered()] == ["f2"]


def test_a_flow_that_was_heard_after_all_is_not_reaped(book) -> None:
    book.open(flow())
    book.open(flow("f2"))
    book.beat([beat("f2")])
    assert book.reap([("f1", 0), ("f2", 0)]) == 1
    assert [one.request.flow_id for one in book.registered()] == ["f2"]


def test_the_allocator_is_one_until_its_lease_ends(book, clock, held) -> None:
    assert (held.epoch, held.expires_at_ns) == (1, clock.at_ns + TTL_NS)
    assert book.take_allocator("p2", TTL_NS) is None
    clock.at_ns += TTL_NS - 1
    assert book.take_allocator("p1", TTL_NS).epoch == 1
    clock.at_ns += TTL_NS - 1
    assert book.take_allocator("p2", TTL_NS) is None
    clock.at_ns += 1
    assert book.take_allocator("p2", TTL_NS).epoch == 2


def test_an_allocator_that_was_taken_over_writes_nothing_more(book, clock, held) -> None:
    book.open(flow())
    clock.at_ns += TTL_NS
    book.take_allocator("p2", TTL_NS)
    with pytest.raises(LeaseLost):
        book.write_grants(held, [GrantChange(flow_id="f1", rates=FAST, fallback=SLOW)])
    assert book.registered() == (flow(),)
    book.release_allocator(held)
    assert book.allocator().holder == "p2"


def test_an_allocator_whose_lease_ended_comes_back_under_a_new_epoch(book, clock, held) -> None:
    clock.at_ns += TTL_NS
    assert book.take_allocator("p1", TTL_NS).epoch == 2
    with pytest.raises(LeaseLost):
        book.write_grants(held, [])


def test_a_released_lease_is_free_at_once(book, held) -> None:
    book.release_allocator(held)
    assert book.take_allocator("p2", TTL_NS).epoch == 2


def test_a_clock_that_was_set_back_does_not_keep_a_dead_allocators_lease(book, clock) -> None:
    clock.at_ns = 10**15
    book.take_allocator("p1", TTL_NS)
    clock.at_ns = 10**14
    assert book.take_allocator("p2", TTL_NS).epoch == 2


def test_paces_stay_for_the_next_allocator(book, held) -> None:
    book.write_grants(held, [], {"tier s3": 700, "tier x": 1000})
    book.write_grants(held, [], {"tier s3": 720})
    assert book.paces() == {"tier s3": 720, "tier x": 1000}


def test_flows_are_part_of_the_callers_transaction(catalog, book) -> None:
    with catalog.transaction():
        book.open(flow())
        assert len(book.registered()) == 1
    assert len(book.registered()) == 1


def test_a_held_lock_is_a_passing_failure_for_flows_too(catalog, book, path, monkeypatch) -> None:
    from ckptgov.catalog import sqlite

    monkeypatch.setattr(sqlite, "_FLEETING_PRAGMAS", ("PRAGMA busy_timeout=10",))
    catalog.close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(TransientStorageError, match="locked"):
            book.open(flow())
    finally:
        other.close()
    book.open(flow())


def test_flows_wait_for_no_disk_and_everything_else_does(catalog, path) -> None:
    with catalog.flows._fleeting.read() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 1
    with catalog._database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2


def test_in_a_server_too_flows_wait_for_no_disk(catalog, url) -> None:
    asked = "SELECT current_setting('synchronous_commit')"
    with catalog._fleeting.write() as connection:
        assert connection.exec_driver_sql(asked).scalar_one() == "off"
    with catalog._database.write() as connection:
        assert connection.exec_driver_sql(asked).scalar_one() == "on"


def test_a_callers_transaction_and_a_flow_of_its_own_do_not_interleave(
    catalog, book, server, url
) -> None:
    """Both read the row and write it back: the one must wait for the other."""
    book.open(flow())
    thread = threading.Thread(target=lambda: book.beat([beat()]))
    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        f" AND datname = '{url.rpartition('/')[2]}'"
    )
    with catalog.transaction():
        book.beat([beat()])
        thread.start()
        while not server.execute(waiting):
            assert thread.is_alive()
    thread.join()
    assert book.registered()[0].beats == 2
