"""A question keeps its run alive: noted aside, at most once an hour, and never in its way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from standing_stage import RUN_ID, Stage

from ckptgov.errors import TransientStorageError
from ckptgov.service.answers import Answers
from ckptgov.service.questions import ONCE_S, Questions
from ckptgov.testing.cluster import LeapingClock
from ckptgov.testing.served import Served
from ckptgov.wire.requests import LatestQuery

ASKED = LatestQuery()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def written(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The run of each question that the catalog was told of."""
    told: list[str] = []
    asked = stage.catalog.signs.asked

    def counting(run_id: str) -> None:
        told.append(run_id)
        asked(run_id)

    monkeypatch.setattr(stage.catalog.signs, "asked", counting)
    return told


@pytest.fixture
def answers(stage: Stage) -> Iterator[Answers]:
    """Without threads: everything is written when a test says so."""
    made = Answers(stage.serving)
    yield made
    made.close()


def test_an_answer_is_a_sign_of_life_of_its_run(stage, answers, written) -> None:
    stage.seal(100)
    answers.latest("run", ASKED)
    assert written == [], "whoever asks does not wait for it"
    answers.questions.write()
    assert written == [RUN_ID]
    assert list(stage.catalog.signs.signs()) == [RUN_ID]


def test_an_answer_from_memory_is_one_as_well(stage, monkeypatch) -> None:
    stage.seal(100)
    with Answers(stage.serving, poll_s=3600.0, oldest_s=3600.0) as answers:
        answers.start()
        answers.catch_up()
        answers.latest("run", ASKED)
        noted: list[str] = []
        monkeypatch.setattr(answers.questions, "note", noted.append)
        assert answers.ready("run", ASKED) is not None
        assert noted == [RUN_ID]


def test_so_is_a_question_that_nothing_could_be_answered_to(stage, answers, written) -> None:
    answers.latest("run", ASKED)
    answers.latest("unknown", ASKED)
    answers.questions.write()
    assert written == [RUN_ID]


def test_however_often_is_asked_it_is_written_once_an_hour(stage, written) -> None:
    clock = LeapingClock()
    questions = Questions(stage.catalog, monotonic=clock.monotonic)
    for _ in range(3):
        questions.note(RUN_ID)
        questions.write()
    assert written == [RUN_ID]
    clock.ahead_s = ONCE_S + 1
    questions.write()
    questions.note(RUN_ID)
    questions.write()
    assert written == [RUN_ID, RUN_ID]


def test_a_catalog_that_is_away_holds_up_nobody(stage, monkeypatch) -> None:
    begun, let_go = threading.Event(), threading.Event()

    def away(run_id: str) -> None:
        begun.set()
        let_go.wait(30)
        raise TransientStorageError("does not answer")

    monkeypatch.setattr(stage.catalog.signs, "asked", away)
    with Questions(stage.catalog, monotonic=stage.clock.monotonic) as questions:
        questions.start()
        questions.note(RUN_ID)
        assert begun.wait(30)
        questions.note("another")
        let_go.set()


def test_a_restart_that_is_asked_for_is_a_sign_of_life(served: Served) -> None:
    asked = served.serving.catalog.signs.signs
    body = {"restart_id": "job-1", "allow_fresh": False}
    assert served.post("/v1/runs/blue/llm/restarts", body).status == 200
    blue = served.serving.catalog.run_by_name("blue/llm").identity.run_id
    served.wait_until(lambda: blue in asked())
    served.get("/v1/runs/red/llm/latest")
    red = served.serving.catalog.run_by_name("red/llm").identity.run_id
    served.wait_until(lambda: red in asked())
