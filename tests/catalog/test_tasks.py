"""Tasks: one open one of each key, one holder at a time, one end."""

from __future__ import annotations

import threading

import pytest
from msgspec import structs

from ckptgov.catalog.tasks import MOST_ATTEMPTS
from ckptgov.errors import LeaseLost
from ckptgov.model.cluster import NewTask, TaskKind, TaskState

SCAN = NewTask(kind=TaskKind.SCAN, key="scan:r1", payload=b'{"a":1}', for_run="team/llm")
S = 10**9


@pytest.fixture
def tasks(catalog):
    return catalog.tasks


def claim(tasks, **changes: object):
    fields = {"node": None, "holder": "h1", "kinds": None, "ttl_s": 10.0, "limit": 1}
    return tasks.claim(**(fields | changes))


def test_a_task_comes_back_as_it_was_queued(tasks, clock) -> None:
    new = structs.replace(SCAN, node="n\udcff", key="k\udcfe\0", priority=-3, payload=b"\0\xff")
    added = tasks.add(new)
    assert (added.task, added.state, added.lease) == (new, TaskState.QUEUED, 0)
    assert added.created_at_ns == clock.at_ns
    assert tasks.task(added.task_id) == added
    assert tasks.task("other") is None


def test_while_a_task_is_open_no_second_one_of_its_key_is_made(tasks) -> None:
    first = tasks.add(SCAN)
    assert tasks.add(structs.replace(SCAN, payload=b"other")) == first
    (held,) = claim(tasks)
    assert tasks.add(SCAN) == held
    tasks.end(held.task_id, held.lease, state=TaskState.DONE, outcome=b"")
    assert tasks.add(SCAN).task_id != first.task_id


def test_a_claimed_task_is_its_holders_until_the_lease_ends(tasks, clock) -> None:
    tasks.add(SCAN)
    (held,) = claim(tasks)
    assert (held.state, held.holder, held.lease) == (TaskState.CLAIMED, "h1", 1)
    assert (held.attempts, held.lease_ends_at_ns) == (1, clock.at_ns + 10 * S)
    clock.at_ns += 10 * S - 1
    assert claim(tasks, holder="h2") == ()
    clock.at_ns += 1
    (taken,) = claim(tasks, holder="h2")
    assert (taken.holder, taken.lease, taken.attempts) == ("h2", 2, 2)


def test_what_a_former_holder_says_is_refused(tasks, clock) -> None:
    tasks.add(SCAN)
    (held,) = claim(tasks)
    clock.at_ns += 10 * S
    (taken,) = claim(tasks, holder="h2")
    with pytest.raises(LeaseLost):
        tasks.renew(held.task_id, held.lease, ttl_s=10.0)
    with pytest.raises(LeaseLost):
        tasks.end(held.task_id, held.lease, state=TaskState.DONE, outcome=b"wrong")
    assert tasks.task(held.task_id) == taken


def test_a_renewed_lease_lasts_from_then_on_and_an_ended_one_comes_back(tasks, clock) -> None:
    tasks.add(SCAN)
    (held,) = claim(tasks)
    clock.at_ns += 15 * S
    tasks.renew(held.task_id, held.lease, ttl_s=10.0)
    clock.at_ns += 10 * S - 1
    assert claim(tasks, holder="h2") == ()


@pytest.mark.parametrize("state", [TaskState.DONE, TaskState.FAILED])
def test_a_task_ends_once(tasks, clock, state) -> None:
    tasks.add(SCAN)
    (held,) = claim(tasks)
    ended = tasks.end(held.task_id, held.lease, state=state, outcome=b'{"n":2}')
    assert (ended.state, ended.outcome, ended.ended_at_ns) == (state, b'{"n":2}', clock.at_ns)
    for call in (
        lambda: tasks.end(held.task_id, held.lease, state=state, outcome=b""),
        lambda: tasks.renew(held.task_id, held.lease, ttl_s=1.0),
    ):
        with pytest.raises(LeaseLost):
            call()
    assert claim(tasks) == ()


