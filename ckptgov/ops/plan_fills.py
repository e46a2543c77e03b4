"""How full places are, as plans count it: what is on its way out already is told apart."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from ckptgov.catalog.samples import TierSample
from ckptgov.errors import CouldNotLook
from ckptgov.ops.capacity import TierFill, tier_facts
from ckptgov.ops.context import Context
from ckptgov.planning.capacity_facts import Fill


def fills_now(
    context: Context, limited: frozenset[str], *, now_ns: int
) -> tuple[tuple[Fill, ...], tuple[tuple[str, str], ...]]:
    """Every place that could be measured, and (what, why) of the ``limited`` ones that could not.

    Of disks that only their own nodes see, what those told last counts until it is too old:
    until measuring is late. In a cluster nothing but the catalog tells which ones there are.
    """
    leaving: dict[str, tuple[int, int]] = {}
    for removal in context.catalog.removals.removals():
        size, files = leaving.get(removal.place, (0, 0))
        leaving[removal.place] = (size + removal.bytes, files + removal.files)
    sampled = _sampled(context, now_ns)
    facts = tier_facts(context)
    fills, unmeasured = [], []
    for one in (*facts, *_of_nodes(context, {each.place for each in facts})):
        error, sample = one.error, sampled.get(one.place)
        if error is None:
            fills.append(_fill(one, leaving.get(one.place, (0, 0))))
        elif sample is not None:
            fills.append(_fill(_as_sampled(one, sample), leaving.get(one.place, (0, 0))))
        elif one.tier in limited:
            node = "" if one.node is None else f" of node {one.node}"
            unmeasured.append((f"tier {one.tier}{node}", error.message))
    return tuple(fills), tuple(unmeasured)


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
