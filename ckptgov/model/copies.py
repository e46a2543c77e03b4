"""The states of a checkpoint's copy at one place, which may follow which, and what it holds.

What a copy holds is its coverage: None for every shard, else a bitmap, in which bit ``i % 8`` (from
the lowest) of byte ``i // 8`` stands for shard ``i`` in manifest order.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class CopyState(StrEnum):
    """State of one copy. VERIFIED is the only one that is ever offered."""

    SIGHTED = "sighted"  # seen by a scan, not sealed (being written, torn, unproven)
    PARTIAL = "partial"  # a part of it lies here, digested
    VERIFIED = "verified"
    REOPENED = "re-opened"  # a token changed: to be compared again
    CORRUPT = "corrupt"  # quarantined: kept, never offered
    UNREADABLE = "unreadable"  # could not be compared; keeps its last verdict's date
    LOST = "lost"  # gone from the place
    CONDEMNED = "condemned"  # decided, no longer offered, undoable
    TRASHING = "trashing"  # from here only forward
    TRASHED = "trashed"  # moved aside, undoable
    PURGED = "purged"


_S = CopyState
TRANSITIONS: dict[CopyState, frozenset[CopyState]] = {
    _S.SIGHTED: frozenset({_S.PARTIAL, _S.VERIFIED, _S.LOST, _S.UNREADABLE}),
    _S.PARTIAL: frozenset({_S.VERIFIED, _S.REOPENED, _S.CORRUPT, _S.UNREADABLE, _S.LOST}),
    _S.VERIFIED: frozenset(
        {_S.REOPENED, _S.CORRUPT, _S.UNREADABLE, _S.LOST, _S.CONDEMNED, _S.PARTIAL}
    ),
    _S.REOPENED: frozenset({_S.VERIFIED, _S.CORRUPT, _S.UNREADABLE, _S.LOST, _S.CONDEMNED}),
    _S.CORRUPT: frozenset({_S.VERIFIED, _S.LOST, _S.CONDEMNED, _S.REOPENED}),
    _S.UNREADABLE: frozenset({_S.VERIFIED, _S.CORRUPT, _S.LOST, _S.CONDEMNED, _S.REOPENED}),
    _S.LOST: frozenset({_S.SIGHTED, _S.VERIFIED, _S.REOPENED, _S.PARTIAL, _S.CORRUPT}),
    _S.CONDEMNED: frozenset({_S.VERIFIED, _S.REOPENED, _S.TRASHING, _S.LOST}),
    _S.TRASHING: frozenset({_S.TRASHED, _S.PURGED}),
    _S.TRASHED: frozenset({_S.REOPENED, _S.PURGED}),
    _S.PURGED: frozenset({_S.SIGHTED, _S.VERIFIED}),
}

BEGUN: frozenset[CopyState] = frozenset({_S.TRASHING, _S.TRASHED})
"""Its files are moved aside, or about to be: only its removal, or an undelete, leads on."""
LEAVING: frozenset[CopyState] = BEGUN | {_S.CONDEMNED}
"""On its way out, which can still be undone."""
REMOVED: frozenset[CopyState] = LEAVING | {_S.PURGED}
"""Taken away by decision, or about to be."""
GONE: frozenset[CopyState] = BEGUN | {_S.LOST, _S.PURGED}
"""Nothing of it stands in its place, or not for long."""


def holds(coverage: bytes | None, index: int) -> bool:
    """Whether a copy of this coverage holds the shard of this index."""
    if coverage is None:
        return True
    return index // 8 < len(coverage) and bool(coverage[index // 8] >> (index % 8) & 1)


def cover(coverages: Iterable[bytes | None], shard_count: int) -> bool:
    """Whether copies of these coverages hold every shard between them."""
    held = 0
    for coverage in coverages:
        if coverage is None:
            return True
        held |= int.from_bytes(coverage, "little")
    every = (1 << shard_count) - 1
    return every > 0 and held & every == every
