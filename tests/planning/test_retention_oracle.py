"""Retention against an oracle of its documentation, on cases out of a seed; and what must hold of
every case, whatever the documentation says."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from oracle import oracle
from promises import check_promises, could_go, is_held, newest_of
from retention_cases import DAY, SECOND, case_of, policy, rules_of, run_to_keep

from ckptgov.model.retention import Action, RunVerdict
from ckptgov.planning.retention import decide

SLICES = 20
CASES, FEWER = 2_000, 600
FULL = 50  # times as many with --full-sweep
YEAR = 365 * DAY * SECOND


@pytest.fixture
def dice_of(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    """One source of chance for each case of a part."""
    config = request.config
    count = (CASES if "oracle" in request.node.name else FEWER) // SLICES
    count *= FULL if config.getoption("--full-sweep") else 1
    return (
        random.Random(f"{config.getoption('--seed')} {request.node.name} {number}")
        for number in range(count)
    )


def verdict(case: dict) -> RunVerdict:
    """What the planner says."""
    return decide(
        run_to_keep(case),
        policy(case),
        now_ns=case["now"],
        verify_max_age_s=case["verify_max_age"],
    )


def told(case: dict) -> dict[tuple[str, str], tuple[str | None, frozenset[str]]]:
    """The same in the oracle's form: of copies that could go, action and reasons."""
    at_places = {}
    for one in verdict(case).checkpoints:
        for tier in one.tiers:
            copies = case["checkpoints"][one.content_id]["copies"]
            if all(could_go(case, copies[place]) for place in tier.places):
                reasons = frozenset(str(why.reason) for why in tier.why)
                at_places[one.content_id, tier.tier] = (tier.action, reasons)
            else:
                assert tier.action is None
                assert tier.why
    return at_places


def may_be_emptied(case: dict) -> bool:
    """Whether a retired run's policy lets its last ones go."""
    said = case["policy"] or {}
    return bool(said.get("may_be_emptied")) and verdict(case).life == "retired"


def gone_from(case: dict) -> dict[str, dict[str, str]]:
    """Checkpoint to places it goes from and how."""
    gone: dict[str, dict[str, str]] = {}
    for one in verdict(case).checkpoints:
        for tier in one.tiers:
            for place in tier.places if tier.action else ():
                gone.setdefault(one.content_id, {})[place] = tier.action
    return gone


@pytest.mark.parametrize("part", range(SLICES))
def test_the_planner_and_the_oracle_agree(part: int, dice_of: Iterator[random.Random]) -> None:
    for dice in dice_of:
        case = case_of(dice)
        assert told(case) == oracle(case)
        check_promises(case, gone_from(case), may_be_emptied=may_be_emptied(case))


def pruned(gone: dict[str, dict[str, str]]) -> set[str]:
    return {key for key, places in gone.items() if Action.PRUNE in places.values()}


def tiers_left(case: dict, gone: dict[str, dict[str, str]], key: str) -> int:
    """From how many tiers a checkpoint goes."""
    copies = case["checkpoints"][key]["copies"]
    return len({copies[place]["tier"] for place in gone.get(key, ())})


@pytest.mark.parametrize("part", range(SLICES))
def test_one_more_keep_rule_never_deletes_more(part: int, dice_of: Iterator[random.Random]) -> None:
    """No checkpoint is pruned that was not, and none that stays goes from more tiers than before.

    Which of several redundant copies goes may change: where a rule now keeps one, another is the
    redundant one. The first rule of a tier is no such rule: it is what makes anything go there.
    """
    for dice in dice_of:
        case = case_of(dice)
        tiers = [tier for tier, rules in (case["policy"] or {}).get("keep", {}).items() if rules]
        more = rules_of(dice, 1)
        if not tiers or not more:
            continue
        richer = copy.deepcopy(case)
        held = richer["policy"]["keep"][dice.choice(tiers)]
        held.update({name: rule for name, rule in more.items() if name not in held})
        before, after = gone_from(case), gone_from(richer)
        assert pruned(after) <= pruned(before)
        for key in after:
            assert tiers_left(richer, after, key) <= tiers_left(case, before, key) or (
                key in pruned(before)
            )


