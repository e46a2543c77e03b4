"""What stays in the place of a removed one must still be what the catalog takes it for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fault_keeping_world import (
    KEEPS_ONE,
    NEAR,
    NODE,
    RUN,
    SHARED,
    World,
    world_of_two,
    write_shards,
)

from ckptgov.errors import VerificationFailed
from ckptgov.governor.local import Governor
from ckptgov.model.checkpoint import VerifyLevel
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Query
from ckptgov.model.journal import RestoreOutcome
from ckptgov.ops import relied_on
from ckptgov.ops.retention_facts import RetentionFacts, Wanted
from ckptgov.testing.builders import WRITTEN_AT_NS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = world_of_two(tmp_path)
    yield made
    made.close()


def test_the_newest_written_over_since_the_last_scan_does_not_let_the_next_go(
    world: World,
) -> None:
    write_shards(world.run_root(SHARED) / "step_2", "torn", at_ns=WRITTEN_AT_NS + 10**12)
    with world.process() as governor:
        latest = governor.latest(RUN, Query()).chosen
        assert latest is not None
        assert latest.step == 1
        governor.apply(governor.plan().plan.plan_id)
    with world.process() as governor:
        after = governor.latest(RUN, Query()).chosen
    assert after is not None, "the only restorable checkpoint is in the trash"
    assert after.step == 1


@pytest.fixture
def doubted(tmp_path: Path) -> Iterator[World]:
    """Steps 1 and 2 lie on a node's disk and are flushed; of step 2 a restart said "corrupt"."""
    world = World(tmp_path, None)
    for step in (1, 2):
        directory = world.run_root(NEAR) / f"step_{step}"
        write_shards(directory, str(step), at_ns=WRITTEN_AT_NS + step * 10**10)
        with world.process() as governor:
            governor.commit(str(directory), run=RUN, node=NODE)
    with world.process() as governor:
        governor.flush(RUN)
        report_corrupt(governor)
    yield world
    world.close()


def report_corrupt(governor: Governor) -> None:
    assert governor.latest(RUN, Query(), restart_id="again").chosen is not None
    governor.report(RUN, restart_id="again", outcome=RestoreOutcome.CORRUPT)


def copies_of_step_2(world: World) -> dict[str, tuple[str | None, CopyState]]:
    """By tier, as a plan is made of them: how the checkpoint is marked, and the copy's state."""
    with world.process() as governor:
        facts = RetentionFacts(governor.context, now_ns=world.clock.now_ns())
        run = governor.context.catalog.run_by_name(RUN)
        assert run is not None
        (one,) = [each for each in facts.of(run, Wanted()).checkpoints if each.step == 2]
    return {copy.tier: (one.mark, copy.state) for copy in one.copies}


def test_a_copy_not_compared_since_it_was_reported_corrupt_is_not_relied_on(
    doubted: World,
) -> None:
    assert all(mark is not None for mark, _state in copies_of_step_2(doubted).values())
    with doubted.process() as governor:
        governor.verify(str(doubted.run_root(NEAR)), level=VerifyLevel.DIGEST)
    assert copies_of_step_2(doubted) == {
        NEAR: (None, CopyState.VERIFIED),
        SHARED: (None, CopyState.REOPENED),
    }
    with doubted.process() as governor:
        governor.verify(RUN, level=VerifyLevel.DIGEST)
    assert set(copies_of_step_2(doubted).values()) == {(None, CopyState.VERIFIED)}


def test_what_was_compared_since_it_was_reported_corrupt_is_flushed(doubted: World) -> None:
    shutil.rmtree(doubted.run_root(SHARED) / "step_2")
    with doubted.process() as governor:
        governor.scan(())
        assert not governor.flush(RUN).checkpoints
        governor.verify(str(doubted.run_root(NEAR)), level=VerifyLevel.DIGEST)
        (flushed,) = governor.flush(RUN).checkpoints
    assert flushed.error is None
    assert (doubted.run_root(SHARED) / "step_2/DONE").exists()


def test_a_report_of_corruption_is_not_cleared_by_finding_it(doubted: World) -> None:
    near = doubted.run_root(NEAR) / "step_2/a.bin"
    kept = near.stat()
    near.write_bytes(near.read_bytes().replace(b"a", b"z", 1))
    os.utime(near, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    with doubted.process() as governor, suppress(VerificationFailed):
        governor.verify(str(doubted.run_root(NEAR)), level=VerifyLevel.DIGEST)
    with doubted.process() as governor:
        chosen = governor.latest(RUN, Query()).chosen
    assert chosen is not None
    assert chosen.step == 1, "no copy of step 2 was compared since, and found whole"


def test_only_the_copy_that_was_compared_since_is_handed_out(doubted: World) -> None:
    with doubted.process() as governor:
        governor.verify(str(doubted.run_root(NEAR)), level=VerifyLevel.DIGEST)
        chosen = governor.latest(RUN, Query()).chosen
    assert chosen is not None
    assert (chosen.step, [one.tier for one in chosen.copies]) == (2, [NEAR])


def test_what_counts_only_since_the_look_is_looked_at_before_anything_goes(tmp_path: Path) -> None:
    """The newest is marked bad while an apply is at work; the next one was written over, and no
    scan has seen it: what was to go is the only one that is left."""
    world = World(tmp_path, None)
    world.govern(KEEPS_ONE.replace("last: 1", "last: 2"))
    for step in (1, 2, 3):
        directory = world.run_root(SHARED) / f"step_{step}"
        write_shards(directory, str(step), at_ns=WRITTEN_AT_NS + step * 10**10)
        with world.process() as governor:
            governor.commit(str(directory), run=RUN)
    with world.process() as governor:
        plan_id = governor.plan().plan.plan_id
    write_shards(world.run_root(SHARED) / "step_2", "torn", at_ns=WRITTEN_AT_NS + 10**12)
    looked = relied_on.see_what_stays

    def marked_meanwhile(*about: Any) -> None:
        looked(*about)
        with world.process() as other:
            other.mark_bad(RUN, step=3, from_step=None, until_step=None, reason="nan", undo=False)

    marked = mock.patch.object(relied_on, "see_what_stays", marked_meanwhile)
    with marked, world.process() as governor:
        governor.apply(plan_id)
    with world.process() as governor:
        left = governor.latest(RUN, Query()).chosen
    assert left is not None, "the only restorable checkpoint went"
    assert left.step == 1
    world.close()
