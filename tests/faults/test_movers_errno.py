"""A tier that fails under a flush: told by name, nothing half there, the next one makes it good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_movers import Haul, MoverCampaign
from fault_process import Answer, Forkery
from fault_trees import require_clear

from ckptgov.testing import faultfs
from ckptgov.testing.faultfs import Faults, Rule

ERRORS = ("ENOSPC", "EDQUOT", "EIO", "ESTALE", "EROFS")
NO_ROOM = ("ENOSPC", "EDQUOT")
OPS = (
    *("create", "write", "fallocate", "fsync", "flush", "link", "rename"),
    *("mkdir", "fsyncdir", "chmod", "utimens", "unlink", "rmdir"),
)
"""close(2) is flush."""


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    """The rules of ``tmp_path / "far"``."""
    if reason := faultfs.reason_to_skip():
        pytest.skip(reason)
    (tmp_path / "source").mkdir()
    with faultfs.faulty_mount(tmp_path / "source", tmp_path / "far") as running:
        yield running


@pytest.fixture
def haul(tmp_path: Path, faults: Faults, forkery: Forkery) -> Iterator[Haul]:
    made = Haul(tmp_path / "trial", far=tmp_path / "far", behind_far=tmp_path / "source")
    made.prepare(forkery)
    yield made
    faults.clear()
    made.forget()


def _positions(campaign: MoverCampaign, faults: Faults) -> list[tuple[str, int]]:
    """Every call of the command on the tier: what, and the how many-th of its kind."""
    faults.inject([Rule(op=op, times=-1) for op in OPS])
    assert campaign.run().code == 0
    counts = dict(zip(OPS, faults.fired, strict=True))
    faults.clear()
    campaign.require_arrived()
    assert all(counts[op] for op in ("write", "fsync", "flush", "link", "rename")), counts
    return [(op, number + 1) for op in OPS for number in range(counts[op])]


def _require_told(answer: Answer, error: str) -> None:
    """For each that failed: which tier, what to do, and the exit code of its kind."""
    require_clear([answer])
    failed = [one["error"] for one in answer.json["checkpoints"] if "error" in one]
    assert failed or "error" in answer.json, answer
    for one in failed:
        assert one["exit_code"] == (10 if error in NO_ROOM else 9), one
        assert "tier far" in one["message"], one
        assert one["hint"], one
    assert answer.code in (3, 9, 10), answer


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("times", [1, -1], ids=["once", "from-then-on"])
def test_a_tier_that_fails_is_named_and_the_next_flush_makes_it_good(
    times: int, haul: Haul, faults: Faults, forkery: Forkery, some, dice
) -> None:
    campaign = MoverCampaign(haul, forkery, ("flush", "--all", "--to", "far"))
    failed = []
    for op, number in some(_positions(campaign, faults), 3):
        error = dice.choice(ERRORS)
        try:
            campaign.reset()
            faults.inject([Rule(op=op, errno=error, nth=number, times=times)])
            answer = campaign.run()
            assert faults.fired[0] > 0, "the call was not reached"
            faults.clear()
            if answer.code != 0:
                _require_told(answer, error)
            else:  # tried again, or only tidying up
                campaign.require_arrived()
            campaign.require_nothing_false()
            campaign.require_convergence()
        except (AssertionError, ValueError) as failure:
            failed.append(f"{error} from {op} {number}:\n{str(failure)[:2000]}")
        finally:
            faults.clear()
    assert not failed, f"{len(failed)} trials:\n" + "\n\n".join(failed)
