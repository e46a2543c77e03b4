"""Room under pressure: where a tier is over its limit, its trash goes first, and at once.

What lies in a trash is nobody's any more; giving it up early costs an undelete, not a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckptgov.errors import CkptgovError, LeaseLost
from ckptgov.model.copies import CopyState
from ckptgov.model.removal import RemovalStep, Went
from ckptgov.model.retention import Plan, Removal, TierOutlook
from ckptgov.ops.prune import met_another, purge_unless_coming_back, resisted
from ckptgov.ops.removing import Removing


def purge_under_pressure(removing: Removing, plan: Plan) -> list[RemovalStep]:
    """Purge what was trashed longest ago, tier by tier, until each is below its limit.

    The first outlook of a tier tells how full it is; others, of quotas, do not count its trash.
    """
    fills: dict[tuple[str, str | None], TierOutlook] = {}
    for tier in plan.tiers:
        fills.setdefault((tier.tier, tier.node), tier)
    return [step for tier in fills.values() for step in _purged_at(removing, tier)]


def _purged_at(removing: Removing, tier: TierOutlook) -> Iterator[RemovalStep]:
    if tier.limit_bytes is None or tier.used_bytes <= tier.limit_bytes:
        return
    wanted_bytes = tier.used_bytes - tier.limit_bytes
    why = f"tier {tier.tier} is over its limit"
    for removal in _trash_at(removing, tier):
        if wanted_bytes <= 0 or removing.stop():
            return
        if removing.dry_run:
            step = removing.step_of(removal, Went.WOULD, f"would be purged early: {why}")
        else:
            step = _purged(removing, removal, why)
        yield step
        wanted_bytes -= step.bytes


def _trash_at(removing: Removing, tier: TierOutlook) -> list[Removal]:
    """What can be purged there from here, by when it came to lie there."""
    found = []
    for one in removing.context.catalog.removals.removals(states=(CopyState.TRASHED,)):
        place = removing.place_facts(one.place)
        if (place.tier, place.node) == (tier.tier, tier.node) and removing.is_here(one.place):
            found.append(one)
    return sorted(found, key=lambda one: (one.due_at_ns - int(one.trash_s * 1e9), one.content_id))


def _purged(removing: Removing, removal: Removal, why: str) -> RemovalStep:
    try:
        return purge_unless_coming_back(removing, removal, why)
    except LeaseLost:
        return removing.step_of(removal, Went.WAITING, "another process is at work on it")
    except CkptgovError as error:
        return resisted(removing, removal, error)
    except OSError as error:
        return met_another(removing, removal, error)
