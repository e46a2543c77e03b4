"""A policy as the text of a file that says the same, with everything that holds by default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ckptgov.config.edit import Value, flow, link_fields
from ckptgov.config.units import bytes_text, duration_text
from ckptgov.model.policy import (
    ALL,
    Best,
    CapacityRule,
    Floors,
    KeepRules,
    Lifecycle,
    Policy,
    Safety,
)

Fields = dict[str, Value]


def policy_text(policy: Policy) -> str:
    """YAML that reads back as the same policy, but for its digest and its file."""
    return "\n".join(_lines(policy)) + "\n"


def _lines(policy: Policy) -> Iterator[str]:
    yield f"policy: {flow(policy.name)}"
    yield f"runs: {flow(policy.selector.runs)}"
    if policy.selector.teams:
        yield f"teams: {flow(policy.selector.teams)}"
    if policy.selector.tags:
        yield f"tags: {flow(policy.selector.tags)}"
    yield f"timezone: {flow(policy.timezone)}"
    yield from _by_tier("keep", {tier: rule_fields(one) for tier, one in policy.keep.items()})
    yield from _by_tier("weights", {tier: rule_fields(one) for tier, one in policy.weights.items()})
    if policy.old_lines is not None:
        after = duration_text(policy.old_lines.after_s)
        yield f"old_lines: {flow({'after': after, 'newest_too': policy.old_lines.newest_too})}"
    yield f"floors: {flow(floor_fields(policy.floors))}"
    limits = {tier: capacity_fields(one) for tier, one in policy.capacity.items()}
    yield from _by_tier("capacity", limits)
    yield f"safety: {flow(safety_fields(policy.safety))}"
    yield f"lifecycle: {flow(lifecycle_fields(policy.lifecycle))}"
    if policy.links is not None:
        yield f"flush: {flow([link_fields(one) for one in policy.links])}"
    if policy.settle_s is not None:
        yield f"seal: {flow({'settle': duration_text(policy.settle_s)})}"
    if policy.verify_max_age_s is not None:
        yield f"verify: {flow({'max_age': duration_text(policy.verify_max_age_s)})}"


def _by_tier(key: str, tables: Mapping[str, Fields]) -> Iterator[str]:
    if tables:
        yield f"{key}:"
    for tier, fields in tables.items():
        yield f"  {flow(tier)}: {flow(fields)}"


def rule_fields(rules: KeepRules) -> Fields:
    """Keep rules as a file spells them."""
    found: Mapping[str, Value | None] = {
        "last": _count(rules.last),
        "first": _count(rules.first),
        "within": _duration(rules.within_s),
        **{calendar.value: _count(count) for calendar, count in rules.buckets},
        "every_steps": rules.every_steps,
        "every": _duration(rules.every_s),
        "best": [_best(one) for one in rules.best] or None,
        "recorded_best": rules.recorded_best or None,
        "steps": rules.steps or None,
        "tags": rules.tags or None,
        "older_than_detection": _duration(rules.older_than_detection_s),
    }
    return _told(found)


def _best(one: Best) -> Fields:
    return {
        "metric": one.metric,
        "mode": "max" if one.is_highest else "min",
        "count": _count(one.count) or 1,
        "ties": "oldest" if one.ties_to_oldest else "newest",
        "nan": "worst" if one.nan_is_worst else "never",
        "missing_for": duration_text(one.missing_for_s),
    }


def floor_fields(floors: Floors) -> Fields:
    """What nothing goes below, as a file spells it."""
    return {
        "min_restorable": floors.min_restorable,
        "min_durable_copies": floors.min_durable_copies,
        "min_age": duration_text(floors.min_age_s),
    }


def capacity_fields(limit: CapacityRule) -> Fields:
    """How full a tier may be, as a file spells it."""
    return _told(
        {
            "quota": _bytes(limit.quota_bytes),
            "files": limit.quota_files,
            "high": _percent(limit.high_percent),
            "low": _percent(limit.low_percent),
            "yields": [one.value for one in limit.yields],
            "reserve_saves": limit.reserve_saves or None,
        }
    )


def safety_fields(safety: Safety) -> Fields:
    """Caps and times, as a file spells them."""
    return _told(
        {
            "max_count": safety.max_count,
            "max_fraction": _percent(safety.max_fraction_percent),
            "max_bytes": _bytes(safety.max_bytes),
            "grace": duration_text(safety.grace_s),
            "trash": duration_text(safety.trash_s),
            "adoption_grace": duration_text(safety.adoption_grace_s),
        }
    )


def lifecycle_fields(lifecycle: Lifecycle) -> Fields:
    """The end of a run's life, as a file spells it."""
    keep, retired = lifecycle.retired_keep, None
    if keep is not None or lifecycle.retired_may_be_emptied:
        retired = _told(
            {
                "after": duration_text(lifecycle.retired_after_s),
                "keep": None if keep is None else rule_fields(keep),
                "may_be_emptied": lifecycle.retired_may_be_emptied,
            }
        )
    return _told(
        {
            "dead_after": duration_text(lifecycle.dead_after_s),
            "retire_dead_after": _duration(lifecycle.retire_dead_after_s),
            "retired": retired,
        }
    )


def _told(fields: Mapping[str, Value | None]) -> Fields:
    return {key: value for key, value in fields.items() if value is not None}


def _count(count: int | None) -> Value | None:
    return "all" if count == ALL else count


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else duration_text(seconds)


def _bytes(count: int | None) -> str | None:
    return None if count is None else bytes_text(count)


def _percent(share: int | None) -> str | None:
    return None if share is None else f"{share}%"


def selector_text(runs: Sequence[str], teams: Sequence[str], tags: Sequence[str]) -> str:
    """Which runs a policy is for, in words."""
    told = [_named("runs", runs)] if tuple(runs) != ("*",) else []
    told += [_named("team" if len(teams) == 1 else "teams", teams)] if teams else []
    told += [_named("tags", tags)] if tags else []
    return "; ".join(told) or "every run"


def _named(word: str, names: Sequence[str]) -> str:
    return f"{word} {', '.join(names)}"
