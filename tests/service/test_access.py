"""Who may ask what: rights, teams, nodes, and tokens that end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from ckptgov.errors import UsageError
from ckptgov.model.access import Right
from ckptgov.service.access import bootstrap, check_listen, hash_of
from ckptgov.service.api import plain_path
from ckptgov.service.app import ENDPOINTS
from ckptgov.service.calls import AnyEndpoint
from ckptgov.testing.served import Asked, Served

LATEST = "/v1/runs/red/llm/latest"


def path_to(endpoint: AnyEndpoint, *, run: str = "red/llm") -> str:
    filled = plain_path(endpoint).replace("{run}", run)
    for name in ("task", "tier", "node", "token"):
        filled = filled.replace(f"{{{name}}}", "n1")
    return filled


def asked(served: Served, endpoint: AnyEndpoint, path: str, token: str) -> Asked:
    body = {} if endpoint.has_body else None
    return served.ask(endpoint.method, path, body, token=token)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer nothing"},
        {"Authorization": "Bearer ckptgov_" + "0" * 16 + "_" + "A" * 43},
        {"Authorization": "Basic Y2twdGdvdjp4"},
        {"Authorization": "Bearer \xff\xfe"},
        {"Authorization": "Bearer ckptgov_" + "0" * 16 + "_" + "A" * 5000},
    ],
)
def test_without_a_token_in_force_nothing_is_told(quiet: Served, headers: dict[str, str]) -> None:
    for path in (LATEST, "/v1/runs/no/such/latest"):
        told = quiet.get(path, token="", headers=headers)
        assert (told.status, told.kind) == (401, "unauthorized")
        assert told.headers["www-authenticate"] == "Bearer"


def test_every_endpoint_asks_for_a_token(quiet: Served) -> None:
    open_ones = {"/healthz", "/readyz"}
    for endpoint in ENDPOINTS:
        path = path_to(endpoint)
        status = asked(quiet, endpoint, path, "").status
        assert (status != 401) == (path in open_ones), (endpoint.method, path)


def test_every_endpoint_refuses_a_token_without_its_right(quiet: Served) -> None:
    tokens = {right: quiet.token(right) for right in Right if right is not Right.ADMIN}
    for endpoint in ENDPOINTS:
        if not endpoint.rights:
            continue
        path = path_to(endpoint)
        for right, token in tokens.items():
            told = asked(quiet, endpoint, path, token)
            is_refused = told.status == 403 and b"this token may not" in told.body
            assert is_refused == (right not in endpoint.rights), (endpoint.method, path, right)


def test_a_token_to_read_cannot_commit(quiet: Served) -> None:
    token = quiet.token(Right.READ)
    assert quiet.get(LATEST, token=token).status == 200
    said = {"tier": "lustre", "path": "red/llm/step_20"}
    for verb, body in (
        ("commit", said),
        ("mark-bad", {"step": 20, "reason": "x"}),
        ("rollback", {"to_step": 10}),
        ("restarts", {"restart_id": "j"}),
        ("outcomes", {"restart_id": "j", "outcome": "missing"}),
        ("leases", {"name": "x", "step": 10, "ttl_s": 5}),
        ("flush", {}),
    ):
        told = quiet.post(f"/v1/runs/red/llm/{verb}", body, token=token)
        assert (told.status, told.kind) == (403, "not-allowed")
    assert quiet.get(LATEST).document["step"] == 20


def test_a_revoked_token_fails_with_the_next_request(served: Served) -> None:
    made = served.post("/v1/tokens", {"label": "x", "rights": ["read"]}).document
    for _ in range(5):
        assert served.get(LATEST, token=made["secret"]).status == 200
    assert served.ask("DELETE", f"/v1/tokens/{made['token']['token_id']}").status == 200
    for path in (LATEST, "/v1/runs"):
        assert served.get(path, token=made["secret"]).status == 401


def test_a_token_that_waits_is_out_when_it_is_revoked(served: Served) -> None:
    said = {"label": "x", "rights": ["read", "restore"]}
    made = served.post("/v1/tokens", said).document
    served.post("/v1/runs/red/llm/mark-bad", {"from_step": 0, "reason": "x"})
    heard: list[Asked] = []
    waiting = threading.Thread(
        target=lambda: heard.append(served.get(f"{LATEST}?wait=30", token=made["secret"]))
    )
    waiting.start()
    served.wait_until(lambda: len(served.get("/v1/tasks").document["tasks"]) > 0 or heard != [])
    served.ask("DELETE", f"/v1/tokens/{made['token']['token_id']}")
    waiting.join(20)
    assert heard[0].status == 401


def test_a_token_ends_by_itself(served: Served) -> None:
    token = served.token(Right.READ, ttl_s=1e-9)
    assert served.get(LATEST, token=token).status == 401
    assert served.get(LATEST, token=served.token(Right.READ, ttl_s=3600)).status == 200


def test_another_teams_run_answers_as_an_unknown_one(served: Served) -> None:
    """Byte for byte, whatever is asked of it: only the name in the words differs."""
    rights = [right for right in Right if right is not Right.ADMIN]
    token = served.token(*[one for one in rights if one is not Right.AGENT], teams=("blue",))
    assert served.get("/v1/runs/blue/llm/latest", token=token).status == 200
    bodies = {
        "/v1/runs/{run}/restarts": {"restart_id": "j"},
        "/v1/runs/{run}/outcomes": {"restart_id": "j", "outcome": "started"},
        "/v1/runs/{run}/mark-bad": {"step": 20, "reason": "x"},
        "/v1/runs/{run}/rollback": {"to_step": 10},
        "/v1/runs/{run}/leases": {"name": "x", "step": 10, "ttl_s": 5},
        "/v1/runs/{run}/commit": {"tier": "lustre", "path": "red/llm/step_20"},
        "/v1/runs/{run}/pins": {"step": 20, "name": "gold", "reason": "x"},
        "/v1/runs/{run}/metrics": {"step": 20, "name": "loss", "value": "1"},
        "/v1/runs/{run}/delete": {"confirm": "red/llm"},
        "/v1/runs/{run}/claims": {"content_id": "sha256:" + "0" * 64, "ttl_s": 60},
        "/v1/runs/{run}/claims/{claim}/renew": {"ttl_s": 60},
    }
    seen = 0
    for endpoint in ENDPOINTS:
        if "{run" not in endpoint.path or endpoint.path.endswith("/parts"):
            continue
        body = bodies.get(plain_path(endpoint), {}) if endpoint.has_body else None
        theirs, none = (
            served.ask(endpoint.method, path_to(endpoint, run=run), body, token=token)
            for run in ("red/llm", "red/mll")
        )
        assert theirs.kind == "unknown-run", endpoint.path
        assert theirs.status == none.status
        assert theirs.body == none.body.replace(b"red/mll", b"red/llm")
        assert sorted(theirs.headers) == sorted(none.headers)
        seen += 1
    assert seen == 26
    assert served.get(LATEST).document["step"] == 20


def test_lists_hold_nothing_of_another_team(served: Served) -> None:
    token = served.token(Right.READ, Right.PLAN, teams=("blue",))
    served.post("/v1/runs/red/llm/flush", {})
    served.post("/v1/reconcile", {})
    mine = served.post("/v1/runs/blue/llm/flush", {}, token=token).document["task"]["task_id"]
    for path in (
        "/v1/runs",
        "/v1/events?limit=1000",
        "/v1/tasks",
        "/v1/flows",
        "/v1/du",
        "/v1/tiers",
        "/v1/nodes",
    ):
        told = served.get(path, token=token)
        assert told.status == 200, path
        assert b"red/" not in told.body, path
    assert [one["task_id"] for one in served.get("/v1/tasks", token=token).document["tasks"]] == [
        mine
    ]
    assert {one["run"] for one in served.get("/v1/events", token=token).document["events"]} == {
        "blue/llm"
    }
    found = served.get("/v1/du", token=token).document["tiers"][0]
    assert found["checkpoint_bytes"] == sum(one["bytes"] for one in found["states"]) > 0


def test_another_teams_task_is_as_unknown_as_none(served: Served) -> None:
    token = served.token(Right.READ, teams=("blue",))
    task_id = served.post("/v1/runs/red/llm/flush", {}).document["task"]["task_id"]
    theirs, none = (served.get(f"/v1/tasks/{one}", token=token) for one in (task_id, "x"))
    assert theirs.status == none.status == 404
    assert theirs.body == none.body.replace(b"'x'", f"'{task_id}'".encode())
    assert served.get("/v1/tasks?run=red/llm", token=token).kind == "unknown-run"


def test_a_team_makes_runs_of_its_own_below_its_name_only(served: Served) -> None:
    token = served.token(Right.COMMIT, teams=("blue",))
    assert served.post("/v1/runs", {"name": "red/new"}, token=token).status == 400
    assert served.post("/v1/runs", {"name": "new"}, token=token).status == 400
    for path in ("red/llm", "red/not-scanned-yet", "red"):
        stolen = {"name": "blue/new", "tier": "lustre", "path": path}
        told = served.post("/v1/runs", stolen, token=token)
        assert (told.status, b"runs below blue/" in told.body) == (400, True)
    assert served.post("/v1/runs", {"name": "blue/new"}, token=token).status == 200
    below = {"name": "blue/two", "tier": "s3", "path": "blue/elsewhere"}
    assert served.post("/v1/runs", below, token=token).status == 200


def test_what_concerns_every_team_is_not_for_a_token_of_one(served: Served) -> None:
    token = served.token(Right.ADMIN, teams=("blue",))
    for endpoint in ENDPOINTS:
        if endpoint.for_every_team:
            told = asked(served, endpoint, path_to(endpoint), token)
            assert (told.status, told.kind) == (403, "not-allowed"), endpoint.path
    for method, path in (
        ("POST", "/v1/tokens"),
        ("GET", "/v1/tokens"),
        ("PUT", "/v1/tiers/lustre/budget"),
        ("POST", "/v1/reconcile"),
        ("GET", "/metrics"),
    ):
        assert (
            served.ask(method, path, {"label": "x", "rights": ["admin"]}, token=token).status == 403
        )
    assert served.post("/v1/scan", {}, token=token).status == 400


def test_an_agent_speaks_for_its_node_only(served: Served) -> None:
    token = served.token(Right.AGENT, node="n1")
    beat = {"boot": "b", "version": "1"}
    assert served.post("/v1/nodes/n1/beat", beat, token=token).status == 200
    for path, body in (
        ("/v1/nodes/n2/beat", beat),
        ("/v1/nodes/n2/claim", {"holder": "a"}),
        ("/v1/nodes/n2/facts", {}),
    ):
        told = served.post(path, body, token=token)
        assert (told.status, told.kind) == (403, "not-allowed")


def test_an_agent_ends_no_task_of_another_node_or_of_the_service(served: Served) -> None:
    from ckptgov.model.cluster import NewTask, TaskKind

    token = served.token(Right.AGENT, node="n1")
    tasks = served.serving.catalog.tasks
    for number, node in enumerate(("n2", None)):
        made = tasks.add(NewTask(kind=TaskKind.SCAN, key=f"k{number}", payload=b"{}", node=node))
        (held,) = tasks.claim(node=node, holder="h", kinds=None, ttl_s=60)
        said = {"lease": held.lease, "state": "failed"}
        told = served.post(f"/v1/tasks/{made.task_id}/end", said, token=token)
        assert told.status == 403
        told = served.post(f"/v1/tasks/{made.task_id}/renew", {"lease": held.lease}, token=token)
        assert told.status == 403


def test_a_token_is_shown_once_and_kept_as_a_hash(served: Served) -> None:
    made = served.post("/v1/tokens", {"label": "x", "rights": ["read"], "ttl_s": 60}).document
    assert made["secret"].startswith(f"ckptgov_{made['token']['token_id']}_")
    listed = served.get("/v1/tokens")
    assert made["secret"].encode() not in listed.body
    kept = served.serving.catalog.tokens.by_secret(hash_of(made["secret"]))
    assert kept is not None
    assert made["secret"].rpartition("_")[2] not in repr(kept)


def test_secrets_stand_in_no_log_and_no_error(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = served.post("/v1/tokens", {"label": "x", "rights": ["read"]}).document
    answers = [
        served.get(LATEST, token=made["secret"]),
        served.post("/v1/runs/red/llm/rollback", {"to_step": 1}, token=made["secret"]),
        served.get(LATEST, token=made["secret"] + "x"),
        served.get("/nothing", token=made["secret"]),
    ]
    secret = made["secret"].rpartition("_")[2]
    assert all(secret.encode() not in one.body for one in answers)
    assert secret not in caplog.text
    assert hash_of(made["secret"]) not in caplog.text


@pytest.mark.parametrize(
    "said",
    [
        {"label": "x", "rights": []},
        {"label": "x", "rights": ["fly"]},
        {"label": "", "rights": ["read"]},
        {"label": "a\nb", "rights": ["read"]},
        {"label": "x", "rights": ["read"], "teams": ["a/b"]},
        {"label": "x", "rights": ["agent"], "teams": ["red"]},
        {"label": "x", "rights": ["read"], "node": "n1"},
        {"label": "x", "rights": ["read"], "ttl_s": 0},
        {"label": "x"},
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(quiet: Served, said: object) -> None:
    before = quiet.get("/v1/tokens").body
    assert quiet.post("/v1/tokens", said).status == 400
    assert quiet.get("/v1/tokens").body == before


def test_an_unknown_token_cannot_be_revoked(quiet: Served) -> None:
    told = quiet.ask("DELETE", "/v1/tokens/nothing")
    assert (told.status, told.kind) == (404, "no-such-token")


def test_the_first_token_may_do_everything(served: Served) -> None:
    made = bootstrap(served.serving.catalog, now_ns=1)
    assert served.get("/v1/tokens", token=made.text).status == 200


def test_started_without_tokens_whoever_asks_may_do_all(opened: Callable[..., Served]) -> None:
    served = opened(is_open=True)
    assert served.get("/v1/tokens").status == 200
    assert served.get("/metrics").status == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_may_be_served_without_tokens(host: str) -> None:
    check_listen(host, no_auth=True)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "host", ""]
)
def test_nothing_else_may_be_served_without_tokens(host: str) -> None:
    with pytest.raises(UsageError, match="--no-auth"):
        check_listen(host, no_auth=True)
    check_listen(host, no_auth=False)
