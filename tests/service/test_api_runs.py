"""Questions about runs over HTTP: every outcome a status, every answer the command's document."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckptgov.testing.served import Served


def root_of(served: Served, run: str) -> Path:
    return Path(served.get(f"/v1/runs/{run}").document["roots"][0])


def test_runs_are_listed_with_what_they_hold(quiet: Served) -> None:
    found = quiet.get("/v1/runs").document["runs"]
    assert [(one["run"], one["checkpoints"]) for one in found] == [("blue/llm", 2), ("red/llm", 2)]


def test_one_run_is_shown(quiet: Served) -> None:
    found = quiet.get("/v1/runs/red/llm").document
    assert (found["run"], found["checkpoints"]) == ("red/llm", 2)


def test_latest_is_the_newest_that_restores(quiet: Served) -> None:
    told = quiet.get("/v1/runs/red/llm/latest")
    assert told.status == 200
    assert told.document["step"] == 20
    assert told.document["evidence"] == "digest"
    assert Path(told.document["path"]).is_dir()


def test_latest_is_a_path_alone_for_a_shell(quiet: Served) -> None:
    told = quiet.get("/v1/runs/red/llm/latest", headers={"Accept": "text/plain"})
    assert told.headers["content-type"] == "text/plain; charset=utf-8"
    assert told.body.decode() == str(root_of(quiet, "red/llm") / "step_20") + "\n"


def test_what_curl_accepts_by_itself_is_the_document(quiet: Served) -> None:
    told = quiet.get("/v1/runs/red/llm/latest", headers={"Accept": "*/*"})
    assert told.headers["content-type"] == "application/json"


def test_an_answer_is_nobodys_to_keep(quiet: Served) -> None:
    assert quiet.get("/v1/runs/red/llm/latest").headers["cache-control"] == "no-store"


def test_a_run_that_never_had_one_is_404(served: Served) -> None:
    assert served.post("/v1/runs", {"name": "red/new"}).status == 200
    told = served.get("/v1/runs/red/new/latest")
    assert (told.status, told.kind) == (404, "never-any")
    assert told.document["error"]["exit_code"] == 4


def test_some_but_none_restorable_is_409_with_reasons(served: Served) -> None:
    said = {"from_step": 0, "reason": "diverged"}
    assert served.post("/v1/runs/red/llm/mark-bad", said).status == 200
    told = served.get("/v1/runs/red/llm/latest?explain=true")
    assert (told.status, told.kind) == (409, "none-restorable")
    reasons = [one["findings"][0]["reason"] for one in told.document["passed_over"]]
    assert reasons == ["bad", "bad"]


@pytest.mark.parametrize("below", ["", "/latest", "/checkpoints", "/manifest", "/events"])
def test_an_unknown_run_is_503_and_never_404(quiet: Served, below: str) -> None:
    told = quiet.get(f"/v1/runs/no/such{below}")
    assert (told.status, told.kind) == (503, "unknown-run")


def test_a_run_whose_tier_is_gone_is_503(served: Served) -> None:
    served.post("/v1/runs", {"name": "red/new"})
    shutil.move(root_of(served, "red/new").parents[1], root_of(served, "red/new").parents[2] / "x")
    assert served.get("/v1/runs/red/new/latest").status == 503


def test_a_step_that_is_not_there_is_409(quiet: Served) -> None:
    assert quiet.get("/v1/runs/red/llm/latest?step=10").document["step"] == 10
    assert quiet.get("/v1/runs/red/llm/latest?step=11").status == 409


def test_checkpoints_are_listed_newest_first(quiet: Served) -> None:
    found = quiet.get("/v1/runs/red/llm/checkpoints").document["checkpoints"]
    assert [(one["step"], one["state"]) for one in found] == [
        (20, "restorable"),
        (10, "restorable"),
    ]


def test_a_manifest_is_the_published_file(quiet: Served) -> None:
    told = quiet.get("/v1/runs/red/llm/manifest?step=10")
    published = (root_of(quiet, "red/llm") / ".ckptgov" / "manifests").glob("step_10.*.json")
    assert told.body == next(published).read_bytes()
    assert quiet.get("/v1/runs/red/llm/manifest").document["step"] == 20
    assert quiet.get("/v1/runs/red/llm/manifest?step=11").status == 409


def test_events_go_on_where_the_last_answer_ended(quiet: Served) -> None:
    seen: list[int] = []
    after = 0
    while True:
        told = quiet.get(f"/v1/events?after={after}&limit=3").document
        if not told["events"]:
            break
        seen += [one["seq"] for one in told["events"]]
        after = told["next"]
    assert seen == sorted(set(seen))
    assert len(seen) > 6


def test_events_of_a_run_are_its_own(quiet: Served) -> None:
    found = quiet.get("/v1/runs/red/llm/events?limit=1000").document["events"]
    assert {one["run"] for one in found} == {"red/llm"}
    assert {"run-added", "sealed", "copy-added"} <= {one["kind"] for one in found}


def test_a_run_is_made_below_a_tier(served: Served) -> None:
    body = {
        "name": "red/new",
        "tier": "s3",
        "path": "elsewhere/new",
        "expect": {"glob": "step_*/*.bin", "count": 2},
    }
    made = served.post("/v1/runs", body).document["runs"][0]
    assert made["roots"][0].endswith("/s3/elsewhere/new")
    again = served.post("/v1/runs", body)
    assert (again.status, again.kind) == (400, "usage")


def test_a_dry_run_makes_nothing(quiet: Served) -> None:
    assert quiet.post("/v1/runs", {"name": "red/new", "dry_run": True}).status == 200
    assert quiet.get("/v1/runs/red/new").status == 503


@pytest.mark.parametrize(
    "path",
    ["/etc", "../x", "a/../../x", "a//b", "./a", "s3://bucket/x", "~root", "a/.ckptgov/b", "a/"],
)
def test_no_place_outside_a_tier_can_be_named(quiet: Served, path: str) -> None:
    told = quiet.post("/v1/runs", {"name": "red/new", "tier": "lustre", "path": path})
    assert told.status == 400
    told = quiet.post("/v1/runs/red/llm/commit", {"tier": "lustre", "path": path})
    assert told.status == 400


@pytest.mark.parametrize("name", ["a/b/c", "..", "a/..", "/a", "a/", " a", "~a", "-a"])
def test_a_name_that_is_a_path_is_refused(quiet: Served, name: str) -> None:
    assert quiet.post("/v1/runs", {"name": name}).status == 400


def test_a_run_named_like_an_endpoint_is_reached_with_an_encoded_slash(served: Served) -> None:
    assert served.post("/v1/runs", {"name": "red/latest"}).status == 200
    assert served.get("/v1/runs/red%2Flatest").document["run"] == "red/latest"
    assert served.get("/v1/runs/red%2Flatest/latest").status == 404
    assert served.get("/v1/runs/red/latest").kind == "unknown-run"  # of a run called red
