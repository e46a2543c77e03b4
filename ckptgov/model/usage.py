"""What ``du`` and ``reconcile`` give back: bytes at tiers, and what was left behind there."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ckptgov.errors import CkptgovError
from ckptgov.model.copies import CopyState

UNSEALED = "unsealed"
"""Stands where a sealed copy's state would: seen by a scan, and not sealed."""


class StateUsage(Struct, frozen=True, kw_only=True):
    """One run's copies in one state at one place. ``state`` is a ``CopyState`` or UNSEALED.

    Lost and purged copies are counted and take no bytes.
    """

    run: str
    state: str
    checkpoints: int
    bytes: int


class LeftKind(StrEnum):
    """What lies at a tier besides checkpoints."""

    FRAMEWORK_STAGING = "framework-staging"  # temporary names of trainers
    STAGING = "staging"  # copies of ours on their way in
    HELD = "held"  # kept by hard links; without what still has its trainer's name
    TRASH = "trash"
    PENDING = "pending"  # deliveries begun: uploads in parts, temporary files


class LeftUsage(Struct, frozen=True, kw_only=True):
    """Bytes of one kind; ``run`` is None for what lies in no run of ours."""

    run: str | None
    kind: LeftKind
    items: int
    bytes: int


class TierUsage(Struct, frozen=True, kw_only=True):
    """One tier. ``states`` is what the catalog knows, ``left`` what was seen there just now.

    ``error`` says that the tier could not be looked at: then ``left`` is unknown, not empty.
    ``failures`` are parts of it that could not. ``free_bytes`` and ``total_bytes`` are the file
    system's, None where there is none to ask.
    """

    tier: str
    node: str | None
    root: str
    states: tuple[StateUsage, ...] = ()
    left: tuple[LeftUsage, ...] = ()
    free_bytes: int | None = None
    total_bytes: int | None = None
    quota_bytes: int | None = None
    failures: tuple[tuple[str, CkptgovError], ...] = ()
    error: CkptgovError | None = None

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of checkpoints, sealed or not."""
        return sum(one.bytes for one in self.states)

    def left_bytes(self, kind: LeftKind) -> int:
        """Bytes of one kind of left-overs."""
        return sum(one.bytes for one in self.left if one.kind is kind)


class DuAnswer(Struct, frozen=True, kw_only=True):
    """Every tier asked for; ``error`` when one of them could not be looked at in full."""

    tiers: tuple[TierUsage, ...]
    error: CkptgovError | None = None


class LeftoverKind(StrEnum):
    """What a reconciliation may remove."""

    DELIVERY = "delivery"  # a temporary file or an upload in parts
    STAGING = "staging"  # a staging directory of one content id, whatever is in it


class Fate(StrEnum):
    """What became of a leftover."""

    REMOVED = "removed"
    WOULD_GO = "would-go"  # a dry run
    KEPT = "kept"
    STILL_THERE = "still-there"  # it was to go, and storage still has it


class LeftoverReason(StrEnum):
    """Why it was kept, or went."""

    SUPERFLUOUS = "superfluous"  # its checkpoint is whole and verified at the place
    OLD = "old"
    FRESH = "fresh"
    IN_FLIGHT = "in-flight"  # a flow or lease of ours stands for it
    HELD = "held"  # storage sees a living process at work on it
    UNKNOWN_RUN_STATE = "unknown-run-state"  # its run could not be looked at: nothing is judged


class Leftover(Struct, frozen=True, kw_only=True):
    """One thing left behind. ``run`` is None for what is foreign: in no run of ours.

    ``content_id`` and ``checkpoint`` are set where it could be told whose it is. ``age_s`` is
    counted from the newest sign of life, and 0 for one that bears a time in the future.
    """

    kind: LeftoverKind
    path: str
    run: str | None
    content_id: str | None = None
    checkpoint: str | None = None
    bytes: int
    age_s: float
    fate: Fate
    reason: LeftoverReason
    text: str = ""


class CopyChange(Struct, frozen=True, kw_only=True):
    """A copy whose state in the catalog was not the one at the place; ``before`` None: unknown."""

    run: str
    checkpoint: str
    content_id: str
    before: CopyState | None
    after: CopyState


class TierReconciled(Struct, frozen=True, kw_only=True):
    """What was found and done at one tier. ``error``: it could not be looked at."""

    tier: str
    node: str | None
    root: str
    runs: int = 0
    changes: tuple[CopyChange, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    failures: tuple[tuple[str, CkptgovError], ...] = ()
    error: CkptgovError | None = None


class ReconcileAnswer(Struct, frozen=True, kw_only=True):
    """Every tier; ``error`` when one could not be looked at, or something did not go."""

    tiers: tuple[TierReconciled, ...]
    is_dry_run: bool = False
    error: CkptgovError | None = None
