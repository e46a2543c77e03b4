"""What nodes, or processes of the service, are asked to do: claimed under leases, ended once.

Tasks touch only their own rows, so those who claim do not wait for each other where the engine
has locks on rows: one that is being claimed is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    false,
    or_,
    select,
    update,
)
from sqlmodel import col

from ckptgov.catalog.cluster_tables import OPEN_TASKS, TaskRow
from ckptgov.catalog.database import Database, within
from ckptgov.catalog.dialect import add_new
from ckptgov.catalog.rows import decoded
from ckptgov.errors import LeaseLost, StaleState
from ckptgov.model.cluster import NewTask, TaskFacts, TaskKind, TaskState

MOST_ATTEMPTS = 5

_OPEN = (TaskState.QUEUED.value, TaskState.CLAIMED.value)
_TASK = select(TaskRow).where(col(TaskRow.task_id) == bindparam("task_id"))
_OPEN_OF_KEY = select(TaskRow).where(col(TaskRow.key) == bindparam("key"), OPEN_TASKS)
_RACES = 20  # how often another one of the same key may come and end while we look


class TaskBook:
    """Tasks. Every call is one transaction, or part of the caller's own."""

    def __init__(self, database: Database, by_row: Database, new_uuid: Callable[[], str]) -> None:
        self._database = database
        self._by_row = by_row
        self._new_uuid = new_uuid

    def add(self, task: NewTask) -> TaskFacts:
        """Queue a task, or give the open one of its key, now at least as urgent as this one."""
        for _ in range(_RACES):
            with self._current.write() as connection:
                new = self._values(task, self._database.now_ns(connection))
                key = ["key"]
                if add_new(connection, TaskRow, new, key=key, where=OPEN_TASKS):
                    return _known(connection, str(new["task_id"]))
                found = decoded(_task, connection.execute(_OPEN_OF_KEY, {"key": task.key}))
                if found:
                    return _at_least(connection, found[0], task.priority)
        raise StaleState(f"tasks of key {task.key!r} come and go too fast to be met")

    def claim(
        self,
        *,
        node: str | None,
        holder: str,
        kinds: Collection[TaskKind] | None,
        ttl_s: float,
        limit: int = 1,
    ) -> tuple[TaskFacts, ...]:
        """Take up to ``limit`` tasks of a node (None: of the service), of these kinds (None: any).

        Higher priority first, then older. Each is the holder's for ``ttl_s`` from now. One whose
        lease ended is taken like a queued one, until it was taken 5 times: then it has failed.
        """
        of_node = _of_node(node)
        wanted = [of_node, *_of_kinds(kinds)]
        if not self._is_anything(wanted):
            return ()
        with self._current.write() as connection:
            now_ns = self._database.now_ns(connection)
            _fail_exhausted(connection, of_node, now_ns)
            free = (
                select(col(TaskRow.task_id))
                .where(*wanted, _is_free(now_ns))
                .order_by(col(TaskRow.priority).desc(), col(TaskRow.number))
                .limit(limit)
                .with_for_update(skip_locked=True)
            )
            ids = connection.execute(free).scalars().all()
            ends_at_ns = now_ns + int(ttl_s * 1e9)
            return tuple(_take(connection, each, holder, ends_at_ns) for each in ids)

    def renew(self, task_id: str, lease: int, *, ttl_s: float) -> None:
        """Prolong a lease; one that ended is prolonged as well while nobody took it over.

        Raises:
            LeaseLost: the task was taken over or has ended, or there is none.
        """
        with self._current.write() as connection:
            ends_at_ns = self._database.now_ns(connection) + int(ttl_s * 1e9)
            _change(connection, task_id, lease, {"lease_ends_at_ns": ends_at_ns})

    def give_back(self, task_id: str, lease: int) -> None:
        """Let any process claim a task at once, as if this one never had.

        Raises:
            LeaseLost: the task was taken over or has ended, or there is none.
        """
        values = {
            "state": TaskState.QUEUED.value,
            "holder": "",
            "lease_ends_at_ns": 0,
            "attempts": col(TaskRow.attempts) - 1,
        }
        with self._current.write() as connection:
            _change(connection, task_id, lease, values)

    def end(self, task_id: str, lease: int, *, state: TaskState, outcome: bytes) -> TaskFacts:
        """Say what a task came to: DONE or FAILED.

        Raises:
            LeaseLost: the task was taken over or has ended, or there is none; nothing changed.
            ValueError: the state is no end.
        """
        if state.value in _OPEN:
            raise ValueError(f"a task does not end {state}")
        with self._current.write() as connection:
            ended_at_ns = self._database.now_ns(connection)
            values = {"state": state.value, "outcome": outcome, "ended_at_ns": ended_at_ns}
            _change(connection, task_id, lease, values)
            return _known(connection, task_id)

    def task(self, task_id: str) -> TaskFacts | None:
        """The task of this id."""
        with self._current.read() as connection:
            found = decoded(_task, connection.execute(_TASK, {"task_id": task_id}))
            return found[0] if found else None

    def tasks(
        self,
        *,
        for_run: str | None = None,
        node: str | None = None,
        states: Collection[TaskState] | None = None,
        teams: Collection[str] | None = None,
        limit: int = 1000,
    ) -> tuple[TaskFacts, ...]:
        """Up to ``limit`` tasks, newest first; of one run, one node, in these states.

        ``teams``: only those for a run of one of them.
        """
        query = select(TaskRow).order_by(col(TaskRow.number).desc()).limit(limit)
        if for_run is not None:
            query = query.where(col(TaskRow.for_run) == for_run)
        if node is not None:
            query = query.where(col(TaskRow.node) == node)
        if states is not None:
            query = query.where(col(TaskRow.state).in_([each.value for each in states]))
        if teams is not None:
            query = query.where(or_(false(), *(_of_team(team) for team in teams)))
        with self._current.read() as connection:
            return decoded(_task, connection.execute(query))

    def forget_ended(self, *, before_ns: int) -> int:
        """Drop tasks that ended before then; how many there were."""
        gone = (col(TaskRow.ended_at_ns) < before_ns,)
        with self._current.write() as connection:
            return connection.execute(delete(TaskRow).where(*gone)).rowcount

    @property
    def _current(self) -> Database:
        return within(self._database, self._by_row)

    def _is_anything(self, wanted: Sequence[ColumnElement[bool]]) -> bool:
        """So that whoever asks again and again takes no lock while there is nothing to do."""
        with self._current.read() as connection:
            free = _is_free(self._database.now_ns(connection))
            query = select(col(TaskRow.task_id)).where(*wanted, free).limit(1)
            return connection.execute(query).first() is not None

    def _values(self, task: NewTask, now_ns: int) -> dict[str, object]:
        return {
            "task_id": self._new_uuid(),
            "kind": task.kind.value,
            "key": task.key,
            "payload": task.payload,
            "node": task.node,
            "for_run": task.for_run,
            "priority": task.priority,
            "state": TaskState.QUEUED.value,
            "lease": 0,
            "holder": "",
            "lease_ends_at_ns": 0,
            "attempts": 0,
            "created_at_ns": now_ns,
            "ended_at_ns": None,
            "outcome": b"",
        }


