"""Policies: those in force, what they do to a run, and what is wrong with one."""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec.structs import replace

from ckptgov.config.policies import policy_for
from ckptgov.errors import ConfigError
from ckptgov.model.access import Right
from ckptgov.model.policy import Policy
from ckptgov.ops import policies as in_force
from ckptgov.ops.context import Context
from ckptgov.ops.plan import verdict as verdict_
from ckptgov.service import schemas
from ckptgov.service.access import require_every_team
from ckptgov.service.calls import AnyEndpoint, Call, Cost, Q, Reply, ask, document, tell, unknown
from ckptgov.service.refusals import status_of_answer
from ckptgov.wire import plans as plan_documents
from ckptgov.wire import policies as documents
from ckptgov.wire import requests
from ckptgov.wire import requests_keeping as keeping
from ckptgov.wire.documents import Document


def policies(call: Call[requests.Query, requests.Body]) -> Reply:
    """Every policy in force."""
    with call.context() as context:
        found = in_force.policies_in_force(context)
        told = found if not call.caller.teams else _of_teams(call, context, found)
    return document(documents.policies(told))


def _of_teams(
    call: Call[requests.Query, requests.Body], context: Context, found: tuple[Policy, ...]
) -> list[Policy]:
    """The policies of runs that the caller sees, without what they say of other teams."""
    runs: dict[str, list[str]] = {}
    for name in sorted(call.names().values()):
        policy = policy_for(found, name, in_force.tags_of(context.settings, name))
        if policy is not None:
            runs.setdefault(policy.name, []).append(name)
    return [_for_teams(one, runs[one.name], call.caller.teams) for one in found if one.name in runs]


def _for_teams(one: Policy, runs: list[str], teams: tuple[str, ...]) -> Policy:
    patterns = tuple(
        pattern for pattern in one.selector.runs if any(fnmatchcase(run, pattern) for run in runs)
    )
    own = tuple(team for team in one.selector.teams if team in teams)
    return replace(one, selector=replace(one.selector, runs=patterns, teams=own))


def policy_of_run(call: Call[requests.Query, requests.Body]) -> Reply:
    """The policy that a run is under, if any."""
    run = call.path["run"]
    if not call.caller.sees(run):
        raise unknown(run)
    with call.context() as context:
        found = in_force.policy_for_name(context, run)
    if found is not None and call.caller.teams:
        found = _for_teams(found, [run], call.caller.teams)
    return document(documents.policy_of_run(run, found))


def check(call: Call[requests.Query, keeping.CheckPolicy]) -> Reply:
    """What is wrong with a policy, or with those in force."""
    told = call.body
    with call.context() as context:
        if told.text is None:
            require_every_team(call.caller)
            shown = documents.check(in_force.check_policies(context))
        else:
            shown = _checked(context, told.text, told.file)
    return document(shown, status_of_answer(shown))


def _checked(context: Context, text: str, file: str) -> Document:
    try:
        return documents.checked([in_force.policy_from(context, text, file=file)], (), None)
    except ConfigError as error:
        return documents.checked((), [error], documents.mistakes([error]))


def verdict(call: Call[requests.Query, requests.Body]) -> Reply:
    """What becomes of every checkpoint of a run, and why."""
    return _verdict(call, None)


def verdict_by(call: Call[requests.Query, keeping.JudgeBy]) -> Reply:
    """The same by a policy that somebody brings along."""
    return _verdict(call, call.body.policy)


def _verdict(call: Call[Q, keeping.JudgeBy] | Call[Q, requests.Body], text: str | None) -> Reply:
    run = call.run().identity.name
    with call.context() as context:
        return document(plan_documents.verdict(verdict_(context, run, policy_text=text)))


ENDPOINTS: tuple[AnyEndpoint, ...] = (
    ask(
        "/v1/policies",
        "The policies in force, each with everything that holds by default.",
        policies,
        query=requests.Query,
        answers={200: schemas.POLICIES},
    ),
    tell(
        "/v1/policies/check",
        "What is wrong with the text of a policy, with the line; without one, with those in force.",
        check,
        body=keeping.CheckPolicy,
        rights=(Right.READ,),
        answers={200: schemas.CHECKED_POLICIES},
    ),
    ask(
        "/v1/runs/{run:run}/policy",
        "The policy that a run is under; null: none, and nothing of it is pruned.",
        policy_of_run,
        query=requests.Query,
        answers={200: schemas.POLICY_OF_RUN},
    ),
    ask(
        "/v1/runs/{run:run}/verdict",
        "What becomes of every checkpoint of a run at every tier, with every reason.",
        verdict,
        query=requests.Query,
        answers={200: schemas.VERDICT},
        errors=(409,),
        cost=Cost.STORAGE,
    ),
    tell(
        "/v1/runs/{run:run}/verdict",
        "The same, judged by the text of a policy file, in force or not.",
        verdict_by,
        body=keeping.JudgeBy,
        rights=(Right.READ,),
        answers={200: schemas.VERDICT},
        errors=(409,),
        cost=Cost.STORAGE,
    ),
)
