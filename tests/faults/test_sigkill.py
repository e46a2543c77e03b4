"""P1, P5: a process killed at any call leaves right answers, and the next one finishes its work."""

from __future__ import annotations

import pytest
from fault_process import Forkery
from fault_trees import Stage
from fault_verbs import VERBS, Campaign


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", VERBS)
def test_killed_at_any_call(name: str, stage: Stage, strace, forkery: Forkery, some) -> None:
    campaign = Campaign(VERBS[name], stage, forkery)
    home = str(stage.home)
    of_home = [call for call in campaign.calls if call.path.startswith(home)]
    of_run = [call for call in campaign.calls if not call.path.startswith(home)]
    assert len(of_run) >= 5
    failed = []
    for call in (*some(of_run, 2), *some(of_home, 1)):
        try:
            ended = campaign.disturbed(call.tampered("signal=SIGKILL"))
            assert ended.was_killed, "the call was not reached"
            campaign.require_right_answers()
            campaign.require_convergence()
        except (AssertionError, ValueError) as error:
            failed.append(f"before {call}:\n{str(error)[:2000]}")
    assert not failed, f"{len(failed)} trials:\n" + "\n\n".join(failed)
