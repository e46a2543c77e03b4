"""What is known of checkpoints that a link may carry, and what that says of each of its tiers."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ckptgov.model.checkpoint import StepKind
from ckptgov.model.copies import REMOVED, CopyState, cover
from ckptgov.model.journal import NumberedRecord, Pin, Unpin
from ckptgov.planning.lines import Lines, ordered

UNSURE = frozenset({CopyState.REOPENED, CopyState.UNREADABLE, CopyState.SIGHTED})
"""Something lies there; what it is worth, a verification tells."""
_AT_SEVERAL_PLACES = (
    CopyState.CORRUPT,
    *sorted(UNSURE),
    CopyState.PARTIAL,
    *sorted(REMOVED),
    CopyState.LOST,
)
"""Which state speaks for a tier of several places, none of which has it whole."""


class FlushCopy(Struct, frozen=True, kw_only=True):
    """A copy of the checkpoint at one place; ``coverage`` as in the catalog (None: every shard,
    else bit ``i % 8`` of byte ``i // 8`` stands for shard ``i``)."""

    tier: str
    is_shared: bool
    state: CopyState
    coverage: bytes | None = None


class FlushCheckpoint(Struct, frozen=True, kw_only=True):
    """A sealed checkpoint, wherever it lies or lay.

    ``mark`` says why it is bad (marked by a person, or reported unloadable); ``pins`` are the
    names it is pinned under now (``standing_pins``). ``is_begun``: an interrupted delivery of it
    stands at the target. ``is_arriving``: a living mover works on one.
    """

    content_id: str
    name: str
    step: int | None
    step_kind: StepKind
    line: int
    attempt: int = 0
    bytes: int
    shard_count: int
    sealed_at_ns: int
    pins: frozenset[str] = frozenset()
    mark: str | None = None
    copies: tuple[FlushCopy, ...] = ()
    is_begun: bool = False
    is_arriving: bool = False


class RunToFlush(Struct, frozen=True, kw_only=True):
    """A run with every checkpoint that was ever sealed in it, in any order.

    ``unseen`` are tiers of which a place of the run could not be looked at now: what the others
    hold in part may be whole.
    """

    run_id: str
    name: str
    lines: Lines
    checkpoints: tuple[FlushCheckpoint, ...]
    unseen: frozenset[str] = frozenset()


def standing_pins(records: Iterable[NumberedRecord], *, now_ns: int) -> dict[str, frozenset[str]]:
    """Content id to the names it is pinned under at ``now_ns``, by the journal."""
    pins: dict[str, dict[str, int | None]] = {}
    for item in ordered(records):
        record = item.record
        if isinstance(record, Pin):
            pins.setdefault(record.content_id, {})[record.pin_name] = record.until_ns
        elif isinstance(record, Unpin):
            pins.get(record.content_id, {}).pop(record.pin_name, None)
    standing = {
        content_id: frozenset(
            name for name, until_ns in names.items() if until_ns is None or until_ns > now_ns
        )
        for content_id, names in pins.items()
    }
    return {content_id: names for content_id, names in standing.items() if names}


def is_durable(one: FlushCheckpoint) -> bool:
    """Whether some shared tier holds it whole and verified."""
    shared = {copy.tier for copy in one.copies if copy.is_shared}
    return any(is_whole_at(one, tier) for tier in shared)


def history(run: RunToFlush) -> list[list[FlushCheckpoint]]:
    """The active line's checkpoints: per step, in step order, the attempts, newest first."""
    steps: dict[int, list[FlushCheckpoint]] = {}
    for one in sorted(run.checkpoints, key=oldest_first, reverse=True):
        if one.step is not None and is_history(run, one):
            steps.setdefault(one.step, []).append(one)
    return [steps[step] for step in sorted(steps)]


def is_history(run: RunToFlush, one: FlushCheckpoint) -> bool:
    """Whether it carries a step that the active line, with its ancestors, includes."""
    if one.step is None or one.step_kind is StepKind.NONE:
        return False
    return run.lines.includes(one.line, one.step)


def is_whole_at(one: FlushCheckpoint, tier: str) -> bool:
    """Whether the tier's places together hold every shard verified."""
    verified = (
        copy.coverage
        for copy in one.copies
        if copy.tier == tier and copy.state is CopyState.VERIFIED
    )
    return cover(verified, one.shard_count)


def is_share_at(run: RunToFlush, one: FlushCheckpoint, tier: str) -> bool:
    """Whether the tier's places in sight hold some shards, and others may hold the rest."""
    return tier in run.unseen and state_at(one, tier) is CopyState.PARTIAL


def is_spread_at(one: FlushCheckpoint, tier: str) -> bool:
    """Whether the tier holds it whole and verified, but none of its places does."""
    return is_whole_at(one, tier) and not any(
        copy.tier == tier and copy.state is CopyState.VERIFIED and copy.coverage is None
        for copy in one.copies
    )


def state_at(one: FlushCheckpoint, tier: str) -> CopyState | None:
    """One state for a whole tier; None where no place of it ever had a copy."""
    if is_whole_at(one, tier):
        return CopyState.VERIFIED
    states = {copy.state for copy in one.copies if copy.tier == tier}
    if CopyState.VERIFIED in states:  # of a part
        states.add(CopyState.PARTIAL)
    return next((state for state in _AT_SEVERAL_PLACES if state in states), None)


def oldest_first(one: FlushCheckpoint) -> tuple[int, int, int, int, str]:
    """By step, line and attempt; stepless ones before all, by when they were sealed."""
    step = one.step if one.step is not None else -1
    sealed_at_ns = 0 if one.step is not None else one.sealed_at_ns
    return (step, one.line, one.attempt, sealed_at_ns, one.content_id)
