"""What has to go of which policy's runs so that every limit is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from ckptgov.model.policy import CapacityRule
from ckptgov.model.retention import DropReason, PlanEntry, Why
from ckptgov.planning.capacity_facts import Fill, Tally, short_of_room, used_after
from ckptgov.planning.retention_words import size


class Unit(StrEnum):
    """What a limit counts."""

    BYTES = "bytes"
    FILES = "files"


class Need:
    """So much has to go of one policy's runs: from one place, or (place None) from a tier."""

    __slots__ = ("left", "place", "policy", "tier", "unit", "why")

    def __init__(
        self, policy: str, tier: str, place: str | None, unit: Unit, amount: int, why: Why
    ) -> None:
        self.policy = policy
        self.tier = tier
        self.place = place
        self.unit = unit
        self.left = amount
        self.why = why

    def weight(self, entries: Iterable[PlanEntry]) -> int:
        """How much of what is needed these would free."""
        freed = [one for one in entries if one.tier == self.tier]
        if self.place is not None:
            freed = [one for one in freed if one.place == self.place]
        return sum(one.bytes if self.unit is Unit.BYTES else one.files for one in freed)


def needs_of(tally: Tally, fills: Sequence[Fill]) -> list[Need]:
    """What is above its limit once retention's part is gone, in a fixed order."""
    needs: list[Need] = []
    for name in sorted(tally.policies):
        policy = tally.policies[name]
        for tier in sorted(policy.capacity):
            rule = policy.capacity[tier]
            needs += _quota_needs(name, tier, rule, tally)
            for fill in sorted(fills, key=lambda one: one.place):
                if fill.tier == tier:
                    needs += _fill_needs(name, rule, fill, tally)
    return [one for one in needs if one.left > 0]


def _quota_needs(policy: str, tier: str, rule: CapacityRule, tally: Tally) -> Iterator[Need]:
    held_bytes, held_files = tally.held_after(policy, tier)
    if rule.quota_bytes is not None:
        text = (
            f"goes: runs of policy {policy} would still hold {size(held_bytes)} on {tier}, "
            f"and their quota is {size(rule.quota_bytes)}"
        )
        why = Why(DropReason.QUOTA_BYTES, text)
        yield Need(policy, tier, None, Unit.BYTES, held_bytes - rule.quota_bytes, why)
    if rule.quota_files is not None:
        text = (
            f"goes: runs of policy {policy} would still hold {held_files} files on {tier}, "
            f"and their quota is {rule.quota_files}"
        )
        why = Why(DropReason.QUOTA_FILES, text)
        yield Need(policy, tier, None, Unit.FILES, held_files - rule.quota_files, why)


def _fill_needs(policy: str, rule: CapacityRule, fill: Fill, tally: Tally) -> Iterator[Need]:
    used_bytes, used_files = used_after(fill, tally)
    where = fill.tier if fill.node is None else f"{fill.tier} of node {fill.node}"
    high, low = rule.high_percent, rule.low_percent
    if high is not None and low is not None:
        for unit, used, whole in (
            (Unit.BYTES, used_bytes, fill.size_bytes),
            (Unit.FILES, used_files, fill.size_files),
        ):
            if whole and used * 100 > whole * high:
                text = (
                    f"goes: {where} would be {used * 100 / whole:.1f}% full of {unit.value}, "
                    f"above {high}%; it is cleared to {low}%"
                )
                why = Why(DropReason.WATERMARK, text)
                yield Need(policy, fill.tier, fill.place, unit, used - whole * low // 100, why)
    short = short_of_room(fill, tally)
    if rule.reserve_saves and short > 0:
        wanted = tally.reserve.of(fill.tier, fill.place)[0]
        text = f"goes: {where} keeps {size(wanted)} for the next saves, and lacks {size(short)}"
        why = Why(DropReason.ROOM_FOR_SAVE, text)
        yield Need(policy, fill.tier, fill.place, Unit.BYTES, short, why)
