"""How full places are, as plans count it: what is on its way out already is told apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from ckptgov.catalog.samples import TierSample
from ckptgov.config.policies import policy_for
from ckptgov.errors import ConfigError, CouldNotLook
from ckptgov.model.copies import CopyState
from ckptgov.model.policy import CapacityRule
from ckptgov.model.retention import Removal
from ckptgov.model.settings import TierSettings
from ckptgov.ops.capacity import TierFill, tier_facts, tier_fill
from ckptgov.ops.context import Context
from ckptgov.ops.policies import policies_in_force, tags_of
from ckptgov.planning.capacity_facts import Fill, lack_now, needed_of
from ckptgov.planning.retention_words import size


def fills_now(
    context: Context, limited: frozenset[str], *, now_ns: int
) -> tuple[tuple[Fill, ...], tuple[tuple[str, str], ...]]:
    """Every place that could be measured, and (what, why) of the ``limited`` ones that could not,
    and of those whose trash goes before its time.

    Of disks that only their own nodes see, what those told last counts until it is too old:
    until measuring is late. In a cluster nothing but the catalog tells which ones there are.
    """
    removals = context.catalog.removals.removals()
    leaving = _leaving(removals)
    sampled = _sampled(context, now_ns)
    facts = tier_facts(context)
    fills: list[Fill] = []
    seen: list[Fill] = []
    notes: list[tuple[str, str]] = []
    for one in (*facts, *_of_nodes(context, {each.place for each in facts})):
        error, sample = one.error, sampled.get(one.place)
        if error is None:
            seen.append(_fill(one, leaving.get(one.place, (0, 0))))
            fills.append(seen[-1])
        elif sample is not None:
            fills.append(_fill(_as_sampled(one, sample), leaving.get(one.place, (0, 0))))
        elif one.tier in limited:
            notes.append((f"tier {where(one.tier, one.node)}", error.message))
    notes += _going_early(context, seen, trash_in(removals), now_ns=now_ns)
    return tuple(fills), tuple(notes)


def fill_seen(context: Context, tier: TierSettings, removals: Iterable[Removal]) -> Fill:
    """How full a tier is by a look at it, just now: no sample stands in for it.

    Raises:
        CkptgovError: it could not be looked at.
    """
    found = tier_fill(context, tier)
    if found.error is not None:
        raise found.error
    return _fill(found, _leaving(removals).get(found.place, (0, 0)))


def trash_in(removals: Iterable[Removal]) -> dict[str, list[Removal]]:
    """What lies in the trash, by place."""
    found: dict[str, list[Removal]] = {}
    for one in removals:
        if one.state is CopyState.TRASHED:
            found.setdefault(one.place, []).append(one)
    return found


def rules_of_tiers(context: Context) -> dict[str, list[CapacityRule]]:
    """What policies in force say of tiers, by tier: those that a run is under, as in a plan.

    Raises:
        ConfigError: a policy is wrong.
    """
    policies, covering = policies_in_force(context), {}
    for run in context.catalog.runs():
        name = run.identity.name
        try:
            policy = policy_for(policies, name, tags_of(context.settings, name))
        except ConfigError:
            continue  # two of them select it: nothing of it is planned either
        if policy is not None:
            covering[policy.name] = policy
    rules: dict[str, list[CapacityRule]] = {}
    for policy in covering.values():
        for tier, rule in policy.capacity.items():
            rules.setdefault(tier, []).append(rule)
    return rules


def where(tier: str, node: str | None) -> str:
    """A place in words."""
    return tier if node is None else f"{tier} of node {node}"


def _going_early(
    context: Context, fills: Sequence[Fill], trash: Mapping[str, list[Removal]], *, now_ns: int
) -> Iterator[tuple[str, str]]:
    """How much of each place's trash an apply of now would purge before its time."""
    if not any(one.place in trash for one in fills):
        return
    try:
        rules = rules_of_tiers(context)
    except ConfigError:
        return  # then none goes early
    for fill in fills:
        lack = lack_now(fill, rules.get(fill.tier, ()))
        early = []
        for one in needed_of(trash.get(fill.place, ()), lack, now_ns=now_ns):
            lack.take(one.bytes, one.files)
            if one.due_at_ns > now_ns:
                early.append(one)
        if early:
            amount = size(sum(one.bytes for one in early))
            words = f"is over its limit, so {amount} of its trash ({len(early)} of"
            yield (
                f"tier {where(fill.tier, fill.node)}",
                f"{words} {len(trash[fill.place])} checkpoints) is purged early by the next apply",
            )


def _leaving(removals: Iterable[Removal]) -> dict[str, tuple[int, int]]:
    leaving: dict[str, tuple[int, int]] = {}
    for one in removals:
        size_bytes, files = leaving.get(one.place, (0, 0))
        leaving[one.place] = (size_bytes + one.bytes, files + one.files)
    return leaving


def _of_nodes(context: Context, told: Collection[str]) -> Iterator[TierFill]:
    """Disks of nodes that the settings here do not name: only their own nodes see them."""
    if context.here is None:
        return
    for place in context.catalog.places():
        if place.node is None or not place.is_current or place.place in told:
            continue
        error = CouldNotLook(f"tier {place.tier} on {place.node}: its node has not told lately")
        yield TierFill(tier=place.tier, node=place.node, place=place.place, error=error)


def _sampled(context: Context, now_ns: int) -> dict[str, TierSample]:
    if context.here is None:
        return {}
    oldest_ns = now_ns - int(context.settings.service.cadences["capacity"].slo_s * 1e9)
    return {one.place: one for one in context.catalog.samples.newest() if one.at_ns >= oldest_ns}


def _as_sampled(one: TierFill, sample: TierSample) -> TierFill:
    return replace(
        one,
        used_bytes=sample.used_bytes,
        free_bytes=sample.free_bytes,
        total_bytes=sample.total_bytes,
        files=sample.files,
        free_files=sample.free_files,
        quota_bytes=sample.quota_bytes,
        error=None,
    )


def _fill(one: TierFill, leaving: tuple[int, int]) -> Fill:
    return Fill(
        place=one.place,
        tier=one.tier,
        node=one.node,
        used_bytes=one.used_bytes,
        free_bytes=one.free_bytes,
        total_bytes=one.total_bytes,
        quota_bytes=one.quota_bytes,
        files=one.files,
        free_files=one.free_files,
        leaving_bytes=leaving[0],
        leaving_files=leaving[1],
    )
