"""Workers: what becomes of a task, whatever becomes of its worker, its lease and the catalog."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckptgov.errors import CouldNotLook, PartlyDone, TransientStorageError, VerificationFailed
from ckptgov.model.clock import SystemClock
from ckptgov.model.cluster import NewTask, TaskFacts, TaskKind, TaskState
from ckptgov.model.copies import CopyState
from ckptgov.model.settings import Link, Scope, TierSettings
from ckptgov.ops.budgets import link_tiers
from ckptgov.ops.context import Context
from ckptgov.ops.tiers import add_tier
from ckptgov.service.activities import planned
from ckptgov.service.payloads import (
    By,
    FlushPayload,
    ReconcilePayload,
    ScanPayload,
    VerifyPayload,
    encoded,
)
from ckptgov.service.runners import Ended, Runner, Stop
from ckptgov.service.serving import Serving
from ckptgov.service.workers import Workers, outcome_of
from ckptgov.testing.builders.dcp import write_dcp

LIMIT_S = 60.0
BY = By(catalog_epoch=1, leader_epoch=1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a scanned tier, lustre, that is flushed to another, s3, and one run unsealed."""
    for name in ("home", "lustre", "s3"):
        (tmp_path / name).mkdir()
    home = str(tmp_path / "home")
    with Serving.open(home, clock=SystemClock()) as serving, serving.context() as context:
        for name in ("lustre", "s3"):
            root = str(tmp_path / name)
            add_tier(context, TierSettings(name=name, root=root, ingest=name == "lustre"))
        link_tiers(context, Link(source="lustre", target="s3", every=1))
    return tmp_path / "home"


@pytest.fixture
def opened(home: Path) -> Iterator[Callable[..., Serving]]:
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(
            Serving.open(str(home), clock=SystemClock(), **more)
        )


@pytest.fixture
def serving(opened: Callable[..., Serving]) -> Serving:
    return opened()


def add(
    serving: Serving,
    kind: TaskKind = TaskKind.SCAN,
    payload: bytes = b"{}",
    *,
    key: str | None = None,
    node: str | None = None,
) -> str:
    new = NewTask(kind=kind, key=key or kind.value, payload=payload, node=node)
    return serving.catalog.tasks.add(new).task_id


def task(serving: Serving, task_id: str) -> TaskFacts:
    found = serving.catalog.tasks.task(task_id)
    assert found is not None
    return found


def outcome(serving: Serving, task_id: str) -> dict:
    return json.loads(task(serving, task_id).outcome)


