"""One answer per restart, for any number of ranks, whoever dies meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from standing_stage import RUN_ID, Stage

from ckptgov.errors import (
    CouldNotLook,
    NeverAny,
    NoneRestorable,
    StorageError,
    UnknownRun,
    UsageError,
)
from ckptgov.model.answers import LatestAnswer
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Query
from ckptgov.model.journal import RestoreOutcome, Rollback
from ckptgov.ops import restarts as ops_restarts
from ckptgov.ops.restarts import AskedRestart, Restarts, report
from ckptgov.ops.start_points import start_points
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing import postgres
from ckptgov.work.abilities import Abilities, to_json
from ckptgov.work.author import Author
from ckptgov.work.runstore import RunStore, store_at


@pytest.fixture(params=["journal", "row"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """A run whose journal lies on a shared place, and one that has only a node's disk."""
    is_shared = request.param == "journal"
    made = Stage(tmp_path, nodes=("n1",), is_shared=is_shared, here=frozenset({"n1"}))
    made.where = "shared" if is_shared else "n1"
    yield made
    made.close()


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.PostgresServer]:
    reason = postgres.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with postgres.postgres() as running:
        yield running


@pytest.fixture(params=["journal", "row", "journal on PostgreSQL", "row on PostgreSQL"])
def every_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """The same with either engine under the catalog."""
    is_shared, is_postgres = "journal" in request.param, "PostgreSQL" in request.param
    url = request.getfixturevalue("server").new_database() if is_postgres else None
    here = frozenset({"n1"})
    made = Stage(tmp_path, nodes=("n1",), is_shared=is_shared, here=here, catalog_url=url)
    made.where = "shared" if is_shared else "n1"
    yield made
    made.close()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    made.where = "shared"
    yield made
    made.close()


def ask(stage: Stage, restart_id: str = "r", **query) -> LatestAnswer:
    return Restarts(stage.context).decide(
        AskedRestart(run="run", restart_id=restart_id, query=Query(**query))
    )


def ask_fresh(stage: Stage, restart_id: str = "r") -> LatestAnswer:
    return Restarts(stage.context).decide(
        AskedRestart(run="run", restart_id=restart_id, allow_fresh=True)
    )


def tell(stage: Stage, outcome: RestoreOutcome, restart_id: str = "r") -> None:
    with stage.context() as context:
        report(context, "run", restart_id=restart_id, outcome=outcome)


def step_of(told: LatestAnswer) -> int:
    assert told.error is None, told.error
    assert told.chosen is not None
    assert told.chosen.step is not None
    return told.chosen.step


def journal_of(stage: Stage) -> RunStore:
    return store_at(PosixStorage(stage.places["shared"].root), "run")


def test_the_first_to_ask_decides_and_all_others_read(stage: Stage) -> None:
    stage.seal(100, stage.where)
    first = ask(stage)
    stage.seal(200, stage.where)
    second = ask(stage)
    assert (step_of(first), step_of(second)) == (100, 100)
    assert first.path == second.path
    assert first.restart is not None
    assert second.restart is not None
    assert (first.restart.decided_here, second.restart.decided_here) == (True, False)
    assert step_of(ask(stage, "another")) == 200


def test_a_decision_is_in_the_journal_of_the_shared_place(shared: Stage) -> None:
    manifest = shared.seal(100)
    ask(shared)
    record = journal_of(shared).restart("r", 0)
    assert record is not None
    assert record.content_id == manifest.content_id
    row = shared.catalog.decision(RUN_ID, "r", 0)
    assert row is not None
    assert row.content_id == manifest.content_id


def test_a_decision_made_without_the_service_stands(shared: Stage) -> None:
    """A command line decided by the journal alone; the catalog knows nothing of it."""
    from ckptgov.model.journal import Restart

    old = shared.seal(100)
    shared.seal(200)
    journal_of(shared).publish_restart(
        Restart(
            stamp=Author(clock=shared.clock, by="uid:0@elsewhere").stamp(RUN_ID),
            restart_id="r",
            epoch=0,
            content_id=old.content_id,
        )
    )
    assert step_of(ask(shared)) == 100


