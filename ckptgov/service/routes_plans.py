"""Plans: made, listed, approved, carried out, undone. What removes anything is a task."""

from __future__ import annotations

from collections.abc import Iterator

from ckptgov.errors import Ambiguous, NotAllowed, UsageError
from ckptgov.model.access import Right, team_of
from ckptgov.model.cluster import NewTask, TaskKind
from ckptgov.model.retention import StoredPlan
from ckptgov.ops import stored_plans
from ckptgov.ops.apply import apply as apply_
from ckptgov.ops.plan import plan as plan_
from ckptgov.ops.undelete import undelete as undelete_
from ckptgov.service import schemas
from ckptgov.service.calls import (
    AnyEndpoint,
    B,
    Call,
    Cost,
    NoSuch,
    Q,
    Reply,
    accepted,
    ask,
    document,
    tell,
)
from ckptgov.service.payloads import ApplyPayload, PlanPayload, UndeletePayload, encoded
from ckptgov.service.refusals import status_of_answer
from ckptgov.service.routes_work import ASKED
from ckptgov.service.team_sight import runs_of, sees_plan, told_to
from ckptgov.wire import plans as documents
from ckptgov.wire import removal, requests
from ckptgov.wire import requests_keeping as keeping
from ckptgov.wire.documents import Document

_MOST_PLANS = 1000


class NoSuchPlan(NoSuch):
    """No stored plan begins so, or it is of another team's runs."""

    kind = "no-such-plan"


def make(call: Call[requests.Query, keeping.MakePlan]) -> Reply:
    """Decide what may go; what is not only looked at is made, and stored, by a task."""
    told = call.body
    run = None if told.run is None else call.known(told.run).identity.name
    if run is None and call.caller.teams:
        raise UsageError("this token plans for runs of its teams: name one")
    if _is_looked_at(told):
        return _looked_at(call, run)
    payload = encoded(PlanPayload(run=run, asked_by=_who(call)))
    key = "plan:all" if run is None else f"plan:run:{run}"
    return _begun(call, TaskKind.PLAN, key, payload, for_run=run)


def _is_looked_at(told: keeping.MakePlan) -> bool:
    return told.dry_run or told.policy is not None


def _looked_at(call: Call[requests.Query, keeping.MakePlan], run: str | None) -> Reply:
    told = call.body
    with call.context() as context:
        made = plan_(context, run=run, policy_text=told.policy, dry_run=told.dry_run)
    return planned(made, dry_run=told.dry_run)


def planned(made: StoredPlan, *, dry_run: bool) -> Reply:
    """A plan as it was made, and what keeps it from being carried out."""
    shown = documents.plan(made, error=documents.error_of_plan(made), dry_run=dry_run)
    return document(shown, status_of_answer(shown))


def _who(call: Call[Q, B]) -> str:
    """As the caller's own records are stamped."""
    with call.context() as context:
        return context.author.by


def _begun(
    call: Call[requests.Query, B], kind: TaskKind, key: str, payload: bytes, *, for_run: str | None
) -> Reply:
    new = NewTask(kind=kind, key=key, payload=payload, for_run=for_run, priority=ASKED)
    return accepted([call.serving.catalog.tasks.add(new)])


def plans(call: Call[keeping.PlansQuery, requests.Body]) -> Reply:
    """Stored plans, newest first; without entries of those that are over."""
    asked, teams = call.query, call.caller.teams
    found = call.serving.catalog.plans.plans(
        states=None if asked.state is None else (asked.state,),
        limit=_MOST_PLANS if teams else asked.limit,
    )
    if not teams:
        return document(documents.plans(found))
    every = _sees_every_run(call)
    mine: list[StoredPlan] = []
    for one in found:
        if len(mine) == asked.limit:
            break
        if every or (one.plan.runs <= 1 and _sees(call, _whole(call, one), sees_every_run=False)):
            mine.append(one)
    return document(documents.plans(mine))


def _whole(call: Call[Q, B], one: StoredPlan) -> StoredPlan:
    """The plan with its entries, which say what it is about."""
    return call.serving.catalog.plans.plan(one.plan.plan_id) or one


def _sees_every_run(call: Call[Q, B]) -> bool:
    return all(call.caller.sees(one.identity.name) for one in call.serving.catalog.runs())


def _sees(call: Call[Q, B], one: StoredPlan, *, sees_every_run: bool) -> bool:
    return sees_plan(call.caller, one, sees_every_run=sees_every_run)


def stored(call: Call[Q, B]) -> StoredPlan:
    """The plan whose id begins as the path says, whole.

    Raises:
        NoSuchPlan: none does that exists for the caller. Ambiguous: several do.
    """
    asked = call.path["plan"]
    found = _beginning(call, asked)
    first, second = next(found, None), next(found, None)
    if first is None:
        raise NoSuchPlan(
            f"no plan {asked!r} is stored", hint="'ckptgov plans' lists those there are"
        )
    if second is not None:
        raise Ambiguous(f"several plans begin with {asked!r}", hint="write more of its id")
    return first


def _beginning(call: Call[Q, B], asked: str) -> Iterator[StoredPlan]:
    book, wanted = call.serving.catalog.plans, asked.removeprefix("sha256:")
    every = not call.caller.teams or _sees_every_run(call)
    for plan_id in book.find(f"sha256:{wanted}") if wanted else ():
        one = book.plan(plan_id)
        if one is not None and _sees(call, one, sees_every_run=every):
            yield one


