"""P1, P3: a removal killed at any call leaves nothing half; the same call again finishes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_process import Forkery
from fault_removals import RemovalCampaign
from fault_trace import Call

from ckptgov.testing.removals import GOES, Files, write_runs

NO_ROOM = ("ENOSPC", "EDQUOT")
ERRORS = ("EACCES", *NO_ROOM, "EIO", "EBUSY", "ENOTEMPTY")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("verb", ["aside", "purge", "back"])
@pytest.mark.parametrize("form", GOES)
def test_a_removal_killed_at_any_call(
    tmp_path: Path, forkery: Forkery, runs, some, form: str, verb: str
) -> None:
    campaign = RemovalCampaign(tmp_path, form, runs[form], forkery, verb)
    calls = campaign.calls()
    assert len(calls) >= 8

    def trial(call: Call) -> None:
        ended = campaign.disturbed(call.tampered("signal=SIGKILL"))
        assert ended.was_killed, "the call was not reached"
        campaign.require_nothing_half()
        campaign.require_convergence()

    _all_of(some(calls, 4), trial)


@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("verb", ["aside", "purge", "back"])
@pytest.mark.parametrize("form", GOES)
def test_a_removal_of_which_any_call_fails(
    tmp_path: Path, forkery: Forkery, runs, some, form: str, verb: str, sticky: bool
) -> None:
    campaign = RemovalCampaign(tmp_path, form, runs[form], forkery, verb)
    # The text of the answer is written too, to a pipe of ours.
    calls = [call for call in campaign.calls() if str(campaign.root) in call.text]

    def trial(case: tuple[Call, str]) -> None:
        call, code = case
        ended = campaign.disturbed(call.tampered(f"error={code}", sticky=sticky))
        (answer,) = ended.answers
        assert answer.code in (0, 9, 10), answer
        assert "Traceback" not in answer.err, answer
        is_full = code in NO_ROOM
        campaign.require_nothing_half(may_be_sealed_again=is_full)
        campaign.require_convergence(strange_may_stay=is_full and sticky)

    _all_of(some([(call, code) for call in calls for code in ERRORS], 4), trial)


def _all_of(cases: list, trial) -> None:
    failed = []
    for case in cases:
        try:
            trial(case)
        except (AssertionError, ValueError) as error:
            failed.append(f"at {case}:\n{str(error)[:2000]}")
    assert not failed, f"{len(failed)} of {len(cases)} trials:\n" + "\n\n".join(failed)