@pytest.mark.parametrize("part", range(SLICES))
def test_a_newer_checkpoint_never_takes_the_previous_newest_with_it(
    part: int, dice_of: Iterator[random.Random]
) -> None:
    """With the default floor of two the previous newest to resume from stays in any case.

    With a floor of one it may go, and only where the newer one is durable if it was. Its being
    pushed out by a newer attempt of its own step is no step forward, and not looked at.
    """
    for dice in dice_of:
        case = case_of(dice)
        previous = newest_of(case, "resume", False, False)
        if previous is None or may_be_emptied(case):
            continue
        newer = copy.deepcopy(case)
        newer["checkpoints"]["sha256:" + "f" * 64] = newest_like(case, previous, dice)
        went = gone_from(newer).get(previous, {})
        if Action.PRUNE not in went.values() or previous in pruned(gone_from(case)):
            continue
        assert case["policy"]["min_restorable"] == 1
        if is_held(case, case["checkpoints"][previous], False, True):
            assert newest_of(newer, "resume", False, True) != previous


def newest_like(case: dict, key: str, dice: random.Random) -> dict:
    """A checkpoint saved just now, one step above all others, at one tier or more."""
    newer = copy.deepcopy(case["checkpoints"][key])
    newer |= {"step": 500, "line": max(case["run"]["path"]), "attempt": 0, "mark": None}
    newer |= {"saved": case["now"], "pins": set(), "leases": set(), "kind": "step", "tags": set()}
    for place in list(newer["copies"]):
        if len(newer["copies"]) > 1 and dice.random() < 0.5:
            del newer["copies"][place]
    return newer


@pytest.mark.parametrize("part", range(SLICES))
def test_a_run_that_pauses_for_a_year_loses_nothing_by_time_alone(
    part: int, dice_of: Iterator[random.Random]
) -> None:
    """Nothing is pruned that could not have gone already, and no more copies are evicted.

    That is of policies that name no span counted from now: without ``missing_for``, ``old_lines``
    and ``retire_dead_after``, and once ``min_age``, ``adoption_grace`` and ``retired: after`` are
    over. No rule counts from now.
    """
    for dice in dice_of:
        case = case_of(dice)
        if case["policy"] is None:
            continue
        settle(case["policy"])
        later = copy.deepcopy(case)
        later["now"] += YEAR
        before, after = gone_from(case), gone_from(later)
        assert pruned(after) <= pruned(before)
        for key in after:
            assert tiers_left(case, after, key) <= tiers_left(case, before, key)


def settle(said: dict) -> None:
    """Take out of a policy whatever counts from now."""
    said |= {"old_lines": None, "retire_dead_after": None, "retired_after": 0}
    said |= {"min_age": 0, "adoption_grace": 0}
    for rules in [*said["keep"].values(), *said["weights"].values(), said["retired_keep"] or {}]:
        for best in rules.get("best", ()):
            best["missing_for"] = 0


@pytest.mark.parametrize("part", range(SLICES))
def test_the_order_of_the_input_changes_nothing(
    part: int, dice_of: Iterator[random.Random]
) -> None:
    for dice in dice_of:
        case = case_of(dice)
        other = shuffled(case, dice)
        assert verdict(case) == verdict(other)


def shuffled(case: dict, dice: random.Random) -> dict:
    """The same case, everything that is listed in another order."""

    def mixed(table: dict) -> dict:
        keys = list(table)
        dice.shuffle(keys)
        return {key: table[key] for key in keys}

    points = {
        key: point | {"copies": mixed(point["copies"]), "metrics": mixed(point["metrics"])}
        for key, point in case["checkpoints"].items()
    }
    run = case["run"] | {
        "path": mixed(case["run"]["path"]),
        "replaced": mixed(case["run"]["replaced"]),
    }
    said = case["policy"]
    if said is not None:
        said = said | {"keep": mixed(said["keep"]), "weights": mixed(said["weights"])}
        said["keep"] = {tier: mixed(rules) for tier, rules in said["keep"].items()}
    return case | {"checkpoints": mixed(points), "run": run, "policy": said}


def test_the_cases_contain_what_they_are_for() -> None:
    """The generator reaches every reason and both actions."""
    met: set[str] = set()
    for number in range(3000):
        for action, reasons in oracle(case_of(random.Random(f"coverage {number}"))).values():
            met |= {str(action), *reasons}
    assert met >= {
        *("None", "evict", "prune", "last", "first", "within", "hourly", "daily", "weekly"),
        *("monthly", "yearly", "every_steps", "every", "best", "recorded_best", "metric-awaited"),
        *("steps", "tags", "older_than_detection", "no-rules", "newest-restorable", "undrained"),
        *("newest-durable", "start-point", "pinned", "leased", "floor-restorable", "floor-copies"),
        *("floor-age", "adoption", "old-line", "stepless", "not-verified", "stale-proof"),
        *("no-rule-keeps", "marked-bad", "saved-again", "retired"),
    }
