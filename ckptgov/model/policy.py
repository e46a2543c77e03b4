"""Policies as frozen values: where a run's checkpoints go, how long they stay, what may go first.

A policy without keep rules prunes nothing, save what a capacity limit forces out; no policy prunes
nothing at all. Times run on the catalog's clock: a checkpoint is as old as its first sight there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from ckptgov.model.settings import Link

ALL: Final = sys.maxsize
"""A count that keeps as many as there are."""

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class Calendar(StrEnum):
    """Buckets of a calendar in the policy's time zone; weeks are ISO 8601's, Monday to Sunday."""

    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"
    YEARLY = "yearly"


class Best(Struct, frozen=True, kw_only=True):
    """The ``count`` best by a metric. Equal values: the newer, or with ``ties_to_oldest`` the older
    one. NaN and infinities never win a place from a finite value, and take one that is left over
    only with ``nan_is_worst``; one without a value is kept for ``missing_for_s`` after its seal."""

    metric: str
    is_highest: bool = False  # mode: max
    count: int = 1
    ties_to_oldest: bool = False  # ties: oldest
    nan_is_worst: bool = False  # nan: worst
    missing_for_s: float = 0.0


class KeepRules(Struct, frozen=True, kw_only=True):
    """What stays at one tier: the union of all that is given. Counts are 1 or more, or ALL.

    ``first`` and ``last`` count from either end of the history; ``within_s`` reaches back from the
    newest; ``buckets`` keep the newest of each of the newest so many occupied buckets;
    ``every_steps`` the first at or above each multiple; ``every_s`` the oldest, and then each that
    is at least so much younger than the one kept before it; ``tags`` those pinned under one of the
    names, run out or not. ``recorded_best``: the one that the trainer's own state calls its best.
    ``older_than_detection_s``: the newest that is at least so much older than the newest of all,
    and its heir, the oldest younger one.
    """

    last: int | None = None
    first: int | None = None
    within_s: float | None = None
    buckets: tuple[tuple[Calendar, int], ...] = ()
    every_steps: int | None = None
    every_s: float | None = None
    best: tuple[Best, ...] = ()
    recorded_best: bool = False
    steps: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()
    older_than_detection_s: float | None = None

    @property
    def is_empty(self) -> bool:
        """No rule at all, which keeps everything."""
        return self == KeepRules()


class OldLines(Struct, frozen=True, kw_only=True):
    """What a later line has replaced: it may go ``after_s`` the later line was opened, the newest
    of each such line only with ``newest_too``."""

    after_s: float
    newest_too: bool = False


class Floors(Struct, frozen=True, kw_only=True):
    """What no rule and no limit goes below."""

    min_restorable: int = 2  # checkpoints of the run for resuming, over all tiers
    min_durable_copies: int = 1  # verified copies on shared tiers of whatever stays
    min_age_s: float = 6 * HOUR_S  # nothing younger is dropped


class Yields(StrEnum):
    """What gives way while a tier is too full, in the order a policy lists them."""

    COPIES = "copies"  # copies that a kept checkpoint does not need here
    UNKEPT = "unkept"  # what no keep rule keeps (of a policy without rules: the oldest)
    EVERY_STEPS = "every_steps"
    EVERY = "every"
    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"
    YEARLY = "yearly"
    WITHIN = "within"


class CapacityRule(Struct, frozen=True, kw_only=True):
    """How full one tier may be. Percentages are of the quota of the tier, else of its file system.

    ``quota_bytes`` and ``quota_files`` are the most that all runs of the policy together hold
    there; ``reserve_saves`` is room kept for so many further saves of each run, as large as its
    newest.
    """

    quota_bytes: int | None = None
    quota_files: int | None = None
    high_percent: int | None = None
    low_percent: int | None = None
    yields: tuple[Yields, ...] = (Yields.COPIES, Yields.UNKEPT)
    reserve_saves: int = 0


class Safety(Struct, frozen=True, kw_only=True):
    """Bounds of one plan, and how long a decision can be undone.

    Beyond a cap a plan waits for a person. ``max_fraction_percent`` is of a run's restorable
    checkpoints.
    """

    max_count: int = 200
    max_fraction_percent: int = 50
    max_bytes: int | None = None
    grace_s: float = DAY_S  # condemned, not yet touched
    trash_s: float = 7 * DAY_S  # moved aside, not yet purged
    adoption_grace_s: float = 7 * DAY_S  # after a run was first met, nothing of it is dropped


class Lifecycle(Struct, frozen=True, kw_only=True):
    """Runs that ended. ``dead_after_s``: without a save, lease or question a run is called dead.

    ``retire_dead_after_s``: a dead run counts as retired so long after its last sign of life;
    None: only a person retires it. ``retired_keep`` replaces the keep rules of every tier for a
    retired run (None: they stay as they are), ``retired_after_s`` after it was retired;
    ``retired_may_be_emptied``: its last checkpoints may go as well.
    """

    dead_after_s: float = 14 * DAY_S
    retire_dead_after_s: float | None = None
    retired_keep: KeepRules | None = None
    retired_after_s: float = 0.0
    retired_may_be_emptied: bool = False


class Selector(Struct, frozen=True, kw_only=True):
    """Which runs: those of one of the ``teams`` (any where empty), whose name matches one of the
    ``runs`` globs, and that carry every one of the ``tags`` given to runs in ``ckptgov.yaml``."""

    runs: tuple[str, ...] = ("*",)
    teams: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


class Policy(Struct, frozen=True, kw_only=True):
    """One policy file. ``digest``: ``sha256:<hex>`` of its text, so that a plan names what it is
    from. ``keep`` and ``weights`` are by tier; ``weights`` rules are for checkpoints that can only
    be loaded as weights, which nothing else touches. ``links`` None: those of ``ckptgov.yaml``."""

    name: str
    digest: str
    file: str
    selector: Selector = Selector()
    timezone: str = "UTC"
    keep: Mapping[str, KeepRules] = field(default_factory=dict)
    weights: Mapping[str, KeepRules] = field(default_factory=dict)
    old_lines: OldLines | None = None
    floors: Floors = Floors()
    capacity: Mapping[str, CapacityRule] = field(default_factory=dict)
    safety: Safety = Safety()
    lifecycle: Lifecycle = Lifecycle()
    links: tuple[Link, ...] | None = None
    settle_s: float | None = None
    verify_max_age_s: float | None = None