def until(is_so: Callable[[], object]) -> None:
    """Wait for another thread or process, which says nothing when it is done."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end, "it did not happen"
        threading.Event().wait(0.01)


def is_ended(serving: Serving, task_id: str) -> bool:
    return task(serving, task_id).state in (TaskState.DONE, TaskState.FAILED)


def workers(serving: Serving, runner: Runner | None = None, **more: object) -> Workers:
    """Workers that carry every kind out with one runner, or as they do."""
    runners = None if runner is None else dict.fromkeys(TaskKind, runner)
    more = {"holder": "a", "poll_s": 0.01, **more}
    return Workers(serving, runners=runners, **more)  # type: ignore[arg-type]


def done(context: Context, task: TaskFacts, stop: Stop) -> Ended:
    del context, stop
    return Ended(document={"did": task.task.key})


def raising(error: Exception) -> Runner:
    def run(context: Context, task: TaskFacts, stop: Stop) -> Ended:
        raise error

    return run


class Held:
    """A runner that stands still until it is let go, then says what it was told."""

    def __init__(self, *, reads: bool = False) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.left = threading.Event()
        self.reads = reads

    def __call__(self, context: Context, task: TaskFacts, stop: Stop) -> Ended:
        self.begun.set()
        try:
            while not self.go.wait(0.01):
                if self.reads:
                    assert context.progress is not None
                    context.progress(1)
        finally:
            self.left.set()
        return Ended(document={"did": task.task.key})


def run_one(serving: Serving, runner: Runner | None, task_id: str) -> None:
    with workers(serving, runner) as some:
        some.step()
        until(lambda: is_ended(serving, task_id))


def test_a_task_ends_with_the_document_of_its_verb(serving: Serving) -> None:
    task_id = add(serving)
    run_one(serving, done, task_id)
    assert task(serving, task_id).state is TaskState.DONE
    assert outcome(serving, task_id) == {"did": "scan"}


def test_a_task_that_cannot_be_done_fails_with_the_document_of_the_error(serving: Serving) -> None:
    task_id = add(serving)
    run_one(serving, raising(CouldNotLook("unmounted", hint="mount it")), task_id)
    assert task(serving, task_id).state is TaskState.FAILED
    assert outcome(serving, task_id)["error"] == {
        "kind": "could-not-look",
        "exit_code": 9,
        "message": "unmounted",
        "hint": "mount it",
    }


@pytest.mark.parametrize(
    ("kind", "error", "state"),
    [
        (TaskKind.SCAN, PartlyDone("one of two"), TaskState.DONE),
        (TaskKind.VERIFY, VerificationFailed("differs"), TaskState.DONE),
        (TaskKind.FLUSH, VerificationFailed("differs"), TaskState.FAILED),
    ],
)
def test_an_error_beside_an_answer_decides_how_the_task_ended(
    serving: Serving, kind: TaskKind, error: PartlyDone, state: TaskState
) -> None:
    task_id = add(serving, kind)
    run_one(serving, lambda context, task, stop: Ended(document={}, error=error), task_id)
    assert task(serving, task_id).state is state


def test_a_bug_fails_its_task_and_the_worker_goes_on(serving: Serving) -> None:
    first = add(serving, key="a")
    run_one(serving, raising(ZeroDivisionError("no")), first)
    assert task(serving, first).state is TaskState.FAILED
    assert "ZeroDivisionError" in outcome(serving, first)["error"]["message"]


def test_an_outcome_too_large_to_keep_is_told_by_its_counts() -> None:
    error = {"kind": "partly-done"}
    document = {"error": error, "runs": ["x" * 1000] * 10_000, "is_dry_run": False}
    assert json.loads(outcome_of(document)) == {"error": error, "left_out": {"runs": 10_000}}
    assert json.loads(outcome_of({"runs": []})) == {"runs": []}


def test_a_payload_of_another_form_fails_its_task(serving: Serving) -> None:
    task_id = add(serving, TaskKind.FLUSH, b'{"step": "ten"}')
    run_one(serving, None, task_id)
    assert outcome(serving, task_id)["error"]["kind"] == "usage"


def test_a_long_task_does_not_hold_back_those_of_another_kind(serving: Serving) -> None:
    held = Held()
    flushes = [add(serving, TaskKind.FLUSH, key=f"flush:{one}") for one in range(3)]
    scan = add(serving, TaskKind.SCAN)

    def either(context: Context, task: TaskFacts, stop: Stop) -> Ended:
        run = held if task.task.kind is TaskKind.FLUSH else done
        return run(context, task, stop)

    with workers(serving, either) as some:
        some.step()
        until(lambda: is_ended(serving, scan))
        claimed = [task(serving, one).state for one in flushes]
        assert claimed.count(TaskState.CLAIMED) == 2
        assert claimed.count(TaskState.QUEUED) == 1
        held.go.set()
        until(lambda: some.step() or all(is_ended(serving, one) for one in flushes))


def test_tasks_of_other_nodes_are_left_to_their_agents(opened: Callable[..., Serving]) -> None:
    serving = opened(here=frozenset({"n1"}))
    own, others = add(serving, node="n1", key="own"), add(serving, node="n2", key="others")
    with workers(serving, done) as some:
        some.step()
        until(lambda: is_ended(serving, own))
    assert task(serving, others).state is TaskState.QUEUED


class TestLeases:
    def test_an_outcome_under_a_lost_lease_is_dropped(self, opened: Callable[..., Serving]) -> None:
        serving, held = opened(), Held()
        task_id = add(serving)
        some = workers(serving, held, lease_s=0.01)
        some.step()
        assert held.begun.wait(LIMIT_S)
        [taken] = take_over(opened(), task_id)
        held.go.set()
        some.close()
        assert task(serving, task_id).state is TaskState.CLAIMED
        assert task(serving, task_id).lease == taken.lease

    def test_a_task_whose_lease_was_lost_is_left_at_once(
        self, opened: Callable[..., Serving]
    ) -> None:
        serving, held = opened(), Held(reads=True)
        task_id = add(serving)
        some = workers(serving, held, lease_s=0.01)
        some.step()
        assert held.begun.wait(LIMIT_S)
        [taken] = take_over(opened(), task_id)
        some.renew()
        assert held.left.wait(LIMIT_S)
        some.close()
        assert task(serving, task_id).lease == taken.lease, "and not given back"
        assert task(serving, task_id).lease_ends_at_ns == taken.lease_ends_at_ns

    def test_a_lease_is_renewed_while_its_task_runs(self, serving: Serving) -> None:
        held = Held()
        task_id = add(serving)
        with workers(serving, held, lease_s=30.0) as some:
            some.step()
            before = task(serving, task_id).lease_ends_at_ns
            some.renew()
            assert task(serving, task_id).lease_ends_at_ns > before
            held.go.set()

    def test_an_outcome_is_offered_again_while_the_catalog_is_away(
        self, serving: Serving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task_id = add(serving)
        tasks = serving.catalog.tasks
        end, tries = tasks.end, []

        def away(*args: object, **more: object) -> object:
            tries.append(1)
            if len(tries) < 3:
                raise TransientStorageError("does not answer")
            return end(*args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(tasks, "end", away)
        run_one(serving, done, task_id)
        assert task(serving, task_id).state is TaskState.DONE
        assert len(tries) == 3

    def test_a_task_whose_worker_was_killed_is_done_by_another(
        self, opened: Callable[..., Serving], home: Path
    ) -> None:
        serving = opened()
        task_id = add(serving)
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(home)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline().strip() == task_id
            os.kill(child.pid, signal.SIGKILL)
        finally:
            child.kill()
            child.communicate()
        with workers(serving, done, holder="b") as some:
            until(lambda: some.step() or is_ended(serving, task_id))
        assert task(serving, task_id).holder == "b"
        assert task(serving, task_id).attempts == 2


KILLED = """
import sys, threading
from ckptgov.model.clock import SystemClock
from ckptgov.service.serving import Serving
from ckptgov.service.workers import Workers, outcome_of

