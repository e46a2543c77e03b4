"""Plans are kept as they were made, and change state only from the one expected."""

from __future__ import annotations

import pytest
from msgspec import structs

from ckptgov.catalog import plans as plans_of_catalog
from ckptgov.catalog.facts import EventKind
from ckptgov.errors import StaleState, StorageError, UsageError
from ckptgov.model.retention import (
    Action,
    Plan,
    PlanEntry,
    PlanRefusal,
    PlanState,
    TierOutlook,
    Why,
)

ODD = "odd\udcff"
ENTRY = PlanEntry(
    run_id="r1",
    run=ODD,
    content_id="c1",
    checkpoint=ODD,
    step=None,
    place="p1",
    tier="lustre",
    node=None,
    action=Action.PRUNE,
    why=(Why("no-rule-keeps", f"no rule keeps {ODD}"),),
    bytes=2**62,
    files=3,
    size_bytes=5,
)
PLAN = Plan(
    plan_id="sha256:abc1",
    now_ns=7,
    change_seq=3,
    policies=(("default", "sha256:d"),),
    entries=(ENTRY, structs.replace(ENTRY, step=10, node="n")),
    tiers=(
        TierOutlook(
            tier="lustre", node=None, used_bytes=9, limit_bytes=None, freed_bytes=1, freed_files=1
        ),
    ),
    refusals=(PlanRefusal(is_cap=True, text="too many"),),
    failures=((ODD, "could not look"),),
    runs=2,
    checkpoints=5,
)


@pytest.fixture
def plans(catalog):
    return catalog.plans


def put(plans, plan_id: str = PLAN.plan_id, state: PlanState = PlanState.PROPOSED, **more: object):
    return plans.put(structs.replace(PLAN, plan_id=plan_id), state=state, by="cli", **more)


def test_a_plan_comes_back_as_it_was_put(plans, clock) -> None:
    stored = put(plans, note=ODD)
    assert (stored.plan, stored.state, stored.by, stored.note) == (
        PLAN,
        PlanState.PROPOSED,
        "cli",
        ODD,
    )
    assert stored.stored_at_ns == stored.changed_at_ns == clock.at_ns
    assert plans.plan(PLAN.plan_id) == stored
    assert plans.plans() == (stored,)
    assert plans.plan("sha256:other") is None


def test_the_same_plan_again_is_the_stored_one(plans, clock) -> None:
    put(plans)
    refused = plans.set_state(
        PLAN.plan_id, expected=PlanState.PROPOSED, to=PlanState.REFUSED, by="admin", note="no"
    )
    clock.at_ns += 5
    assert put(plans) == refused
    assert len(plans.plans()) == 1


def test_a_later_plan_takes_the_place_of_those_nobody_decided_on(plans) -> None:
    for number, state in enumerate(PlanState):
        put(plans, f"sha256:{number}", state)
    every = [f"sha256:{number}" for number in range(len(PlanState))]
    put(plans, "sha256:new", replaces=[*every, "sha256:new", "sha256:unknown"])
    now = {one.plan.plan_id: one.state for one in plans.plans()}
    for number, state in enumerate(PlanState):
        is_open = state in (PlanState.PROPOSED, PlanState.WAITING)
        assert now[f"sha256:{number}"] is (PlanState.STALE if is_open else state)
    assert now["sha256:new"] is PlanState.PROPOSED


def test_a_plan_is_found_by_how_its_id_begins(plans) -> None:
    for plan_id in ("sha256:abc1", "sha256:abd2", "sha256:b%"):
        put(plans, plan_id)
    assert plans.find("ab") == plans.find("sha256:ab") == ("sha256:abd2", "sha256:abc1")
    assert plans.find("abc1") == ("sha256:abc1",)
    assert plans.find("b%") == ("sha256:b%",)
    assert plans.find("%") == plans.find("AB") == ()
    assert len(plans.find("")) == 3


