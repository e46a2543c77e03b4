"""An undelete that was killed: the next one ends it, and so does the purge that comes instead.

Every call that it makes, of storage or of the catalog, is tried as the one that it dies at.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fault_keeping_world import DAY_S, RUN, SHARED, Fuse, World, files_of, world_of_two

from ckptgov.errors import CkptgovError, NoneRestorable, StaleState
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Query
from ckptgov.testing.crashing import Crash

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
