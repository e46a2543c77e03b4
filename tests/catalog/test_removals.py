"""Copies on their way out: each step once, in order, undoable until it is not."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest
from msgspec import structs

from ckptgov.catalog.facts import SCHEMA_VERSION, EventKind
from ckptgov.errors import RefusedBySafety, StaleState, UnknownRun
from ckptgov.model.checkpoint import Evidence
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Finding, Reason
from ckptgov.model.retention import Action, Removal

S = 10**9
KEY = ("r1", "c10", "s1")
ODD = "odd\udcff"


@pytest.fixture
def two(small):
    small.add(10, "s1")
    small.add(20, "s1")
    return small


@pytest.fixture
def condemned(two) -> Removal:
    (removal,) = two.prune(("c10", "s1"))
    return removal


@pytest.fixture
def trashing(condemned, two, clock) -> Removal:
    clock.at_ns += 10 * S
    return two.catalog.removals.begin(*KEY, two.guard())


@pytest.fixture
def trashed(trashing, two) -> Removal:
    return two.catalog.removals.moved(*KEY, trash=ODD)


def copy(small):
    return next(one for one in small.catalog.copies("r1") if one.content_id == "c10")


def test_a_condemned_copy_waits_for_its_grace(two, condemned, clock) -> None:
    assert condemned == Removal(
        run_id="r1",
        content_id="c10",
        place="s1",
        name="step_10",
        action=Action.PRUNE,
        plan_id="sha256:p",
        state=CopyState.CONDEMNED,
        condemned_at_ns=clock.at_ns,
        due_at_ns=clock.at_ns + 10 * S,
        trash_s=100.0,
        bytes=17,
        files=4,
    )
    assert two.catalog.removals.removals() == (condemned,)


def test_each_step_is_told_with_the_plan_that_began_it(two, trashed) -> None:
    two.catalog.removals.purged(*KEY)
    told = [dict(one.detail) for one in two.catalog.events() if one.kind is EventKind.COPY_STATE]
    assert [(one["from"], one["to"]) for one in told] == [
        ("verified", "condemned"),
        ("condemned", "trashing"),
        ("trashing", "trashed"),
        ("trashed", "purged"),
    ]
    assert (told[0]["plan"], told[0]["action"]) == ("sha256:p", "prune")


def test_each_step_is_a_change_of_the_run(two, clock) -> None:
    removals = two.catalog.removals
    steps = (
        lambda: two.prune(("c10", "s1")),
        lambda: removals.begin(*KEY, two.guard()),
        lambda: removals.moved(*KEY, trash="t"),
        lambda: removals.undo(*KEY),
    )
    for step in steps:
        seq = two.catalog.change_seq()
        step()
        clock.at_ns += 10 * S
        assert [one.run_id for one in two.catalog.changes(seq)] == ["r1"]


def test_a_moved_copy_lies_in_the_trash_for_its_time(two, trashing, trashed, clock) -> None:
    wanted = structs.replace(
        trashing, state=CopyState.TRASHED, trash=ODD, due_at_ns=clock.at_ns + 100 * S
    )
    assert trashed == wanted
    assert two.catalog.removals.removals() == (wanted,)


@pytest.mark.parametrize("stage", ["trashing", "trashed"])
def test_a_purged_copy_has_no_removal_any_more(two, stage, request) -> None:
    request.getfixturevalue(stage)
    two.catalog.removals.purged(*KEY)
    assert copy(two).state is CopyState.PURGED
    assert two.catalog.removals.removals() == ()


def test_no_step_is_taken_twice_or_out_of_turn(two, clock) -> None:
    removals = two.catalog.removals
    begin, moved = (
        (lambda: removals.begin(*KEY, two.guard())),
        (lambda: removals.moved(*KEY, trash="")),
    )
    purged, undo = (lambda: removals.purged(*KEY)), (lambda: removals.undo(*KEY))

    def refused(*steps) -> None:
        for step in steps:
            with pytest.raises(StaleState):
                step()

    refused(begin, moved, purged, undo)
    two.prune(("c10", "s1"))
    clock.at_ns += 10 * S
    refused(lambda: two.prune(("c10", "s1")), moved, purged)
    begin()
    refused(lambda: two.prune(("c10", "s1")), begin, undo)
    moved()
    refused(lambda: two.prune(("c10", "s1")), begin, moved)
    purged()
    refused(lambda: two.prune(("c10", "s1")), begin, moved, purged, undo)


def test_one_that_cannot_be_condemned_keeps_all_of_them(two) -> None:
    two.add(5, "s1", state=CopyState.REOPENED)
    before, events = two.states(), two.catalog.events()
    with pytest.raises(StaleState, match=r"not .or no longer. verified: c5 at place s1"):
        two.prune(("c10", "s1"), ("c5", "s1"))
    with pytest.raises(RefusedBySafety):
        two.prune(("c10", "s1"), ("c20", "s1"))
    assert (two.states(), two.catalog.events()) == (before, events)
    assert two.catalog.removals.removals() == ()


def test_nothing_condemned_is_nothing_done(two) -> None:
    events = two.catalog.events()
    assert two.prune() == ()
    assert two.catalog.events() == events


@pytest.mark.parametrize("wrong", [{"grace_s": -1.0}, {"trash_s": float("nan")}])
def test_a_time_that_is_none_is_refused(two, wrong) -> None:
    doomed = two.doomed("c10", "s1", Action.PRUNE, **wrong)
    with pytest.raises(ValueError, match="no time to wait"):
        two.catalog.removals.condemn("r1", [doomed], two.guard(), plan_id="p")


def test_a_copy_listed_twice_is_refused(two) -> None:
    with pytest.raises(ValueError, match="once"):
        two.prune(("c10", "s1"), ("c10", "s1"))


@pytest.mark.parametrize("verified_at_ns", [None, 5])
def test_an_undone_condemnation_leaves_the_copy_as_it_was(small, verified_at_ns) -> None:
    finding = Finding(Reason.TORN, "a", "kept for whoever asks")
    small.add(
        10,
        ("s1", "0123"),
        evidence=Evidence.STRUCTURE,
        findings=(finding,),
        verified_at_ns=verified_at_ns,
    )
    before = copy(small)
    small.prune(("c10", "s1"))
    assert small.catalog.removals.undo(*KEY) is CopyState.VERIFIED
    assert copy(small) == before
    assert small.catalog.removals.removals() == ()


def test_an_undone_part_is_a_part(small) -> None:
    small.add(10, ("n1", "02"))
    before = copy(small)
    small.prune(("c10", "n1"))
    small.catalog.removals.undo("r1", "c10", "n1")
    assert copy(small) == before


def test_what_comes_out_of_the_trash_is_compared_before_it_counts(two, trashed) -> None:
    before = copy(two)
    assert two.catalog.removals.undo(*KEY) is CopyState.REOPENED
    assert copy(two) == structs.replace(before, state=CopyState.REOPENED)
    assert two.catalog.removals.removals() == ()


def test_what_resists_is_known_until_it_gives_in(two, trashing) -> None:
    two.catalog.removals.resisted(*KEY, "EACCES: " + ODD)
    (held,) = two.catalog.removals.removals()
    assert held == structs.replace(trashing, error="EACCES: " + ODD)
    assert two.catalog.removals.moved(*KEY, trash="t").error == ""
    with pytest.raises(StaleState):
        two.catalog.removals.resisted("r1", "c20", "s1", "x")


def test_removals_are_listed_by_run_place_state_and_time(small, clock) -> None:
    for step in (10, 20, 30, 40):
        small.add(step, "s1", "s2")
    small.evict(("c20", "s1"))
    clock.at_ns += 5 * S
    small.evict(("c10", "s1"), ("c30", "s2"))
    clock.at_ns += 5 * S
    small.catalog.removals.begin("r1", "c20", "s1", small.guard())

    def listed(**asked: object) -> list[str]:
        return [one.content_id for one in small.catalog.removals.removals(**asked)]

    assert listed() == ["c20", "c10", "c30"]
    assert listed(limit=2) == ["c20", "c10"]
    assert listed(run_id="r1", place="s2") == ["c30"]
    assert listed(run_id="r2") == []
    assert listed(states=[CopyState.TRASHING]) == ["c20"]
    assert listed(states=[CopyState.CONDEMNED], due_before_ns=clock.at_ns) == []
    assert listed(states=[CopyState.CONDEMNED], due_before_ns=clock.at_ns + 5 * S) == ["c10", "c30"]


class TestOthers:
    """Whoever else changes copies, and does not know that one is being removed."""

    @pytest.mark.parametrize("to", [CopyState.VERIFIED, CopyState.REOPENED])
    def test_a_condemned_copy_is_not_brought_back_by_a_look(self, two, condemned, to) -> None:
        with pytest.raises(StaleState, match="is being removed"):
            two.catalog.transition(
                *KEY,
                expected=CopyState.CONDEMNED,
                to=to,
                at_ns=9,
                evidence=Evidence.DIGEST,
            )
        assert two.catalog.removals.removals() == (condemned,)

    def test_a_trashed_copy_is_not_brought_back_by_a_look(self, two, trashed) -> None:
        with pytest.raises(StaleState, match="is being removed"):
            two.catalog.transition(*KEY, expected=CopyState.TRASHED, to=CopyState.REOPENED, at_ns=9)

    def test_no_verdict_is_told_of_a_condemned_copy(self, two, condemned) -> None:
        with pytest.raises(StaleState, match="is being removed"):
            two.catalog.confirm(*KEY, expected=CopyState.CONDEMNED, at_ns=9, evidence=Evidence.NONE)

    def test_a_condemned_copy_that_got_lost_needs_no_removal(self, two, condemned) -> None:
        two.catalog.transition(*KEY, expected=CopyState.CONDEMNED, to=CopyState.LOST, at_ns=9)
        assert two.catalog.removals.removals() == ()
        assert copy(two).state is CopyState.LOST

    @pytest.mark.parametrize("state", [CopyState.REOPENED, CopyState.CORRUPT])
    def test_nobody_condemns_without_a_removal(self, small, state) -> None:
        small.add(10, "s1", state=state)
        with pytest.raises(RefusedBySafety, match="only a removal"):
            small.catalog.transition(*KEY, expected=state, to=CopyState.CONDEMNED, at_ns=9)

    @pytest.mark.parametrize("state", [CopyState.CONDEMNED, CopyState.TRASHED, CopyState.PURGED])
    def test_no_copy_appears_on_its_way_out(self, small, state) -> None:
        with pytest.raises(RefusedBySafety, match="only a removal"):
            small.add(10, "s1", state=state)


class TestRebuild:
    """Removals are facts: forgotten with them, and found again in the trash."""

    def test_no_removal_is_left_without_its_copy(self, two, condemned) -> None:
        two.catalog.wipe_facts()
        assert two.catalog.removals.removals() == ()

    @pytest.mark.parametrize("state", [CopyState.TRASHING, CopyState.TRASHED])
    def test_what_lies_in_a_trash_is_taken_over(self, small, condemned, state) -> None:
        found = structs.replace(condemned, state=state, trash=ODD, name=ODD)
        small.catalog.removals.undo(*KEY)
        small.catalog.transition(
            *KEY, expected=CopyState.VERIFIED, to=CopyState.LOST, at_ns=9, name=ODD
        )
        for _ in range(2):
            small.catalog.removals.adopt(found)
            assert small.catalog.removals.removals() == (found,)
            assert small.states()[("c10", "s1")] is state
        small.catalog.removals.purged(*KEY)

    def test_a_checkpoint_that_lies_in_the_trash_alone_is_taken_over(self, small) -> None:
        small.add(10)
        found = trash_of("c10")
        small.catalog.removals.adopt(found)
        assert small.catalog.removals.removals() == (found,)
        assert small.catalog.removals.undo(*KEY) is CopyState.REOPENED

    def test_a_copy_that_stands_is_not_taken_for_trash(self, two) -> None:
        before = two.states()
        with pytest.raises(StaleState, match="stands at place s1"):
            two.catalog.removals.adopt(trash_of("c10"))
        assert two.states() == before

    def test_trash_of_an_unknown_checkpoint_or_place_is_refused(self, small) -> None:
        small.add(10)
        for wrong in ({"content_id": "c9"}, {"place": "s9"}, {"run_id": "r9"}):
            with pytest.raises(UnknownRun):
                small.catalog.removals.adopt(structs.replace(trash_of("c10"), **wrong))

    def test_what_is_condemned_lies_in_no_trash(self, two, condemned) -> None:
        with pytest.raises(ValueError, match="no trash"):
            two.catalog.removals.adopt(condemned)


def trash_of(content_id: str) -> Removal:
    return Removal(
        run_id="r1",
        content_id=content_id,
        place="s1",
        name="step_10",
        action=Action.PRUNE,
        plan_id="",
        state=CopyState.TRASHED,
        condemned_at_ns=5,
        due_at_ns=9,
        trash_s=0.5,
        bytes=17,
        files=4,
        trash="trash/2026-11-30/c10.x",
    )


def together(count: int, work) -> None:
    """Run ``work(number)`` in so many threads that begin at once; re-raise what one raised."""
    gate = threading.Barrier(count)
    raised: list[BaseException] = []

    def run(number: int) -> None:
        gate.wait()
        try:
            work(number)
        except RefusedBySafety:
            pass
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def standing(small, content_id: str) -> int:
    return sum(
        state is CopyState.VERIFIED
        for (each, _), state in small.states().items()
        if each == content_id
    )


class TestRaces:
    """Each alone may do what both may not: one of them is refused."""

    def test_two_that_evict_different_copies_leave_one(self, small, open_catalog) -> None:
        catalogs = [small.catalog, open_catalog()]
        for step in range(6):
            content_id = small.add(step, "s1", "s2")

            def evict(number: int, content_id: str = content_id) -> None:
                doomed = [small.doomed(content_id, f"s{number + 1}", Action.EVICT)]
                catalogs[number].removals.condemn("r1", doomed, small.guard(), plan_id="p")

            together(2, evict)
            assert standing(small, content_id) == 1

    def test_eight_that_prune_different_checkpoints_leave_the_floor(
        self, small, open_catalog
    ) -> None:
        for step in range(8):
            small.add(step, "s1")
        catalogs = [small.catalog] * 4 + [open_catalog() for _ in range(4)]

        def prune(number: int) -> None:
            doomed = [small.doomed(f"c{number}", "s1", Action.PRUNE)]
            guard = small.guard(min_restorable=3)
            catalogs[number].removals.condemn("r1", doomed, guard, plan_id="p")

        together(8, prune)
        remain = [one for one, state in small.states().items() if state is CopyState.VERIFIED]
        assert len(remain) == 3
        assert ("c7", "s1") in remain

    def test_two_processes_that_evict_different_copies_leave_one(self, small, opening) -> None:
        for step in range(20):
            small.add(step, "s1", "s2")
        script = textwrap.dedent(
            f"""
            import sys
            from ckptgov.catalog.catalog import Catalog
            from ckptgov.catalog.guards import Doomed, Guard
            from ckptgov.errors import RefusedBySafety
            from ckptgov.model.clock import SystemClock
            from ckptgov.model.retention import Action
            guard = Guard(path=((1, None),), reachable=frozenset(["s1", "s2"]), min_restorable=1,
                          min_durable_copies=1, compared_since_ns=0)
            with {opening} as catalog:
                catalog.identity()
                print("open", flush=True)
                sys.stdin.readline()
                for step in range(20):
                    doomed = Doomed(content_id=f"c{{step}}", place=sys.argv[1], bytes=1, files=1,
                                    action=Action.EVICT, trash_s=0, grace_s=0)
                    try:
                        catalog.removals.condemn("r1", [doomed], guard, plan_id=sys.argv[1])
                    except RefusedBySafety:
                        pass
            """
        )
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", script, place],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for place in ("s1", "s2")
        ]
        for racer in racers:
            assert racer.stdout.readline() == "open\n"
        for racer in racers:
            racer.stdin.write("\n")
            racer.stdin.flush()
        for racer in racers:
            racer.communicate(timeout=60)
            assert racer.returncode == 0
        assert [standing(small, f"c{step}") for step in range(20)] == [1] * 20

    def test_of_two_that_begin_one_goes_on(self, two, condemned, open_catalog, clock) -> None:
        clock.at_ns += 10 * S
        catalogs = [two.catalog, open_catalog()]
        begun: list[int] = []

        def begin(number: int) -> None:
            try:
                catalogs[number].removals.begin(*KEY, two.guard())
                begun.append(number)
            except StaleState:
                pass

        together(2, begin)
        assert len(begun) == 1


def test_a_removal_given_up_with_its_transaction_never_was(two, undone) -> None:
    before = two.states()
    undone(two.catalog, lambda: two.prune(("c10", "s1")))
    assert (two.states(), two.catalog.removals.removals()) == (before, ())


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, SCHEMA_VERSION - 1])
def test_nothing_goes_by_a_catalog_that_another_ckptgov_has_migrated(
    two, condemned, clock, version
) -> None:
    clock.at_ns += 10 * S
    with two.catalog._database.write() as connection:
        connection.exec_driver_sql(
            f"UPDATE meta SET value = '{version}' WHERE key = 'schema_version'"
        )
    before = two.states()
    for remove in (
        two.catalog.tick,
        two.catalog.require_current,
        lambda: two.prune(("c20", "s1")),
        lambda: two.catalog.removals.begin(*KEY, two.guard()),
    ):
        with pytest.raises(RefusedBySafety, match=f"schema version {version}") as caught:
            remove()
        assert caught.value.hint
    assert two.states() == before


def test_what_a_condemnation_asks_does_not_grow_with_the_run(small) -> None:
    from sqlalchemy import event

    asked: list[str] = []
    event.listen(
        small.catalog._database._writer,
        "before_cursor_execute",
        lambda *about: asked.append(about[2]),
    )
    counts = []
    for run_length in (3, 60):
        for step in range(run_length):
            small.add(1000 * run_length + step, "s1")
        asked.clear()
        small.prune((f"c{1000 * run_length}", "s1"))
        counts.append(len(asked))
    assert counts[0] == counts[1]
