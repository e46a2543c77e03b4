"""A plan just made, as it is told to whoever asked for it."""

from __future__ import annotations

from msgspec import Struct

from ckptgov.model.retention import StoredPlan
from ckptgov.model.usage import RunUsage


class Kept(Struct, frozen=True, kw_only=True):
    """How many checkpoints stay at a tier for one reason, the weightiest of each, and how large
    their copies there are."""

    tier: str
    reason: str
    checkpoints: int
    bytes: int


class PlanAnswer(StoredPlan, frozen=True, kw_only=True):
    """A plan just made, with what stays in short, runs that died, and warnings (run, text).

    ``is_stored``: whether it can be applied by its id.
    """

    is_stored: bool
    kept: tuple[Kept, ...] = ()
    quiet: tuple[RunUsage, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
