"""Runs and policies out of a seed, as plain dicts; and the same as the values of the model."""

from __future__ import annotations

import math
import random

from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.copies import CopyState
from ckptgov.model.policy import (
    ALL,
    Best,
    Calendar,
    Floors,
    KeepRules,
    Lifecycle,
    OldLines,
    Policy,
    Safety,
)
from ckptgov.model.retention import CheckpointToKeep, CopyToKeep, RunToKeep
from ckptgov.model.settings import Link

SECOND = 10**9
HOUR = 3600
DAY = 24 * HOUR
NOW = 1_792_900_800 * SECOND  # 2026-10-25 04:00 UTC: clocks in Europe were put back at 01:00
MOMENTS = (0, 5 * DAY, 71 * DAY, 154 * DAY)  # an ISO year of 53 weeks ends; clocks put forward
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/Sao_Paulo")
METRICS = (
    "0.5",
    "0.50",
    "0.25",
    "1e-3",
    "-2",
    "nan",
    "inf",
    "-Infinity",
    "1_0",
    "",
    "high",
    "1e999",
)
TIERS = {"nvme": ("n1", "n2"), "lustre": (None,), "s3": (None,)}


def case_of(dice: random.Random) -> dict:
    """One case: a run, its policy, the moment."""
    now = NOW + dice.choice(MOMENTS) * SECOND
    path, lines = _path(dice)
    count = dice.choice((0, 1, 2, 3, 5, 8, 13))
    spacing = dice.choice((60, 1800, HOUR, 7 * HOUR, DAY, 9 * DAY))
    points = {}
    for index in range(count):
        key = f"sha256:{dice.randrange(16**8):08x}{index:056x}"
        points[key] = _point(dice, index, count, spacing, now, lines)
    policy = None if dice.random() < 0.03 else policy_of(dice)
    return {
        "now": now,
        "verify_max_age": 7 * DAY,
        "run": {
            "path": path,
            "replaced": {
                line: now - dice.randrange(60) * DAY * SECOND
                for line in lines
                if dice.random() < 0.9
            },
            "met": now - dice.choice((DAY, 400 * DAY, 400 * DAY, 400 * DAY)) * SECOND,
            "alive": now - dice.choice((0, 13 * DAY, 14 * DAY, 40 * DAY)) * SECOND,
            "finished": now if dice.random() < 0.1 else None,
            "retired": now - dice.randrange(9) * DAY * SECOND if dice.random() < 0.15 else None,
            "best": dice.choice((None, "/old/run/step-20", "step-30/", "elsewhere")),
            "unseen": {dice.choice(tuple(TIERS))} if dice.random() < 0.08 else set(),
        },
        "policy": policy,
        "checkpoints": points,
    }


def _path(dice: random.Random) -> tuple[dict, list[int]]:
    if dice.random() < 0.6:
        return {1: None}, [1]
    if dice.random() < 0.5:
        return {2: None, 1: dice.randrange(80)}, [1, 2]
    return {3: None, 1: dice.randrange(60)}, [1, 2, 3]


def _point(
    dice: random.Random, index: int, count: int, spacing: int, now: int, lines: list[int]
) -> dict:
    step = dice.choice((index * 10, index * 10, dice.randrange(0, 130, 10)))
    jitter = dice.randrange(spacing) if dice.random() < 0.3 else 0
    kind = dice.choices(("step", "ordinal", "none"), (20, 2, 1))[0]
    shards = dice.choice((1, 2, 3, 9))
    return {
        "name": dice.choice(("step-{}", "step-{}", "deep/step-{}")).format(step),
        "step": None if kind == "none" and dice.random() < 0.8 else step,
        "kind": kind,
        "line": dice.choice(lines),
        "attempt": dice.choice((0, 0, 0, 1)),
        "purposes": dice.choices(
            ({"resume", "weights"}, {"resume"}, {"weights"}, set()), (10, 2, 3, 0.3)
        )[0],
        "shards": shards,
        "saved": now - ((count - index) * spacing - jitter) * SECOND,
        "mark": "marked bad" if dice.random() < 0.08 else None,
        "pins": {"paper"} if dice.random() < 0.05 else set(),
        "tags": {"paper"} if dice.random() < 0.1 else set(),
        "leases": {"reader"} if dice.random() < 0.03 else set(),
        "start": dice.random() < 0.04,
        "awaited": {dice.choice(("lustre", "s3"))} if dice.random() < 0.07 else set(),
        "metrics": {name: dice.choice(METRICS) for name in ("loss", "acc") if dice.random() < 0.8},
        "copies": _copies(dice, shards, now),
    }


