"""P1 on a tier that loses power in the middle of a flush: what it offers afterwards is whole."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_disks import LoopDisk
from fault_movers import Haul, MoverCampaign
from fault_process import Defect, Forkery

DEFECTS = str(Path(__file__).with_name("fault_defects.py"))
NEVER = 10**9


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoopDisk]:
    made = LoopDisk.made(request.param, tmp_path)
    yield made
    made.destroy()


@pytest.fixture
def campaign(disk: LoopDisk, tmp_path: Path, forkery: Forkery) -> Iterator[MoverCampaign]:
    """Only the tier ``far`` loses its power."""
    haul = Haul(tmp_path / "trial", far=disk.root / "far")
    haul.prepare(forkery)
    yield MoverCampaign(haul, forkery, ("flush", "--all", "--to", "far"))
    haul.forget()


def _cut_at(
    number: int, campaign: MoverCampaign, disk: LoopDisk, forkery: Forkery, tally: Path
) -> int:
    """Flush, and cut the power before its ``number``-th call; gives how many there were."""
    campaign.reset()
    os.sync()
    tally.write_text("0")
    defect = Defect(DEFECTS, "cut_power_at", (number, str(disk.root), str(tally)))
    forkery.ended(campaign.haul.home, campaign.words, defect=defect)
    disk.lose_power()
    return int(tally.read_text())


@pytest.mark.timeout(3600)
def test_what_was_flushed_survives_a_power_cut_at_any_call(
    disk: LoopDisk,
    campaign: MoverCampaign,
    tmp_path: Path,
    forkery: Forkery,
    dice: random.Random,
    full_sweep: bool,
) -> None:
    tally = tmp_path / "tally"
    count = _cut_at(NEVER, campaign, disk, forkery, tally)
    campaign.require_arrived()
    for _ in range(100 if full_sweep else 1):
        at = dice.randint(1, count)
        try:
            _cut_at(at, campaign, disk, forkery, tally)
            campaign.require_nothing_false()
            campaign.require_convergence()
        except AssertionError as error:
            raise AssertionError(f"before call {at} of {count}: {error}") from error
