"""What takes room, summed up by team, run, tier, age or state."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ckptgov.model.copies import BEGUN, CopyState
from ckptgov.model.usage import DuAnswer, LeftKind, TierUsage, team_of
from ckptgov.wire.documents import Document


class By(StrEnum):
    """What ``du`` sums up by."""

    TEAM = "team"
    RUN = "run"
    TIER = "tier"
    AGE = "age"
    STATE = "state"


class Sum(Struct):
    """Copies, and the bytes of what stands, of it condemned, in the trash and left over."""

    copies: int = 0
    bytes: int = 0
    condemned_bytes: int = 0
    trash_bytes: int = 0
    left_bytes: int = 0


def where(tier: str, node: str | None) -> str:
    """A tier, or one node's part of it, as people are told."""
    return f"{tier}@{node}" if node else tier


def by_document(answer: DuAnswer, by: By) -> Document:
    """The member that ``du --by`` adds to the document of ``du``."""
    sums = [
        {
            "key": key or None,
            "copies": one.copies,
            "bytes": one.bytes,
            "condemned_bytes": one.condemned_bytes,
            "trash_bytes": one.trash_bytes,
            "left_bytes": one.left_bytes,
        }
        for key, one in sums_of(answer, by).items()
    ]
    return {"by": {"by": by.value, "sums": sums}}


def sums_of(answer: DuAnswer, by: By) -> dict[str, Sum]:
    """Largest first. Of what has no age, run or team the key is empty."""
    sums: dict[str, Sum] = {}

    def at(key: str) -> Sum:
        return sums.setdefault(key, Sum())

    for tier in answer.tiers:
        for state in tier.states:
            if by is By.AGE:
                for age in state.ages:
                    _add(at(age.age.value), state.state, age.checkpoints, age.bytes)
                continue
            key = _key(by, tier, state.run, state.state)
            _add(at(key), state.state, state.checkpoints, state.bytes)
        for left in tier.left:
            one = at("" if by is By.AGE else _key(by, tier, left.run or "", left.kind.value))
            if left.kind is LeftKind.TRASH:
                one.trash_bytes += left.bytes
            else:
                one.left_bytes += left.bytes
    return dict(sorted(sums.items(), key=_largest))


def _add(one: Sum, state: str, copies: int, bytes_: int) -> None:
    one.copies += copies
    if state in BEGUN:
        one.trash_bytes += bytes_
        return
    one.bytes += bytes_
    if state == CopyState.CONDEMNED:
        one.condemned_bytes += bytes_


def _key(by: By, tier: TierUsage, run: str, state: str) -> str:
    match by:
        case By.TEAM:
            return team_of(run)
        case By.RUN:
            return run
        case By.TIER:
            return where(tier.tier, tier.node)
        case _:
            return state


def _largest(item: tuple[str, Sum]) -> tuple[int, str]:
    key, one = item
    return -(one.bytes + one.trash_bytes + one.left_bytes), key
