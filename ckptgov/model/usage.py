"""What ``du`` and ``reconcile`` give back: bytes at tiers, and what was left behind there."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ckptgov.errors import CkptgovError
from ckptgov.model.copies import BEGUN, CopyState
from ckptgov.model.retention import RunLife

UNSEALED = "unsealed"
"""Stands where a sealed copy's state would: seen by a scan, and not sealed."""


class Age(StrEnum):
    """How long ago a checkpoint was sealed, or an unsealed one first seen; oldest last."""

    DAY = "under-1d"
    WEEK = "1d-7d"
    MONTH = "7d-30d"
    QUARTER = "30d-90d"
    OLDER = "over-90d"


class AgeUsage(Struct, frozen=True, kw_only=True):
    """What of a sum is of one age."""

    age: Age
    checkpoints: int
    bytes: int


class StateUsage(Struct, frozen=True, kw_only=True):
    """One run's copies in one state at one place. ``state`` is a ``CopyState`` or UNSEALED.

    Lost and purged copies are counted and take no bytes; what was moved to the trash takes them
    there (``LeftKind.TRASH``), and here only where it stays in its place, in an object store.
    ``ages`` are the same copies by age.
    """

    run: str
    state: str
    checkpoints: int
    bytes: int
    ages: tuple[AgeUsage, ...] = ()


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
    ``failures`` are parts of it that could not. ``free_bytes``, ``total_bytes``, ``files`` (names
    in use) and ``free_files`` are the file system's, None where there is none to ask or it does
    not tell. ``grows_bytes_per_day`` and ``full_in_days`` are what the samples of the last week
    come to; None: too few of them, or nothing grows.
    """

    tier: str
    node: str | None
    root: str
    states: tuple[StateUsage, ...] = ()
    left: tuple[LeftUsage, ...] = ()
    free_bytes: int | None = None
    total_bytes: int | None = None
    quota_bytes: int | None = None
    files: int | None = None
    free_files: int | None = None
    quota_files: int | None = None
    grows_bytes_per_day: float | None = None
    full_in_days: float | None = None
    failures: tuple[tuple[str, CkptgovError], ...] = ()
    error: CkptgovError | None = None

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of checkpoints, sealed or not, that nobody is removing; condemned ones count."""
        return sum(one.bytes for one in self.states if one.state not in BEGUN)

    @property
    def condemned_bytes(self) -> int:
        """Bytes of what is decided to go and stands untouched; among ``checkpoint_bytes``."""
        return sum(one.bytes for one in self.states if one.state == CopyState.CONDEMNED)

    @property
    def trash_bytes(self) -> int:
        """Bytes that a purge will free: moved aside, or waiting in their place for it."""
        waiting = sum(one.bytes for one in self.states if one.state in BEGUN)
        return waiting + self.left_bytes(LeftKind.TRASH)

    def left_bytes(self, kind: LeftKind) -> int:
        """Bytes of one kind of left-overs."""
        return sum(one.bytes for one in self.left if one.kind is kind)


class RunUsage(Struct, frozen=True, kw_only=True):
    """One run over all tiers. ``bytes`` are those of its sealed checkpoints, each once.

    ``owner`` is whoever its directory belongs to, empty where no file system here tells.
    ``alive_at_ns``: its last sign of life; ``last_step``: the highest sealed one.
    """

    run: str
    life: RunLife
    owner: str
    alive_at_ns: int
    checkpoints: int
    bytes: int
    last_step: int | None

    @property
    def team(self) -> str:
        """What stands before the slash; empty where there is none."""
        return team_of(self.run)


def team_of(run: str) -> str:
    """The team in a run's name; empty where it has none."""
    team, slash, _ = run.partition("/")
    return team if slash else ""


class DuAnswer(Struct, frozen=True, kw_only=True):
    """Every tier asked for; ``error`` when one of them could not be looked at in full."""

    tiers: tuple[TierUsage, ...]
    runs: tuple[RunUsage, ...] = ()
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
    """A copy whose state in the catalog was not the one at the place; ``before`` None: unknown.

    A lost one was removed behind our back, mostly by its trainer's own rotation: ``bytes`` is
    what it took when last seen, ``copies_left`` how many whole verified copies there still are.
    """

    run: str
    checkpoint: str
    content_id: str
    before: CopyState | None
    after: CopyState
    bytes: int = 0
    copies_left: int | None = None


class StagingReason(StrEnum):
    """Why a framework's left-over was kept, or went."""

    UNCHANGED = "unchanged"  # its writer is surely gone, and its bytes are of no checkpoint
    NOT_ASKED = "not-asked"  # only ``--staging`` removes it
    FRESH = "fresh"  # something in it is too young
    SEEN_LATELY = "seen-lately"  # as it is, it was first seen too lately
    OPEN = "open"  # a process of this host has a file of it open
    KNOWN_BYTES = "known-bytes"  # shards of a sealed checkpoint
    INSIDE = "inside"  # lies within a checkpoint's own directory
    NOT_ALONE = "not-alone"  # something of ours, or another file system, lies in it
    NO_RUN = "no-run"  # in no run of ours: told only
    UNKNOWN_RUN_STATE = "unknown-run-state"  # its run could not be looked at


class StagingLeft(Struct, frozen=True, kw_only=True):
    """A framework's temporary name that stayed behind, or is in use just now.

    ``age_s`` is counted from the newest time of anything in it; ``unchanged_s`` is how long it
    has been seen as it is, by the catalog's clock.
    """

    path: str
    run: str | None
    layout: str
    files: int
    bytes: int
    age_s: float
    unchanged_s: float
    fate: Fate
    reason: StagingReason
    text: str = ""


class Orphan(Struct, frozen=True, kw_only=True):
    """What belongs to no run, no known layout and has no name of ours. Told, never removed.

    ``path`` is a file, or a directory all of which is so; ``unchanged_s`` as of a StagingLeft.
    """

    path: str
    files: int
    bytes: int
    age_s: float
    unchanged_s: float


class TrashReason(StrEnum):
    """Why something in a trash is told."""

    DUE = "due"  # its time is over: ``apply`` purges it
    RESISTED = "resisted"  # storage did not let it go
    UNKNOWN = "unknown"  # no removal of the catalog stands for it


class TrashLeft(Struct, frozen=True, kw_only=True):
    """A removed checkpoint in a run's trash that somebody should look at.

    ``due_s``: for how long it might have been gone; 0 for what the catalog does not know.
    """

    run: str
    path: str
    content_id: str | None
    bytes: int
    due_s: float
    reason: TrashReason
    text: str = ""


class TierReconciled(Struct, frozen=True, kw_only=True):
    """What was found and done at one tier. ``error``: it could not be looked at.

    ``orphans`` are the largest; so many more are ``orphans_not_told``.
    """

    tier: str
    node: str | None
    root: str
    runs: int = 0
    changes: tuple[CopyChange, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    staging: tuple[StagingLeft, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    orphans_not_told: int = 0
    trash: tuple[TrashLeft, ...] = ()
    failures: tuple[tuple[str, CkptgovError], ...] = ()
    error: CkptgovError | None = None


class ReconcileAnswer(Struct, frozen=True, kw_only=True):
    """Every tier; ``error`` when one could not be looked at, or something did not go."""

    tiers: tuple[TierReconciled, ...]
    is_dry_run: bool = False
    error: CkptgovError | None = None
