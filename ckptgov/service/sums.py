"""What one run's copies come to by place, and what of it lies only where nobody reaches it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from ckptgov.catalog.sums import CopySums, HeldFacts
from ckptgov.model.copies import CopyState, cover

_UNVERIFIED = frozenset({CopyState.SIGHTED, CopyState.REOPENED, CopyState.UNREADABLE})
_TAKES_NOTHING = frozenset({CopyState.LOST, CopyState.PURGED})

Spread = tuple[int, tuple[tuple[str, bytes | None], ...]]
"""How one checkpoint lies on nodes' disks: its shards, and per place which of them (None: all)."""


class Sums(Struct, frozen=True, kw_only=True):
    """Bytes and copies of one run by place. ``undrained``: sound on nodes' disks only."""

    run: str
    bytes: Counter[str]
    unverified: Counter[str]
    undrained: Counter[str]
    corrupt: Counter[str]
    spreads: dict[Spread, tuple[int, int]]  # to (checkpoints, bytes)


def sums_of(run: str, told: CopySums) -> Sums:
    """One run's sealed checkpoints by place. A part counts by its number of shards."""
    sums = Sums(
        run=run,
        bytes=Counter(),
        unverified=Counter(),
        undrained=Counter(),
        corrupt=Counter(),
        spreads={},
    )
    for one in told.whole:
        _add(sums, one.place, one.state, one.copies, one.bytes)
    for part in told.parts:
        _add(sums, part.place, part.state, 1, _part_bytes(part))
    for _content_id, held in groupby(told.undrained, key=lambda one: one.content_id):
        _add_undrained(sums, list(held))
    return sums


def _add(sums: Sums, place: str, state: CopyState, copies: int, size: int) -> None:
    if state in _TAKES_NOTHING:
        return
    sums.bytes[place] += size
    if state in _UNVERIFIED:
        sums.unverified[place] += size
    elif state is CopyState.CORRUPT:
        sums.corrupt[place] += copies


def _add_undrained(sums: Sums, those: Sequence[HeldFacts]) -> None:
    for copy in those:
        sums.undrained[copy.place] += _part_bytes(copy)
    one = those[0]
    has_parts = any(copy.coverage is not None for copy in those)
    spread = tuple(sorted(((copy.place, copy.coverage) for copy in those), key=lambda at: at[0]))
    key = (one.shard_count if has_parts else 0, spread)
    count, size = sums.spreads.get(key, (0, 0))
    sums.spreads[key] = (count + 1, size + one.bytes)


def _part_bytes(one: HeldFacts) -> int:
    if one.coverage is None or not one.shard_count:
        return one.bytes
    return one.bytes * int.from_bytes(one.coverage, "little").bit_count() // one.shard_count


def out_of_reach(all_sums: Iterable[Sums], unreachable: frozenset[str]) -> tuple[int, int]:
    """Checkpoints, and their bytes, of which something lies only at unreachable places."""
    count = size = 0
    for sums in all_sums:
        for spread, (those, bytes_) in sums.spreads.items():
            if not _is_whole_without(spread, unreachable):
                count, size = count + those, size + bytes_
    return count, size


def _is_whole_without(spread: Spread, unreachable: frozenset[str]) -> bool:
    """Never whole, wherever one looks: then nothing was lost with a node."""
    shards, at = spread
    here = [one for one in at if one[0] not in unreachable]
    return _is_whole(shards, here) or not _is_whole(shards, at)


def _is_whole(shards: int, at: Iterable[tuple[str, bytes | None]]) -> bool:
    return cover((coverage for _place, coverage in at), shards)