def stand_still(context, task, stop):
    print(task.task_id, flush=True)
    threading.Event().wait()

with Serving.open(sys.argv[1], clock=SystemClock()) as serving:
    from ckptgov.model.cluster import TaskKind
    some = Workers(serving, holder="a", runners={TaskKind.SCAN: stand_still}, lease_s=0.5)
    some.start()
    threading.Event().wait()
"""


def take_over(serving: Serving, task_id: str) -> tuple[TaskFacts, ...]:
    """Claim a task as another process, once its lease has ended."""
    found: list[TaskFacts] = []

    def take() -> bool:
        found.extend(
            serving.catalog.tasks.claim(node=None, holder="b", kinds=None, ttl_s=60.0, limit=1)
        )
        return bool(found)

    until(take)
    assert found[0].task_id == task_id
    return tuple(found)


class TestStopping:
    def test_a_task_that_ends_in_time_is_finished(self, serving: Serving) -> None:
        held = Held()
        task_id = add(serving)
        some = workers(serving, held)
        some.step()
        assert held.begun.wait(LIMIT_S)
        some.ask_to_stop()
        held.go.set()
        some.close()
        assert task(serving, task_id).state is TaskState.DONE

    def test_a_task_that_reads_is_given_back_at_its_next_byte(
        self, opened: Callable[..., Serving]
    ) -> None:
        serving, held = opened(), Held(reads=True)
        task_id = add(serving)
        some = workers(serving, held)
        some.step()
        assert held.begun.wait(LIMIT_S)
        some.ask_to_stop()
        assert held.left.wait(LIMIT_S)
        some.close()
        run_one(opened(), done, task_id)
        assert task(serving, task_id).attempts == 1

    def test_a_task_that_hangs_is_given_back_when_the_grace_is_over(
        self, opened: Callable[..., Serving]
    ) -> None:
        serving, held = opened(), Held()
        task_id = add(serving)
        some = workers(serving, held)
        some.step()
        assert held.begun.wait(LIMIT_S)
        some.close(grace_s=0.05)
        run_one(opened(), done, task_id)
        assert outcome(serving, task_id) == {"did": "scan"}
        held.go.set()

    def test_what_was_given_back_is_prolonged_no_more(self, opened: Callable[..., Serving]) -> None:
        serving, held = opened(), Held()
        task_id = add(serving)
        some = workers(serving, held)
        some.step()
        assert held.begun.wait(LIMIT_S)
        some.close(grace_s=0.05)
        some.renew()
        assert task(serving, task_id).lease_ends_at_ns <= serving.catalog.now_ns()
        held.go.set()

    def test_nothing_more_is_begun(self, serving: Serving) -> None:
        some = workers(serving, done)
        some.ask_to_stop()
        add(serving)
        assert some.step() == 0


class TestRealTasks:
    """The verbs themselves, as the schedule asks for them."""

    @pytest.fixture
    def lustre(self, tmp_path: Path, home: Path) -> Path:
        for step in (10, 20):
            write_dcp(tmp_path / "lustre" / "llama" / f"step_{step}", seed=str(step))
        return tmp_path / "lustre"

    def states(self, serving: Serving) -> list[CopyState]:
        [run] = serving.catalog.runs()
        return [one.state for one in serving.catalog.copies(run.identity.run_id)]

    def round(self, serving: Serving, name: str, *, here: frozenset[str] | None = None) -> None:
        """One round of an activity."""
        for new in planned(name, serving.settings(), {}, here=here, by=BY):
            task_id = serving.catalog.tasks.add(new).task_id
            run_one(serving, None, task_id)
            assert task(serving, task_id).state is TaskState.DONE, task(serving, task_id)

    def test_scan_flush_verify_and_reconcile(
        self, serving: Serving, lustre: Path, tmp_path: Path
    ) -> None:
        self.round(serving, "scan")
        assert self.states(serving) == [CopyState.VERIFIED] * 2
        self.round(serving, "flush")
        assert self.states(serving) == [CopyState.VERIFIED] * 4
        shard = next((tmp_path / "s3" / "llama" / "step_20").glob("*.distcp"))
        flip(shard)
        share_s = serving.settings().verify_max_age_s
        payload = VerifyPayload(tiers=("s3",), share_s=share_s)
        task_id = add(serving, TaskKind.VERIFY, encoded(payload))
        run_one(serving, None, task_id)
        assert task(serving, task_id).state is TaskState.DONE
        assert outcome(serving, task_id)["error"]["kind"] == "verification-failed"
        assert self.states(serving).count(CopyState.CORRUPT) == 1
        self.round(serving, "reconcile")

    def test_a_turn_of_verification_makes_the_oldest_young(
        self, serving: Serving, lustre: Path
    ) -> None:
        self.round(serving, "scan")
        [run] = serving.catalog.runs()

        def ages() -> dict[str, int]:
            copies = serving.catalog.copies(run.identity.run_id)
            return {one.content_id: one.verified_at_ns or 0 for one in copies}

        before = ages()
        payload = VerifyPayload(tiers=("lustre",), share_s=serving.settings().verify_max_age_s / 2)
        run_one(serving, None, add(serving, TaskKind.VERIFY, encoded(payload)))
        after = ages()
        assert min(after.values()) > min(before.values())

    def test_runs_are_scanned_flushed_and_verified_by_name(
        self, serving: Serving, lustre: Path
    ) -> None:
        self.round(serving, "scan")
        write_dcp(lustre / "llama" / "step_30", seed="30")
        for kind, payload in (
            (TaskKind.SCAN, ScanPayload(runs=("llama",))),
            (TaskKind.FLUSH, FlushPayload(run="llama", step=30, to="s3")),
            (TaskKind.VERIFY, VerifyPayload(run="llama")),
            (TaskKind.RECONCILE, ReconcilePayload(tiers=("s3",))),
        ):
            task_id = add(serving, kind, encoded(payload))
            run_one(serving, None, task_id)
            assert task(serving, task_id).state is TaskState.DONE, task(serving, task_id)
        assert self.states(serving) == [CopyState.VERIFIED] * 4

    def test_backups_go_to_the_tier_and_only_the_newest_stay(
        self, serving: Serving, home: Path, tmp_path: Path
    ) -> None:
        with (home / "ckptgov.yaml").open("a") as file:
            file.write("service:\n  backup: {tier: s3, keep: 2}\n")
        for _ in range(3):
            self.round(serving, "backup")
        kept = list((tmp_path / "s3").rglob("*.dump"))
        assert len(kept) == 2
        outcomes = [json.loads(one.outcome) for one in serving.catalog.tasks.tasks()]
        assert [len(one["removed"]) for one in outcomes] == [1, 0, 0]

    def test_an_unknown_run_or_tier_fails_its_task(self, serving: Serving) -> None:
        for payload, kind in (
            (ScanPayload(runs=("nobody",)), "unknown-run"),
            (ScanPayload(tiers=("s3",)), "usage"),
        ):
            task_id = add(serving, payload=encoded(payload), key=kind)
            run_one(serving, None, task_id)
            assert outcome(serving, task_id)["error"]["kind"] == kind

    def test_a_disk_of_another_node_is_never_touched_as_a_path(
        self, opened: Callable[..., Serving], lustre: Path, tmp_path: Path
    ) -> None:
        """A directory of that name is here as well, with a checkpoint in it."""
        disk = tmp_path / "nvme"
        write_dcp(disk / "other" / "step_10", seed="x")
        whole = opened()
        with whole.context() as context:
            tier = TierSettings(
                name="nvme", root=str(disk), scope=Scope.NODE, node="n1", ingest=True
            )
            add_tier(context, tier)
            link_tiers(context, Link(source="nvme", target="s3", every=1))
        before = tree_of(disk)
        serving = opened(here=frozenset())
        for name in ("scan", "flush", "verify", "reconcile"):
            self.round(serving, name, here=frozenset())
        assert tree_of(disk) == before
        task_id = add(serving, payload=encoded(ScanPayload(tiers=("nvme",))))
        run_one(serving, None, task_id)
        assert outcome(serving, task_id)["error"]["kind"] == "usage"
        assert [one.identity.name for one in serving.catalog.runs()] == ["llama"]


def tree_of(root: Path) -> dict[str, tuple[int, int]]:
    """Every file with size and access time, which reading changes."""
    found = {path: path.stat() for path in sorted(root.rglob("*"))}
    return {str(path): (seen.st_size, seen.st_mtime_ns) for path, seen in found.items()}


def flip(path: Path) -> None:
    """Change one byte and leave size and times as they are."""
    seen = path.stat()
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x40
    path.write_bytes(raw)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
