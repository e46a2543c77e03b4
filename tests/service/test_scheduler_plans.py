"""Which tasks a round of each activity comes to, from settings and nodes alone."""

from __future__ import annotations

import json

import pytest

from ckptgov.catalog.facts import PlaceFacts
from ckptgov.model.cluster import NewTask, NodeFacts, NodeState, TaskFacts, TaskKind, TaskState
from ckptgov.model.settings import (
    CADENCES,
    Cadence,
    Link,
    Scope,
    ServiceSettings,
    Settings,
    TierSettings,
)
from ckptgov.service.activities import (
    EMERGENCY,
    NodeWork,
    heard_of,
    is_on,
    planned,
    seen_from,
    trouble,
)
from ckptgov.service.payloads import By

BY = By(catalog_epoch=3, leader_epoch=8)
LUSTRE = TierSettings(name="lustre", root="/lustre", ingest=True)
HOME = TierSettings(name="home", root="/home", ingest=True)
S3 = TierSettings(name="s3", root="s3://bucket")
DISKS = tuple(
    TierSettings(name="nvme", root=f"/{node}", scope=Scope.NODE, node=node, ingest=True)
    for node in ("n1", "n2")
)
LINKS = (
    Link(source="nvme", target="lustre", every=1),
    Link(source="lustre", target="s3", every=1),
    Link(source="lustre", target="home", every=2),
)
SETTINGS = Settings(home="/x", tiers=(LUSTRE, HOME, S3, *DISKS), links=LINKS)
NOBODY: frozenset[str] = frozenset()


ASKED = NodeWork(tiers=("nvme",))


def plan(
    name: str,
    *,
    nodes: dict[str, NodeWork] | None = None,
    here: frozenset[str] | None = NOBODY,
) -> dict[str, NewTask]:
    tasks = planned(name, SETTINGS, nodes or {}, here=here, by=BY)
    assert len({one.key for one in tasks}) == len(tasks), "keys tell tasks apart"
    return {one.key: one for one in tasks}


def test_each_shared_tier_that_is_scanned_is_one_task_for_any_replica() -> None:
    tasks = plan("scan")
    assert list(tasks) == ["scan:lustre", "scan:home"]
    assert {one.node for one in tasks.values()} == {None}
    assert json.loads(tasks["scan:lustre"].payload)["tiers"] == ["lustre"]


def test_disks_of_other_nodes_are_asked_of_their_agents_and_never_opened() -> None:
    tasks = plan("scan", nodes={"n1": ASKED, "n2": ASKED})
    assert tasks["scan:node:n1"].node == "n1"
    for one in tasks.values():
        if one.node is None:
            assert b"nvme" not in one.payload


def test_a_machine_that_is_all_nodes_scans_its_disks_in_one_task() -> None:
    tasks = plan("scan", here=None, nodes={"n1": ASKED})
    assert list(tasks) == ["scan:lustre", "scan:home", "scan:disks"]
    assert json.loads(tasks["scan:disks"].payload)["tiers"] == ["nvme"]
    assert tasks["scan:disks"].node is None


def test_a_replica_on_a_node_has_that_nodes_disk_scanned_there_only() -> None:
    tasks = plan("scan", here=frozenset({"n1"}), nodes={"n1": ASKED, "n2": ASKED})
    assert tasks["scan:disks:n1"].node == "n1"
    assert "scan:node:n1" not in tasks
    assert tasks["scan:node:n2"].node == "n2"


def test_links_from_one_tier_are_one_task_so_that_holds_are_let_go_together() -> None:
    tasks = plan("flush", here=None)
    assert list(tasks) == ["flush:from:nvme", "flush:from:lustre"]
    assert json.loads(tasks["flush:from:lustre"].payload)["sources"] == ["lustre"]


def test_links_from_disks_that_are_not_here_are_their_agents_work() -> None:
    tasks = plan("flush", nodes={"n1": ASKED})
    assert list(tasks) == ["flush:from:lustre", "flush:node:n1"]


def test_what_a_leaving_node_still_has_goes_first() -> None:
    tasks = plan("flush", nodes={"n1": NodeWork(is_leaving=True), "n2": ASKED})
    assert tasks["flush:node:n1"].priority == EMERGENCY
    assert tasks["flush:node:n2"].priority == 0


def test_verification_takes_turns_at_each_tier_and_knows_how_often() -> None:
    tasks = plan("verify")
    assert list(tasks) == ["verify:lustre", "verify:home", "verify:s3"]
    payload = json.loads(tasks["verify:s3"].payload)
    assert (payload["tiers"], payload.get("share_s", 86400.0)) == (["s3"], 86400.0)


def test_an_agent_verifies_its_own_disks_and_nothing_shared() -> None:
    tasks = plan("verify", nodes={"n1": ASKED, "n2": NodeWork()})
    assert tasks["verify:node:n1"].node == "n1"
    assert json.loads(tasks["verify:node:n1"].payload)["tiers"] == ["nvme"]
    assert "verify:node:n2" not in tasks, "nothing of it is known"


def test_reconciliation_is_one_task_a_tier() -> None:
    assert list(plan("reconcile", here=None)) == [
        "reconcile:lustre",
        "reconcile:home",
        "reconcile:s3",
        "reconcile:nvme",
    ]


def test_nodes_reconcile_their_own_disks() -> None:
    tasks = plan("reconcile", nodes={"n1": ASKED, "n2": NodeWork()})
    assert list(tasks)[-1] == "reconcile:node:n1"
    assert tasks["reconcile:node:n1"].node == "n1"
    assert json.loads(tasks["reconcile:node:n1"].payload)["tiers"] == ["nvme"]
    assert "reconcile:node:n2" not in tasks, "nothing of it is known"