def plan(call: Call[requests.Query, requests.Body]) -> Reply:
    """One plan with everything that goes and why."""
    return document(documents.plan(stored(call)))


def approve(call: Call[requests.Query, keeping.ApprovePlan]) -> Reply:
    """Let a plan that goes beyond a cap be applied."""
    told, plan_id = call.body, stored(call).plan.plan_id
    with call.context() as context:
        approved = stored_plans.approve(context, plan_id, reason=told.reason, dry_run=told.dry_run)
    return document(documents.plan(approved, dry_run=told.dry_run))


def apply(call: Call[requests.Query, keeping.ApplyPlan]) -> Reply:
    """Carry a plan out."""
    told, found = call.body, stored(call)
    plan_id = found.plan.plan_id
    if told.dry_run:
        return _applied(call, plan_id, strict=told.strict)
    payload = encoded(ApplyPayload(plan=plan_id, strict=told.strict, asked_by=_who(call)))
    key = f"apply:{plan_id}" + (":strict" if told.strict else "")
    return _begun(call, TaskKind.APPLY, key, payload, for_run=_run_for(call, found))


def _run_for(call: Call[requests.Query, B], found: StoredPlan) -> str | None:
    """The run whose team may follow the task; None: only who is bound to no team.

    Raises:
        NotAllowed: a token of several teams, and no one team may be told all of it.
    """
    named = runs_of(found)
    if len(named) == 1:
        return min(named)
    if not call.caller.teams:
        return None
    if len({team_of(one) for one in named}) != 1:
        raise NotAllowed(
            "this plan is about runs of several teams, or of all",
            hint="ask whoever has a token that is bound to none",
        )
    return min(named)


def go_on(call: Call[requests.Query, keeping.GoOn]) -> Reply:
    """Go on with what earlier plans condemned."""
    if call.body.dry_run:
        return _applied(call, None, strict=False)
    payload = encoded(ApplyPayload(asked_by=_who(call)))
    return _begun(call, TaskKind.APPLY, "apply:going-on", payload, for_run=None)


def _applied(call: Call[requests.Query, B], plan_id: str | None, *, strict: bool) -> Reply:
    with call.context() as context:
        answer = apply_(context, plan_id, strict=strict, dry_run=True)
    return _told(call, removal.applied(answer))


def _told(call: Call[requests.Query, B], shown: Document) -> Reply:
    """An answer about copies, as far as they exist for the caller."""
    told = told_to(call.caller, shown)
    return document(told, status_of_answer(told))


def undelete(call: Call[requests.Query, keeping.BringBack]) -> Reply:
    """Bring back what is condemned or in the trash."""
    told, run = call.body, call.run().identity.name
    if told.dry_run:
        with call.context() as context:
            answer = undelete_(context, run, step=told.step, dry_run=True)
        return _told(call, removal.undeleted(answer))
    payload = encoded(UndeletePayload(run=run, step=told.step, asked_by=_who(call)))
    key = f"undelete:{run}:{'' if told.step is None else told.step}"
    return _begun(call, TaskKind.UNDELETE, key, payload, for_run=run)


def _when_dry(told: keeping.ApplyPlan | keeping.GoOn | keeping.BringBack) -> Cost:
    return Cost.STORAGE if told.dry_run else Cost.CATALOG


ENDPOINTS: tuple[AnyEndpoint, ...] = (
    tell(
        "/v1/plans",
        "Decide what may go, of one run or of all. Looked at only, the answer is the plan.",
        make,
        body=keeping.MakePlan,
        rights=(Right.PLAN,),
        answers={200: schemas.PLAN, 202: schemas.ONE_TASK},
        errors=(409,),
        cost_of=lambda told: Cost.STORAGE if _is_looked_at(told) else Cost.CATALOG,
    ),
    ask(
        "/v1/plans",
        "Stored plans, newest first; without entries of those that are over.",
        plans,
        query=keeping.PlansQuery,
        answers={200: schemas.PLANS},
    ),
    ask(
        "/v1/plans/{plan}",
        "One plan, by its id or a beginning that no other has, with all that goes and why.",
        plan,
        query=requests.Query,
        answers={200: schemas.PLAN},
        errors=(404, 409),
    ),
    tell(
        "/v1/plans/{plan}/approve",
        "Let a plan that goes beyond a cap be applied; who and why is kept with it.",
        approve,
        body=keeping.ApprovePlan,
        rights=(Right.APPLY,),
        answers={200: schemas.PLAN},
        errors=(404, 409),
    ),
    tell(
        "/v1/plans/{plan}/apply",
        "Carry a plan out: condemn what it lists, and go on with what is due.",
        apply,
        body=keeping.ApplyPlan,
        rights=(Right.APPLY,),
        answers={200: schemas.APPLIED, 202: schemas.ONE_TASK},
        errors=(404, 409),
        cost_of=_when_dry,
    ),
    tell(
        "/v1/removals/apply",
        "Go on with what earlier plans condemned.",
        go_on,
        body=keeping.GoOn,
        rights=(Right.APPLY,),
        answers={200: schemas.APPLIED, 202: schemas.ONE_TASK},
        errors=(409,),
        cost_of=_when_dry,
        for_every_team=True,
    ),
    tell(
        "/v1/runs/{run:run}/undelete",
        "Bring back what is condemned or in the trash, of a run or of one step of it.",
        undelete,
        body=keeping.BringBack,
        rights=(Right.APPLY,),
        answers={200: schemas.UNDELETED, 202: schemas.ONE_TASK},
        errors=(409,),
        cost_of=_when_dry,
    ),
)
