"""What stays in the place of a removed one must still be what the catalog takes it for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_keeping_world import RUN, SHARED, World, world_of_two, write_shards

from ckptgov.model.facts import Query
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
