"""What is started, in which environment, and what is said of its end."""

from __future__ import annotations

import pytest

from ckptgov.errors import (
    Ambiguous,
    CkptgovError,
    CouldNotLook,
    NeverAny,
    NoneRestorable,
    StaleState,
    UnknownRun,
)
from ckptgov.integrations.command import template
from ckptgov.integrations.fresh import decide_fresh
from ckptgov.integrations.launching import Start, Wanted, choose_start, environment, outcome_of
from ckptgov.integrations.supervising import Ended
from ckptgov.model.answers import LatestAnswer, RestartAnswer
from ckptgov.model.checkpoint import Evidence, Purpose, StepKind
from ckptgov.model.clock import SystemClock
from ckptgov.model.facts import (
    CheckpointFacts,
    Choice,
    Finding,
    Note,
    Query,
    Reason,
    ResumeArgs,
    Verdict,
)
from ckptgov.work.ask import Asked
from ckptgov.work.author import Author

RESUME = ResumeArgs(path="/t/run/step_2", parent="/t/run", step=2, tag="step_2")
CHECKPOINT = CheckpointFacts(
    name="step_2",
    layout="dcp",
    step=2,
    step_kind=StepKind.STEP,
    content_id="sha256:" + 64 * "0",
    purposes=(Purpose.RESUME,),
    world_size=2,
    reshardable=True,
    bytes=1,
    line=1,
    evidence=Evidence.DIGEST,
    findings=(),
    resume=RESUME,
)
PASSED_OVER = Verdict(checkpoint=CHECKPOINT, findings=(Finding(Reason.TORN, "a", "short"),))
WANTED = Wanted(
    run="run",
    command=template(["train", "{resume_args}"], "--resume {path}"),
    query=Query(),
    restart_id="r",
)


def found() -> LatestAnswer:
    return LatestAnswer(
        run="run",
        choice=Choice(chosen=CHECKPOINT, verdicts=()),
        chosen=CHECKPOINT,
        path=RESUME.path,
        resume=RESUME,
        restart=RestartAnswer(restart_id="r", epoch=3, decided_here=False),
    )


def refused(error: CkptgovError, *verdicts: Verdict) -> LatestAnswer:
    choice = Choice(chosen=None, verdicts=verdicts)
    return LatestAnswer(run="run", choice=choice, chosen=None, error=error)


class Answers:
    """Answers ``latest`` as it was told, in turn."""

    def __init__(self, *answers: LatestAnswer) -> None:
        self._answers = list(answers)

    def latest(self, target: str, query: Query, **more: object) -> LatestAnswer:
        assert (target, more["restart_id"]) == ("run", "r")
        return self._answers.pop(0)

    def restore(self, target: str, **more: object) -> None:
        raise AssertionError("nothing was to be staged")


def no_fresh_start() -> int:
    raise AssertionError("a fresh start was asked for")


def test_all_ranks_get_the_decision_and_its_epoch() -> None:
    start = choose_start(Answers(found()), WANTED, decide_fresh=no_fresh_start)
    assert start.words == ("train", "--resume", "/t/run/step_2")
    assert (start.restart_id, start.epoch, start.resume) == ("r", 3, RESUME)


def test_where_nothing_ever_was_a_fresh_start_may_be_decided() -> None:
    start = choose_start(Answers(refused(NeverAny("none"))), WANTED, decide_fresh=lambda: 0)
    assert (start.words, start.resume, start.epoch) == (("train",), None, 0)


@pytest.mark.parametrize(
    "answer",
    [
        refused(NoneRestorable("torn"), PASSED_OVER),
        refused(CouldNotLook("silent")),
        refused(UnknownRun("no such run")),
        refused(Ambiguous("two runs")),
    ],
    ids=["none-restorable", "could-not-look", "unknown-run", "ambiguous"],
)
def test_an_error_never_starts_anything(answer: LatestAnswer) -> None:
    with pytest.raises(CkptgovError) as caught:
        choose_start(Answers(answer), WANTED, decide_fresh=no_fresh_start)
    assert caught.value is answer.error


def test_an_answer_without_checkpoint_and_reason_starts_nothing() -> None:
    empty = LatestAnswer(run="run", choice=Choice(chosen=None, verdicts=()), chosen=None)
    with pytest.raises(CouldNotLook):
        choose_start(Answers(empty), WANTED, decide_fresh=no_fresh_start)


def test_a_rank_that_finds_another_s_decision_goes_by_it() -> None:
    def late() -> int:
        raise StaleState("decided meanwhile")

    answers = Answers(refused(NeverAny("none")), found())
    start = choose_start(answers, WANTED, decide_fresh=late)
    assert start.resume == RESUME


def test_the_command_finds_the_start_in_its_environment() -> None:
    start = choose_start(Answers(found()), WANTED, decide_fresh=no_fresh_start)
    told = environment({"HOME": "/h", "CKPTGOV_URL": "u"}, start, ready_file="/t/ready")
    assert told == {
        "HOME": "/h",
        "CKPTGOV_URL": "u",
        "CKPTGOV_PATH": "/t/run/step_2",
        "CKPTGOV_PARENT": "/t/run",
        "CKPTGOV_STEP": "2",
        "CKPTGOV_TAG": "step_2",
        "CKPTGOV_RESTART_ID": "r",
        "CKPTGOV_EPOCH": "3",
        "CKPTGOV_READY_FILE": "/t/ready",
    }


def test_a_fresh_start_does_not_see_an_outer_one_s_checkpoint() -> None:
    start = Start(
        words=("train",),
        resume=None,
        restart_id="r",
        epoch=0,
        decided_here=True,
        told=refused(NeverAny("none")),
    )
    told = environment({"CKPTGOV_PATH": "/old", "CKPTGOV_STEP": "1"}, start, ready_file=None)
    assert told == {"CKPTGOV_RESTART_ID": "r", "CKPTGOV_EPOCH": "0"}


def test_a_place_that_does_not_answer_lets_nothing_start_fresh() -> None:
    silent = Asked(run="run", looks=(), unreachable=(Note("unreachable", "/t", "no answer"),))
    author = Author(clock=SystemClock(), by="uid:0@here")
    with pytest.raises(CouldNotLook, match="no answer"):
        decide_fresh(silent, author, "r", allow_fresh=True)


def outcome(
    code: int, *, signal: int | None = None, has_started: bool = False, stopped: bool = False
) -> str | None:
    ended = Ended(code=code, signal=signal, lived_s=1.0, was_told_to_stop=stopped)
    found = outcome_of(ended, has_started=has_started, load_failed_codes=(3, 137))
    return None if found is None else found[0].value


def test_the_declared_code_says_that_the_checkpoint_did_not_load() -> None:
    assert outcome(3) == "load-failed"


def test_an_early_crash_alone_does_not() -> None:
    assert outcome(1) == "failed-later"
    assert outcome(139, signal=11) == "failed-later"


def test_a_signal_is_no_declared_code() -> None:
    assert outcome(137, signal=9) == "failed-later"


def test_what_had_started_did_load() -> None:
    assert outcome(3, has_started=True) == "failed-later"


def test_what_was_told_to_stop_did_not_fail() -> None:
    assert outcome(143, signal=15, stopped=True) is None
    assert outcome(1, stopped=True) is None


def test_what_ended_well_had_started() -> None:
    assert outcome(0) == "started"
    assert outcome(0, has_started=True) is None
