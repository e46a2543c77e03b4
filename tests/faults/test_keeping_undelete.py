"""An undelete that was killed: the next one ends it, and so does the purge that comes instead.

Every call that it makes, of storage or of the catalog, is tried as the one that it dies at.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest
from fault_keeping_world import (
    DAY_S,
    KEEPS_ONE,
    NEAR,
    NODE,
    RUN,
    SHARED,
    Fuse,
    World,
    files_of,
    world_of_two,
    write_shards,
)

from ckptgov.catalog.facts import RunRootFacts
from ckptgov.errors import CkptgovError, NoneRestorable, StaleState
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Query
from ckptgov.model.removal import Went
from ckptgov.model.retention import Removal
from ckptgov.ops import returning
from ckptgov.ops.removing import Removing
from ckptgov.testing.builders import WRITTEN_AT_NS
from ckptgov.testing.crashing import Crash
from ckptgov.work.tier import Place

STEP = 1
LEASE_IS_OVER_S = 31.0
_FAR = 10**9


class Deaths:
    """Worlds in which step 1 of two lay in the trash, and an undelete of it died."""

    def __init__(self, base: Path) -> None:
        self._bases = (base / str(number) for number in range(_FAR))
        self.saved: dict[str, bytes] = {}

    def count(self, *, changes: bool) -> int:
        """How many calls, or changes, an undelete makes that nothing disturbs."""
        world = self._trashed()
        self._undelete(world, fuse := Fuse(_FAR, None, changes=changes))
        world.close()
        return _FAR - fuse._left

    @contextmanager
    def at(self, number: int, *, changes: bool) -> Iterator[World]:
        """One that died at the call, or change, of this number."""
        world = self._trashed()
        self._undelete(world, fuse := Fuse(number, None, changes=changes))
        assert fuse.has_gone_off
        world.clock.pass_(LEASE_IS_OVER_S)
        assert is_offered(world) <= (standing(world) == self.saved)
        print(f"died at {'change' if changes else 'call'} {number}")
        try:
            yield world
        finally:
            world.close()

    def _trashed(self) -> World:
        base = next(self._bases)
        base.mkdir()
        world = world_of_two(base)
        self.saved = standing(world)
        with world.process() as governor:
            (step,) = governor.apply(governor.plan().plan.plan_id).steps
        assert step.went.value == "trashed"
        return world

    def _undelete(self, world: World, fuse: Fuse) -> None:
        with world.process(fuse) as governor, suppress(Crash, CkptgovError):
            governor.undelete(RUN)


def standing(world: World) -> dict[str, bytes]:
    return dict(files_of(world.run_root(SHARED) / "step_1"))


def is_offered(world: World) -> bool:
    with world.process() as governor:
        return governor.latest(RUN, Query(step=STEP)).error is None


def state(world: World) -> CopyState:
    with world.process() as governor:
        catalog = governor.context.catalog
        run = catalog.run_by_name(RUN)
        assert run is not None
        sealed = [one for one in catalog.checkpoints(run.identity.run_id) if one.step == STEP]
        copies = catalog.copies_of(run.identity.run_id, [sealed[0].content_id])
        (copy,) = copies[sealed[0].content_id]
        return copy.state


@pytest.fixture
def deaths(tmp_path: Path) -> Deaths:
    return Deaths(tmp_path)


@pytest.fixture
def each(deaths: Deaths, some) -> Iterator[World]:
    """Every change, and some of the other calls, as the one at which it died."""

    def drawn() -> Iterator[World]:
        for changes, most in ((True, _FAR), (False, 6)):
            for number in some(range(deaths.count(changes=changes)), most):
                with deaths.at(number, changes=changes) as world:
                    yield world

    return drawn()


def test_the_next_undelete_ends_it(deaths: Deaths, each: Iterator[World]) -> None:
    for world in each:
        with world.process() as governor:
            if state(world) is CopyState.VERIFIED:  # it had done everything
                with pytest.raises(NoneRestorable):
                    governor.undelete(RUN)
            else:
                answer = governor.undelete(RUN)
                assert [one.name for one in answer.restored] == ["step_1"], answer
                assert answer.error is None, answer
        assert is_offered(world)
        assert standing(world) == deaths.saved
        assert not list(world.run_root(SHARED).glob(".ckptgov/trash/*/*"))


def test_the_purge_ends_it_where_anything_came_back(deaths: Deaths, each: Iterator[World]) -> None:
    ended = set()
    for world in each:
        has_begun, was = bool(standing(world)), state(world)
        world.clock.pass_(10 * DAY_S)
        with world.process() as governor:
            steps = governor.apply(None).steps
            governor.scan(())
        if was is CopyState.TRASHED:
            assert [one.went.value for one in steps] == ["changed" if has_begun else "purged"]
            assert ("undelete of it was cut off" in steps[0].text) == has_begun
        else:
            assert steps == ()
        assert is_offered(world) == has_begun
        assert state(world) is (CopyState.VERIFIED if has_begun else CopyState.PURGED)
        assert standing(world) == (deaths.saved if has_begun else {})
        assert not list(world.run_root(SHARED).glob(".ckptgov/trash/*/*"))
        ended.add((was, has_begun))
    assert {(CopyState.TRASHED, False), (CopyState.TRASHED, True)} <= ended


def test_what_its_trainer_deleted_before_it_was_compared_is_told(deaths: Deaths) -> None:
    number = deaths.count(changes=True) - 1
    with deaths.at(number, changes=True) as world:
        assert state(world) is CopyState.REOPENED
        shutil.rmtree(world.run_root(SHARED) / "step_1")
        (manifest,) = world.run_root(SHARED).glob(".ckptgov/manifests/step_1.*")
        manifest.unlink()
        with world.process() as governor:
            answer = governor.undelete(RUN)
        assert isinstance(answer.error, StaleState)
        assert answer.restored == ()


def test_where_a_file_was_deleted_since_the_purge_ends_all_of_it(deaths: Deaths) -> None:
    """Else each apply, and each undelete, would tell for ever that it cannot come back."""
    begun = 0
    for number in range(deaths.count(changes=True)):
        with deaths.at(number, changes=True) as world:
            if state(world) is not CopyState.TRASHED or not standing(world):
                continue
            begun += 1
            (world.run_root(SHARED) / "step_1/a.bin").unlink()
            world.clock.pass_(10 * DAY_S)
            with world.process() as governor:
                governor.apply(None)
                answer = governor.apply(None)
            assert (answer.error, answer.steps) == (None, ())
            assert not list(world.run_root(SHARED).glob(".ckptgov/trash/*/*"))
            assert not is_offered(world)
    assert begun > 0


def test_on_a_disk_that_may_hold_parts_what_is_gone_is_missed(tmp_path: Path) -> None:
    with whole_copy_on_a_node(tmp_path) as world:
        (world.run_root(NEAR) / "step_1/a.bin").unlink()
        with world.process() as governor:
            answer = governor.undelete(RUN)
        near = world.places[NEAR].place
        assert near not in {one.place for one in answer.restored}
        (told,) = [one for one in answer.steps if one.place == near]
        assert told.went is Went.RESISTED
        assert "a.bin: is not there" in told.text
        assert answer.error is not None


@contextmanager
def whole_copy_on_a_node(base: Path) -> Iterator[World]:
    """Of step 1, brought back from that disk's trash by an undelete that compared nothing."""
    world = World(base, None)
    world.govern(KEEPS_ONE.replace("{lustre: {last: 1}}", "{lustre: {last: 1}, nvme: {last: 1}}"))
    for step in (1, 2):
        directory = world.run_root(NEAR) / f"step_{step}"
        write_shards(directory, str(step), at_ns=WRITTEN_AT_NS + step * 10**10)
        with world.process() as governor:
            governor.commit(str(directory), run=RUN, node=NODE)
    with world.process() as governor:
        governor.flush(RUN)
        steps = governor.apply(governor.plan().plan.plan_id).steps
    assert {(one.tier, one.went.value) for one in steps} == {
        (NEAR, "trashed"),
        (SHARED, "trashed"),
    }
    compared = returning.compared

    def dies(removing: Removing, removal: Removal, root: RunRootFacts, place: Place) -> int:
        if place.node is not None:
            raise Crash("before it compared")
        return compared(removing, removal, root, place)

    killed = mock.patch.object(returning, "compared", dies)
    with killed, world.process() as governor, suppress(Crash):
        governor.undelete(RUN)
    world.clock.pass_(LEASE_IS_OVER_S)
    yield world
    world.close()


def test_a_half_moved_copy_comes_back_where_the_catalog_forgot_it(tmp_path: Path) -> None:
    """The catalog was put back from a copy that knows of no removal."""
    world = world_of_two(tmp_path / "world")
    with world.process() as governor:
        plan_id = governor.plan().plan.plan_id
    root, kept = world.run_root(SHARED), tmp_path / "kept"
    world.close_catalog()
    shutil.copytree(world.home, kept)
    for number in range(20):
        fuse = Fuse(number, None, changes=True)
        with world.process(fuse) as governor, suppress(Crash, CkptgovError):
            governor.apply(plan_id)
        world.clock.pass_(LEASE_IS_OVER_S)
        world.close_catalog()
        shutil.rmtree(world.home)
        shutil.copytree(kept, world.home)
        if not list(root.glob(".ckptgov/manifests/step_1.*")):
            break
    assert standing(world), "it died between manifest and files"
    with world.process() as governor:
        governor.scan(())
        answer = governor.undelete(RUN)
    assert (answer.error, [one.name for one in answer.restored]) == (None, ["step_1"])
    assert is_offered(world)
    world.close()
