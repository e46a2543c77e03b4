"""What stays and what goes, over HTTP: plans, removals, policies, pins, claims, ends of runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.model.access import Right
from ckptgov.model.clock import SystemClock
from ckptgov.ops.context import Context
from ckptgov.service import routes_dry
from ckptgov.service.app import ENDPOINTS, Limits, create_app
from ckptgov.service.calls import Cost, Reply, document
from ckptgov.service.serving import Serving
from ckptgov.service.workers import Workers
from ckptgov.testing import sealed_runs
from ckptgov.testing.served import Asked, Served, make_home, running, scanned

RUNS = ("red/llm", "red/kept", "red/over", "red/gone", "blue/llm")
DISK = "0b7a41c0-0000-4000-8000-000000000001"
POLICY = """\
policy: tight
runs: ["*/*"]
keep: {lustre: {last: 1}}
floors: {min_restorable: 1, min_age: 0s}
safety: {max_fraction: 90%, grace: 1d, adoption_grace: 0s}
flush: []
"""
CAPPED = POLICY.replace("90%", "1%")
BAD = "policy: bad\nkeep: {lustre: {last: 0}}\n"
RIGHTS = {
    "/v1/plans": Right.PLAN,
    "/v1/plans/sha256:0/approve": Right.APPLY,
    "/v1/plans/sha256:0/apply": Right.APPLY,
    "/v1/removals/apply": Right.APPLY,
    "/v1/runs/red/llm/undelete": Right.APPLY,
    "/v1/runs/red/llm/finish": Right.APPLY,
    "/v1/runs/red/llm/retire": Right.APPLY,
    "/v1/runs/red/llm/delete": Right.APPLY,
    "/v1/runs/red/llm/pins": Right.COMMIT,
    "/v1/runs/red/llm/metrics": Right.COMMIT,
    "/v1/runs/red/llm/claims": Right.COMMIT,
    "/v1/runs/red/llm/claims/x/renew": Right.RESTORE,
    "/v1/policies/check": Right.READ,
    "/v1/runs/red/llm/verdict": Right.READ,
}
BODIES = {
    "approve": {"reason": "x"},
    "delete": {"confirm": "red/llm"},
    "pins": {"step": 10, "name": "gold"},
    "metrics": {"step": 10, "name": "loss", "value": "1"},
    "claims": {"content_id": "sha256:" + "0" * 64, "ttl_s": 60},
    "renew": {"ttl_s": 60},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service for the whole module, over runs that a policy keeps one checkpoint of."""
    home = make_home(tmp_path_factory.mktemp("keeping"), RUNS)
    (home / "policies").mkdir()
    (home / "policies" / "tight.yaml").write_text(POLICY)
    with (
        Serving.open(str(home), clock=SystemClock()) as serving,
        running(create_app(serving)) as url,
    ):
        scanned(serving, *RUNS)
        yield Served(serving, url)


@pytest.fixture(scope="module")
def blue(served: Served) -> str:
    """A token of the blue team that may do all that is not about agents or tokens."""
    rights = [one for one in Right if one not in (Right.ADMIN, Right.AGENT)]
    return served.token(*rights, teams=("blue",))


@pytest.fixture(scope="module")
def workers(served: Served) -> Iterator[Workers]:
    with Workers(served.serving, holder="test") as made:
        yield made


def outcome(served: Served, workers: Workers, told: Asked, *, token: str | None = None) -> dict:
    """What the task that was begun came to, as its token is told."""
    assert told.status == 202, told.body
    workers.step()
    path = f"/v1/tasks/{told.document['task']['task_id']}?wait=20"
    task = served.get(path, token=token).document["task"]
    assert task["state"] in ("done", "failed"), task
    return task["outcome"]


def plan(served: Served, workers: Workers, run: str | None) -> dict:
    """A stored plan of a run or of all, whole."""
    told = outcome(served, workers, served.post("/v1/plans", {"run": run}))
    return served.get(f"/v1/plans/{told['plan_id']}").document


def step_of(entries: list[dict]) -> list[tuple[str, int]]:
    return [(one["run"], one["step"]) for one in entries]


def changes(served: Served) -> int:
    return served.serving.catalog.change_seq()


