"""The limits of a policy file: floors, capacity, safety, the end of a run's life."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ckptgov.config.document import Item, shown
from ckptgov.config.policy_rules import LONGEST_S, rules_of
from ckptgov.config.units import parse_bytes
from ckptgov.model.policy import (
    CapacityRule,
    Floors,
    KeepRules,
    Lifecycle,
    OldLines,
    Safety,
    Yields,
)

_FLOOR_KEYS = ("min_restorable", "min_durable_copies", "min_age")
_CAPACITY_KEYS = ("quota", "files", "high", "low", "yields", "reserve_saves")
_LIMITS = ("quota", "files", "high", "reserve_saves")
_SAFETY_KEYS = ("max_count", "max_fraction", "max_bytes", "grace", "trash", "adoption_grace")
_LIFECYCLE_KEYS = ("dead_after", "retire_dead_after", "retired")
_RETIRED_KEYS = ("after", "keep", "may_be_emptied")
_OLD_LINES_KEYS = ("after", "newest_too")
MAX_FILES = 10**15
MAX_ENTRIES = 10**9
MAX_FLOOR = 1000


def floors_of(item: Item, tiers: Collection[str] | None) -> Floors:
    """What no rule and no limit goes below; ``tiers`` are those that copies can lie on."""
    entries, default = item.table(_FLOOR_KEYS), Floors()
    copies = _whole(entries, "min_durable_copies", default.min_durable_copies, MAX_FLOOR)
    if tiers is not None and copies > max(1, len(tiers)):
        raise entries["min_durable_copies"].wrong(
            f'"min_durable_copies" is {copies}, and {len(tiers)} tiers are configured',
            hint="a tier holds one copy of a checkpoint at most",
        )
    return Floors(
        min_restorable=_whole(entries, "min_restorable", default.min_restorable, MAX_FLOOR),
        min_durable_copies=copies,
        min_age_s=_duration(entries, "min_age", default.min_age_s),
    )


def capacity_of(item: Item, tier: str, rules: Collection[KeepRules]) -> CapacityRule:
    """How full a tier may be; ``rules`` are those that keep checkpoints there."""
    entries, default = item.table(_CAPACITY_KEYS), CapacityRule()
    high, low = _watermarks(entries)
    if not any(name in entries for name in _LIMITS):
        raise item.wrong(
            f'nothing limits tier "{tier}": "quota", "files", "high" or "reserve_saves" is missing'
        )
    yields = default.yields
    if "yields" in entries:
        yields = _yields(entries["yields"], tier, rules)
    return CapacityRule(
        quota_bytes=entries["quota"].amount(parse_bytes) if "quota" in entries else None,
        quota_files=entries["files"].whole(1, MAX_FILES) if "files" in entries else None,
        high_percent=high,
        low_percent=low,
        yields=yields,
        reserve_saves=_whole(entries, "reserve_saves", default.reserve_saves, 1000),
    )


def _watermarks(entries: Mapping[str, Item]) -> tuple[int | None, int | None]:
    if ("high" in entries) != ("low" in entries):
        there, missing = ("high", "low") if "high" in entries else ("low", "high")
        raise entries[there].wrong(
            f'"{there}" needs "{missing}": clearing begins above "high" and ends at "low"'
        )
    if "high" not in entries:
        return None, None
    high, low = entries["high"].percent(1, 100), entries["low"].percent(1, 100)
    if low >= high:
        raise entries["low"].wrong(f'"low" ({low}%) must lie below "high" ({high}%)')
    return high, low


def _yields(item: Item, tier: str, rules: Collection[KeepRules]) -> tuple[Yields, ...]:
    if item.is_empty:
        raise item.wrong('"yields" says nothing', hint="yields: [] lets nothing give way")
    found: list[Yields] = []
    for member in item.items():
        one = Yields(member.one_of([each.value for each in Yields]))
        if one in found:
            raise member.wrong(f"{shown(one)} is named twice")
        if not _is_used(one, rules):
            raise member.wrong(f'nothing on tier "{tier}" is kept by a rule "{one}"')
        found.append(one)
    return tuple(found)


def _is_used(one: Yields, rules: Collection[KeepRules]) -> bool:
    match one:
        case Yields.COPIES | Yields.UNKEPT:
            return True
        case Yields.EVERY_STEPS:
            return any(each.every_steps is not None for each in rules)
        case Yields.EVERY:
            return any(each.every_s is not None for each in rules)
        case Yields.WITHIN:
            return any(each.within_s is not None for each in rules)
    return any(calendar.value == one.value for each in rules for calendar, _ in each.buckets)


def safety_of(item: Item) -> Safety:
    """Bounds of one plan, and how long a decision can be undone."""
    entries, default = item.table(_SAFETY_KEYS), Safety()
    fraction = entries.get("max_fraction")
    return Safety(
        max_count=_whole(entries, "max_count", default.max_count, MAX_ENTRIES),
        max_fraction_percent=(
            default.max_fraction_percent if fraction is None else fraction.percent(1, 100)
        ),
        max_bytes=entries["max_bytes"].amount(parse_bytes) if "max_bytes" in entries else None,
        grace_s=_duration(entries, "grace", default.grace_s),
        trash_s=_duration(entries, "trash", default.trash_s),
        adoption_grace_s=_duration(entries, "adoption_grace", default.adoption_grace_s),
    )


def lifecycle_of(item: Item) -> Lifecycle:
    """What becomes of runs that ended."""
    entries, default = item.table(_LIFECYCLE_KEYS), Lifecycle()
    dead_after_s = _duration(entries, "dead_after", default.dead_after_s, lowest_s=1)
    retire_s = None
    if "retire_dead_after" in entries:
        retire_s = _duration(entries, "retire_dead_after", 0.0, lowest_s=1)
        if retire_s < dead_after_s:
            raise entries["retire_dead_after"].wrong(
                '"retire_dead_after" is shorter than "dead_after" '
                f"({dead_after_s / 86400:g}d): both count from the last sign of life",
            )
    retired = entries["retired"].table(_RETIRED_KEYS) if "retired" in entries else {}
    if "retired" in entries and not retired.keys() - {"after"}:
        raise entries["retired"].wrong('"retired" changes nothing: "keep" is missing')
    emptied = retired.get("may_be_emptied")
    return Lifecycle(
        dead_after_s=dead_after_s,
        retire_dead_after_s=retire_s,
        retired_keep=rules_of(retired["keep"]) if "keep" in retired else None,
        retired_after_s=_duration(retired, "after", default.retired_after_s),
        retired_may_be_emptied=False if emptied is None else emptied.flag(),
    )


def old_lines_of(item: Item) -> OldLines:
    """When lines that a later one replaced may go."""
    entries = item.table(_OLD_LINES_KEYS, required=("after",))
    newest = entries.get("newest_too")
    return OldLines(
        after_s=entries["after"].duration_s(0, LONGEST_S),
        newest_too=False if newest is None else newest.flag(),
    )


def _whole(entries: Mapping[str, Item], name: str, default: int, highest: int) -> int:
    return entries[name].whole(1, highest) if name in entries else default


def _duration(
    entries: Mapping[str, Item], name: str, default: float, *, lowest_s: int = 0
) -> float:
    return entries[name].duration_s(lowest_s, LONGEST_S) if name in entries else default
