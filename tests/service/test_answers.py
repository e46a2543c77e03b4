"""Answers from memory: never older than 100 ms, computed once for all, bounded."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from standing_stage import Stage

from ckptgov.errors import StorageError
from ckptgov.model.cluster import NewTask, NodeState, TaskKind
from ckptgov.model.copies import CopyState
from ckptgov.ops import standing
from ckptgov.service import answers as answers_module
from ckptgov.service.answers import OLDEST_S, Answers
from ckptgov.testing import postgres
from ckptgov.wire.requests import LatestQuery

ASKED = LatestQuery()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, nodes=("n1",))
    made.beat("n1")
    yield made
    made.close()


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """A stage on either engine."""
    with ExitStack() as stack:
        url = None
        if request.param == "PostgreSQL":
            reason = postgres.reason_to_skip()
            if reason is not None:
                pytest.skip(reason)
            url = stack.enter_context(postgres.postgres()).new_database()
        made = Stage(tmp_path, catalog_url=url)
        stack.callback(made.close)
        yield made


@pytest.fixture
def answers(stage: Stage) -> Iterator[Answers]:
    made = Answers(stage.serving)
    made.start()
    yield made
    made.close()


@pytest.fixture
def still(stage: Stage) -> Iterator[Answers]:
    """Answers whose thread does not look by itself while a test runs."""
    made = Answers(stage.serving, poll_s=3600.0, oldest_s=3600.0)
    made.start()
    yield made
    made.close()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The run of each answer that was computed."""
    asked: list[str] = []
    latest = standing.latest

    def counting(context, run, *args, **kwargs):
        asked.append(run)
        return latest(context, run, *args, **kwargs)

    monkeypatch.setattr(standing, "latest", counting)
    return asked


def step_of(answers: Answers, question: LatestQuery = ASKED) -> int | None:
    return json.loads(answers.latest("run", question).body).get("step")


def test_the_second_question_costs_no_catalog(stage, still, computed) -> None:
    stage.seal(100)
    still.catch_up()
    first = still.latest("run", ASKED)
    assert still.latest("run", ASKED).body == first.body
    assert computed == ["run"]


def test_questions_that_differ_are_answered_apart(stage, still, computed) -> None:
    stage.seal(100)
    stage.seal(200)
    still.catch_up()
    assert step_of(still) == 200
    assert step_of(still, LatestQuery(step=100)) == 100
    assert step_of(still) == 200
    assert len(computed) == 2


def test_plain_text_is_the_path_alone(stage, still) -> None:
    stage.seal(100)
    reply = still.latest("run", ASKED, is_plain=True)
    assert reply.body == f"{stage.run_root('shared')}/step_100\n".encode()


def test_an_error_has_no_plain_text(stage, still) -> None:
    stage.seal(100, state=CopyState.CORRUPT)
    reply = still.latest("run", ASKED, is_plain=True)
    assert (reply.status, reply.is_pending) == (409, True)
    assert json.loads(reply.body)["error"]["kind"] == "none-restorable"


def test_a_change_told_by_this_process_is_seen_at_once(stage, still) -> None:
    stage.seal(100)
    still.catch_up()
    assert step_of(still) == 100
    stage.seal(200)
    still.catch_up()
    assert step_of(still) == 200


def test_another_runs_change_forgets_nothing(stage, still, computed) -> None:
    from ckptgov.testing import sealed_runs

    stage.seal(100)
    still.catch_up()
    step_of(still)
    sealed_runs.put_run(
        stage.catalog, "other", "0b7a41c0-0000-4000-8000-000000000002", [stage.places["shared"]]
    )
    still.catch_up()
    step_of(still)
    assert computed == ["run"]


def test_what_is_committed_is_seen_within_a_tenth_of_a_second(either) -> None:
    """Measured: another process commits at t; whoever asks at t + 100 ms or later sees it."""
    stage = either
    stage.seal(1)
    other, answers = stage.another(), Answers(stage.serving)
    answers.start()
    try:
        for step in range(2, 12):
            assert step_of(answers) is not None  # remembered, so that it must be forgotten
            stage.serving, own = other, stage.serving
            stage.seal(step)
            stage.serving = own
            committed = time.monotonic()
            while time.monotonic() < committed + OLDEST_S:
                step_of(answers)
            assert step_of(answers) == step
    finally:
        answers.close()
        other.close()


def test_without_looks_for_changes_the_catalog_is_asked(stage, still, computed) -> None:
    stage.seal(100)
    still.catch_up()
    step_of(still)
    still.close()
    stage.seal(200)
    assert step_of(still) == 200
    assert len(computed) == 2