def content_id(served: Served, run: str) -> str:
    return served.get(f"/v1/runs/{run}/latest").document["content_id"]


class TestWhoMay:
    @pytest.mark.parametrize(("path", "right"), RIGHTS.items(), ids=list(RIGHTS))
    def test_only_the_right_opens_it(self, served: Served, path: str, right: Right) -> None:
        others = [one for one in Right if one not in (right, Right.ADMIN)]
        if "claims" in path:
            others = [one for one in others if one not in (Right.COMMIT, Right.RESTORE)]
        body = BODIES.get(path.rpartition("/")[2], {})
        told = served.post(path, body, token=served.token(*others))
        assert (told.status, told.kind) == (403, "not-allowed")
        told = served.post(path, {**body, "dry_run": True}, token=served.token(right))
        assert told.status != 403

    @pytest.mark.parametrize(
        ("method", "verb"),
        [
            *[("POST", one) for one in ("undelete", "finish", "retire", "verdict")],
            *[("POST", one) for one in ("delete", "pins", "metrics", "claims")],
            *[("GET", "verdict"), ("GET", "policy"), ("DELETE", "claims/x")],
        ],
    )
    def test_another_teams_run_is_as_if_absent(
        self, served: Served, blue: str, method: str, verb: str
    ) -> None:
        body = BODIES.get(verb, {}) if method == "POST" else None
        theirs, none = (
            served.ask(method, f"/v1/runs/{run}/{verb}", body, token=blue)
            for run in ("red/llm", "red/none")
        )
        assert (theirs.status, theirs.kind) == (none.status, none.kind) == (503, "unknown-run")

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/plans", {}),
            ("/v1/plans", {"dry_run": True}),
            ("/v1/plans", {"policy": POLICY}),
            ("/v1/removals/apply", {}),
            ("/v1/policies/check", {}),
        ],
    )
    def test_what_is_about_every_team_needs_a_token_of_none(
        self, served: Served, blue: str, path: str, body: object
    ) -> None:
        assert served.post(path, body, token=blue).status in (400, 403)

    def test_a_team_sees_what_its_own_policy_says_of_it(self, served: Served, blue: str) -> None:
        policies = Path(served.serving.settings().home) / "policies"
        other = POLICY.replace("tight", "loose").replace('["*/*"]', '["blue/*", "green/*"]')
        (policies / "tight.yaml").write_text(POLICY.replace('["*/*"]', '["red/*"]'))
        (policies / "loose.yaml").write_text(other)
        try:
            (told,) = served.get("/v1/policies", token=blue).document["policies"]
            assert (told["name"], told["selector"]["runs"]) == ("loose", ["blue/*"])
            told = served.get("/v1/runs/blue/llm/policy", token=blue).document["policy"]
            assert told["selector"]["runs"] == ["blue/*"]
            assert len(served.get("/v1/policies").document["policies"]) == 2
        finally:
            (policies / "loose.yaml").unlink()
            (policies / "tight.yaml").write_text(POLICY)


