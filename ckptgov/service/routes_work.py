"""Work that is asked for and done later: by the service's workers, or by the agent of a node."""

from __future__ import annotations

import msgspec

from ckptgov.catalog.facts import RunFacts
from ckptgov.errors import NotAllowed, UsageError
from ckptgov.model.access import Right
from ckptgov.model.cluster import NewTask, TaskFacts, TaskKind, TaskState
from ckptgov.ops.context import Context
from ckptgov.service import routes_dry, schemas
from ckptgov.service.calls import (
    AnyEndpoint,
    B,
    Call,
    NoSuch,
    Q,
    Reply,
    accepted,
    ask,
    document,
    tell,
)
from ckptgov.service.node_outcomes import end_task
from ckptgov.service.node_removals import brought_up_to_date
from ckptgov.service.payloads import (
    FlushPayload,
    ReconcilePayload,
    ScanPayload,
    VerifyPayload,
    encoded,
)
from ckptgov.service.reach import nodes_of
from ckptgov.service.team_sight import told_to
from ckptgov.wire import cluster as documents
from ckptgov.wire import requests
from ckptgov.wire.documents import Document
from ckptgov.wire.strict import MAX_MESSAGE_BYTES

ASKED = 50
"""Priority of what somebody asked for: before what the schedule asks for."""
_ABOUT_COPIES = frozenset({TaskKind.APPLY, TaskKind.UNDELETE})
_DEEPEST = 50
_MOST_TASKS = 1000


class NoSuchTask(NoSuch):
    """No task has this id, or it is another team's."""

    kind = "no-such-task"


def flush(call: Call[requests.Query, requests.AskFlush]) -> Reply:
    """Copy a run's checkpoints to more durable tiers."""
    run, told = call.run(), call.body
    if told.dry_run:
        return routes_dry.flush(call, run)
    name = run.identity.name
    payload = encoded(FlushPayload(run=name, step=told.step, to=told.to))
    with call.context() as context:
        if told.to is not None and told.to not in {one.name for one in context.settings.tiers}:
            raise UsageError(f"no tier {told.to!r} is configured")
        key = ":".join(("flush", name, str(told.step or ""), told.to or ""))
        return _asked(call, context, TaskKind.FLUSH, key, payload, run)


def verify(call: Call[requests.Query, requests.AskVerify]) -> Reply:
    """Compare a run's checkpoints again."""
    run, level = call.run(), call.body.level
    if call.body.dry_run:
        return routes_dry.verify(call, run)
    payload = encoded(VerifyPayload(run=run.identity.name, level=level))
    with call.context() as context:
        key = f"verify:{run.identity.name}:{level.value}"
        return _asked(call, context, TaskKind.VERIFY, key, payload, run)


def _asked(
    call: Call[requests.Query, B],
    context: Context,
    kind: TaskKind,
    key: str,
    payload: bytes,
    run: RunFacts,
) -> Reply:
    """One task for the service, and one for each node whose disk only its agent reaches."""
    asked = [
        context.catalog.tasks.add(
            NewTask(
                kind=kind,
                key=key if node is None else f"{key}:node:{node}",
                payload=payload,
                node=node,
                for_run=run.identity.name,
                priority=ASKED,
            )
        )
        for node in nodes_of(context, run)
    ]
    return accepted(asked)


def scan(call: Call[requests.Query, requests.AskScan]) -> Reply:
    """Discover and seal."""
    told = call.body
    runs = None if told.runs is None else tuple(sorted(set(told.runs)))
    tiers = None if told.tiers is None else tuple(sorted(set(told.tiers)))
    if runs is not None and tiers is not None:
        raise UsageError("name runs or tiers to scan, not both")
    if runs is None and call.caller.teams:
        raise UsageError("this token scans runs of its teams: name them")
    known = [call.known(name) for name in runs or ()]
    with call.context() as context:
        unknown = set(tiers or ()) - {one.name for one in context.settings.tiers}
        if unknown:
            raise UsageError(f"no tier {min(unknown)!r} is configured")
        catalog = context.catalog
        if told.dry_run:
            return routes_dry.scan(call, known, tiers)
        if known:
            return accepted([one for run in known for one in scans_of(context, run)])
        payload = encoded(ScanPayload(tiers=tiers))
        key = "scan:" + ("all" if tiers is None else ",".join(tiers)) + ":asked"
        new = NewTask(kind=TaskKind.SCAN, key=key, payload=payload, priority=ASKED)
        return accepted([catalog.tasks.add(new)])