def test_plans_are_listed_newest_first_and_over_ones_without_entries(plans) -> None:
    for plan_id, state in (
        ("1", PlanState.APPLIED),
        ("2", PlanState.WAITING),
        ("3", PlanState.STALE),
    ):
        put(plans, plan_id, state)
    assert [one.plan.plan_id for one in plans.plans()] == ["3", "2", "1"]
    assert [len(one.plan.entries) for one in plans.plans()] == [0, 2, 0]
    assert [one.plan.refusals for one in plans.plans()] == [PLAN.refusals] * 3
    assert plans.plan("1").plan.entries == PLAN.entries
    assert [one.plan.plan_id for one in plans.plans(limit=2)] == ["3", "2"]
    assert [one.plan.plan_id for one in plans.plans(states=[PlanState.APPLIED])] == ["1"]
    assert plans.plans(states=[]) == ()


def test_a_state_changes_only_from_the_one_expected(plans, clock) -> None:
    put(plans, state=PlanState.WAITING, note="beyond a cap")
    clock.at_ns += 5
    approved = plans.set_state(
        PLAN.plan_id, expected=PlanState.WAITING, to=PlanState.APPROVED, by="admin", note="seen"
    )
    assert (approved.state, approved.by, approved.note) == (PlanState.APPROVED, "admin", "seen")
    assert (approved.stored_at_ns, approved.changed_at_ns) == (clock.at_ns - 5, clock.at_ns)
    for plan_id in (PLAN.plan_id, "sha256:unknown"):
        with pytest.raises(StaleState):
            plans.set_state(plan_id, expected=PlanState.WAITING, to=PlanState.REFUSED, by="x")
    applied = plans.set_state(
        PLAN.plan_id, expected=PlanState.APPROVED, to=PlanState.APPLIED, by="cli"
    )
    assert applied == plans.plan(PLAN.plan_id)
    assert (applied.note, applied.plan.entries) == ("seen", PLAN.entries)


def test_what_becomes_of_a_plan_is_told_and_changes_no_answer(catalog, plans) -> None:
    seq = catalog.change_seq()
    put(plans)
    put(plans)
    put(plans, "sha256:new", replaces=[PLAN.plan_id])
    told = [(one.kind, dict(one.detail)) for one in catalog.events()][-3:]
    assert [kind for kind, _ in told] == [
        EventKind.PLAN_STORED,
        EventKind.PLAN_STATE,
        EventKind.PLAN_STORED,
    ]
    assert told[0][1] == {
        "plan": PLAN.plan_id,
        "state": "proposed",
        "by": "cli",
        "entries": "2",
    }
    assert (told[1][1]["from"], told[1][1]["to"]) == ("proposed", "stale")
    assert catalog.change_seq() == seq


def test_only_plans_that_are_over_for_long_are_forgotten(plans, clock) -> None:
    for number, state in enumerate(PlanState):
        put(plans, str(number), state)
    clock.at_ns += 5
    put(plans, "late", PlanState.APPLIED)
    assert plans.forget(before_ns=clock.at_ns) == 3
    kept = {one.state for one in plans.plans()} - {PlanState.APPLIED}
    assert kept == {PlanState.PROPOSED, PlanState.WAITING, PlanState.APPROVED}
    assert plans.plan("late") is not None


def test_plans_stay_when_facts_are_wiped(catalog, plans) -> None:
    stored = put(plans)
    catalog.wipe_facts()
    assert plans.plans() == (stored,)


def test_a_plan_that_is_too_large_is_refused_with_a_way_out(plans, monkeypatch) -> None:
    monkeypatch.setattr(plans_of_catalog, "MOST_BYTES", 300)
    with pytest.raises(UsageError) as caught:
        put(plans)
    assert "some runs" in (caught.value.hint or "")
    assert plans.plans() == ()


@pytest.mark.parametrize("wrong", ["x'00'", "zeroblob(0)"])
def test_a_damaged_plan_is_an_error_with_a_way_out(catalog, plans, path, wrong) -> None:
    put(plans)
    with catalog._database.write() as connection:
        connection.exec_driver_sql(f"UPDATE plans SET entries = {wrong}")
    with pytest.raises(StorageError) as caught:
        plans.plan(PLAN.plan_id)
    assert "ckptgov plan" in (caught.value.hint or "")