class TestPlans:
    def test_a_plan_is_made_by_a_task_and_told_by_its_id(
        self, served: Served, workers: Workers
    ) -> None:
        told = outcome(served, workers, served.post("/v1/plans", {"run": "red/llm"}))
        assert (told["state"], told["freed_bytes"] > 0) == ("proposed", True)
        short = told["plan_id"].removeprefix("sha256:")[:12]
        whole = served.get(f"/v1/plans/{short}").document
        assert whole["plan_id"] == told["plan_id"]
        assert step_of(whole["entries"]) == [("red/llm", 10)]
        listed = served.get("/v1/plans?state=proposed&limit=1").document["plans"]
        assert [one["plan_id"] for one in listed] == [told["plan_id"]]
        assert served.get("/v1/plans?state=applied").document["plans"] == []

    @pytest.mark.parametrize("run", [None, "red/llm"])
    def test_a_dry_run_is_answered_at_once_and_stores_nothing(
        self, served: Served, run: str | None
    ) -> None:
        before = changes(served), served.get("/v1/plans").document
        told = served.post("/v1/plans", {"run": run, "dry_run": True})
        assert (told.status, told.document["is_stored"]) == (200, False)
        assert ("red/llm", 10) in step_of(told.document["entries"])
        assert (changes(served), served.get("/v1/plans").document) == before

    def test_a_policy_that_is_brought_along_is_looked_at_only(self, served: Served) -> None:
        before = changes(served)
        told = served.post("/v1/plans", {"run": "red/llm", "policy": CAPPED})
        assert (told.status, told.document["error"]["exit_code"]) == (409, 6)
        assert told.document["refusals"][0]["is_cap"]
        told = served.post("/v1/plans", {"run": "red/llm", "policy": BAD})
        assert (told.status, told.kind) == (400, "config")
        assert "--policy:2:" in told.document["error"]["message"]
        assert changes(served) == before

    def test_an_unknown_plan_is_404_and_says_nothing_of_checkpoints(self, served: Served) -> None:
        for verb, body in (("", None), ("/approve", {"reason": "x"}), ("/apply", {})):
            ask = served.get if body is None else served.post
            told = ask(f"/v1/plans/nothing{verb}", **({} if body is None else {"body": body}))
            assert (told.status, told.kind) == (404, "no-such-plan")
            assert told.document["error"]["exit_code"] == 2

    def test_a_plan_bears_the_name_of_whoever_asked_for_it(
        self, served: Served, workers: Workers, blue: str
    ) -> None:
        asked = served.post("/v1/plans", {"run": "blue/llm"}, token=blue)
        told = outcome(served, workers, asked, token=blue)
        by = served.get(f"/v1/plans/{told['plan_id']}", token=blue).document["by"]
        assert by.startswith("token:")

    def test_a_beginning_of_several_is_ambiguous(self, served: Served, workers: Workers) -> None:
        names = iter("abcdefghijklmnopqrstuvwxyz")
        put = served.serving.catalog.plans.put
        known = plan(served, workers, "red/llm")
        stored = served.serving.catalog.plans.plan(known["plan_id"])
        for _ in range(2):
            plan_id = f"sha256:{'f' * 63}{next(names)}"
            put(replace(stored.plan, plan_id=plan_id), state=stored.state, by="x", note="of run x")
        told = served.get(f"/v1/plans/{'f' * 60}")
        assert (told.status, told.kind) == (409, "ambiguous")

    def test_a_team_sees_plans_of_its_runs_only(
        self, served: Served, workers: Workers, blue: str
    ) -> None:
        mine, theirs, every = (plan(served, workers, run) for run in ("blue/llm", "red/llm", None))
        seen = served.get("/v1/plans?limit=1000", token=blue).document["plans"]
        assert [one["plan_id"] for one in seen] == [mine["plan_id"]]
        assert served.get(f"/v1/plans/{mine['plan_id']}", token=blue).status == 200
        assert served.get(f"/v1/plans/{mine['plan_id'][7:20]}", token=blue).status == 200
        for one in (theirs, every):
            for path, body in (("", None), ("/apply", {}), ("/approve", {"reason": "x"})):
                method = "GET" if body is None else "POST"
                path = f"/v1/plans/{one['plan_id']}{path}"
                assert served.ask(method, path, body, token=blue).kind == "no-such-plan"

    def test_what_goes_beyond_a_cap_waits_for_a_person(
        self, served: Served, workers: Workers
    ) -> None:
        path = Path(served.serving.settings().home) / "policies" / "tight.yaml"
        path.write_text(CAPPED)
        try:
            told = outcome(served, workers, served.post("/v1/plans", {"run": "red/kept"}))
            assert (told["state"], told["error"]["exit_code"]) == ("waiting", 6)
            applied = f"/v1/plans/{told['plan_id']}/apply"
            assert served.post(applied, {"dry_run": True}).status == 409
            assert served.post(f"/v1/plans/{told['plan_id']}/approve").status == 400
            approve = f"/v1/plans/{told['plan_id']}/approve", {"reason": "looked at it"}
            dry = served.post(approve[0], {**approve[1], "dry_run": True}).document
            assert (dry["state"], dry["dry_run"]) == ("approved", True)
            assert served.get(f"/v1/plans/{told['plan_id']}").document["state"] == "waiting"
            done = served.post(*approve).document
            assert (done["state"], done["note"]) == ("approved", "looked at it")
            assert done["by"].startswith("token:root@")
            assert served.post(*approve).status == 400
            assert served.post(applied, {"dry_run": True}).status == 200
        finally:
            path.write_text(POLICY)