def test_a_task_that_is_queued_or_unknown_cannot_be_ended(tasks) -> None:
    added = tasks.add(SCAN)
    for task_id in (added.task_id, "other"):
        with pytest.raises(LeaseLost):
            tasks.end(task_id, 0, state=TaskState.DONE, outcome=b"")
    with pytest.raises(ValueError, match="does not end"):
        tasks.end(added.task_id, 0, state=TaskState.QUEUED, outcome=b"")


def test_a_task_that_nobody_brings_to_an_end_has_failed(tasks, clock) -> None:
    added = tasks.add(SCAN)
    for _ in range(MOST_ATTEMPTS):
        assert len(claim(tasks)) == 1
        clock.at_ns += 10 * S
    assert claim(tasks) == ()
    failed = tasks.task(added.task_id)
    assert (failed.state, failed.ended_at_ns) == (TaskState.FAILED, clock.at_ns)
    assert b'"kind": "lease-lost"' in failed.outcome
    assert tasks.add(SCAN).task_id != added.task_id


def test_a_task_given_back_is_anyones_at_once_and_no_attempt(tasks, clock) -> None:
    added = tasks.add(SCAN)
    for number in range(MOST_ATTEMPTS + 1):
        (held,) = claim(tasks, holder=f"h{number}")
        assert (held.attempts, held.lease) == (1, number + 1)
        tasks.give_back(held.task_id, held.lease)
        given = tasks.task(added.task_id)
        assert (given.state, given.holder, given.attempts) == (TaskState.QUEUED, "", 0)
    for call in (
        lambda: tasks.give_back(held.task_id, held.lease),
        lambda: tasks.renew(held.task_id, held.lease, ttl_s=1.0),
        lambda: tasks.end(held.task_id, held.lease, state=TaskState.DONE, outcome=b""),
    ):
        with pytest.raises(LeaseLost):
            call()
    (taken,) = claim(tasks)
    with pytest.raises(LeaseLost):
        tasks.give_back(taken.task_id, held.lease)
    assert tasks.task(taken.task_id) == taken


def test_a_task_given_back_keeps_the_attempts_that_came_to_nothing(tasks, clock) -> None:
    tasks.add(SCAN)
    claim(tasks)
    clock.at_ns += 10 * S
    (held,) = claim(tasks)
    tasks.give_back(held.task_id, held.lease)
    assert claim(tasks)[0].attempts == 2


def test_higher_priority_is_claimed_first_then_older(tasks) -> None:
    for key, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        tasks.add(structs.replace(SCAN, key=key, priority=priority))
    assert [one.task.key for one in claim(tasks, limit=3)] == ["b", "d", "a"]
    assert [one.task.key for one in claim(tasks, limit=3)] == ["c"]


def test_each_node_is_given_its_own_and_the_service_what_is_nobodys(tasks) -> None:
    for node in (None, "n1", "n2"):
        tasks.add(structs.replace(SCAN, key=f"k{node}", node=node))
    assert [one.task.node for one in claim(tasks, node="n1", limit=9)] == ["n1"]
    assert [one.task.node for one in claim(tasks, node=None, limit=9)] == [None]


def test_only_kinds_that_were_asked_for_are_claimed(tasks) -> None:
    tasks.add(SCAN)
    tasks.add(structs.replace(SCAN, kind=TaskKind.FLUSH, key="f"))
    assert claim(tasks, kinds=[TaskKind.VERIFY]) == claim(tasks, kinds=[]) == ()
    assert [one.task.key for one in claim(tasks, kinds=[TaskKind.FLUSH], limit=9)] == ["f"]