def scans_of(context: Context, run: RunFacts, *, priority: int = ASKED) -> list[TaskFacts]:
    """Scans of one run, asked for by somebody."""
    name = run.identity.name
    payload = encoded(ScanPayload(runs=(name,)))
    return [
        context.catalog.tasks.add(
            NewTask(
                kind=TaskKind.SCAN,
                key=f"scan:run:{name}" + ("" if node is None else f":node:{node}"),
                payload=payload,
                node=node,
                for_run=name,
                priority=priority,
            )
        )
        for node in nodes_of(context, run)
    ]


def reconcile(call: Call[requests.Query, requests.AskReconcile]) -> Reply:
    """Bring tiers and catalog together, and clear what dead movers left behind."""
    told = call.body
    tiers = tuple(sorted(set(told.tiers)))
    with call.context() as context:
        unknown = set(tiers) - {one.name for one in context.settings.tiers}
        if unknown:
            raise UsageError(f"no tier {min(unknown)!r} is configured")
        if told.dry_run:
            return routes_dry.reconcile(call, tiers)
        staging_s = told.staging_older_than_s if told.staging else None
        payload = encoded(
            ReconcilePayload(
                tiers=tiers, older_than_s=told.older_than_s, staging_older_than_s=staging_s
            )
        )
        key = f"reconcile:{','.join(tiers) or 'all'}:{told.older_than_s:g}"
        if staging_s is not None:
            key += f":staging:{staging_s:g}"
        new = NewTask(kind=TaskKind.RECONCILE, key=key, payload=payload, priority=ASKED)
        return accepted([context.catalog.tasks.add(new)])


def task(call: Call[requests.TaskQuery, requests.Body]) -> Reply:
    """One task, with its outcome once it has ended."""
    found = _task(call, call.path["task"])
    if not call.caller.may(Right.READ):  # an agent asks of what its own node does
        call.caller.require_node(found.task.node or "")
    is_open = found.state in (TaskState.QUEUED, TaskState.CLAIMED)
    return document({"task": _shown(call, found)}, is_pending=is_open)


def _shown(call: Call[Q, B], found: TaskFacts) -> Document:
    """A task; of what became of copies, those of runs that exist for the caller."""
    told = documents.task(found)
    if found.task.kind in _ABOUT_COPIES and told["outcome"] is not None:
        told["outcome"] = told_to(call.caller, told["outcome"])
    return told


def _task(call: Call[Q, B], task_id: str) -> TaskFacts:
    found = call.serving.catalog.tasks.task(task_id)
    if found is None or not _is_visible(call, found):
        raise NoSuchTask(f"there is no task {task_id!r}")
    return found


def _is_visible(call: Call[Q, B], found: TaskFacts) -> bool:
    run = found.task.for_run
    return call.caller.sees(run) if run is not None else not call.caller.teams


def tasks(call: Call[requests.TasksQuery, requests.Body]) -> Reply:
    """Tasks that are open or ended lately."""
    asked = call.query
    if asked.run is not None:
        call.known(asked.run)
    found = call.serving.catalog.tasks.tasks(
        for_run=asked.run,
        node=asked.node,
        states=None if asked.state is None else (asked.state,),
        teams=call.caller.teams or None,
        limit=_MOST_TASKS,
    )
    return document({"tasks": [_shown(call, one) for one in found if _is_visible(call, one)]})


def claim(call: Call[requests.Query, requests.Claim]) -> Reply:
    """Take tasks of a node for its agent."""
    node, told = call.path["node"], call.body
    call.caller.require_node(node)
    found = call.serving.catalog.tasks.claim(
        node=node, holder=told.holder, kinds=told.kinds, ttl_s=told.ttl_s, limit=told.limit
    )
    given = [brought_up_to_date(call.serving.catalog, one) for one in found]
    carried = [
        {**documents.task(one), "payload": msgspec.Raw(one.task.payload or b"{}")} for one in given
    ]
    return document({"tasks": carried}, is_pending=not found)


def renew(call: Call[requests.Query, requests.RenewTask]) -> Reply:
    """Go on with a claimed task, or give it back."""
    found, told, book = _own_task(call), call.body, call.serving.catalog.tasks
    if told.ttl_s == 0:
        book.give_back(found.task_id, told.lease)
    else:
        book.renew(found.task_id, told.lease, ttl_s=told.ttl_s)
    return document({"task": documents.task(_own_task(call))})