class TestApply:
    def test_a_plan_is_carried_out_and_undone(
        self, served: Served, workers: Workers, blue: str
    ) -> None:
        mine = plan(served, workers, "blue/llm")
        path = f"/v1/plans/{mine['plan_id']}/apply"
        before = changes(served)
        would = served.post(path, {"dry_run": True}, token=blue)
        assert [one["went"] for one in would.document["steps"]] == ["would"]
        assert changes(served) == before
        told = outcome(served, workers, served.post(path, {}, token=blue), token=blue)
        assert step_of(told["steps"]) == [("blue/llm", 10)]
        assert told["counts"] == {"condemned": 1}
        undo = "/v1/runs/blue/llm/undelete"
        would = served.post(undo, {"step": 10, "dry_run": True}, token=blue).document
        assert (would["is_dry_run"], would["restored"]) == (True, [])
        told = outcome(served, workers, served.post(undo, {"step": 10}, token=blue), token=blue)
        assert [one["state"] for one in told["restored"]] == ["condemned"]
        told = served.post(undo, {"dry_run": True}, token=blue)
        assert (told.status, told.kind) == (409, "none-restorable")

    def test_a_team_is_told_of_its_own_copies_only(
        self, served: Served, workers: Workers, blue: str
    ) -> None:
        theirs, mine = (plan(served, workers, run) for run in ("red/gone", "blue/llm"))
        path = f"/v1/plans/{theirs['plan_id']}/apply"
        assert outcome(served, workers, served.post(path))["counts"] == {"condemned": 1}
        would = served.post(f"/v1/plans/{mine['plan_id']}/apply", {"dry_run": True}, token=blue)
        assert {one["run"] for one in would.document["steps"]} == {"blue/llm"}
        assert would.document["counts"] == {"would": 1}
        every = served.post(f"/v1/plans/{mine['plan_id']}/apply", {"dry_run": True}).document
        assert {one["run"] for one in every["steps"]} == {"blue/llm", "red/gone"}
        begun = served.post(f"/v1/plans/{mine['plan_id']}/apply", {"strict": True}, token=blue)
        told = outcome(served, workers, begun, token=blue)
        assert {one["run"] for one in told["steps"]} == {"blue/llm"}
        (listed,) = [
            one
            for one in served.get("/v1/tasks?run=blue/llm", token=blue).document["tasks"]
            if one["task_id"] == begun.document["task"]["task_id"]
        ]
        assert listed["outcome"] == told
        outcome(served, workers, served.post("/v1/runs/blue/llm/undelete"))

    def test_what_was_begun_goes_on(self, served: Served, workers: Workers) -> None:
        before = changes(served)
        assert served.post("/v1/removals/apply", {"dry_run": True}).status == 200
        assert changes(served) == before
        told = outcome(served, workers, served.post("/v1/removals/apply"))
        assert told["plan_id"] is None

    def test_a_plan_is_carried_out_once(self, served: Served, workers: Workers) -> None:
        made = plan(served, workers, "red/over")
        path = f"/v1/plans/{made['plan_id']}/apply"
        one, two = served.post(path), served.post(path)
        assert one.document["task"]["task_id"] == two.document["task"]["task_id"]
        outcome(served, workers, one)
        told = outcome(served, workers, served.post(path))
        assert told["error"]["exit_code"] == 6
        assert served.post(path, {"dry_run": True}).status == 409
        outcome(served, workers, served.post("/v1/runs/red/over/undelete"))


