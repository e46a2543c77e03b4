"""What a service does in its own time: begun, waited for, and its outcome read as an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptgov.client.transport import Transport, path_of
from ckptgov.errors import Interrupted
from ckptgov.model.cluster import TaskState
from ckptgov.model.verbs import never
from ckptgov.wire.decode_errors import error_of
from ckptgov.wire.members import Members

if TYPE_CHECKING:
    from ckptgov.wire.documents import Document

WAIT_S = 20.0
"""How long one question waits for a task to end; the next one follows."""
STOPPABLE_WAIT_S = 2.0
_OVER = frozenset({TaskState.DONE.value, TaskState.FAILED.value})


def begin_flush(
    transport: Transport, run: str, *, step: int | None = None, to: str | None = None
) -> Document:
    """Ask for a flush: the document of its task."""
    path = path_of("runs", run, "flush")
    return transport.send("POST", path, {"step": step, "to": to}, is_repeatable=True)


def begin_verify(transport: Transport, run: str, *, level: str) -> Document:
    """Ask for a verification: the document of its task."""
    path = path_of("runs", run, "verify")
    return transport.send("POST", path, {"level": level}, is_repeatable=True)


def begin_scan(transport: Transport, *, run: str | None = None) -> Document:
    """Ask for a scan of one run or of every tier that is scanned: the document of its task."""
    body = {"runs": None if run is None else [run]}
    return transport.send("POST", path_of("scan"), body, is_repeatable=True)


def begin_reconcile(
    transport: Transport,
    tiers: tuple[str, ...],
    *,
    older_than_s: float,
    staging_older_than_s: float | None = None,
) -> Document:
    """Ask for a reconciliation: the document of its task."""
    body = reconcile_body(tiers, older_than_s, staging_older_than_s)
    return transport.send("POST", path_of("reconcile"), body, is_repeatable=True)


def reconcile_body(
    tiers: tuple[str, ...], older_than_s: float, staging_older_than_s: float | None
) -> Document:
    """What is asked of a reconciliation."""
    body: Document = {"tiers": list(tiers), "older_than_s": older_than_s}
    if staging_older_than_s is not None:
        body |= {"staging": True, "staging_older_than_s": staging_older_than_s}
    return body


def begin_plan(transport: Transport, *, run: str | None) -> Document:
    """Ask for a plan of one run or of all: the document of its task."""
    return transport.send("POST", path_of("plans"), {"run": run}, is_repeatable=True)


def begin_apply(transport: Transport, plan_id: str | None, *, strict: bool) -> Document:
    """Ask for a plan to be carried out, or (None) for what was begun: the document of its task."""
    if plan_id is None:
        return transport.send("POST", path_of("removals", "apply"), {}, is_repeatable=True)
    path = path_of("plans", plan_id, "apply")
    return transport.send("POST", path, {"strict": strict}, is_repeatable=True)


def begin_undelete(transport: Transport, run: str, *, step: int | None) -> Document:
    """Ask for what is on its way out to be brought back: the document of its task."""
    path = path_of("runs", run, "undelete")
    return transport.send("POST", path, {"step": step}, is_repeatable=True)


def outcomes(
    transport: Transport,
    begun: Document,
    member: str,
    *,
    talk: Callable[[str], None],
    stop: Callable[[], bool] = never,
) -> tuple[Document, ...]:
    """Wait until what was begun has ended: the documents that its commands would have printed.

    One task is the service's own, the others are of nodes whose disks only their agents reach.
    ``member`` is what every answer of the kind has, whatever error it tells of as well.

    Raises:
        Interrupted: told to stop waiting; the tasks go on.
        CkptgovError: a task failed, and this is its error.
        Silent: the service went away; the tasks go on all the same.
    """
    asked = list(Members(begun).objects("tasks"))
    return tuple(_outcome(transport, one, member, talk=talk, stop=stop) for one in asked)


def _outcome(
    transport: Transport,
    task: Members,
    member: str,
    *,
    talk: Callable[[str], None],
    stop: Callable[[], bool],
) -> Document:
    wait_s = WAIT_S if stop is never else STOPPABLE_WAIT_S
    task_id = task.text("task_id")
    told = ""
    while (state := task.text("state")) not in _OVER:
        if state != told:
            talk(f"task {task_id}: {state}{_where(task)}")
            told = state
        if stop():
            raise Interrupted(
                f"no longer waiting for task {task_id}, which goes on in the service",
                hint=f"'ckptgov task show {task_id}' tells how it stands",
            )
        document = transport.get(path_of("tasks", task_id), {"wait": wait_s}, wait_s=wait_s)
        task = Members(document).member("task")
    ended = task.document("outcome")
    if member not in ended:
        raise error_of(ended)
    return ended


def _where(task: Members) -> str:
    holder, node = task.text("holder"), task.maybe(task.text, "node")
    return f" by {holder}" if holder else f" for node {node}" if node else ""