def _of_node(node: str | None) -> ColumnElement[bool]:
    return col(TaskRow.node).is_(None) if node is None else col(TaskRow.node) == node


def _of_team(team: str) -> ColumnElement[bool]:
    """Runs are called ``team/name``; "0" is what comes behind the slash."""
    return and_(col(TaskRow.for_run) >= team + "/", col(TaskRow.for_run) < team + "0")


def _of_kinds(kinds: Collection[TaskKind] | None) -> list[ColumnElement[bool]]:
    return [] if kinds is None else [col(TaskRow.kind).in_([each.value for each in kinds])]


def _is_free(now_ns: int) -> ColumnElement[bool]:
    # Queued ones have a lease that ended at 0. In the index's own words, so that it is used.
    return and_(OPEN_TASKS, col(TaskRow.lease_ends_at_ns) <= now_ns)


def _fail_exhausted(connection: Connection, of_node: ColumnElement[bool], now_ns: int) -> None:
    tired = (of_node, _is_free(now_ns), col(TaskRow.attempts) >= MOST_ATTEMPTS)
    message = f"given up: it was taken {MOST_ATTEMPTS} times, and never came to an end"
    error = {"kind": LeaseLost.kind, "exit_code": LeaseLost.exit_code, "message": message}
    values = {
        "state": TaskState.FAILED.value,
        "ended_at_ns": now_ns,
        "outcome": json.dumps({"error": {**error, "hint": None}}).encode(),
    }
    connection.execute(update(TaskRow).where(*tired).values(values))


def _take(connection: Connection, task_id: str, holder: str, ends_at_ns: int) -> TaskFacts:
    this = update(TaskRow).where(col(TaskRow.task_id) == task_id)
    connection.execute(
        this.values(
            state=TaskState.CLAIMED.value,
            lease=col(TaskRow.lease) + 1,
            attempts=col(TaskRow.attempts) + 1,
            holder=holder,
            lease_ends_at_ns=ends_at_ns,
        )
    )
    return _known(connection, task_id)


def _change(connection: Connection, task_id: str, lease: int, values: dict[str, Any]) -> None:
    this = (
        col(TaskRow.task_id) == task_id,
        col(TaskRow.lease) == lease,
        col(TaskRow.state) == TaskState.CLAIMED.value,
    )
    if not connection.execute(update(TaskRow).where(*this).values(values)).rowcount:
        raise LeaseLost(f"task {task_id} was taken over, or has ended")


def _at_least(connection: Connection, known: TaskFacts, priority: int) -> TaskFacts:
    """An open task, raised to this priority where it has a lower one."""
    if known.task.priority >= priority:
        return known
    this = update(TaskRow).where(col(TaskRow.task_id) == known.task_id)
    connection.execute(this.values(priority=priority))
    return _known(connection, known.task_id)


def _known(connection: Connection, task_id: str) -> TaskFacts:
    (known,) = decoded(_task, connection.execute(_TASK, {"task_id": task_id}))
    return known


def _task(row: Any) -> TaskFacts:
    task = NewTask(
        kind=TaskKind(row.kind),
        key=row.key,
        payload=row.payload,
        node=row.node,
        for_run=row.for_run,
        priority=row.priority,
    )
    return TaskFacts(
        task_id=row.task_id,
        task=task,
        state=TaskState(row.state),
        lease=row.lease,
        holder=row.holder,
        lease_ends_at_ns=row.lease_ends_at_ns,
        attempts=row.attempts,
        created_at_ns=row.created_at_ns,
        ended_at_ns=row.ended_at_ns,
        outcome=row.outcome,
    )