class TestPolicies:
    def test_those_in_force_are_told(self, served: Served) -> None:
        (told,) = served.get("/v1/policies").document["policies"]
        assert (told["name"], told["keep"]["lustre"]["last"]) == ("tight", 1)
        told = served.get("/v1/runs/red/llm/policy").document
        assert (told["run"], told["policy"]["name"]) == ("red/llm", "tight")
        assert served.get("/v1/runs/unknown/policy").kind == "unknown-run"

    def test_a_text_is_checked_with_the_line_of_its_mistake(self, served: Served) -> None:
        told = served.post("/v1/policies/check", {"text": POLICY})
        assert (told.status, told.document["errors"]) == (200, [])
        told = served.post("/v1/policies/check", {"text": BAD, "file": "new.yaml"})
        assert (told.status, told.document["error"]["exit_code"]) == (400, 2)
        assert told.document["errors"][0]["message"].startswith('new.yaml:2: "last" must be')
        tier = POLICY.replace("lustre", "tape")
        told = served.post("/v1/policies/check", {"text": tier}).document
        assert "tape" in told["errors"][0]["message"]

    def test_those_in_force_are_checked_for_every_run(self, served: Served) -> None:
        told = served.post("/v1/policies/check").document
        assert {(one["run"], one["policy"]) for one in told["runs"]} == {
            (run, "tight") for run in RUNS
        }

    def test_more_than_a_mebibyte_is_refused(self, served: Served) -> None:
        for path in ("/v1/policies/check", "/v1/runs/red/llm/verdict", "/v1/plans"):
            body = {"text" if "check" in path else "policy": "#" * 2**20}
            assert served.post(path, body).status == 413

    def test_every_checkpoint_has_its_fate_and_reasons(self, served: Served) -> None:
        told = served.get("/v1/runs/red/llm/verdict").document
        fates = {one["step"]: one["tiers"][0]["action"] for one in told["checkpoints"]}
        assert fates == {20: None, 10: "prune"}
        lax = {"policy": POLICY.replace("last: 1", "last: 2")}
        told = served.post("/v1/runs/red/llm/verdict", lax).document
        assert {one["tiers"][0]["action"] for one in told["checkpoints"]} == {None}
        assert served.post("/v1/runs/red/llm/verdict", {"policy": BAD}).kind == "config"


class TestWhatPeopleSay:
    def test_a_pin_keeps_a_checkpoint_until_it_is_taken_back(self, served: Served) -> None:
        said = {"step": 10, "name": "gold", "reason": "paper"}
        path = "/v1/runs/red/kept/pins"
        before = changes(served)
        told = served.post(path, {**said, "dry_run": True}).document
        assert (told["dry_run"], told["record"]["kind"], changes(served)) == (True, "pin", before)
        told = served.post(path, said).document["record"]
        assert (told["pin_name"], told["reason"], "until_ns" in told) == ("gold", "paper", False)
        assert fate(served, "red/kept", 10) == (None, "pinned")
        lasting = served.post(path, {**said, "ttl_s": 60}).document["record"]
        assert lasting["until_ns"] > lasting["at_ns"]
        undo = {"step": 10, "name": "gold", "undo": True}
        assert served.post(path, undo).document["record"]["kind"] == "unpin"
        assert served.post(path, undo).status == 400
        assert fate(served, "red/kept", 10)[0] == "prune"

    @pytest.mark.parametrize(
        ("said", "status"),
        [
            ({"step": 10, "name": "lease:x"}, 400),
            ({"step": 10, "name": "x", "ttl_s": 0}, 400),
            ({"step": 10, "name": "x", "ttl_s": 5, "undo": True}, 400),
            ({"step": 77, "name": "x"}, 409),
            ({"name": "x"}, 400),
        ],
    )
    def test_a_pin_is_on_one_checkpoint_under_a_name_of_its_own(
        self, served: Served, said: object, status: int
    ) -> None:
        before = changes(served)
        assert served.post("/v1/runs/red/llm/pins", said).status == status
        assert changes(served) == before

    def test_a_metric_is_told_of_a_checkpoint(self, served: Served) -> None:
        said = {"step": 10, "name": "loss", "value": "0.25"}
        path = "/v1/runs/red/kept/metrics"
        before = changes(served)
        assert served.post(path, {**said, "dry_run": True}).document["dry_run"]
        assert served.post(path, {**said, "value": "low"}).status == 400
        assert served.post(path, {**said, "step": 77}).status == 409
        assert changes(served) == before
        told = served.post(path, said).document["record"]
        assert (told["kind"], told["name"], told["value"]) == ("metric", "loss", "0.25")

    def test_a_run_ends_and_may_then_be_deleted(self, served: Served) -> None:
        run = "/v1/runs/red/over"
        before = changes(served)
        for verb in ("finish", "retire"):
            told = served.post(f"{run}/{verb}", {"dry_run": True}).document
            assert told["record"]["kind"] == verb
        told = served.post(f"{run}/delete", {"confirm": "red/over"})
        assert (told.status, told.document["error"]["exit_code"]) == (409, 6)
        assert changes(served) == before
        assert served.post(f"{run}/finish").document["record"]["kind"] == "finish"
        told = served.post(f"{run}/retire", {"reason": "published"}).document["record"]
        assert (told["kind"], told["reason"]) == ("retire", "published")
        assert served.post(f"{run}/delete", {"confirm": "red/llm"}).status == 400
        dry = served.post(f"{run}/delete", {"confirm": "red/over", "dry_run": True}).document
        assert (dry["is_stored"], len(dry["entries"])) == (False, 2)
        assert served.get(f"/v1/plans/{dry['plan_id']}").status == 404
        told = served.post(f"{run}/delete", {"confirm": "red/over"}).document
        assert served.get(f"/v1/plans/{told['plan_id']}").document["entries"] == told["entries"]


