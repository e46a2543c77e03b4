"""Workers: claim tasks, carry them out, and end them under the lease they were claimed with.

Promises: a task whose worker dies is claimed by another process once its lease has ended, and
what the dead one had done is used; an outcome under a lease that was lost is dropped; told to
stop, a task is finished or given back. Nothing is done twice that the operations, which take it
up wherever it was left, would not do again anyway.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from ckptgov.errors import CkptgovError, Interrupted, LeaseLost
from ckptgov.model.closing import Closing
from ckptgov.model.cluster import TaskFacts, TaskKind, TaskState
from ckptgov.service import logs
from ckptgov.service.activities import seen_from
from ckptgov.service.runners import OF_THE_CLUSTER, RUNNERS, Ended, Runner, broke, failed, is_done
from ckptgov.service.serving import Serving
from ckptgov.wire.documents import Document

LEASE_S = 30.0
POLL_S = 1.0
GRACE_S = 30.0
SLOTS: Mapping[TaskKind, int] = {
    TaskKind.SCAN: 2,
    TaskKind.FLUSH: 2,
    TaskKind.VERIFY: 1,
    TaskKind.RECONCILE: 1,
    TaskKind.BACKUP: 1,
    TaskKind.PLAN: 1,
    TaskKind.APPLY: 1,
    TaskKind.UNDELETE: 1,
    TaskKind.CAPACITY: 1,
}
"""How many tasks of a kind one process works on: a long flush never holds a scan back."""
MOST_OUTCOME_BYTES = 4 * 2**20
"""A scan of everything may tell of very many checkpoints; the catalog is no place for that."""
_LONGEST_PAUSE_S = 30.0


class _Stopped(BaseException):
    """Raised where bytes are counted, to leave an operation that asks nobody whether to stop."""


class Run(threading.Thread):
    """One claimed task, being carried out by its own thread."""

    def __init__(self, task: TaskFacts, work: Callable[[Run], None]) -> None:
        super().__init__(name=f"task-{task.task.kind.value}", daemon=True)
        self.task = task
        self._work = work
        self._stop_asked = threading.Event()
        self._lost = threading.Event()
        self.lease = threading.Lock()  # of what is said of its lease: a last word stays the last

    def run(self) -> None:
        self._work(self)

    def ask_to_stop(self) -> None:
        self._stop_asked.set()

    def lose(self) -> None:
        self._lost.set()

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    def is_stopping(self) -> bool:
        return self._stop_asked.is_set() or self._lost.is_set()

    def count(self, count_bytes: int) -> None:
        """Stands where progress is told: the place every operation passes while it reads."""
        del count_bytes
        if self.is_stopping():
            raise _Stopped


class Workers(Closing):
    """The workers of one process. ``on_end`` is told the kind and state of each task that ended.

    Tasks of no node are claimed, and those of nodes whose disks this process sees.
    """

    def __init__(
        self,
        serving: Serving,
        *,
        holder: str,
        runners: Mapping[TaskKind, Runner] | None = None,
        slots: Mapping[TaskKind, int] = SLOTS,
        lease_s: float = LEASE_S,
        poll_s: float = POLL_S,
        on_end: Callable[[TaskKind, TaskState], None] = lambda kind, state: None,
    ) -> None:
        self._serving = serving
        self._tasks = serving.catalog.tasks
        self._holder = holder
        self._runners = RUNNERS if runners is None else runners
        self._slots = slots
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._on_end = on_end
        self._lock = threading.Lock()
        self._running: list[Run] = []
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Claim and renew from now on, in threads of their own."""
        for name, work in (("claim-tasks", self._claim_on), ("renew-tasks", self._renew_on)):
            thread = threading.Thread(target=work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def wake(self) -> None:
        """There may be something to do: claim now rather than at the next turn."""
        self._wake.set()

    def step(self) -> int:
        """Claim what there is room for; how many tasks were begun.

        Raises:
            CkptgovError: the catalog does not answer.
        """
        begun = 0
        nodes: tuple[str | None, ...] = (None, *sorted(self._serving.here or ()))
        for node in nodes:
            while not self._stopping.is_set() and (kinds := self._free()):
                found = self._tasks.claim(
                    node=node, holder=self._holder, kinds=kinds, ttl_s=self._lease_s, limit=1
                )
                for task in found:
                    self._begin(task)
                begun += len(found)
                if not found:
                    break
        return begun

    def renew(self) -> None:
        """Prolong every lease; what was taken over is left at once."""
        for run in self._alive():
            try:
                with run.lease:
                    if not run.is_lost:
                        self._tasks.renew(run.task.task_id, run.task.lease, ttl_s=self._lease_s)
            except LeaseLost:
                run.lose()
            except CkptgovError as error:  # its outcome is judged when it comes
                self._tell("task-not-renewed", run.task, error=error)

    def ask_to_stop(self) -> None:
        """Begin nothing more; what runs is told to finish its piece and be given back."""
        self._stopping.set()
        self._wake.set()
        for run in self._alive():
            run.ask_to_stop()

    def close(self, *, grace_s: float = GRACE_S) -> None:
        """Stop, wait for what runs, and give back what has not ended by then."""
        self.ask_to_stop()
        until = self._serving.clock.monotonic() + grace_s
        for run in self._alive():
            run.join(max(0.0, until - self._serving.clock.monotonic()))
        for run in self._alive():  # the process ends with it: safe at any point, like a kill
            if not run.is_lost:
                self._give_back(run)
        for thread in self._threads:
            thread.join(self._poll_s + 5.0)

    def _claim_on(self) -> None:
        pause_s = self._poll_s
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                self.step()
                pause_s = self._poll_s
            except CkptgovError as error:
                logs.tell("tasks-unknown", level=logging.WARNING, error=error)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            self._wake.wait(pause_s)

    def _renew_on(self) -> None:
        while not self._stopping.wait(self._lease_s / 3) or self._alive():
            self.renew()
            if self._stopping.is_set():
                self._serving.clock.sleep(min(1.0, self._lease_s / 3))

    def _alive(self) -> list[Run]:
        with self._lock:
            self._running = [one for one in self._running if one.is_alive()]
            return list(self._running)

    def _free(self) -> frozenset[TaskKind]:
        """Kinds that one more task may be begun of."""
        busy = [one.task.task.kind for one in self._alive()]
        return frozenset(
            kind for kind in self._runners if busy.count(kind) < self._slots.get(kind, 1)
        )

    def _begin(self, task: TaskFacts) -> None:
        run = Run(task, self._work)
        with self._lock:
            run.start()
            self._running.append(run)
        if self._stopping.is_set():  # told while it was being claimed
            run.ask_to_stop()

    def _work(self, run: Run) -> None:
        started = self._serving.clock.monotonic()
        try:
            ended = self._carry_out(run)
        except (_Stopped, Interrupted):
            if not run.is_lost:
                self._give_back(run)
            return
        seconds = round(self._serving.clock.monotonic() - started, 3)
        state = TaskState.DONE if is_done(run.task, ended.error) else TaskState.FAILED
        if self._end(run, state, ended.document):
            level = logging.INFO if ended.error is None else logging.WARNING
            self._tell("task-ended", run.task, level=level, error=ended.error, seconds=seconds)
            self._on_end(run.task.task.kind, state)

    def _carry_out(self, run: Run) -> Ended:
        """What the task came to; an error of any sort is an outcome as well."""
        task = run.task
        talk = logs.talk(task=task.task_id, run=task.task.for_run, node=task.task.node)
        try:
            with self._serving.context(by="service", talk=talk) as context:
                if task.task.kind not in OF_THE_CLUSTER:
                    context.settings = seen_from(context.settings, self._serving.here)
                context.progress = run.count
                return self._runners[task.task.kind](context, task, run.is_stopping)
        except Interrupted:
            raise
        except CkptgovError as error:
            if run.is_stopping():
                raise Interrupted(error.message) from error
            return failed(error)
        except Exception as error:
            logs.LOGGER.exception("task %s", task.task_id, extra={"event": "task-broke"})
            return broke(error)

    def _end(self, run: Run, state: TaskState, document: Document) -> bool:
        """Whether the outcome was taken. While the catalog is away, it is offered again."""
        outcome = outcome_of(document)
        for pause_s in self._pauses():
            if run.is_lost:
                break
            try:
                self._tasks.end(run.task.task_id, run.task.lease, state=state, outcome=outcome)
            except LeaseLost:
                break
            except CkptgovError as error:
                self._tell("outcome-kept", run.task, level=logging.WARNING, error=error)
                if self._stopping.wait(pause_s):
                    return False
                continue
            return True
        self._tell("outcome-dropped", run.task, text="another process has taken the task over")
        return False

    def _pauses(self) -> Iterator[float]:
        pause_s = self._poll_s
        while True:
            yield pause_s
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    def _give_back(self, run: Run) -> None:
        """End the lease now: any process may claim the task, and this one prolongs it no more."""
        task = run.task
        with run.lease, suppress(CkptgovError):  # else it ends by itself
            run.lose()
            self._tasks.give_back(task.task_id, task.lease)
            self._tell("task-given-back", task)

    def _tell(
        self,
        event: str,
        task: TaskFacts,
        *,
        text: str = "",
        level: int = logging.INFO,
        error: CkptgovError | None = None,
        seconds: float | None = None,
    ) -> None:
        logs.tell(
            event,
            text or task.task.key,
            level=level,
            error=error,
            task=task.task_id,
            run=task.task.for_run,
            node=task.task.node,
            seconds=seconds,
        )


def outcome_of(document: Document) -> bytes:
    """An outcome as its task keeps it; of one that is too large, the error and the counts."""
    outcome = json.dumps(document, separators=(",", ":")).encode("ascii")
    if len(outcome) <= MOST_OUTCOME_BYTES:
        return outcome
    counts = {name: len(value) for name, value in document.items() if isinstance(value, list)}
    kept = {name: document[name] for name in ("error",) if name in document}
    return json.dumps({**kept, "left_out": counts}, separators=(",", ":")).encode("ascii")
