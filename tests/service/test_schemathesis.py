"""The API against its own description: requests drawn from it, well formed and not.

Whoever asks, and whatever: no server error, no status or form that is not described, and nothing
of another team. 503 and 507 are answers ("could not look", "no room") and described as such.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CheckContext
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ckptgov.model.access import Right
from ckptgov.model.clock import SystemClock
from ckptgov.ops.apply import apply
from ckptgov.ops.plan import plan
from ckptgov.service.app import ENDPOINTS, create_app
from ckptgov.service.openapi import description
from ckptgov.service.serving import Serving
from ckptgov.testing.served import Served, make_home, running, scanned

MINE, THEIRS = "blue/llm", "red/q7h3z9k1"
EXAMPLES = int(os.environ.get("CKPTGOV_TEST_EXAMPLES", "4"))
"""For each endpoint and caller; from 100 on every boundary of every member is tried as well."""
POLICY = """\
policy: {name}
runs: ["{run}"]
keep: {{lustre: {{last: 1}}}}
floors: {{min_restorable: 1, min_age: 0s}}
safety: {{max_fraction: 90%, adoption_grace: 0s}}
flush: []
"""
PLANS: dict[str | None, str] = {}
"""Of a run, of all: the id of the plan that is stored."""
MAY_NOT_COME = frozenset({500, 501, 502})

schema = schemathesis.openapi.from_dict(json.loads(description(ENDPOINTS)))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home: Path = make_home(tmp_path_factory.mktemp("drawn"), (MINE, THEIRS))
    (home / "policies").mkdir()
    for name, run in (("mine", MINE), ("theirs", THEIRS)):
        (home / "policies" / f"{name}.yaml").write_text(POLICY.format(name=name, run=run))
    with (
        Serving.open(str(home), clock=SystemClock(), here=frozenset()) as serving,
        running(create_app(serving)) as url,
    ):
        served = Served(serving, url)
        scanned(serving, MINE, THEIRS)
        served.post(f"/v1/runs/{THEIRS}/flush", {})
        served.post("/v1/nodes/n1/beat", {"boot": "b", "version": "1"})
        condemned(served)
        yield served


def condemned(served: Served) -> None:
    """Plans of each run and of both; what the one of the others lists is condemned."""
    with served.serving.context() as context:
        for run in (None, MINE, THEIRS):
            PLANS[run] = plan(context, run=run).plan.plan_id
        assert apply(context, PLANS[THEIRS]).error is None


def known(case) -> None:
    """Plans have ids that nobody draws by chance."""
    if "plan" in (case.path_parameters or {}):
        drawn = case.path_parameters["plan"]
        case.path_parameters["plan"] = list(PLANS.values())[len(drawn) % len(PLANS)]


def hurried(members: object) -> None:
    """Nobody waits here for as long as may be waited."""
    if isinstance(members, dict):
        with suppress(TypeError, ValueError):
            if 0 < float(members.get("wait", 0)) <= 60:
                members["wait"] = 0.01


@schemathesis.check
def no_server_error(ctx: CheckContext, response, case) -> None:
    assert response.status_code not in MAY_NOT_COME, response.text


def judged(served: Served, case, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    known(case)
    hurried(case.query)
    hurried(case.body)
    response = case.call(base_url=served.url, headers=headers)
    case.validate_response(
        response,
        checks=[
            no_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
    )
    return response


drawn = settings(
    max_examples=EXAMPLES,
    phases=(Phase.generate,) if EXAMPLES < 100 else tuple(Phase),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
half_drawn = settings(drawn, max_examples=max(1, EXAMPLES // 2))


@drawn
@schema.parametrize()
def test_an_admin_gets_what_is_described(case, served: Served) -> None:
    judged(served, case, served.admin)


@half_drawn
@schema.parametrize()
def test_without_a_token_nothing_is_told(case, served: Served) -> None:
    response = judged(served, case, "")
    if case.operation.path not in ("/healthz", "/readyz"):
        assert response.status_code in (400, 401, 404, 405), response.text
        assert "q7h3z9k1" not in response.text


@pytest.fixture(scope="module")
def token(served: Served) -> str:
    rights = [one for one in Right if one not in (Right.ADMIN, Right.AGENT)]
    return served.token(*rights, teams=("blue",))


@drawn
@schema.parametrize()
def test_a_team_learns_nothing_of_another(case, served: Served, token: str) -> None:
    response = judged(served, case, token)
    assert "q7h3z9k1" not in response.text