def fate(served: Served, run: str, step: int) -> tuple[str | None, str]:
    told = served.get(f"/v1/runs/{run}/verdict").document["checkpoints"]
    (at,) = next(one["tiers"] for one in told if one["step"] == step)
    return at["action"], at["why"][0]["reason"]


class TestClaims:
    def test_a_reader_holds_a_checkpoint_for_as_long_as_it_reads(self, served: Served) -> None:
        path = "/v1/runs/red/llm/claims"
        token = served.token(Right.RESTORE)
        wanted = content_id(served, "red/llm")
        said = {"content_id": wanted, "ttl_s": 60, "reason": "restore to /x"}
        told = served.post(path, said, token=token).document["claim"]
        assert (told["content_id"], told["reason"]) == (wanted, "restore to /x")
        assert fate_reasons(served, "red/llm", 20) >= {"leased"}
        one = f"{path}/{told['claim_id']}"
        later = served.post(f"{one}/renew", {"ttl_s": 600}, token=token).document["claim"]
        assert later["ends_at_ns"] > told["ends_at_ns"]
        other = one.replace("red/llm", "blue/llm")
        assert served.post(f"{other}/renew", {"ttl_s": 600}).kind == "lease-lost"
        assert served.ask("DELETE", other).kind == "lease-lost"
        assert served.ask("DELETE", one, token=token).status == 200
        assert served.ask("DELETE", one).kind == "lease-lost"
        assert served.post(f"{one}/renew", {"ttl_s": 600}).status == 409
        assert "leased" not in fate_reasons(served, "red/llm", 20)

    def test_nothing_is_held_of_what_is_not_sealed(self, served: Served) -> None:
        said = {"content_id": "sha256:" + "0" * 64, "ttl_s": 60}
        assert served.post("/v1/runs/red/llm/claims", said).kind == "unknown-run"
        said["content_id"] = content_id(served, "blue/llm")
        assert served.post("/v1/runs/red/llm/claims", said).kind == "unknown-run"


def fate_reasons(served: Served, run: str, step: int) -> set[str]:
    told = served.get(f"/v1/runs/{run}/verdict").document["checkpoints"]
    (at,) = next(one["tiers"] for one in told if one["step"] == step)
    return {one["reason"] for one in at["why"]}


