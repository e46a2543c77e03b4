"""Room under pressure: where a tier is over its limit, its trash goes first, and at once.

What lies in a trash is nobody's any more; giving it up early costs an undelete, not a checkpoint.
A plan takes what is in the trash for gone, so it does not wait there for its time while the room
is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptgov.errors import CkptgovError, ConfigError
from ckptgov.model.policy import CapacityRule
from ckptgov.model.removal import RemovalStep, Went
from ckptgov.model.retention import Removal
from ckptgov.ops.plan_fills import fill_seen, rules_of_tiers, trash_in, where
from ckptgov.ops.prune import as_step, purge_unless_coming_back
from ckptgov.ops.removing import Removing
from ckptgov.ops.resisting import Resisting
from ckptgov.planning.capacity_facts import Fill, lack_now, needed_of


def purge_under_pressure(removing: Removing) -> list[RemovalStep]:
    """Purge what was trashed longest ago wherever a place that is reached from here is, by a look
    at it now, above the high mark of a policy in force; until it is below the low one, and no more.

    Of bytes and files each. A place that cannot be looked at keeps its trash, and all do while a
    policy is wrong. Where nothing lies in a trash, nothing is looked at.
    """
    context = removing.context
    # Listed before it is looked how full places are: what another process purges meanwhile is then
    # found gone, and counts as gone, so that two of them do not purge twice as much.
    removals = context.catalog.removals.removals()
    trash = trash_in(removals)
    if not trash:
        return []
    try:
        rules = rules_of_tiers(context)
    except ConfigError as error:
        context.talk(f"no trash is purged before its time: {error.message}")
        return []
    steps: list[RemovalStep] = []
    for place, those in trash.items():
        fill = _seen(removing, place, rules, removals)
        if fill is not None:
            steps += _purged_at(removing, fill, rules.get(fill.tier, ()), those)
    return steps


def _seen(
    removing: Removing,
    place: str,
    rules: dict[str, list[CapacityRule]],
    removals: Sequence[Removal],
) -> Fill | None:
    """How full a place is now; None: it has no limit, or cannot be looked at from here."""
    facts, context = removing.place_facts(place), removing.context
    tier = context.tier_of(facts.root, facts.node)
    if tier is None or not facts.is_current or not removing.is_here(place):
        return None
    if tier.name not in rules and tier.quota_bytes is None:
        return None
    try:
        fill = fill_seen(context, tier, removals)
    except CkptgovError as error:
        what = where(facts.tier, facts.node)
        context.talk(f"tier {what}: none of its trash is purged before its time: {error.message}")
        return None
    return fill if fill.place == place else None


def _purged_at(
    removing: Removing, fill: Fill, rules: Sequence[CapacityRule], trash: Sequence[Removal]
) -> Iterator[RemovalStep]:
    lack, now_ns = lack_now(fill, rules), removing.context.catalog.now_ns()
    resisting = Resisting()
    for removal in needed_of(trash, lack, now_ns=now_ns):
        if removing.stop() or resisting.why_not(removal.place) is not None:
            return
        is_early = removal.due_at_ns > now_ns
        why = "its time in the trash is over"
        if is_early:
            why = f"tier {where(fill.tier, fill.node)} is over its limit"
        if removing.dry_run:
            text = f"would be purged{' early' if is_early else ''}: {why}"
            step = removing.step_of(removal, Went.WOULD, text)
        else:
            step = _purged(removing, removal, why)
            resisting.note(step, removing.errors)
        yield step
        lack.take(_gone_of(fill, removal, step), step.files)


def _gone_of(fill: Fill, removal: Removal, step: RemovalStep) -> int:
    """By how many bytes the place is less full, in the figures that it is measured in.

    One that another process is at counts as gone too: mostly that one purges it.
    """
    is_summed = fill.quota_bytes is not None or fill.total_bytes is None
    return removal.bytes if is_summed and step.went is Went.PURGED else step.bytes


def _purged(removing: Removing, removal: Removal, why: str) -> RemovalStep:
    return as_step(removing, removal, lambda: purge_unless_coming_back(removing, removal, why))
