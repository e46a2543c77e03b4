"""A call that fails while sealing: a clear error, nothing lost, and the next scan finishes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fault_disks
import fault_trace
import pytest
from fault_process import Answer, Forkery
from fault_trees import Stage, outcome, require_clear, require_sound, trainers_files
from fault_verbs import VERBS, Campaign

from ckptgov.testing.builders import write_dcp

NAMES = (*fault_trace.CHANGING, "openat")
ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS")
ALSO_TO_PIPES = ("write", "openat")
"""Failing from here on they would take away more than a file system can."""


def _can_fail(call: fault_trace.Call) -> bool:
    return call.name != "openat" or "O_CREAT" in call.text


def _require_told(answer: Answer) -> None:
    require_clear([answer])
    if answer.code == 2:  # the configuration: a directory that is scanned first becomes a tier
        assert "ckptgov.yaml: cannot be written" in answer.json["error"]["message"], answer
    else:
        assert answer.code in (0, 3, 9), answer


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from-then-on"])
@pytest.mark.parametrize("name", ["scan", "scan-again"])
def test_a_failing_call_is_told_and_made_good_by_the_next_scan(
    name: str, sticky: bool, stage: Stage, strace, forkery: Forkery, some, dice
) -> None:
    campaign = Campaign(VERBS[name], stage, forkery, names=NAMES)
    calls = [call for call in campaign.calls if _can_fail(call)]
    if sticky:
        calls = [call for call in calls if call.name not in ALSO_TO_PIPES]
    home = str(stage.home)
    of_home = [call for call in calls if call.path.startswith(home)]
    of_run = [call for call in calls if not call.path.startswith(home)]
    failed = []
    for call in (*some(of_run, 2), *some(of_home, 1)):
        error = dice.choice(ERRORS)
        try:
            ended = campaign.disturbed(call.tampered(f"error={error}", sticky=sticky))
            assert ended.status == 0, ended
            _require_told(ended.answers[0])
            if "unlink" not in call.name:
                assert stage.temporary() == []
            campaign.require_right_answers()
            if ended.answers[0].code == 0:
                campaign.require_done()
            campaign.require_convergence()
        except (AssertionError, ValueError) as failure:
            failed.append(f"{error} from {call}:\n{str(failure)[:2000]}")
    assert not failed, f"{len(failed)} trials:\n" + "\n\n".join(failed)


@contextmanager
def _nearly_full(tmp_path: Path, options: str) -> Iterator[Stage]:
    with fault_disks.memory_disk(tmp_path / "disk", options) as disk:
        yield Stage(disk / "trial")


@pytest.mark.timeout(3600)
def test_a_disk_that_runs_full_is_told_and_made_good(
    tmp_path: Path, forkery: Forkery, some
) -> None:
    with _nearly_full(tmp_path, "size=64m") as stage:
        for step in (1, 2):
            write_dcp(stage.run / f"step_{step}")
        stage.keep()
        (done,) = forkery(stage.home, ("scan", stage.tier))
        assert done.code == 0, done
        wanted = outcome(stage, forkery)
        files = trainers_files(stage.run)
        for pages in some(range(90), 3):
            stage.reset()
            with fault_disks.filled(stage.base, pages):
                (done,) = forkery(stage.home, ("scan", stage.tier))
                _require_told(done)
                require_sound(stage, wanted.manifests)
                (told,) = forkery(stage.home, ("latest", stage.run))
                assert told.code == 0, (pages, told)
                assert told.json["name"] == "step_2", (pages, told)
            (done,) = forkery(stage.home, ("scan", stage.tier))
            assert done.code == 0, (pages, done)
            outcome(stage, forkery).require(wanted)
            assert trainers_files(stage.run) == files


def test_a_read_only_disk_is_told_and_still_answers(tmp_path: Path, forkery: Forkery) -> None:
    with _nearly_full(tmp_path, "size=64m") as stage:
        write_dcp(stage.run / "step_1")
        home = tmp_path / "home"
        with fault_disks.read_only(tmp_path / "disk"):
            scanned, told = forkery(home, ("scan", stage.tier), ("latest", stage.run))
        require_clear([scanned, told])
        assert scanned.code == 9, scanned
        assert told.json["name"] == "step_1", told
        (scanned,) = forkery(home, ("scan", stage.tier))
        assert scanned.code == 0, scanned