def test_while_the_catalog_tells_no_changes_nothing_old_is_given(
    stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.seal(100)
    answers = Answers(stage.serving, poll_s=3600.0)
    answers.start()
    try:
        assert step_of(answers) == 100
        ahead = time.monotonic() + OLDEST_S * 2
        monkeypatch.setattr(stage.clock, "monotonic", lambda: ahead)
        assert answers.ready("run", ASKED) is None
        stage.seal(200)
        assert step_of(answers) == 200
    finally:
        answers.close()


def test_a_catalog_that_does_not_answer_could_not_be_looked_at(
    stage, still, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.seal(100)

    def broken(*_args):
        raise StorageError("the disk is gone")

    monkeypatch.setattr(stage.catalog, "run_by_name", broken)
    reply = still.latest("run", ASKED)
    assert reply.status == 503
    assert json.loads(reply.body)["error"]["exit_code"] == 9


def test_what_could_not_be_looked_at_is_looked_at_anew(stage, still, computed) -> None:
    stage.seal(100, "n1")
    stage.catalog.nodes.set_state("n1", NodeState.DEAD, reason="burnt")
    still.catch_up()
    assert still.latest("run", ASKED).status == 503
    assert still.latest("run", ASKED).status == 503
    assert len(computed) == 2


def test_an_answer_ends_when_the_node_it_rests_on_falls_silent(stage, still) -> None:
    stage.seal(100)
    stage.seal(200, "n1")
    still.catch_up()
    assert step_of(still) == 200
    stage.clock.ahead_s = 61.0
    assert step_of(still) == 100


def test_a_beat_after_silence_is_a_change(stage, answers) -> None:
    stage.seal(100)
    stage.seal(200, "n1")
    stage.clock.ahead_s = 61.0
    assert step_of(answers) == 100
    stage.beat("n1")
    answers.catch_up()
    assert step_of(answers) == 200


def test_a_thousand_askers_cost_one_answer(stage, still, monkeypatch) -> None:
    stage.seal(100)
    still.catch_up()
    latest, computed, all_here = standing.latest, [], threading.Event()

    def slow(*args, **kwargs):
        computed.append(1)
        all_here.wait(10)
        return latest(*args, **kwargs)

    monkeypatch.setattr(standing, "latest", slow)
    bodies = []
    threads = [
        threading.Thread(target=lambda: bodies.append(still.latest("run", ASKED).body))
        for _ in range(1000)
    ]
    for thread in threads:
        thread.start()
    all_here.set()
    for thread in threads:
        thread.join()
    assert len(bodies) == 1000
    assert len(set(bodies)) == 1
    assert len(computed) == 1


def test_nobody_joins_an_answer_that_may_not_have_read_what_is_known(
    stage, still, monkeypatch
) -> None:
    stage.seal(100)
    still.catch_up()
    latest, reading, go_on = standing.latest, threading.Event(), threading.Event()

    def paused(*args, **kwargs):
        found = latest(*args, **kwargs)
        if not reading.is_set():
            reading.set()
            go_on.wait(10)
        return found

    monkeypatch.setattr(standing, "latest", paused)
    with ThreadPoolExecutor(1) as threads:
        early = threads.submit(step_of, still)
        assert reading.wait(10)
        stage.seal(200)
        still.catch_up()
        late = step_of(still)
        go_on.set()
        assert (early.result(), late) == (100, 200)
    assert step_of(still) == 200, "what was read before the change was remembered after it"


def test_memory_is_bounded(stage) -> None:
    for step in range(1, 30):
        stage.seal(step)
    answers = Answers(stage.serving, poll_s=3600.0, oldest_s=3600.0, most_bytes=20_000)
    answers.start()
    try:
        for step in range(1, 30):
            answers.latest("run", LatestQuery(step=step))
        remembered = [step for step in range(1, 30) if answers.ready("run", LatestQuery(step=step))]
    finally:
        answers.close()
    assert remembered == list(range(remembered[0], 30))
    assert 1 <= len(remembered) < 20


def test_what_is_asked_again_is_kept_longest(stage, computed) -> None:
    for step in range(1, 12):
        stage.seal(step)
    answers = Answers(stage.serving, poll_s=3600.0, oldest_s=3600.0, most_bytes=20_000)
    answers.start()
    try:
        for step in range(1, 12):
            answers.latest("run", LatestQuery(step=step))
            answers.latest("run", LatestQuery(step=1))
        assert answers.ready("run", LatestQuery(step=2)) is None
    finally:
        answers.close()
    assert len(computed) == 11


def test_while_nobody_asks_the_catalog_is_left_alone_and_the_next_answer_is_fresh(
    stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "QUIET_S", -1.0)
    monkeypatch.setattr(answers_module, "QUIET_POLL_S", 3600.0)
    looks = []
    pulse = stage.catalog.pulse
    monkeypatch.setattr(stage.catalog, "pulse", lambda: looks.append(1) or pulse())
    answers = Answers(stage.serving, poll_s=0.001, oldest_s=0.001)
    answers.start()
    try:
        stage.seal(100)
        looked = len(looks)
        time.sleep(0.05)
        assert len(looks) == looked
        assert step_of(answers) == 100
        stage.seal(200)
        time.sleep(0.002)
        assert step_of(answers) == 200
    finally:
        answers.close()


def test_changed_settings_forget_everything(stage, still) -> None:
    stage.seal(100)
    assert step_of(still) == 100
    (stage.home / "ckptgov.yaml").write_text("tiers: []\n")
    still.catch_up()
    assert still.latest("run", ASKED).status == 503


def test_another_catalog_under_the_same_name_forgets_everything(
    stage, still, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restored from a backup, its changes are counted from an earlier number."""
    stage.seal(100)
    still.catch_up()
    assert step_of(still) == 100
    stage.seal(200)
    identity = stage.catalog.identity()
    monkeypatch.setattr(stage.catalog, "pulse", lambda: (identity, 1))
    monkeypatch.setattr(stage.catalog, "changes", lambda after: ())
    still.catch_up()
    assert step_of(still) == 200


def test_what_was_read_before_a_forgotten_change_is_not_remembered(
    stage, still, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After changes of very many runs only the newest number is kept, for all of them."""
    monkeypatch.setattr(answers_module, "_MOST_RUNS", 0)
    stage.seal(100)
    latest = standing.latest

    def meanwhile(*args, **kwargs):
        found = latest(*args, **kwargs)
        if found.answer.chosen.step == 100:
            stage.seal(200)
            still.catch_up()
        return found

    monkeypatch.setattr(standing, "latest", meanwhile)
    assert step_of(still) == 100
    assert step_of(still) == 200


def test_nobody_joins_an_answer_that_began_too_long_ago(
    stage, still, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.seal(100)
    still.catch_up()
    latest, reading, go_on, ahead = standing.latest, threading.Event(), threading.Event(), [0.0]
    now = stage.clock.monotonic
    monkeypatch.setattr(stage.clock, "monotonic", lambda: now() + ahead[0])

    def paused(*args, **kwargs):
        found = latest(*args, **kwargs)
        if not reading.is_set():
            reading.set()
            go_on.wait(10)
        return found

    monkeypatch.setattr(standing, "latest", paused)
    with ThreadPoolExecutor(1) as threads:
        early = threads.submit(step_of, still)
        assert reading.wait(10)
        stage.seal(200)  # committed, and not told here
        ahead[0] = still._oldest_s + 1.0
        monkeypatch.setattr(still, "_try_to_catch_up", lambda **_: None)
        late = step_of(still)
        go_on.set()
        assert (early.result(), late) == (100, 200)


def test_listeners_are_told_of_every_change(stage, still) -> None:
    told: list[str | None] = []
    still.on_change(lambda change: told.append(change.run_id))
    stage.seal(100)
    still.catch_up()
    assert len(told) == 1
    assert told[0] is not None


def test_what_a_launcher_waits_for_goes_first(stage, still) -> None:
    tasks = stage.catalog.tasks
    for name in ("a", "b"):
        tasks.add(
            NewTask(kind=TaskKind.FLUSH, key=name, payload=b"{}", for_run=f"run{name}", priority=1)
        )
    assert still.hurry("runb") == 1
    (first,) = tasks.claim(node=None, holder="w", kinds=None, ttl_s=60.0)
    assert first.task.key == "b"


def test_asked_while_twenty_a_second_are_sealed_answers_never_go_back(stage, answers) -> None:
    stage.seal(1)
    ended, seen = threading.Event(), []

    def asking() -> None:
        mine = []
        while not ended.is_set():
            mine.append(step_of(answers))
        seen.append(mine)

    threads = [threading.Thread(target=asking) for _ in range(4)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 1.0
    step = 1
    while time.monotonic() < until:
        step += 1
        stage.seal(step)
        threading.Event().wait(0.05)
    ended.set()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in seen)
