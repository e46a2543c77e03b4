"""An applier that was stopped past its lease and goes on: nothing wrong goes, nothing escapes.

Every change that the applier makes is tried as the one before which it is stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_keeping_world import (
    RUN,
    SHARED,
    Fuse,
    World,
    files_of,
    world_of_two,
    write_shards,
)

from ckptgov.governor.local import Governor
from ckptgov.model.facts import Query
from ckptgov.model.removal import ApplyAnswer
from ckptgov.testing.builders import WRITTEN_AT_NS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = world_of_two(tmp_path)
    yield made
    made.close()


def applied(world: World, at: int, meanwhile: Callable[[Governor], object]) -> ApplyAnswer:
    def act() -> None:
        world.clock.pass_(31)
        with world.process() as governor:
            meanwhile(governor)

    with world.process() as governor:
        plan_id = governor.plan().plan.plan_id
    with world.process(Fuse(at, act, changes=True)) as governor:
        return governor.apply(plan_id)


@pytest.mark.parametrize("at", range(13))
def test_overtaken_by_another_applier_it_ends_with_an_answer(world: World, at: int) -> None:
    answer = applied(world, at, lambda governor: governor.apply(None))
    assert [one.went.value for one in answer.steps] in (["trashed"], ["waiting"])


@pytest.mark.parametrize("at", range(6, 12))
def test_what_was_brought_back_meanwhile_stays(world: World, at: int) -> None:
    back: list[str] = []

    def bring_back(governor: Governor) -> None:
        answer = governor.undelete(RUN)
        assert answer.error is None
        back.extend(one.name for one in answer.restored)

    applied(world, at, bring_back)
    assert back == ["step_1"]
    assert sorted(one.name for one in world.run_root(SHARED).glob("step_*")) == ["step_1", "step_2"]
    with world.process() as governor:
        assert governor.latest(RUN, Query(step=1)).chosen is not None


@pytest.mark.parametrize("at", range(6, 12))
def test_what_was_left_alone_leaves_nothing_in_the_trash_for_good(world: World, at: int) -> None:
    def write_over(governor: Governor) -> None:
        del governor
        shutil.rmtree(world.run_root(SHARED) / "step_1")
        write_shards(world.run_root(SHARED) / "step_1", "again", at_ns=WRITTEN_AT_NS + 10**12)

    applied(world, at, write_over)
    for _ in range(3):
        world.clock.pass_(10 * 86400.0)
        with world.process() as governor:
            governor.apply(None)
    assert (world.run_root(SHARED) / "step_1/a.bin").exists()
    assert not list(world.run_root(SHARED).glob(".ckptgov/trash/*/*"))


@pytest.mark.parametrize("others_apply", [False, True])
@pytest.mark.parametrize("at", range(12))
def test_what_was_saved_again_meanwhile_is_sealed(
    world: World, at: int, others_apply: bool
) -> None:
    again = world.run_root(SHARED) / "step_1"
    offered: list[bool] = []

    def save_again(governor: Governor) -> None:
        shutil.rmtree(again, ignore_errors=True)
        write_shards(again, "again", at_ns=WRITTEN_AT_NS + 10**12)
        if others_apply:
            governor.apply(None)
        governor.scan(())
        offered.append(governor.latest(RUN, Query(step=1)).error is None)

    applied(world, at, save_again)
    written = files_of(again)
    assert written["a.bin"].startswith(b"a.bin of again")
    with world.process() as governor:
        governor.scan(())
        governor.apply(None)
        latest = governor.latest(RUN, Query(step=1))
    assert latest.error is None, "it is never sealed"
    assert files_of(again) == written
    assert offered == [True]