def _copies(dice: random.Random, shards: int, now: int) -> dict:
    copies = {}
    for tier, nodes in TIERS.items():
        if dice.random() < 0.35:
            continue
        halved = len(nodes) > 1 and shards > 1 and dice.random() < 0.5
        for number, node in enumerate(nodes):
            if dice.random() < (0.1 if halved else 0.4 if len(nodes) > 1 else 0):
                continue
            held = set(range(number, shards, len(nodes))) if halved else set(range(shards))
            state = "verified" if dice.random() < 0.9 else dice.choice(tuple(CopyState)).value
            copies[f"place-{tier}-{node}"] = {
                "tier": tier,
                "node": node,
                "state": state,
                "shards": held,
                "whole": not halved,
                "at": None if dice.random() < 0.05 else now - dice.choice((1, 6, 8)) * DAY * SECOND,
                "reach": dice.random() > 0.04,
                "ours": dice.random() > 0.03,
            }
    return copies


def rules_of(dice: random.Random, most: int = 3) -> dict:
    """Keep rules of one tier: up to so many."""
    offers = {
        "last": lambda: dice.choice((1, 2, 3, math.inf)),
        "first": lambda: dice.choice((1, 2)),
        "within": lambda: dice.choice((HOUR, DAY, 7 * DAY)),
        "hourly": lambda: dice.choice((1, 3, math.inf)),
        "daily": lambda: dice.choice((1, 2, 7, math.inf)),
        "weekly": lambda: dice.choice((1, 2)),
        "monthly": lambda: dice.choice((1, math.inf)),
        "yearly": lambda: dice.choice((1, 2)),
        "every_steps": lambda: dice.choice((20, 30, 1000)),
        "every": lambda: dice.choice((HOUR, 6 * HOUR, 2 * DAY)),
        "best": lambda: [
            {
                "metric": metric,
                "mode": dice.choice(("min", "max")),
                "count": dice.choice((1, 2, math.inf)),
                "ties": dice.choice(("newest", "oldest")),
                "nan": dice.choice(("never", "worst")),
                "missing_for": dice.choice((0, 0, 12 * HOUR)),
            }
            for metric in dice.sample(("loss", "acc", "absent"), dice.choice((1, 1, 2)))
        ],
        "recorded_best": lambda: True,
        "steps": lambda: sorted(dice.sample(range(0, 130, 10), 2)),
        "tags": lambda: ["paper", "release"],
        "older_than_detection": lambda: dice.choice((HOUR, DAY, 3 * DAY)),
    }
    return {name: offers[name]() for name in dice.sample(sorted(offers), dice.randrange(most + 1))}


def policy_of(dice: random.Random) -> dict:
    """A policy without capacity limits."""
    return {
        "timezone": dice.choice(ZONES),
        "keep": {tier: rules_of(dice) for tier in TIERS if dice.random() < 0.85},
        "weights": {tier: rules_of(dice, 1) for tier in TIERS if dice.random() < 0.4},
        "old_lines": (
            {"after": dice.choice((0, 30 * DAY)), "newest_too": dice.random() < 0.4}
            if dice.random() < 0.5
            else None
        ),
        "min_restorable": dice.choice((1, 2, 2, 4)),
        "min_durable_copies": dice.choice((1, 1, 2, 3)),
        "min_age": dice.choice((0, HOUR, 6 * HOUR)),
        "adoption_grace": dice.choice((0, 7 * DAY)),
        "dead_after": 14 * DAY,
        "retire_dead_after": dice.choice((None, None, 30 * DAY)),
        "retired_keep": rules_of(dice) if dice.random() < 0.6 else None,
        "retired_after": dice.choice((0, 3 * DAY)),
        "may_be_emptied": dice.random() < 0.4,
        "verify_max_age": dice.choice((None, 2 * DAY)),
        "links": dice.choice((None, [("nvme", "lustre"), ("lustre", "s3")])),
    }