def test_a_mark_made_without_the_service_is_heeded(shared: Stage) -> None:
    from ckptgov.model.journal import MarkBad

    shared.seal(100)
    bad = shared.seal(200)
    stamp = Author(clock=shared.clock, by="uid:0@elsewhere").stamp(RUN_ID, reason="nan")
    journal_of(shared).append(MarkBad(stamp=stamp, content_id=bad.content_id))
    assert step_of(ask(shared)) == 100


@pytest.mark.parametrize("outcome", ["missing", "corrupt", "load-failed"])
def test_what_does_not_load_opens_the_next_epoch(stage: Stage, outcome: str) -> None:
    stage.seal(100, stage.where)
    stage.seal(200, stage.where)
    assert step_of(ask(stage)) == 200
    tell(stage, RestoreOutcome(outcome))
    told = ask(stage)
    assert told.restart is not None
    assert (step_of(told), told.restart.epoch) == (100, 1)


@pytest.mark.parametrize("outcome", ["started", "failed-later"])
def test_a_crash_for_another_reason_never_steps_back(stage: Stage, outcome: str) -> None:
    stage.seal(100, stage.where)
    stage.seal(200, stage.where)
    ask(stage)
    tell(stage, RestoreOutcome(outcome))
    told = ask(stage)
    assert told.restart is not None
    assert (step_of(told), told.restart.epoch) == (200, 0)
    assert step_of(ask(stage, "next")) == 200


def test_stepping_over_is_told_as_an_alert(stage: Stage) -> None:
    stage.seal(100, stage.where)
    stage.seal(200, stage.where)
    ask(stage)
    tell(stage, RestoreOutcome.LOAD_FAILED)
    assert "alert" in [note.kind for note in ask(stage).choice.notes]


def test_ranks_that_report_the_same_make_one_record(shared: Stage) -> None:
    shared.seal(100)
    ask(shared)
    for _ in range(5):
        tell(shared, RestoreOutcome.STARTED)
    names = [path.name for path in (shared.run_root("shared") / ".ckptgov/journal").iterdir()]
    assert len([name for name in names if ".outcome." in name]) == 1


def test_an_outcome_of_nothing_that_was_decided_is_refused(stage: Stage) -> None:
    stage.seal(100, stage.where)
    with pytest.raises(UsageError):
        tell(stage, RestoreOutcome.STARTED)


def test_what_is_gone_is_re_opened_and_the_next_one_decided(stage: Stage) -> None:
    stage.seal(100, stage.where)
    gone = stage.seal(200, stage.where)
    (stage.run_root(stage.where) / "step_200" / "rank_1.bin").unlink()
    assert step_of(ask(stage)) == 100
    states = {copy.content_id: copy.state for copy in stage.catalog.copies(RUN_ID)}
    assert states[gone.content_id] is CopyState.REOPENED


def test_a_shard_cut_short_is_never_handed_out(stage: Stage) -> None:
    stage.seal(100, stage.where)
    stage.seal(200, stage.where)
    shard = stage.run_root(stage.where) / "step_200" / "rank_1.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert step_of(ask(stage)) == 100


