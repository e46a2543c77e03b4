"""Settings as frozen values: which tiers and rules exist."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ckptgov.model.checkpoint import Expect


class Scope(StrEnum):
    """Who sees a tier's root: every node, or the one node whose disk it is."""

    SHARED = "shared"
    NODE = "node"


class TierSettings(Struct, frozen=True, kw_only=True):
    """One place: a tier's root, and the node for ``scope: node``. ``root`` is absolute."""

    name: str
    root: str
    scope: Scope = Scope.SHARED
    node: str | None = None
    ingest: bool = False


class RunRule(Struct, frozen=True, kw_only=True):
    """A declared rule for the runs whose name matches ``run`` (a glob)."""

    run: str
    expect: Expect


class Settings(Struct, frozen=True, kw_only=True):
    """Everything ``ckptgov.yaml`` says, with defaults filled in."""

    home: str  # absolute directory that holds configuration and catalog
    tiers: tuple[TierSettings, ...] = ()
    rules: tuple[RunRule, ...] = ()
    verify_max_age_s: float = 7 * 86400.0
    clock_margin_s: float = 300.0  # tolerated skew between nodes' clocks
    save_window_s: float = 900.0  # halves of one save lie at most this far apart
    settle_s: float = 30.0  # an unproven set must stand still this long
    digest_threads: int = 4
    step_over_limit: int = 3