def run_to_keep(case: dict) -> RunToKeep:
    """The run of a case for the planner."""
    run = case["run"]
    return RunToKeep(
        run_id="7f0c3ab2-0000-4000-8000-000000000001",
        name="lm/llama",
        path=tuple(run["path"].items()),
        line_replaced_at_ns=tuple(run["replaced"].items()),
        met_at_ns=run["met"],
        alive_at_ns=run["alive"],
        finished_at_ns=run["finished"],
        retired_at_ns=run["retired"],
        recorded_best=run["best"],
        checkpoints=tuple(_checkpoint(key, point) for key, point in case["checkpoints"].items()),
        unseen=frozenset(run["unseen"]),
    )


def _checkpoint(key: str, point: dict) -> CheckpointToKeep:
    return CheckpointToKeep(
        content_id=key,
        name=point["name"],
        step=point["step"],
        step_kind=StepKind(point["kind"]),
        line=point["line"],
        attempt=point["attempt"],
        purposes=tuple(Purpose(one) for one in sorted(point["purposes"])),
        bytes=100 * point["shards"],
        shard_count=point["shards"],
        saved_at_ns=point["saved"],
        mark=point["mark"],
        pins=frozenset(point["pins"]),
        tags=frozenset(point["tags"]),
        leases=frozenset(point["leases"]),
        is_start_point=point["start"],
        awaited_by=frozenset(point["awaited"]),
        metrics=tuple(point["metrics"].items()),
        copies=tuple(_copy(place, copy) for place, copy in point["copies"].items()),
    )


def _copy(place: str, copy: dict) -> CopyToKeep:
    bits = sum(1 << shard for shard in copy["shards"])
    return CopyToKeep(
        place=place,
        tier=copy["tier"],
        node=copy["node"],
        state=CopyState(copy["state"]),
        coverage=None if copy["whole"] else bits.to_bytes(2, "little"),
        bytes=100 * len(copy["shards"]),
        files=len(copy["shards"]),
        verified_at_ns=copy["at"],
        is_reachable=copy["reach"],
        is_governed=copy["ours"],
    )


def policy(case: dict) -> Policy | None:
    """The policy of a case for the planner."""
    said = case["policy"]
    if said is None:
        return None
    spent, links = said["old_lines"], said["links"]
    return Policy(
        name="generated",
        digest="sha256:00",
        file="generated.yaml",
        timezone=said["timezone"],
        keep={tier: keep_rules(rules) for tier, rules in said["keep"].items()},
        weights={tier: keep_rules(rules) for tier, rules in said["weights"].items()},
        old_lines=spent and OldLines(after_s=spent["after"], newest_too=spent["newest_too"]),
        floors=Floors(
            min_restorable=said["min_restorable"],
            min_durable_copies=said["min_durable_copies"],
            min_age_s=said["min_age"],
        ),
        safety=Safety(adoption_grace_s=said["adoption_grace"]),
        lifecycle=Lifecycle(
            dead_after_s=said["dead_after"],
            retire_dead_after_s=said["retire_dead_after"],
            retired_keep=None if said["retired_keep"] is None else keep_rules(said["retired_keep"]),
            retired_after_s=said["retired_after"],
            retired_may_be_emptied=said["may_be_emptied"],
        ),
        links=None if links is None else tuple(Link(source=a, target=b, every=1) for a, b in links),
        verify_max_age_s=said["verify_max_age"],
    )


def keep_rules(rules: dict) -> KeepRules:
    """Keep rules as the model has them."""

    def count(number: float) -> int:
        return ALL if number == math.inf else int(number)

    counts = {name: count(rules[name]) for name in ("last", "first") if name in rules}
    return KeepRules(
        **counts,
        within_s=rules.get("within"),
        buckets=tuple((each, count(rules[each])) for each in Calendar if each.value in rules),
        every_steps=rules.get("every_steps"),
        every_s=rules.get("every"),
        best=tuple(
            Best(
                metric=one["metric"],
                is_highest=one["mode"] == "max",
                count=count(one["count"]),
                ties_to_oldest=one["ties"] == "oldest",
                nan_is_worst=one["nan"] == "worst",
                missing_for_s=one["missing_for"],
            )
            for one in rules.get("best", ())
        ),
        recorded_best=rules.get("recorded_best", False),
        steps=tuple(rules.get("steps", ())),
        tags=tuple(rules.get("tags", ())),
        older_than_detection_s=rules.get("older_than_detection"),
    )
