"""Retention case by case: field reports, what protects, evict or prune, words of reasons."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent))

from keeping import (
    DAY_NS,
    HOUR_NS,
    NOW,
    checkpoint,
    copy,
    decided,
    gone,
    kept,
    lustre,
    policy,
    pruned,
    reasons,
    run,
    words,
)

from ckptgov.errors import ConfigError
from ckptgov.model.copies import CopyState
from ckptgov.model.policy import (
    ALL,
    Best,
    Calendar,
    Floors,
    KeepRules,
    Lifecycle,
    OldLines,
    Safety,
)
from ckptgov.model.retention import RunLife

LAST_1 = KeepRules(last=1)


# -- field reports ---------------------------------------------------------------------------------


def test_a01_steps_are_numbers_and_what_has_none_takes_no_slot() -> None:
    steps = [*range(9000, 10000, 100), 10000, 10100]
    hand_made = checkpoint(None, name="checkpoint-handpicked")
    verdict = decided(run(*lustre(steps, saved_ns=NOW), hand_made), policy(KeepRules(last=3)))
    assert kept(verdict) == [None, 9900, 10000, 10100]
    assert reasons(verdict, "checkpoint-handpicked") == {"stepless"}


def test_a02_what_is_not_whole_takes_no_slot_and_the_last_restorable_one_stays() -> None:
    torn = checkpoint(200, copy(state=CopyState.PARTIAL, shards={0}))
    verdict = decided(run(checkpoint(100), torn), policy(LAST_1))
    assert not gone(verdict)
    assert "last" in reasons(verdict, "step-100")
    whole = decided(run(checkpoint(100), checkpoint(200)), policy(LAST_1))
    assert kept(whole) == [200]


@pytest.mark.parametrize(("last", "stay"), [(2, [200, 300, 400]), (1, [200, 400])])
def test_a05_the_best_one_takes_no_slot_of_the_last(last: int, stay: list[int]) -> None:
    losses = {100: "0.50", 200: "0.30", 300: "0.40", 400: "0.45"}
    points = [checkpoint(step, loss=loss) for step, loss in losses.items()]
    rules = KeepRules(last=last, best=(Best(metric="eval_loss"),))
    assert kept(decided(run(*points), policy(rules))) == stay


def test_a05_of_equal_values_the_later_step_is_the_best() -> None:
    points = [checkpoint(step, loss="0.3") for step in (100, 200, 300, 400)]
    verdict = decided(run(*points), policy(KeepRules(first=1, best=(Best(metric="eval_loss"),))))
    assert kept(verdict) == [100, 400]


def test_of_equal_values_the_earlier_step_is_the_best_where_the_policy_says_so() -> None:
    points = [checkpoint(step, loss="0.3") for step in (100, 200, 300, 400)]
    best = Best(metric="eval_loss", count=2, ties_to_oldest=True)
    verdict = decided(run(*points), policy(KeepRules(last=1, best=(best,))))
    assert kept(verdict) == [100, 200, 400]
    assert words(verdict, "step-100") == ["kept: best 1 of 2 by eval_loss (0.3, min)"]


def test_a12_the_recorded_best_is_found_by_its_name_alone() -> None:
    points = lustre((100, 200, 300))
    moved = run(*points, recorded_best="/old/cluster/run/step-200")
    verdict = decided(moved, policy(KeepRules(last=1, recorded_best=True)))
    assert kept(verdict) == [200, 300]
    assert words(verdict, "step-200") == ["kept: the trainer's own state calls step-200 its best"]


def test_a12_a_recorded_best_that_is_gone_holds_no_slot_and_is_told() -> None:
    lost = run(*lustre((70000, 75000), saved_ns=NOW), recorded_best="/old/run/step-35000")
    verdict = decided(lost, policy(KeepRules(last=1, recorded_best=True)))
    assert kept(verdict) == [75000]
    assert verdict.notes == (
        "recorded_best at lustre: the trainer's state names step-35000, which is not among the "
        "2 checkpoints there",
    )


def test_a16_what_is_no_number_never_wins() -> None:
    losses = {100: "NaN", 200: ".5", 300: "nan", 400: ".4", 500: "Infinity", 600: None}
    points = [checkpoint(step, loss=loss) for step, loss in losses.items()]
    best = Best(metric="eval_loss")
    verdict = decided(run(*points), policy(KeepRules(last=1, best=(best,))))
    assert kept(verdict) == [400, 600]
    highest = replace(best, is_highest=True)
    verdict = decided(run(*points), policy(KeepRules(last=1, best=(highest,))))
    assert kept(verdict) == [200, 600]


@pytest.mark.parametrize("is_highest", [False, True])
@pytest.mark.parametrize(("to_oldest", "stay"), [(True, 100), (False, 300)])
def test_what_is_no_number_takes_a_place_that_is_left_where_the_policy_says_so(
    to_oldest: bool, stay: int, is_highest: bool
) -> None:
    losses = {100: "NaN", 200: ".5", 300: "inf", 400: ".4", 500: None}
    points = [checkpoint(step, loss=loss) for step, loss in losses.items()]
    best = Best(metric="eval_loss", is_highest=is_highest, nan_is_worst=True)
    for number, kept_too in ((2, []), (3, [stay]), (9, [100, 300])):
        best = replace(best, count=number, ties_to_oldest=to_oldest)
        verdict = decided(run(*points), policy(KeepRules(last=1, best=(best,))))
        assert kept(verdict) == sorted([200, 400, 500, *kept_too])
    assert verdict.notes == (
        "best by eval_loss at lustre keeps 4, and 9 are wanted: 4 of 5 checkpoints there have "
        "a value",
    )


def test_a16_with_no_usable_value_the_rule_keeps_none_and_says_so() -> None:
    points = [checkpoint(step, loss="nan") for step in (100, 200)]
    rules = KeepRules(last=1, best=(Best(metric="eval_loss"),))
    verdict = decided(run(*points), policy(rules))
    assert kept(verdict) == [200]
    assert verdict.notes == (
        "best by eval_loss at lustre keeps 0, and 1 is wanted: 0 of 2 checkpoints there have a "
        "finite value",
    )


def test_a17_ages_are_those_since_the_first_sight() -> None:
    ancient = replace(checkpoint(100), saved_at_ns=NOW - HOUR_NS)  # its files say 1970
    floors = Floors(min_restorable=1, min_age_s=7 * 86400)
    verdict = decided(run(ancient, checkpoint(200)), policy(LAST_1, floors=floors))
    assert not gone(verdict)
    assert "kept: 1h old, and min_age is 7d" in words(verdict, "step-100")


# -- what a policy says nothing of -----------------------------------------------------------------


def test_without_a_policy_everything_stays() -> None:
    verdict = decided(run(*lustre(range(100, 1000, 100))), None)
    assert not gone(verdict)
    assert verdict.policy is None
    assert words(verdict, "step-100") == ["kept: no policy covers this run"]


@pytest.mark.parametrize("rules", [None, KeepRules()])
def test_a_tier_without_rules_keeps_everything(rules: KeepRules | None) -> None:
    keep = {"s3": LAST_1} | ({} if rules is None else {"lustre": rules})
    verdict = decided(run(*lustre((100, 200))), policy(keep))
    assert not gone(verdict)
    assert words(verdict, "step-100") == ["kept: policy p has no keep rules for lustre"]


def test_weights_alone_are_touched_only_by_rules_that_name_them() -> None:
    points = [checkpoint(100), checkpoint(200)]
    weights = [checkpoint(step, name=f"w-{step}", weights_only=True) for step in (10, 20, 300)]
    the_run = run(*points, *weights)
    assert kept(decided(the_run, policy(LAST_1))) == [10, 20, 200, 300]
    named = policy(LAST_1, weights={"lustre": KeepRules(last=1)})
    assert kept(decided(the_run, named)) == [200, 300]


def test_a_replaced_line_stays_until_its_time_is_over_and_its_newest_longer() -> None:
    old, new = lustre((100, 200, 300)), [replace(checkpoint(150), line=2)]
    the_run = run(
        *old, *new, path=((2, None), (1, 100)), line_replaced_at_ns=((1, NOW - 40 * DAY_NS),)
    )
    assert kept(decided(the_run, policy(KeepRules(last=1)))) == [150, 200, 300]
    spent = OldLines(after_s=30 * 86400)
    verdict = decided(the_run, policy(LAST_1, old_lines=spent))
    assert kept(verdict) == [150, 300]
    assert words(verdict, "step-200") == [
        "goes: line 1 was replaced on 2026-10-14 00:00 UTC, over 30d ago"
    ]
    both = policy(LAST_1, old_lines=replace(spent, newest_too=True))
    assert kept(decided(the_run, both)) == [150]
    early = policy(LAST_1, old_lines=replace(spent, after_s=50 * 86400))
    assert kept(decided(the_run, early)) == [150, 200, 300]


def test_what_is_marked_bad_goes_and_fills_nothing() -> None:
    bad = checkpoint(300, mark="marked bad by uid:0@n1: diverged")
    verdict = decided(run(*lustre((100, 200)), bad), policy(LAST_1))
    assert kept(verdict) == [200]
    assert words(verdict, "step-300") == ["goes: marked bad by uid:0@n1: diverged"]


def test_an_older_attempt_goes_once_the_newer_one_is_whole() -> None:
    older = checkpoint(200, name="step-200a")
    newer = checkpoint(200, name="step-200b", attempt=1)
    assert gone(decided(run(older, newer), policy(KeepRules(last=2)))) == {
        "prune": {"step-200a lustre"}
    }
    torn = replace(newer, copies=(copy(state=CopyState.REOPENED),))
    assert not gone(decided(run(older, torn), policy(KeepRules(last=2))))


# -- what protects ---------------------------------------------------------------------------------


def test_the_newest_durable_one_stays_beside_a_newer_one_that_is_not() -> None:
    newer = checkpoint(300, copy("nvme", node="n1"))
    rules = policy({"nvme": LAST_1, "lustre": KeepRules(steps=(1,))})
    verdict = decided(run(*lustre((100, 200)), newer), rules)
    assert kept(verdict) == [200, 300]
    assert reasons(verdict, "step-200") == {"newest-durable", "floor-copies"}


def test_the_newest_within_reach_stays_beside_one_that_may_not_come_back() -> None:
    away = checkpoint(300, copy(is_reachable=False))
    verdict = decided(run(*lustre((100, 200)), away), policy(KeepRules(steps=(1,))))
    assert kept(verdict) == [200, 300]
    assert "kept: the newest restorable checkpoint within reach for resume and weights" in words(
        verdict, "step-200"
    )


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"pins": frozenset({"paper"})}, "pinned"),
        ({"is_start_point": True}, "start-point"),
        ({"leases": frozenset({"eval by uid:7@n3"})}, "leased"),
        ({"awaited_by": frozenset({"s3"})}, "undrained"),
    ],
)
def test_claims_keep_what_no_rule_keeps(facts: dict, reason: str) -> None:
    claimed = checkpoint(100, **facts)
    verdict = decided(run(claimed, *lustre((200, 300))), policy(LAST_1))
    assert kept(verdict) == [100, 300]
    assert reason in reasons(verdict, "step-100")


def test_a_lease_holds_every_copy_and_a_pin_only_those_that_are_needed() -> None:
    copies = (copy("nvme", node="n1"), copy(), copy("s3"))
    rules = policy({"nvme": LAST_1, "lustre": LAST_1, "s3": LAST_1})
    pinned = checkpoint(100, *copies, pins=frozenset({"paper"}))
    leased = checkpoint(100, *copies, leases=frozenset({"eval"}))
    newer = checkpoint(900, *copies)
    assert gone(decided(run(pinned, newer), rules)) == {
        "evict": {"step-100 nvme", "step-100 lustre"}
    }
    assert not gone(decided(run(leased, newer), rules))


def test_floors_keep_the_newest_so_many_over_all_tiers() -> None:
    spread = [checkpoint(100), checkpoint(200, copy("s3")), checkpoint(300, copy("s3"))]
    rules = policy({"lustre": LAST_1, "s3": LAST_1}, floors=Floors(min_restorable=2, min_age_s=0))
    verdict = decided(run(checkpoint(50), *spread), rules)
    assert kept(verdict) == [100, 200, 300]
    text = "kept: restorable checkpoint 2 of the 2 that every run keeps (min_restorable)"
    assert text in words(verdict, "step-200", "s3")


def test_nothing_of_a_run_that_was_met_lately_goes() -> None:
    rules = policy(LAST_1, safety=Safety(adoption_grace_s=7 * 86400))
    met = run(*lustre((100, 200)), met_at_ns=NOW - DAY_NS)
    verdict = decided(met, rules)
    assert not gone(verdict)
    assert words(verdict, "step-100") == [
        "kept: the run was met lately; nothing of it goes before 2026-11-29 00:00 UTC"
    ]
    assert pruned(decided(met, rules, now_ns=NOW + 6 * DAY_NS)) == {100}


def test_nothing_goes_from_a_tier_that_could_not_be_looked_at() -> None:
    rules = policy({"lustre": LAST_1, "s3": LAST_1})
    points = [checkpoint(step, copy(), copy("s3")) for step in (100, 200, 300)]
    verdict = decided(run(*points, unseen=frozenset({"s3"})), rules)
    assert not gone(verdict), "what s3 holds does not count as remaining"
    assert "unreachable" in reasons(verdict, "step-100", "s3")


def test_nothing_goes_from_a_tier_of_another_catalog() -> None:
    point = checkpoint(100, copy(is_governed=False))
    verdict = decided(run(point, checkpoint(200)), policy(LAST_1))
    assert not gone(verdict)
    assert "other-catalog" in reasons(verdict, "step-100")


# -- evict or prune --------------------------------------------------------------------------------

NVME_2_LUSTRE_3 = {"nvme": KeepRules(last=2), "lustre": KeepRules(last=3)}


def test_a_copy_goes_while_the_checkpoint_stays_elsewhere() -> None:
    points = [checkpoint(step, copy("nvme", node="n1"), copy()) for step in (100, 200, 300, 400)]
    verdict = decided(run(*points), policy(NVME_2_LUSTRE_3))
    assert gone(verdict) == {
        "evict": {"step-200 nvme"},
        "prune": {"step-100 nvme", "step-100 lustre"},
    }
    assert words(verdict, "step-200", "nvme") == ["goes: no rule of policy p keeps it on nvme"]


def test_halves_on_nodes_go_together() -> None:
    halves = (copy("nvme", node="n1", shards={0}), copy("nvme", node="n2", shards={1}))
    points = [checkpoint(step, *halves, copy()) for step in (100, 200)]
    rules = policy({"nvme": LAST_1, "lustre": KeepRules(last=2)})
    verdict = decided(run(*points), rules)
    (at,) = (at for one in verdict.checkpoints for at in one.tiers if at.action)
    assert at.places == ("nvme@n1", "nvme@n2")


def test_a_half_that_lost_its_other_goes_only_where_the_whole_is_kept() -> None:
    half = copy("nvme", node="n1", shards={0})
    other = copy("nvme", node="n2", shards={1}, state=CopyState.REOPENED)
    rules = policy({"nvme": LAST_1, "lustre": KeepRules(last=9)})
    assert gone(decided(run(checkpoint(100, half, copy())), rules)) == {"evict": {"step-100 nvme"}}
    assert not gone(decided(run(checkpoint(100, half, other, copy())), rules))
    assert not gone(decided(run(checkpoint(100, half), checkpoint(200)), rules))


def test_the_last_durable_copy_of_what_is_kept_stays() -> None:
    point = checkpoint(100, copy("nvme", node="n1"), copy())
    rules = policy({"nvme": KeepRules(last=9), "lustre": LAST_1})
    verdict = decided(run(point, checkpoint(200)), rules)
    assert not gone(verdict)
    assert words(verdict, "step-100") == [
        "kept: what stays needs 1 durable copy, and without this one it would have 0"
    ]


def test_a_copy_stays_until_one_that_would_remain_was_compared_lately() -> None:
    stale = copy(compared_ns=NOW - 8 * DAY_NS)
    point = checkpoint(100, copy("nvme", node="n1"), stale)
    rules = policy({"nvme": LAST_1, "lustre": KeepRules(last=9)})
    newer = checkpoint(200, copy("nvme", node="n1"), copy())
    verdict = decided(run(point, newer), rules)
    assert not gone(verdict)
    assert words(verdict, "step-100", "nvme") == [
        "kept: no durable copy that would remain was compared since 2026-11-16 00:00 UTC"
    ]
    longer = replace(rules, verify_max_age_s=30 * 86400)
    assert gone(decided(run(point, newer), longer)) == {"evict": {"step-100 nvme"}}


def test_two_durable_copies_are_kept_where_the_policy_wants_two() -> None:
    point = checkpoint(100, copy("nvme", node="n1"), copy(), copy("s3"))
    rules = policy(
        {"nvme": LAST_1, "lustre": LAST_1, "s3": KeepRules(last=9)},
        floors=Floors(min_restorable=1, min_durable_copies=2, min_age_s=0),
    )
    newer = checkpoint(200, copy("nvme", node="n1"), copy(), copy("s3"))
    assert gone(decided(run(point, newer), rules)) == {"evict": {"step-100 nvme"}}
    one = replace(rules, floors=replace(rules.floors, min_durable_copies=1))
    assert gone(decided(run(point, newer), one)) == {"evict": {"step-100 nvme", "step-100 lustre"}}


def test_where_the_other_tier_has_no_sound_copy_it_stays() -> None:
    point = checkpoint(100, copy(), copy("s3", state=CopyState.CORRUPT))
    rules = policy({"lustre": LAST_1, "s3": KeepRules(last=9)})
    verdict = decided(run(point, checkpoint(200)), rules)
    assert not gone(verdict)
    assert reasons(verdict, "step-100", "s3") == {"not-verified"}


def test_of_what_only_a_pin_keeps_the_copy_furthest_down_the_links_stays() -> None:
    from ckptgov.model.settings import Link

    copies = (copy("archive"), copy("lustre"))
    rules = policy({"archive": LAST_1, "lustre": LAST_1})
    the_run = run(checkpoint(100, *copies, pins=frozenset({"p"})), checkpoint(200, *copies))
    assert gone(decided(the_run, rules)) == {"evict": {"step-100 archive"}}
    links = (Link(source="lustre", target="archive", every=1),)
    assert gone(decided(the_run, replace(rules, links=links))) == {"evict": {"step-100 lustre"}}


def test_copies_that_are_on_their_way_out_are_not_there() -> None:
    leaving = checkpoint(100, copy(state=CopyState.CONDEMNED))
    verdict = decided(run(leaving, *lustre((200,))), policy(LAST_1))
    assert [one.step for one in verdict.checkpoints] == [200]


# -- calendars -------------------------------------------------------------------------------------


def test_an_hour_that_comes_twice_is_two_hours() -> None:
    set_back_ns = 1_792_890_000 * 10**9  # 2026-10-25 01:00 UTC, from 03:00 to 02:00 in Berlin
    points = [
        checkpoint(100 + number, saved_ns=set_back_ns + (number - 2) * HOUR_NS // 2)
        for number in range(4)
    ]
    rules = KeepRules(buckets=((Calendar.HOURLY, ALL),))
    berlin = decided(run(*points), policy(rules, timezone="Europe/Berlin"))
    assert kept(berlin) == [101, 103]
    assert "kept: hourly 1 of all (2026-10-25 02:00+0100, Europe/Berlin)" in words(
        berlin, "step-103"
    )
    assert "kept: hourly 2 of all (2026-10-25 02:00+0200, Europe/Berlin)" in words(
        berlin, "step-101"
    )


def test_weeks_are_iso_weeks_across_the_turn_of_a_year() -> None:
    monday_ns = 20_451 * DAY_NS  # 2025-12-29, in the first week of 2026
    points = [checkpoint(step, saved_ns=monday_ns + step * DAY_NS) for step in (0, 3, 6, 7)]
    verdict = decided(run(*points), policy(KeepRules(buckets=((Calendar.WEEKLY, 2),))))
    assert kept(verdict) == [6, 7]
    assert "kept: weekly 2 of 2 (2026-W01)" in words(verdict, "step-6")


def test_counts_are_of_buckets_that_hold_something() -> None:
    points = [checkpoint(step) for step in (100, 900, 1000, 1050)]
    verdict = decided(run(*points), policy(KeepRules(buckets=((Calendar.DAILY, 3),))))
    assert kept(verdict) == [100, 900, 1050]
    assert "kept: daily 3 of 3 (2026-11-04)" in words(verdict, "step-100")


def test_an_unknown_time_zone_is_a_mistake_of_the_policy() -> None:
    rules = policy(KeepRules(buckets=((Calendar.DAILY, 1),)), timezone="Mars/Olympus")
    with pytest.raises(ConfigError, match="Mars/Olympus"):
        decided(run(checkpoint(100)), rules)


# -- the end of a run ------------------------------------------------------------------------------

ENDED = Lifecycle(retired_keep=KeepRules(tags=("release",)), retired_may_be_emptied=True)


def test_a_retired_runs_last_checkpoints_go_by_rule_and_a_live_runs_never() -> None:
    points = [*lustre((100, 200)), checkpoint(50, tags=frozenset({"release"}))]
    rules = policy(KeepRules(last=9), lifecycle=ENDED)
    assert not gone(decided(run(*points), rules))
    verdict = decided(run(*points, retired_at_ns=NOW), rules)
    assert kept(verdict) == [50]
    assert verdict.life is RunLife.RETIRED
    assert words(verdict, "step-100") == [
        "goes: the run is retired, and no rule of policy p then keeps it on lustre"
    ]
    guarded = replace(rules, lifecycle=replace(ENDED, retired_may_be_emptied=False))
    assert kept(decided(run(*points, retired_at_ns=NOW), guarded)) == [50, 200]
    later = replace(rules, lifecycle=replace(ENDED, retired_after_s=86400))
    assert not gone(decided(run(*points, retired_at_ns=NOW), later))


def test_pins_and_start_points_of_a_retired_run_still_hold() -> None:
    points = [checkpoint(100, pins=frozenset({"p"})), checkpoint(200, is_start_point=True)]
    rules = policy(KeepRules(last=9), lifecycle=ENDED)
    verdict = decided(run(*points, checkpoint(300), retired_at_ns=NOW), rules)
    assert kept(verdict) == [100, 200]


@pytest.mark.parametrize(
    ("quiet_days", "finished", "life"),
    [(13, False, RunLife.LIVE), (14, False, RunLife.DEAD), (99, True, RunLife.FINISHED)],
)
def test_a_run_is_dead_when_nothing_was_heard_of_it(
    quiet_days: int, finished: bool, life: RunLife
) -> None:
    quiet = run(
        checkpoint(100),
        alive_at_ns=NOW - quiet_days * DAY_NS,
        finished_at_ns=0 if finished else None,
    )
    assert decided(quiet, policy()).life is life


def test_a_dead_run_is_retired_only_by_a_policy_that_says_so() -> None:
    quiet = run(*lustre((100, 200)), alive_at_ns=NOW - 40 * DAY_NS)
    assert not gone(decided(quiet, policy(KeepRules(last=9), lifecycle=ENDED)))
    said = replace(ENDED, retire_dead_after_s=30 * 86400)
    assert pruned(decided(quiet, policy(KeepRules(last=9), lifecycle=said))) == {100, 200}
