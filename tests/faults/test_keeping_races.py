"""P2, P3: several at work on one removal, one of them stopped for long: nothing wrong goes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from fault_keeping_races import GOING, KEPT, RUN, Field
from fault_process import Forkery
from fault_trace import Call


@pytest.fixture(scope="module")
def others() -> Iterator[Forkery]:
    """A second one: the first can hold only one process."""
    made = Forkery()
    yield made
    made.close()


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory, forkery: Forkery, others: Forkery) -> Field:
    made = Field(tmp_path_factory.mktemp("field"), forkery, others)
    made.prepare()
    made.keep()
    return made


@pytest.fixture(autouse=True)
def afresh(field: Field) -> None:
    field.reset()


class Stopped:
    """``ckptgov apply`` stopped behind one of its calls, while others do what they may."""

    def __init__(self, field: Field, dice: Random, *, trash: str, is_purge: bool) -> None:
        self.field, self.dice = field, dice
        self.is_kept_long = trash != "0s" and not is_purge
        field.reset()
        field.govern(trash)
        self.words: tuple[str, ...] = ("apply", field.plan())
        if is_purge:
            field.done(*self.words)
            field.time_is_over()
            self.words = ("apply",)
        field.keep("stopped")

    def calls(self) -> list[Call]:
        """Those behind which others may find another state than before."""
        found = [one for one in self.field.calls(*self.words) if one.name != "fsync"]
        words = ("tombstone", "trash")
        first = next(n for n, one in enumerate(found) if any(word in one.text for word in words))
        return found[max(first - 1, 0) :]

    def trial(self, call: Call) -> None:
        """Stop there; another one goes on, a step is saved again, another one is pinned."""
        field = self.field
        field.reset("stopped")
        with field.stopped(self.words, call) as ends:
            states = field.states()
            at_work = [step for step, state in states.items() if state == "trashing"]
            again = self.dice.choice(at_work or GOING)
            pinned = self.dice.choice([step for step in GOING if step != again])
            was = states[pinned]
            field.save(again)
            told = field.ask(
                ("pin", RUN, str(pinned), "--name", "paper", "--reason", "a figure"),
                ("apply",),
                ("scan",),
            )
            assert [one.code for one in told[1:]] in ([0, 0], [3, 0]), told
        (answer,) = ends[0].answers
        assert answer.code in (0, 3), answer
        field.done("scan")
        assert field.ask(("apply",))[0].code in (0, 3)
        is_held = told[0].code == 0 and was in ("verified", "condemned")
        self.require_nothing_lost(again, pinned if is_held else None)

    def require_nothing_lost(self, again: int, pinned: int | None) -> None:
        field = self.field
        for step in (*KEPT, again, *([] if pinned is None else [pinned])):
            assert field.lies(step) == field.saved[step], f"step {step} went"
        if self.is_kept_long:
            for step in set(GOING) - {again}:
                is_there = field.lies(step) == field.first[step]
                assert is_there or field.first[step] in field.in_trash().get(step, []), step
        assert again in field.offered()


@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("strace")
def test_one_stopped_past_everything_and_continued_takes_nothing_wrong(
    field: Field, dice: Random, some
) -> None:
    forms = [("7d", False), ("0s", False), ("7d", True)]
    failed = []
    for trash, is_purge in some(forms, 1):
        stopped = Stopped(field, dice, trash=trash, is_purge=is_purge)
        calls = stopped.calls()
        assert len(calls) >= 8
        for call in some(calls, 1):
            try:
                stopped.trial(call)
            except AssertionError as error:
                failed.append(f"trash {trash}, {call.text[-200:]}:\n{str(error)[:1500]}")
    assert not failed, f"{len(failed)} trials:\n" + "\n\n".join(failed)


@pytest.mark.usefixtures("strace")
def test_a_purge_stopped_while_another_brings_it_back_takes_nothing_of_it(
    field: Field, dice: Random, some
) -> None:
    stopped = Stopped(field, dice, trash="7d", is_purge=True)
    failed = []
    calls = stopped.calls()
    entered = [one for one in calls if re.search("/trash/.*/checkpoint-[0-9]+$", one.path)]
    opened = next(one for one in entered if one.name == "getdents64")
    for call in (opened, *some(calls, 1)):
        field.reset("stopped")
        with field.stopped(stopped.words, call) as ends:
            (back,) = field.ask(("undelete", RUN))
            restored = {one["name"] for one in back.json.get("restored", [])}
        assert ends[0].answers[0].code in (0, 3), ends
        failed += [
            f"step {step} had come back; stopped behind {call.text[-200:]}"
            for step in GOING
            if f"checkpoint-{step}" in restored and field.lies(step) != field.first[step]
        ]
    assert not failed, f"{len(failed)} trials:\n" + "\n\n".join(failed)


@pytest.mark.usefixtures("strace")
def test_one_that_comes_late_does_not_undo_what_another_has_done(
    field: Field, dice: Random
) -> None:
    """It still believes that the next ones are condemned; they lie in the trash, and stay known."""
    stopped = Stopped(field, dice, trash="7d", is_purge=False)
    first = next(one for one in stopped.calls() if "tombstone" in one.text)
    field.reset("stopped")
    with field.stopped(stopped.words, first):
        assert field.ask(("apply",))[0].code in (0, 3)
    assert field.ask(("apply",))[0].code == 0
    assert field.in_trash() == {step: [field.first[step]] for step in GOING}
    assert {field.states()[step] for step in GOING} == {"trashed"}


def test_two_appliers_of_one_plan_take_each_copy_once(
    field: Field, forkery: Forkery, others: Forkery
) -> None:
    field.govern("7d")
    plan = field.plan()
    one, two = (each.held(field.home, ("apply", plan)) for each in (forkery, others))
    one.let_go()
    two.let_go()
    ends = [each.wait() for each in (one, two)]
    # The other one was first: for some copies, or for the plan as a whole.
    assert all(end.answers[0].code in (0, 3, 6) for end in ends), ends
    assert field.ask(("apply",))[0].code == 0
    assert field.in_trash() == {step: [field.first[step]] for step in GOING}
    assert field.offered() == set(KEPT)


@pytest.mark.parametrize("root", ["an empty directory", "another tier"])
def test_a_root_that_is_not_the_tier_is_could_not_look(field: Field, root: str) -> None:
    """As where nothing is mounted, or the wrong thing: before, within and after the removal."""
    field.govern("7d")
    plan = field.plan()
    parked = field.tier.with_name("parked")
    stranger = field.tier.with_name("stranger")
    shutil.copytree(field.run, stranger / RUN, ignore=shutil.ignore_patterns(".ckptgov"))
    field.done("tier", "add", "stranger", str(stranger))
    if root == "an empty directory":
        shutil.rmtree(stranger)
        stranger.mkdir()
    before = everything(stranger)

    def swapped(*words: str) -> int:
        field.tier.rename(parked)
        stranger.rename(field.tier)
        (told,) = field.ask(words)
        assert told.json["error"]["message"]
        assert everything(field.tier) == before
        field.tier.rename(stranger)
        parked.rename(field.tier)
        return told.code

    assert swapped("apply", plan) == 9
    assert field.offered() == {*GOING, *KEPT}
    field.done("apply", plan)
    field.time_is_over()
    assert swapped("apply") == 9
    assert swapped("undelete", RUN) == 9
    assert field.in_trash() == {step: [field.first[step]] for step in GOING}
    assert swapped("plan") == 9
    field.done("apply")
    assert field.offered() == set(KEPT)


def everything(root: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(root)): one.read_bytes() for one in root.rglob("*") if one.is_file()
    }