def end(call: Call[requests.Query, requests.EndTask]) -> Reply:
    """Say how a claimed task ended."""
    found, told = _own_task(call), call.body
    check_depth(msgspec.json.decode(told.outcome))
    state, outcome = TaskState(told.state), bytes(told.outcome)
    with call.context() as context:
        ended = end_task(context, found, told.lease, state=state, outcome=outcome)
    return document({"task": documents.task(ended)})


def check_depth(value: object, deepest: int = _DEEPEST) -> None:
    """Raises UsageError for what is nested deeper than any document of ours."""
    if deepest == 0:
        raise UsageError("the outcome: nested too deeply")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            check_depth(each, deepest - 1)


def _own_task(call: Call[requests.Query, B]) -> TaskFacts:
    """A task of the node that the token speaks for; the service's own are no agent's."""
    found = _task(call, call.path["task"])
    if found.task.node is None:
        raise NotAllowed(f"task {found.task_id} is the service's own, not a node's")
    call.caller.require_node(found.task.node)
    return found


def _watched_node(call: Call[requests.Query, requests.Claim]) -> object:
    open_ = call.serving.catalog.tasks.tasks(
        node=call.path["node"], states=(TaskState.QUEUED,), limit=1
    )
    return open_[0].task_id if open_ else None


_OF_AGENTS = (Right.AGENT,)

ENDPOINTS: tuple[AnyEndpoint, ...] = (
    tell(
        "/v1/runs/{run:run}/flush",
        "Copy a run's checkpoints to more durable tiers.",
        flush,
        body=requests.AskFlush,
        rights=(Right.PLAN,),
        answers={200: schemas.FLUSHED, 202: schemas.ONE_TASK},
        errors=(409,),
        cost_of=routes_dry.cost_of,
    ),
    tell(
        "/v1/runs/{run:run}/verify",
        "Compare a run's checkpoints with their manifests again.",
        verify,
        body=requests.AskVerify,
        rights=(Right.PLAN,),
        answers={200: schemas.VERIFIED, 202: schemas.ONE_TASK},
        errors=(409,),
        cost_of=routes_dry.cost_of,
    ),
    tell(
        "/v1/scan",
        "Discover checkpoints and seal those that are whole.",
        scan,
        body=requests.AskScan,
        rights=(Right.PLAN,),
        answers={200: schemas.SCANNED, 202: schemas.ONE_TASK},
        errors=(409,),
        cost_of=routes_dry.cost_of,
    ),
    tell(
        "/v1/reconcile",
        "Bring tiers and catalog together, and clear what dead movers left behind.",
        reconcile,
        body=requests.AskReconcile,
        rights=(Right.APPLY,),
        answers={200: schemas.RECONCILED, 202: schemas.ONE_TASK},
        errors=(409,),
        cost_of=routes_dry.cost_of,
        for_every_team=True,
    ),
    ask(
        "/v1/tasks",
        "Tasks that are open or ended lately.",
        tasks,
        query=requests.TasksQuery,
        answers={200: schemas.TASKS},
    ),
    ask(
        "/v1/tasks/{task}",
        "One task, with its outcome once it has ended; waits for that with `wait`.",
        task,
        query=requests.TaskQuery,
        answers={200: schemas.ONE_TASK},
        errors=(404,),
        rights=(Right.READ, Right.AGENT),
        wait_s=lambda query, _body: query.wait,
        watched=lambda call: _task(call, call.path["task"]).state,
    ),
    tell(
        "/v1/tasks/{task}/renew",
        "Go on with a claimed task; with no time left it is given back, as if never taken.",
        renew,
        body=requests.RenewTask,
        rights=_OF_AGENTS,
        answers={200: schemas.ONE_TASK},
        errors=(404, 409),
        for_every_team=True,
    ),
    tell(
        "/v1/tasks/{task}/end",
        "Say how a claimed task ended; accepted under its newest lease only.",
        end,
        body=requests.EndTask,
        rights=_OF_AGENTS,
        answers={200: schemas.ONE_TASK},
        errors=(404, 409),
        for_every_team=True,
        most_body_bytes=MAX_MESSAGE_BYTES,
    ),
    tell(
        "/v1/nodes/{node}/claim",
        "Take tasks of a node, for its agent; waits for one with `wait`.",
        claim,
        body=requests.Claim,
        rights=_OF_AGENTS,
        answers={200: schemas.TASKS},
        for_every_team=True,
        wait_s=lambda _query, body: body.wait,
        watched=_watched_node,
    ),
)
