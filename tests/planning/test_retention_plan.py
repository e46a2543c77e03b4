"""Plans: what they hold, their caps, the second look, and that equal facts give equal bytes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import weakref
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent))

from keeping import NOW, WEEK_S, checkpoint, copy, lustre, policy, run
from retention_cases import case_of, run_to_keep
from retention_cases import policy as policy_of

from ckptgov.model.policy import CapacityRule, KeepRules, Lifecycle, Policy, Safety
from ckptgov.model.retention import Action, Plan, PlanRefusal, RunToKeep, Why
from ckptgov.planning import retention_plan
from ckptgov.planning.capacity import Fill
from ckptgov.planning.retention import Decided, judge
from ckptgov.planning.retention_plan import Unjudged, canonical, plan_id_of, plan_of

LAST_1 = policy(KeepRules(last=1), safety=Safety(adoption_grace_s=0, max_fraction_percent=100))


def plan(*runs: tuple[RunToKeep, Policy | None] | Unjudged) -> Plan:
    return plan_of(lambda: runs, fills=(), now_ns=NOW, change_seq=7, verify_max_age_s=WEEK_S)


def test_a_plan_lists_every_copy_that_goes_with_its_reason_and_what_it_frees() -> None:
    points = [checkpoint(step, copy("nvme", node="n1"), copy()) for step in (100, 200)]
    rules = policy({"nvme": KeepRules(last=1), "lustre": KeepRules(last=9)})
    made = plan((run(*points), rules))
    (entry,) = made.entries
    assert (entry.checkpoint, entry.place, entry.node) == ("step-100", "nvme@n1", "n1")
    assert (entry.action, entry.bytes, entry.files, entry.size_bytes) == (Action.EVICT, 100, 2, 100)
    assert [why.text for why in entry.why] == ["goes: no rule of policy p keeps it on nvme"]
    assert (made.runs, made.checkpoints, made.change_seq) == (1, 2, 7)
    assert made.policies == (("p", "sha256:p"),)


def test_a_run_that_could_not_be_judged_is_told_and_nothing_of_it_goes() -> None:
    made = plan(
        (run(*lustre((100, 200))), LAST_1), Unjudged(run="lm/b", why="nvme of n2: no answer")
    )
    assert made.failures == (("lm/b", "nvme of n2: no answer"),)
    assert {one.run for one in made.entries} == {"lm/llama"}


def test_a_run_without_a_policy_is_counted_and_left_alone() -> None:
    made = plan((run(*lustre((100, 200))), None))
    assert (made.runs, made.entries, made.policies) == (1, (), ())


# -- caps ------------------------------------------------------------------------------------------


def caps(rules: Policy, *runs: RunToKeep) -> tuple[PlanRefusal, ...]:
    return plan(*((one, rules) for one in runs)).refusals


def test_more_checkpoints_than_the_cap_wait_for_a_person() -> None:
    safety = Safety(adoption_grace_s=0, max_fraction_percent=100, max_count=3)
    rules = replace(LAST_1, safety=safety)
    one, other = run(*lustre((100, 200, 300))), run(*lustre((100, 200)), name="lm/b")
    assert caps(rules, one, other) == ()
    more = run(*lustre((100, 200, 300)), name="lm/c")
    assert caps(rules, one, more) == (
        PlanRefusal(
            is_cap=True,
            text="policy p: 4 checkpoints would go for good, more than 3 (max_count)",
        ),
    )


def test_more_than_a_share_of_one_run_waits_for_a_person() -> None:
    rules = replace(LAST_1, safety=Safety(adoption_grace_s=0))
    assert caps(rules, run(*lustre((100, 200)))) == ()
    assert caps(rules, run(*lustre((100, 200, 300)))) == (
        PlanRefusal(
            is_cap=True,
            text=(
                "policy p: more than 50% of a run's restorable checkpoints would go "
                "(max_fraction): lm/llama (2 of 3)"
            ),
        ),
    )


def test_more_bytes_than_the_cap_wait_for_a_person() -> None:
    safety = Safety(adoption_grace_s=0, max_fraction_percent=100, max_bytes=150)
    rules = replace(LAST_1, safety=safety)
    assert caps(rules, run(*lustre((100, 200)))) == ()
    assert caps(rules, run(*lustre((100, 200, 300)))) == (
        PlanRefusal(
            is_cap=True, text="policy p: 200 B would be freed, more than 150 B (max_bytes)"
        ),
    )


def test_what_a_limit_drives_out_counts_for_the_caps_as_well() -> None:
    rules = policy(None, capacity={"lustre": CapacityRule(quota_bytes=100)})
    (refusal,) = caps(rules, run(*lustre((100, 200, 300))))
    assert refusal.is_cap
    assert refusal.text.endswith("(max_fraction): lm/llama (2 of 3)")


def test_copies_of_what_stays_are_not_counted_as_checkpoints() -> None:
    points = [checkpoint(step, copy("nvme", node="n1"), copy()) for step in (100, 200, 300)]
    safety = Safety(adoption_grace_s=0, max_count=1)
    rules = policy({"nvme": KeepRules(last=1), "lustre": KeepRules(last=9)}, safety=safety)
    made = plan((run(*points), rules))
    assert (len(made.entries), made.refusals) == (2, ())


def test_what_is_marked_bad_is_no_share_of_what_restores() -> None:
    rules = replace(LAST_1, safety=Safety(adoption_grace_s=0))
    bad = [checkpoint(step, mark="bad") for step in (10, 20, 30)]
    assert caps(rules, run(*bad, *lustre((100, 200)))) == ()


# -- the second look -------------------------------------------------------------------------------


def careless(*arguments: object, **figures: object) -> Decided:
    """A planner with a grave mistake: everything goes."""
    decided = judge(*arguments, **figures)
    for one in decided.judged:
        for ruling in one.rulings.values():
            ruling.action = Action.PRUNE
            ruling.drop = ruling.drop or Why("no-rule-keeps", "goes: all of it")
    return decided


def test_a_plan_that_would_empty_a_live_run_is_refused_and_nothing_lifts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention_plan, "judge", careless)
    refusal = plan((run(*lustre((100, 200))), LAST_1)).refusals[0]
    assert not refusal.is_cap
    assert refusal.text == "run lm/llama: no restorable checkpoint of it would be left"


def test_a_plan_that_leaves_only_what_is_out_of_reach_is_refused_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention_plan, "judge", careless)
    away = checkpoint(300, copy(is_reachable=False))
    refusal = plan((run(away, *lustre((100, 200))), LAST_1)).refusals[0]
    assert not refusal.is_cap


def test_limits_that_would_empty_a_live_run_are_refused_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = retention_plan.yielding

    def careless_yielding(decided: Decided, one: object, tiers: frozenset[str]) -> Iterator:
        one.shields.clear()
        return real(decided, one, tiers)

    monkeypatch.setattr(retention_plan, "yielding", careless_yielding)
    rules = policy(None, capacity={"lustre": CapacityRule(quota_bytes=0)})
    refusal = plan((run(*lustre((100, 200))), rules)).refusals[0]
    assert not refusal.is_cap


def test_a_retired_run_may_be_emptied_where_its_policy_says_so() -> None:
    ended = Lifecycle(retired_keep=KeepRules(steps=(1,)), retired_may_be_emptied=True)
    rules = replace(LAST_1, lifecycle=ended)
    made = plan((run(*lustre((100, 200)), retired_at_ns=NOW), rules))
    assert len(made.entries) == 2
    assert all(one.is_cap for one in made.refusals)


# -- equal facts, equal bytes ----------------------------------------------------------------------


def generated(seed: str, *, order: str = "") -> Plan:
    """A plan over many runs; ``order`` shuffles all that is listed."""
    dice, made = random.Random(seed), []
    for number in range(25):
        case = case_of(dice)
        the_run = replace(run_to_keep(case), run_id=f"id-{number}", name=f"lm/{number}")
        by = policy_of(case)
        if by is not None:
            capacity = {"lustre": CapacityRule(quota_bytes=3000, high_percent=50, low_percent=40)}
            by = replace(by, name=f"p{number % 3}", timezone="Europe/Berlin", capacity=capacity)
        made.append((the_run, by))
    if order:
        shuffler = random.Random(order)
        made = [(shuffled(one, shuffler), by) for one, by in made]
        shuffler.shuffle(made)
    fills = [
        Fill(place=f"place-{tier}-{node}", tier=tier, node=node, used_bytes=990, total_bytes=1000)
        for tier, node in (("lustre", None), ("s3", None), ("nvme", "n1"))
    ]
    if order:
        fills.reverse()
    return plan_of(
        lambda: made,
        fills=fills,
        now_ns=case_of(random.Random("now"))["now"],
        change_seq=1,
        verify_max_age_s=WEEK_S,
    )


def shuffled(one: RunToKeep, dice: random.Random) -> RunToKeep:
    points = [replace(each, copies=tuple(mixed(each.copies, dice))) for each in one.checkpoints]
    return replace(one, checkpoints=tuple(mixed(points, dice)), path=tuple(mixed(one.path, dice)))


def mixed(items, dice: random.Random) -> list:
    some = list(items)
    dice.shuffle(some)
    return some


def test_the_order_of_runs_checkpoints_and_copies_changes_no_byte() -> None:
    for seed in ("1", "2", "3"):
        first = generated(seed)
        assert first.entries, "the plan says something"
        for order in ("a", "b"):
            other = generated(seed, order=order)
            assert b"".join(canonical(other)) == b"".join(canonical(first))
            assert other == first


def test_neither_the_time_zone_nor_the_hash_seed_of_the_process_changes_a_byte() -> None:
    expected = generated("1").plan_id
    code = "import test_retention_plan as t; print(t.generated('1', order='x').plan_id)"
    here = Path(__file__).parent
    for zone, hash_seed in (("Pacific/Apia", "1"), ("America/New_York", "2")):
        environ = os.environ | {
            "TZ": zone,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join((str(here), str(here.parents[1]))),
            "LC_ALL": "C",
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected


def test_the_id_is_over_all_that_a_plan_says_and_nothing_else() -> None:
    made = plan((run(*lustre((100, 200))), LAST_1))
    document = b"".join(canonical(made))
    assert made.plan_id == "sha256:" + sha256(document).hexdigest()
    said = json.loads(document)
    assert "plan_id" not in said
    assert said["entries"][0]["checkpoint"] == "step-100"
    assert plan_id_of(replace(made, plan_id="sha256:other")) == made.plan_id
    for changed in (
        replace(made, now_ns=made.now_ns + 1),
        replace(made, entries=(replace(made.entries[0], bytes=99),)),
        replace(made, failures=(("lm/b", "why"),)),
    ):
        assert plan_id_of(changed) != made.plan_id


def test_names_that_are_not_utf_8_have_an_id_like_all_others() -> None:
    odd = checkpoint(100, name="step-\udcff100")
    made = plan((run(odd, checkpoint(200)), LAST_1))
    assert made.entries[0].checkpoint == "step-\udcff100"
    assert plan_id_of(made) == made.plan_id


def test_runs_are_forgotten_one_by_one() -> None:
    class Held(RunToKeep, frozen=True, kw_only=True, weakref=True):
        pass

    seen: list[weakref.ref] = []

    def stream() -> Iterator[tuple[RunToKeep, Policy | None]]:
        for number in range(50):
            facts = run(*lustre((100, 200)), name=f"lm/{number}")
            held = Held(**{name: getattr(facts, name) for name in RunToKeep.__struct_fields__})
            seen.append(weakref.ref(held))
            yield held, LAST_1
            del held
            assert sum(one() is not None for one in seen) <= 2

    made = plan_of(stream, fills=(), now_ns=NOW, change_seq=1, verify_max_age_s=WEEK_S)
    assert len(made.entries) == 50