@pytest.mark.parametrize(
    ("name", "key", "kind"),
    [
        ("plan", "plan:all", TaskKind.PLAN),
        ("apply", "apply:newest", TaskKind.APPLY),
        ("capacity", "capacity", TaskKind.CAPACITY),
    ],
)
def test_what_judges_every_tier_is_one_task_for_any_replica(
    name: str, key: str, kind: TaskKind
) -> None:
    [task] = plan(name, nodes={"n1": ASKED}).values()
    assert (task.key, task.kind, task.node, task.for_run) == (key, kind, None, None)


def test_an_apply_on_schedule_takes_the_newest_plan() -> None:
    payload = json.loads(plan("apply")["apply:newest"].payload)
    assert (payload["is_newest"], payload.get("plan")) == (True, None)


@pytest.mark.parametrize("name", list(CADENCES))
def test_every_task_names_the_leadership_that_made_it(name: str) -> None:
    tasks = plan(name, nodes={"n1": ASKED})
    assert tasks
    for one in tasks.values():
        assert json.loads(one.payload)["by"] == {"catalog_epoch": 3, "leader_epoch": 8}


def test_links_that_end_at_a_disk_elsewhere_are_not_seen_from_here() -> None:
    back = Link(source="lustre", target="nvme", every=1)
    settings = Settings(home="/x", tiers=SETTINGS.tiers, links=(*LINKS, back))
    assert back not in seen_from(settings, NOBODY).links
    assert back in seen_from(settings, None).links


def test_a_backup_needs_a_tier_to_go_to() -> None:
    with_tier = ServiceSettings(backup_tier="s3")
    assert not is_on("backup", SETTINGS)
    assert is_on("backup", Settings(home="/x", service=with_tier))


def test_an_activity_with_no_interval_is_off() -> None:
    off = ServiceSettings(cadences=CADENCES | {"scan": Cadence(every_s=0, slo_s=1)})
    assert not is_on("scan", Settings(home="/x", service=off))
    assert is_on("flush", Settings(home="/x", service=off))


def beaten(node: str, state: NodeState = NodeState.ACTIVE, *, at_s: int = 90) -> NodeFacts:
    return NodeFacts(node=node, state=state, first_seen_at_ns=1, beat_at_ns=at_s * 10**9)


def place(node: str | None, tier: str, *, is_current: bool = True) -> PlaceFacts:
    return PlaceFacts(
        place=f"{node}-{tier}-{is_current}",
        tier=tier,
        node=node,
        root=f"/{tier}",
        fs_type="ext4",
        source="x",
        first_seen_at_ns=1,
        is_current=is_current,
    )


def test_silent_and_dead_nodes_are_asked_nothing() -> None:
    nodes = [
        beaten("active"),
        beaten("drained", NodeState.DRAINED),
        beaten("silent", at_s=1),
        beaten("dead", NodeState.DEAD),
    ]
    places = [place("active", "nvme"), place("active", "old", is_current=False), place(None, "s3")]
    assert heard_of(nodes, places, now_ns=100 * 10**9, timeout_s=60.0) == {
        "active": NodeWork(tiers=("nvme",)),
        "drained": NodeWork(is_leaving=True),
    }


def ended(kind: TaskKind, state: TaskState, outcome: object) -> TaskFacts:
    return TaskFacts(
        task_id="1",
        task=NewTask(kind=kind, key="k", payload=b"{}"),
        state=state,
        lease=1,
        created_at_ns=1,
        outcome=json.dumps(outcome).encode(),
    )


def test_a_task_that_was_partly_done_is_no_success_of_its_activity() -> None:
    error = {"kind": "partly-done", "message": "one of two"}
    assert trouble(ended(TaskKind.SCAN, TaskState.DONE, {"error": error})) == "k: one of two"
    assert trouble(ended(TaskKind.SCAN, TaskState.DONE, {"runs": []})) is None
    assert trouble(ended(TaskKind.SCAN, TaskState.FAILED, [])) == "k: failed"


def test_finding_bad_bytes_is_what_a_verification_is_for() -> None:
    error = {"kind": "verification-failed", "message": "differs"}
    assert trouble(ended(TaskKind.VERIFY, TaskState.DONE, {"error": error})) is None
    assert trouble(ended(TaskKind.FLUSH, TaskState.FAILED, {"error": error})) == "k: differs"


def test_a_plan_that_waits_for_a_person_was_made_and_one_that_nothing_lifts_is_told() -> None:
    error = {"kind": "refused", "message": "beyond a cap"}

    def of(state: str | None) -> str | None:
        return trouble(ended(TaskKind.PLAN, TaskState.DONE, {"error": error, "state": state}))

    assert of("waiting") is None
    assert of("refused") == "k: beyond a cap"
    assert of(None) == "k: beyond a cap", "no plan was made: the clock went back"


def test_entries_that_changed_since_a_plan_was_made_are_no_failure_of_apply() -> None:
    error = {"kind": "partly-done", "message": "1 of 2"}

    def of(counts: object, kind: str = "partly-done") -> str | None:
        outcome = {"error": error | {"kind": kind}, "counts": counts}
        return trouble(ended(TaskKind.APPLY, TaskState.DONE, outcome))

    assert of({"changed": 1, "trashed": 1}) is None
    assert of({"protected": 1}) is None
    assert of({"resisted": 1, "changed": 1}) == "k: 1 of 2"
    assert of({"changed": 1}, "refused") == "k: 1 of 2"
    assert of(None) == "k: 1 of 2"