def test_tasks_are_listed_newest_first_by_run_node_and_state(tasks) -> None:
    for number in range(4):
        node = "n1" if number % 2 else None
        run = "a" if number < 2 else "b"
        tasks.add(structs.replace(SCAN, key=str(number), node=node, for_run=run))
    claim(tasks)

    def keys(**asked: object) -> str:
        return "".join(one.task.key for one in tasks.tasks(**asked))

    assert keys() == "3210"
    assert keys(limit=2) == "32"
    assert keys(for_run="a") == "10"
    assert keys(node="n1") == "31"
    assert keys(states=[TaskState.CLAIMED]) == "0"
    assert keys(states=[]) == ""


def test_tasks_of_teams_are_listed_before_the_limit_counts(tasks) -> None:
    runs = ("red/a", "red/b\udcff", "redder/c", "red", "blue/red/d", None, "r\udcff/e")
    for number, run in enumerate(runs):
        tasks.add(structs.replace(SCAN, key=str(number), for_run=run))

    def keys(*teams: str, **asked: object) -> str:
        return "".join(one.task.key for one in tasks.tasks(teams=teams, **asked))

    assert keys("red") == "10"
    assert keys("red", limit=1) == "1"
    assert keys("blue", "redder", "r\udcff") == "642"
    assert keys("red", for_run="red/a") == "0"
    assert keys("red", for_run="blue/red/d") == ""
    assert keys() == ""


def test_only_tasks_that_ended_long_ago_are_forgotten(tasks, clock) -> None:
    for key in ("old", "new", "open"):
        tasks.add(structs.replace(SCAN, key=key))
    for _ in range(2):
        (held,) = claim(tasks)
        tasks.end(held.task_id, held.lease, state=TaskState.DONE, outcome=b"")
        clock.at_ns += 5
    assert tasks.forget_ended(before_ns=clock.at_ns - 5) == 1
    assert [one.task.key for one in tasks.tasks()] == ["open", "new"]


def test_tasks_are_part_of_the_callers_transaction(catalog, tasks, undone) -> None:
    def work() -> None:
        added = tasks.add(SCAN)
        assert tasks.task(added.task_id) == added

    undone(catalog, work)
    assert tasks.tasks() == ()


def test_tasks_change_no_answer_about_a_run(catalog, tasks) -> None:
    seq = catalog.change_seq()
    tasks.add(SCAN)
    (held,) = claim(tasks)
    tasks.end(held.task_id, held.lease, state=TaskState.DONE, outcome=b"")
    assert catalog.change_seq() == seq


def together(count: int, work) -> None:
    """Run ``work(number)`` in so many threads that begin at once; re-raise what one raised."""
    gate = threading.Barrier(count)
    raised: list[BaseException] = []

    def run(number: int) -> None:
        gate.wait()
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def test_of_eight_that_claim_together_each_gets_others(catalog, open_catalog) -> None:
    for number in range(80):
        catalog.tasks.add(structs.replace(SCAN, key=str(number)))
    catalogs = [catalog] * 4 + [open_catalog() for _ in range(4)]
    got: list[str] = []

    def work(number: int) -> None:
        while held := claim(catalogs[number].tasks, holder=str(number), limit=3):
            got.extend(one.task_id for one in held)

    together(8, work)
    # Whoever passes over rows that another one is taking may find nothing and go: those stay.
    got.extend(one.task_id for one in claim(catalog.tasks, limit=80))
    assert len(got) == len(set(got)) == 80


def test_of_eight_that_queue_one_key_together_one_task_comes(catalog, open_catalog) -> None:
    catalogs = [catalog] * 4 + [open_catalog() for _ in range(4)]
    seen: set[str] = set()
    together(8, lambda number: seen.add(catalogs[number].tasks.add(SCAN).task_id))
    assert len(seen) == len(catalog.tasks.tasks()) == 1


def test_claiming_waits_for_no_other_writer_of_a_server(catalog, url) -> None:
    catalog.tasks.add(SCAN)
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.extend(claim(catalog.tasks)))
    with catalog.transaction():
        thread.start()
        thread.join(timeout=8)
        assert len(got) == 1