class TestDryRuns:
    @pytest.mark.parametrize(
        ("path", "body", "member"),
        [
            ("/v1/runs/red/llm/flush", {"step": 10, "to": "s3"}, "checkpoints"),
            ("/v1/runs/red/llm/verify", {"level": "digest"}, "checkpoints"),
            ("/v1/scan", {}, "runs"),
            ("/v1/scan", {"tiers": ["lustre"]}, "runs"),
            ("/v1/scan", {"runs": ["red/llm"]}, "runs"),
            ("/v1/reconcile", {}, "tiers"),
            ("/v1/reconcile", {"tiers": ["lustre"], "staging": True}, "tiers"),
        ],
    )
    def test_the_document_is_answered_at_once_and_nothing_is_begun(
        self, served: Served, path: str, body: dict, member: str
    ) -> None:
        before = changes(served), served.get("/v1/tasks").document
        told = served.post(path, {**body, "dry_run": True})
        assert (told.status, bool(told.document[member])) == (200, True)
        assert (changes(served), served.get("/v1/tasks").document) == before

    @pytest.mark.parametrize(
        ("path", "body", "status"),
        [
            ("/v1/runs/red/llm/flush", {}, 400),
            ("/v1/runs/red/llm/flush", {"to": "tape"}, 400),
            ("/v1/scan", {"tiers": ["s3"]}, 400),
            ("/v1/scan", {"runs": ["no/such"]}, 503),
            ("/v1/reconcile", {"staging": True, "staging_older_than_s": 5}, 400),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, served: Served, path: str, body: dict, status: int
    ) -> None:
        assert served.post(path, {**body, "dry_run": True}).status == status

    def test_one_that_takes_too_long_is_ended(
        self, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read_on(context: Context, *_: object, **__: object) -> None:
            context.progress(1)
            raise AssertionError("it goes on reading")

        monkeypatch.setattr(routes_dry, "LONGEST_LOOK_S", -1.0)
        monkeypatch.setattr(routes_dry, "verify_", read_on)
        told = served.post("/v1/runs/red/llm/verify", {"dry_run": True})
        assert (told.status, told.kind) == (504, "timed-out")

    def test_only_a_dry_run_waits_for_storage(self) -> None:
        either = [one for one in ENDPOINTS if one.cost_of is not None]
        assert len(either) == 8
        for one in either:
            costs = [one.cost_of(one.body(dry_run=is_dry)) for is_dry in (True, False)]
            assert costs == [Cost.STORAGE, Cost.CATALOG], one.path

    def test_one_that_waits_for_storage_holds_up_nothing_else(
        self, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hangs, goes_on = threading.Event(), threading.Event()
        went_on: list[bool] = []

        def hang(*_: object) -> Reply:
            hangs.set()
            went_on.append(goes_on.wait(5))
            return document({"checkpoints": [], "skipped": []})

        monkeypatch.setattr(routes_dry, "flush", hang)
        path, limits = "/v1/runs/red/llm/flush", Limits(catalog_threads=1)
        with running(create_app(served.serving, limits=limits)) as url:
            other = Served(served.serving, url)
            waiting = threading.Thread(target=lambda: other.post(path, {"dry_run": True}))
            waiting.start()
            assert hangs.wait(20)
            assert other.get("/v1/runs").status == 200
            goes_on.set()
            waiting.join(20)
        assert went_on == [True]

    def test_what_only_agents_reach_is_named(self, tmp_path: Path) -> None:
        home = make_home(tmp_path, ("llm",))
        with (
            Serving.open(str(home), clock=SystemClock(), here=frozenset()) as serving,
            running(create_app(serving)) as url,
        ):
            scanned(serving, "llm")
            known = serving.catalog.run_by_name("llm")
            disk = sealed_runs.put_place(
                serving.catalog, tmp_path / "n1", tier="nvme", node="n1", uuid=DISK
            )
            sealed_runs.put_run(serving.catalog, "llm", known.identity.run_id, [disk])
            served = Served(serving, url)
            for verb in ("flush", "verify"):
                told = served.post(f"/v1/runs/llm/{verb}", {"dry_run": True})
                assert (told.status, told.document["error"]["exit_code"]) == (200, 3)
                assert "disks of n1 was not looked at" in told.document["error"]["message"]
                assert len(told.document["checkpoints"]) == 2

    def test_usage_is_summed_up(self, served: Served) -> None:
        told = served.get("/v1/du?by=team").document["by"]
        assert (told["by"], {one["key"] for one in told["sums"]}) == ("team", {"red", "blue"})
        assert served.get("/v1/du?by=colour").status == 400


def test_a_teams_sums_leave_out_the_others(served: Served, blue: str) -> None:
    told = served.get("/v1/du?by=run", token=blue).document["by"]
    assert [one["key"] for one in told["sums"]] == ["blue/llm"]
