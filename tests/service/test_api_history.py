"""What is said of a run over HTTP, and what it changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptgov.testing.builders.dcp import write_dcp
from ckptgov.testing.served import Served, scanned


def latest_step(served: Served, run: str = "red/llm") -> int:
    return served.get(f"/v1/runs/{run}/latest").document["step"]


def test_all_ranks_of_a_restart_get_one_answer(served: Served) -> None:
    with ThreadPoolExecutor(16) as ranks:
        told = list(
            ranks.map(
                lambda _: served.post("/v1/runs/red/llm/restarts", {"restart_id": "j.1"}), range(32)
            )
        )
    assert {one.status for one in told} == {200}
    assert len({one.document["content_id"] for one in told}) == 1
    assert sum(one.document["restart"]["decided_here"] for one in told) == 1


def test_a_reported_failure_opens_the_next_epoch(served: Served) -> None:
    asked = {"restart_id": "j.1"}
    assert served.post("/v1/runs/red/llm/restarts", asked).document["step"] == 20
    said = {"restart_id": "j.1", "outcome": "load-failed", "epoch": 0, "reason": "bad zip"}
    assert served.post("/v1/runs/red/llm/outcomes", said).status == 200
    told = served.post("/v1/runs/red/llm/restarts", asked).document
    assert (told["step"], told["restart"]["epoch"]) == (10, 1)


def test_an_outcome_of_no_decision_is_refused(quiet: Served) -> None:
    said = {"restart_id": "never asked", "outcome": "started"}
    told = quiet.post("/v1/runs/red/llm/outcomes", said)
    assert (told.status, told.kind) == (400, "usage")


def test_a_fresh_start_is_decided_only_where_it_is_allowed(served: Served) -> None:
    served.post("/v1/runs", {"name": "red/new"})
    asked = {"restart_id": "j.1"}
    told = served.post("/v1/runs/red/new/restarts", asked)
    assert told.status == 404
    assert "restart" not in told.document
    told = served.post("/v1/runs/red/new/restarts", {**asked, "allow_fresh": True})
    assert (told.status, told.kind) == (404, "never-any")
    assert told.document["restart"]["epoch"] == 0


def test_a_bad_mark_is_seen_by_the_next_question(served: Served) -> None:
    assert latest_step(served) == 20
    said = {"step": 20, "reason": "loss spike"}
    told = served.post("/v1/runs/red/llm/mark-bad", said).document
    assert told["record"]["kind"] == "mark-bad"
    assert told["record"]["by"].startswith("token:root@")
    assert latest_step(served) == 10
    assert served.post("/v1/runs/red/llm/mark-bad", {"step": 20, "undo": True}).status == 200
    assert latest_step(served) == 20


@pytest.mark.parametrize(
    "said",
    [
        {"step": 20},
        {"reason": "x"},
        {"step": 20, "from_step": 1, "reason": "x"},
        {"until_step": 20, "reason": "x"},
        {"from_step": 20, "until_step": 10, "reason": "x"},
    ],
)
def test_a_mark_that_does_not_say_what_or_why_is_refused(quiet: Served, said: object) -> None:
    assert quiet.post("/v1/runs/red/llm/mark-bad", said).status == 400
    assert latest_step(quiet) == 20


def test_a_dry_run_writes_no_record(quiet: Served) -> None:
    for verb, said in (
        ("mark-bad", {"step": 20, "reason": "x"}),
        ("rollback", {"to_step": 10}),
        ("leases", {"name": "keep", "step": 10, "ttl_s": 60}),
    ):
        told = quiet.post(f"/v1/runs/red/llm/{verb}", {**said, "dry_run": True})
        assert told.document["dry_run"] is True
    assert latest_step(quiet) == 20
    assert not journal(quiet, "red/llm", "mark-bad", "rollback", "pin")


def journal(quiet: Served, run: str, *kinds: str) -> list[str]:
    root = Path(quiet.get(f"/v1/runs/{run}").document["roots"][0])
    names = sorted(one.name for one in (root / ".ckptgov" / "journal").iterdir())
    return [name for name in names if any(f".{kind}." in name for kind in kinds)]


def test_a_rollback_opens_a_line_on_storage_and_in_the_catalog(served: Served) -> None:
    told = served.post("/v1/runs/red/llm/rollback", {"to_step": 10, "reason": "diverged"})
    assert told.document["record"]["line"] == 2
    assert latest_step(served) == 10
    assert len(journal(served, "red/llm", "rollback")) == 1


def test_a_line_starts_from_something(quiet: Served) -> None:
    told = quiet.post("/v1/runs/red/llm/rollback", {"to_step": 15})
    assert (told.status, told.kind) == (409, "none-restorable")


def test_a_checkpoint_is_kept_under_a_name_and_let_go(served: Served) -> None:
    said = {"name": "eval", "step": 10, "ttl_s": 3600}
    kept = served.post("/v1/runs/red/llm/leases", said).document["record"]
    assert (kept["kind"], kept["pin_name"]) == ("pin", "eval")
    assert kept["until_ns"] > kept["at_ns"]
    said = {"name": "eval", "content_id": kept["content_id"], "release": True}
    assert served.post("/v1/runs/red/llm/leases", said).document["record"]["kind"] == "unpin"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"name": "x", "step": 10}, 400),
        ({"name": "x", "ttl_s": 5}, 400),
        ({"name": "x", "step": 10, "ttl_s": 5, "release": True}, 400),
        ({"name": "x", "step": 11, "ttl_s": 5}, 409),
        ({"name": "x", "content_id": "sha256:" + "0" * 64, "ttl_s": 5}, 409),
    ],
)
def test_a_claim_is_on_one_sealed_checkpoint(quiet: Served, said: object, status: int) -> None:
    assert quiet.post("/v1/runs/red/llm/leases", said).status == status


def test_a_commit_seals_what_its_writer_declares(served: Served, tmp_path: Path) -> None:
    write_dcp(tmp_path / "lustre" / "red" / "llm" / "step_30")
    said = {"tier": "lustre", "path": "red/llm/step_30", "metrics": {"loss": "0.5"}}
    told = served.post("/v1/runs/red/llm/commit", said)
    assert (told.status, told.document["step"]) == (200, 30)
    assert latest_step(served) == 30


def test_a_torn_checkpoint_is_not_committed(served: Served, tmp_path: Path) -> None:
    torn = write_dcp(tmp_path / "lustre" / "red" / "llm" / "step_30")
    (torn / "__1_0.distcp").unlink()
    said = {"tier": "lustre", "path": "red/llm/step_30"}
    told = served.post("/v1/runs/red/llm/commit", said)
    assert (told.status, told.document["error"]["exit_code"]) == (409, 5)
    assert latest_step(served) == 20


def test_another_runs_bytes_are_not_committed_as_ones_own(quiet: Served) -> None:
    said = {"tier": "lustre", "path": "blue/llm/step_20"}
    told = quiet.post("/v1/runs/red/llm/commit", said)
    assert (told.status, told.kind) == (403, "not-allowed")


def test_a_metric_is_a_number(quiet: Served) -> None:
    said = {"tier": "lustre", "path": "red/llm/step_20", "metrics": {"loss": "low"}}
    assert quiet.post("/v1/runs/red/llm/commit", said).status == 400


def test_what_is_sealed_meanwhile_does_not_change_a_decision(
    served: Served, tmp_path: Path
) -> None:
    asked = {"restart_id": "j.1"}
    assert served.post("/v1/runs/red/llm/restarts", asked).document["step"] == 20
    write_dcp(tmp_path / "lustre" / "red" / "llm" / "step_30")
    scanned(served.serving, "red/llm")
    assert served.post("/v1/runs/red/llm/restarts", asked).document["step"] == 20
