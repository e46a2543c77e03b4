"""Activities and leadership: only who leads by the catalog's own clock may note anything."""

from __future__ import annotations

import threading

import pytest

from ckptgov.errors import LeaseLost, UsageError
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.cluster import ActivityFacts, Leader

S = 10**9


@pytest.fixture
def book(catalog):
    return catalog.activities


@pytest.fixture
def leader(book) -> Leader:
    return book.take_leader("replica-1", 10.0)


def test_an_activity_that_never_ran_is_known_since_it_was_declared(book, clock) -> None:
    book.declare("scan", every_s=60.0, slo_s=900.5)
    since = clock.at_ns
    clock.at_ns += 5
    book.declare("scan", every_s=30.0, slo_s=900.5)
    expected = ActivityFacts(name="scan", every_s=30.0, slo_s=900.5, known_since_ns=since)
    assert book.activities() == (expected,)


def test_a_success_and_failures_in_a_row_are_told_apart(book, clock) -> None:
    book.declare("scan", every_s=60.0, slo_s=900.0)
    for at_ns, error in ((10, None), (20, "no \udcff"), (30, "again")):
        clock.at_ns = at_ns
        book.began("scan", leader=None)
        clock.at_ns = at_ns + 1
        book.ended("scan", leader=None, error=error)
    (known,) = book.activities()
    assert (known.began_at_ns, known.ended_at_ns, known.succeeded_at_ns) == (30, 31, 11)
    assert (known.failures, known.error) == (2, "again")
    book.ended("scan", leader=None, error=None)
    (known,) = book.activities()
    assert (known.failures, known.error, known.succeeded_at_ns) == (0, "", 31)


def test_an_activity_that_was_never_declared_is_refused(book) -> None:
    with pytest.raises(UsageError, match="no activity"):
        book.began("scan", leader=None)
    with pytest.raises(UsageError, match="no activity"):
        book.ended("scan", leader=None, error=None)


def test_one_leads_until_its_lease_ends(book, clock, leader) -> None:
    assert (leader.epoch, leader.expires_at_ns) == (1, clock.at_ns + 10 * S)
    assert book.take_leader("replica-2", 10.0) is None
    clock.at_ns += 10 * S - 1
    assert book.leader() == leader
    assert book.take_leader("replica-2", 10.0) is None
    clock.at_ns += 1
    assert book.leader() is None
    assert book.take_leader("replica-2", 10.0).epoch == 2


def test_who_leads_on_keeps_its_epoch_and_who_comes_back_gets_a_new_one(
    book, clock, leader
) -> None:
    clock.at_ns += 10 * S - 1
    assert book.take_leader("replica-1", 10.0).epoch == 1
    clock.at_ns += 10 * S
    assert book.take_leader("replica-1", 10.0).epoch == 2


def test_who_was_stopped_and_goes_on_leads_no_more(catalog, book, clock, leader) -> None:
    """Like a process after SIGSTOP and SIGCONT: it believes what it knew before."""
    book.declare("scan", every_s=60.0, slo_s=900.0)
    clock.at_ns += 10 * S
    with pytest.raises(LeaseLost, match="lease ended"):
        book.require_leader(leader)
    book.take_leader("replica-2", 10.0)
    for call in (
        lambda: book.require_leader(leader),
        lambda: book.began("scan", leader=leader),
        lambda: book.ended("scan", leader=leader, error=None),
    ):
        with pytest.raises(LeaseLost, match="took over"):
            call()
    assert book.activities()[0].began_at_ns == 0


def test_a_transaction_that_begins_with_leading_leads_until_its_end(
    catalog, book, clock, leader, open_catalog
) -> None:
    other = open_catalog()
    order: list[str] = []

    def take_over() -> None:
        clock.at_ns += 10 * S
        assert other.activities.take_leader("replica-2", 10.0) is not None
        order.append("taken over")

    thread = threading.Thread(target=take_over)
    with catalog.transaction():
        book.require_leader(leader)
        thread.start()
        thread.join(timeout=0.3)
        catalog.put_run(RunIdentity(run_id="r1", name="a"), 1)
        order.append("done")
    thread.join()
    assert order == ["done", "taken over"]


def test_of_eight_that_want_to_lead_one_does(catalog, open_catalog) -> None:
    catalogs = [catalog] * 4 + [open_catalog() for _ in range(4)]
    gate = threading.Barrier(8)
    taken: list[Leader | None] = []

    def want(number: int) -> None:
        gate.wait()
        taken.append(catalogs[number].activities.take_leader(f"replica-{number}", 10.0))

    threads = [threading.Thread(target=want, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 8
    (leads,) = [one for one in taken if one is not None]
    assert catalog.activities.leader() == leads


def test_who_releases_lets_the_next_one_lead_at_once(book, leader) -> None:
    book.release_leader(leader)
    assert book.leader() is None
    second = book.take_leader("replica-2", 10.0)
    assert second.epoch == 2
    book.release_leader(leader)
    assert book.leader() == second


def test_a_clock_that_was_set_back_does_not_keep_a_dead_leaders_lease(book, clock) -> None:
    clock.at_ns = 10**18
    book.take_leader("replica-1", 10.0)
    clock.at_ns = 10**17
    assert book.take_leader("replica-2", 10.0).epoch == 2