def test_storage_that_fails_never_steps_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.seal(100, stage.where)
    stage.seal(200, stage.where)

    def broken(self, directory, names):
        raise StorageError(f"{directory}: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(PosixStorage, "stat_many", broken)
        assert isinstance(ask(stage).error, CouldNotLook)
    assert step_of(ask(stage)) == 200


def test_an_unmounted_place_is_never_a_reason_to_start_fresh(shared: Stage) -> None:
    (shared.root / "shared" / ".ckptgov-tier.json").unlink()
    error = ask_fresh(shared).error
    assert isinstance(error, CouldNotLook)
    assert not isinstance(error, NeverAny)


def test_a_run_that_never_had_one_starts_fresh_only_where_that_is_allowed(shared: Stage) -> None:
    told = ask(shared)
    assert isinstance(told.error, NeverAny)
    assert told.restart is None
    fresh = ask_fresh(shared)
    assert isinstance(fresh.error, NeverAny)
    assert fresh.restart is not None
    assert fresh.restart.epoch == 0


def test_a_fresh_start_stays_one_for_every_rank(shared: Stage) -> None:
    ask_fresh(shared)
    shared.seal(100)
    told = ask(shared)
    assert isinstance(told.error, NeverAny)
    assert told.restart is not None
    assert step_of(ask(shared, "next")) == 100


def test_a_fresh_start_needs_every_place_to_be_seen(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=("n1",), here=frozenset({"n1"}))
    try:
        (stage.root / "n1" / ".ckptgov-tier.json").unlink()
        told = ask_fresh(stage)
        assert type(told.error) is CouldNotLook
        assert told.restart is None
    finally:
        stage.close()


def test_a_fresh_start_needs_every_place_to_be_this_runs(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=("n1",), here=frozenset({"n1"}))
    try:
        (stage.run_root("n1") / ".ckptgov/run.json").unlink()
        told = ask_fresh(stage)
        assert type(told.error) is CouldNotLook
        assert told.restart is None
    finally:
        stage.close()


def test_what_is_sealed_as_a_fresh_start_is_decided_is_started_from(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = ops_restarts._look_at_empty_places

    def meanwhile(context, run) -> None:
        look(context, run)
        stage.seal(1, stage.where)

    monkeypatch.setattr(ops_restarts, "_look_at_empty_places", meanwhile)
    assert step_of(ask_fresh(stage)) == 1


def test_after_a_fresh_start_that_saved_nothing_the_next_may_begin_fresh(shared: Stage) -> None:
    ask_fresh(shared, "first")
    assert ask_fresh(shared, "second").restart is not None


def test_something_unscanned_is_never_overlooked_by_a_fresh_start(shared: Stage) -> None:
    from ckptgov.testing.builders import write_dcp

    write_dcp(shared.run_root("shared") / "step_1")
    assert isinstance(ask_fresh(shared).error, NoneRestorable)


@pytest.mark.parametrize("state", [CopyState.CORRUPT, CopyState.LOST, CopyState.REOPENED])
def test_a_run_that_had_some_never_starts_fresh(shared: Stage, state: CopyState) -> None:
    shared.seal(100, state=state)
    told = ask_fresh(shared)
    assert isinstance(told.error, NoneRestorable)
    assert told.restart is None


def test_an_unknown_run_is_never_decided(stage: Stage) -> None:
    told = Restarts(stage.context).decide(
        AskedRestart(run="nope", restart_id="r", allow_fresh=True)
    )
    assert isinstance(told.error, UnknownRun)


def test_an_id_that_names_no_restart_is_refused(stage: Stage) -> None:
    stage.seal(100, stage.where)
    assert isinstance(ask(stage, " ").error, UsageError)


def test_two_thousand_ranks_get_one_answer_while_twenty_a_second_are_sealed(
    every_stage: Stage,
) -> None:
    stage = every_stage
    stage.seal(1, stage.where)
    restarts, ended = Restarts(stage.context), threading.Event()

    def sealing() -> None:
        step = 1
        while not ended.wait(0.05):
            step += 1
            stage.seal(step, stage.where)

    sealer = threading.Thread(target=sealing)
    sealer.start()
    try:
        with ThreadPoolExecutor(200) as ranks:
            asked = AskedRestart(run="run", restart_id="r")
            told = list(ranks.map(lambda _: restarts.decide(asked), range(2000)))
    finally:
        ended.set()
        sealer.join()
    assert len({one.path for one in told}) == 1
    assert all(one.error is None for one in told)
    assert [one.restart.decided_here for one in told if one.restart].count(True) == 1


def test_two_replicas_asked_at_once_decide_one(every_stage: Stage) -> None:
    stage = every_stage
    stage.seal(1, stage.where)
    other = stage.another()
    replicas = [Restarts(stage.context), Restarts(other.context)]
    ended = threading.Event()

    def sealing() -> None:
        step = 1
        while not ended.wait(0.02):
            step += 1
            stage.seal(step, stage.where)

    sealer = threading.Thread(target=sealing)
    sealer.start()
    try:
        with ThreadPoolExecutor(16) as ranks:
            for number in range(5):
                asked = AskedRestart(run="run", restart_id=f"r{number}")
                told = list(ranks.map(lambda n, a=asked: replicas[n % 2].decide(a), range(40)))
                assert len({one.path for one in told}) == 1
    finally:
        ended.set()
        sealer.join()
        other.close()
    kinds = [one.kind for one in stage.catalog.binding_records(RUN_ID)]
    assert kinds.count("restart") == 5


def test_one_of_those_who_waited_for_a_decision_made_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first to ask fails; the others were waiting for one that began after they came."""
    stage.seal(100, stage.where)
    decide, begun, go_on, fails = ops_restarts.decide, threading.Event(), threading.Event(), [True]

    def first_fails(context, asked):
        if fails.pop() if fails else False:
            begun.set()
            go_on.wait(10)
            raise CouldNotLook("the place did not answer")
        return decide(context, asked)

    monkeypatch.setattr(ops_restarts, "decide", first_fails)
    restarts, asked = Restarts(stage.context), AskedRestart(run="run", restart_id="r")
    with ThreadPoolExecutor(9) as ranks:
        failed = ranks.submit(restarts.decide, asked)
        assert begun.wait(10)
        others = [ranks.submit(restarts.decide, asked) for _ in range(8)]
        while len(restarts._shared._next) == 0:
            threading.Event().wait(0.001)
        go_on.set()
        told = [one.result() for one in others]
    assert isinstance(failed.result().error, CouldNotLook)
    assert {one.path for one in told} == {told[0].path}
    assert [one.restart.decided_here for one in told if one.restart].count(True) == 1


@pytest.mark.parametrize("other", [None, "0b7a41c0-0000-4000-8000-0000000000ff"])
def test_a_home_that_is_not_this_runs_decides_nothing(shared: Stage, other: str | None) -> None:
    shared.seal(100)
    path = shared.run_root("shared") / ".ckptgov/run.json"
    path.unlink()
    if other is not None:
        journal_of(shared).create(RunIdentity(run_id=other, name="other"))
    assert isinstance(ask(shared).error, CouldNotLook)


def test_a_place_where_a_name_may_be_given_twice_decides_nothing(shared: Stage) -> None:
    shared.seal(100)
    told = to_json(Abilities(exclusive_create=False))
    shared.catalog.put_abilities(shared.places["shared"].place, told, 1)
    assert isinstance(ask(shared).error, CouldNotLook)


def test_a_binding_record_that_does_not_decode_is_never_overlooked(shared: Stage) -> None:
    shared.seal(100)
    journal = shared.run_root("shared") / ".ckptgov/journal"
    journal.mkdir()
    (journal / "00000001.outcome.json").write_bytes(b"cut")
    assert step_of(ask(shared)) == 100
    (journal / "00000002.mark-bad.json").write_bytes(b"cut")
    error = ask(shared, "another").error
    assert error is not None
    assert error.kind == "malformed"


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_service_killed_as_it_publishes_is_followed_by_one_that_agrees(
    shared: Stage, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    shared.seal(100)
    publish = RunStore.publish_restart

    def killed(self, record):
        if when == "after":
            publish(self, record)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "publish_restart", killed)
        with pytest.raises(Killed):
            ask(shared)
    if when == "after":
        shared.seal(200)  # what was decided stands, though nobody was told yet
    other = shared.another()
    try:
        told = Restarts(other.context).decide(AskedRestart(run="run", restart_id="r"))
        assert step_of(told) == 100
        shared.seal(300)
        assert step_of(ask(shared)) == 100
    finally:
        other.close()


_CHILD = r"""
import os, sys
from concurrent.futures import ThreadPoolExecutor
from ckptgov.model.clock import SystemClock
from ckptgov.ops.restarts import AskedRestart, Restarts
from ckptgov.service.serving import Serving

serving = Serving.open(sys.argv[1], clock=SystemClock(), here=frozenset({"n1"}))
restarts = Restarts(serving.context)

def ask(number):
    told = restarts.decide(AskedRestart(run="run", restart_id=f"r{number // 8}"))
    os.write(1, f"r{number // 8} {told.path}\n".encode())

with ThreadPoolExecutor(8) as ranks:
    for _ in ranks.map(ask, range(4_000)):
        pass
"""


def test_a_killed_service_is_followed_by_one_that_gives_the_same_answers(stage: Stage) -> None:
    """SIGKILL in the midst of decisions, each asked by eight ranks while more is sealed."""
    stage.seal(1, stage.where)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(stage.home)], env=environ, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    told: dict[str, set[str]] = {}
    with child.stdout as answers:
        for step in range(2, 40):
            _heard(answers.readline(), told)
            stage.seal(step, stage.where)
        child.kill()
        rest = answers.read().split(b"\n")
    child.wait()
    for line in rest[:-1]:  # the last one may have been cut
        _heard(line, told)
    assert len(told) >= 4
    for restart_id, paths in told.items():
        assert paths == {ask(stage, restart_id).path}


def _heard(line: bytes, told: dict[str, set[str]]) -> None:
    restart_id, _, path = line.decode().strip().partition(" ")
    told.setdefault(restart_id, set()).add(path)


def test_a_choice_that_is_withdrawn_before_it_is_written_is_not_decided(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.seal(100, stage.where)
    withdrawn = stage.seal(200, stage.where)
    is_there, done = ops_restarts.is_there, []

    def meanwhile(context, run, chosen):
        found = is_there(context, run, chosen)
        if not done:
            done.append(1)
            context.catalog.transition(
                RUN_ID,
                withdrawn.content_id,
                stage.places[stage.where].place,
                expected=CopyState.VERIFIED,
                to=CopyState.CORRUPT,
                at_ns=1,
            )
        return found

    monkeypatch.setattr(ops_restarts, "is_there", meanwhile)
    assert step_of(ask(stage)) == 100


def test_a_start_point_is_leased_until_something_newer_is_durable(shared: Stage) -> None:
    given = shared.seal(100)
    ask(shared)
    with shared.context() as context:
        assert [one.content_id for one in start_points(context, "run")] == [given.content_id]
    shared.seal(120)  # so soon after that clocks may have it the other way round
    with shared.context() as context:
        assert len(start_points(context, "run")) == 1
    shared.clock.ahead_s = 301.0
    shared.seal(150, state=CopyState.REOPENED)
    with shared.context() as context:
        assert len(start_points(context, "run")) == 1
    shared.seal(200)
    with shared.context() as context:
        assert start_points(context, "run") == ()


def test_what_is_durable_on_a_line_that_was_left_does_not_end_the_lease(shared: Stage) -> None:
    shared.seal(100)
    shared.seal(200)
    ask(shared)
    shared.record(1, Rollback(stamp=shared.stamp(1), to_step=100, line=2))
    shared.clock.ahead_s = 301.0
    shared.seal(300, line=1)
    with shared.context() as context:
        assert len(start_points(context, "run")) == 1


def test_what_is_durable_on_a_line_opened_since_ends_the_lease(shared: Stage) -> None:
    shared.seal(100)
    shared.seal(200)
    ask(shared)
    shared.record(1, Rollback(stamp=shared.stamp(1), to_step=100, line=2))
    shared.clock.ahead_s = 301.0
    shared.seal(150, line=2)
    with shared.context() as context:
        assert start_points(context, "run") == ()


def test_a_newer_copy_on_one_node_alone_does_not_end_the_lease(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=("n1",), here=frozenset({"n1"}))
    try:
        stage.seal(100)
        ask(stage)
        stage.clock.ahead_s = 301.0
        stage.seal(200, "n1")
        with stage.context() as context:
            assert len(start_points(context, "run")) == 1
    finally:
        stage.close()


def test_a_node_that_is_away_does_not_change_what_was_decided(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=("n1",))
    try:
        stage.beat("n1")
        stage.seal(100)
        stage.seal(200, "n1")
        assert step_of(ask(stage)) == 200
        stage.clock.ahead_s = 61.0
        assert isinstance(ask(stage).error, CouldNotLook)
        tell(stage, RestoreOutcome.MISSING)
        assert step_of(ask(stage)) == 100
    finally:
        stage.close()


def test_each_rank_is_told_its_own_nearest_copy_of_the_one_decided(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=("n1",), here=frozenset({"n1"}))
    try:
        stage.seal(100, "shared", "n1")
        restarts = Restarts(stage.context)
        near = restarts.decide(AskedRestart(run="run", restart_id="r", node="n1"))
        far = restarts.decide(AskedRestart(run="run", restart_id="r", node="n2"))
        assert near.path == str(stage.run_root("n1") / "step_100")
        assert far.path == str(stage.run_root("shared") / "step_100")
    finally:
        stage.close()
