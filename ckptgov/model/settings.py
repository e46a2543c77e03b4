"""Settings as frozen values: which tiers and rules exist."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from ckptgov.model.checkpoint import Expect
from ckptgov.model.pacing import Budget


class Scope(StrEnum):
    """Who sees a tier's root: every node, or the one node whose disk it is."""

    SHARED = "shared"
    NODE = "node"


class Proof(StrEnum):
    """How a flush proves what arrived, strongest first."""

    READBACK = "readback"  # read again from the tier, past the page cache, and compared
    ARRIVAL_CHECKSUM = "arrival-checksum"  # the store was seen to refuse wrong checksums
    NONE = "none"  # written without an error; the copy is not restorable before `verify`


class TierSettings(Struct, frozen=True, kw_only=True):
    """One place: a tier's root, and the node for ``scope: node``.

    ``root`` is an absolute path or a URL (``s3://bucket/prefix``), without a trailing slash.
    ``endpoint`` is the store's address where it is not its provider's own. ``proof`` None means:
    the strongest that the tier was seen to give, arrival checksums before reading back.
    """

    name: str
    root: str
    scope: Scope = Scope.SHARED
    node: str | None = None
    ingest: bool = False
    endpoint: str | None = None
    budget: Budget = Budget()
    proof: Proof | None = None
    quota_bytes: int | None = None  # what this tier may hold where the file system does not tell

    @property
    def is_url(self) -> bool:
        """Whether the root is reached through a library rather than a path."""
        return "://" in self.root


class NodeSettings(Struct, frozen=True, kw_only=True):
    """What one node may move in all, over every tier."""

    name: str
    budget: Budget


class Link(Struct, frozen=True, kw_only=True):
    """What flows from one tier to another. At least one rule chooses; a checkpoint chosen by any
    is flushed.

    ``every`` counts checkpoints of a run (1: each), ``every_steps`` takes the first one at or
    above each multiple, ``every_s`` the first one sealed in each interval of wall time, ``last``
    the newest so many, ``pins`` those pinned under one of the names. ``hold`` keeps what is
    chosen by hard links beside its trainer's rotation until it has arrived.
    """

    source: str
    target: str
    every: int | None = None
    every_steps: int | None = None
    every_s: float | None = None
    last: int | None = None
    pins: tuple[str, ...] = ()
    hold: bool = False


class RunRule(Struct, frozen=True, kw_only=True):
    """What is declared of the runs whose name matches ``run`` (a glob): how their checkpoints are
    told whole where no layout can, and tags that policies select runs by."""

    run: str
    expect: Expect | None = None
    tags: tuple[str, ...] = ()


class Cadence(Struct, frozen=True, kw_only=True):
    """How often the scheduler runs an activity, and after how long without success it is late."""

    every_s: float
    slo_s: float


CADENCES: Mapping[str, Cadence] = {
    "scan": Cadence(every_s=60.0, slo_s=900.0),
    "flush": Cadence(every_s=60.0, slo_s=3600.0),
    "verify": Cadence(every_s=86400.0, slo_s=3 * 86400.0),
    "reconcile": Cadence(every_s=86400.0, slo_s=3 * 86400.0),
    "backup": Cadence(every_s=6 * 3600.0, slo_s=86400.0),
    "plan": Cadence(every_s=3600.0, slo_s=3 * 3600.0),
    "apply": Cadence(every_s=300.0, slo_s=3600.0),
    "capacity": Cadence(every_s=600.0, slo_s=3600.0),
}
"""What runs unless the file says otherwise; ``every: 0`` there turns one off."""


class ServiceSettings(Struct, frozen=True, kw_only=True):
    """What only the service and its agents need.

    ``backup_tier``: where the catalog's copies go; None: to no tier, and the activity is off.
    ``notify_url``: a webhook that is told of alerts.
    """

    cadences: Mapping[str, Cadence] = field(default_factory=lambda: CADENCES)
    node_timeout_s: float = 60.0  # a node not heard of for so long has no reachable copies
    backup_tier: str | None = None
    backups_kept: int = 14
    notify_url: str | None = None


class Settings(Struct, frozen=True, kw_only=True):
    """Everything ``ckptgov.yaml`` says, with defaults filled in."""

    home: str  # absolute directory that holds configuration and catalog
    tiers: tuple[TierSettings, ...] = ()
    rules: tuple[RunRule, ...] = ()
    links: tuple[Link, ...] = ()
    nodes: tuple[NodeSettings, ...] = ()
    fallback_percent: int = 10  # of each budget, kept aside for flows that lost the arbiter
    stall_s: float = 120.0  # a transfer that neither moves nor fails is given up after this long
    verify_max_age_s: float = 7 * 86400.0
    clock_margin_s: float = 300.0  # tolerated skew between nodes' clocks
    save_window_s: float = 900.0  # halves of one save lie at most this far apart
    settle_s: float = 30.0  # an unproven set must stand still this long
    digest_threads: int = 4
    step_over_limit: int = 3
    catalog_url: str | None = None  # None: SQLite in ``home``; postgresql://… for a cluster
    policies_dir: str | None = None  # None: ``policies`` in ``home``; absolute
    service: ServiceSettings = ServiceSettings()
