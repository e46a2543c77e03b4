"""What links have yet to carry on, by the catalog alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptgov.catalog.facts import PlacedCopy, PlaceFacts, SealedFacts
from ckptgov.model.settings import Link
from ckptgov.planning.flush import WhyNot, plan_flush
from ckptgov.planning.flushable import FlushCheckpoint, FlushCopy, RunToFlush

_STILL_TO_COME = frozenset({WhyNot.BEING_DELIVERED, WhyNot.UNVERIFIED_THERE})


def awaited_in(run: RunToFlush, links: Sequence[Link]) -> dict[str, set[str]]:
    """Content id to the tiers that a link has yet to bring it to.

    What arrived and was not compared there yet has not arrived.
    """
    awaited: dict[str, set[str]] = {}
    for link in links:
        plan = plan_flush([run], link)
        still = [one.checkpoint for one in plan.items]
        still += [one.checkpoint for one in plan.skips if one.why_not in _STILL_TO_COME]
        for one in still:
            awaited.setdefault(one.content_id, set()).add(link.target)
    return awaited


def to_flush(
    one: SealedFacts,
    copies: Sequence[PlacedCopy],
    places: Mapping[str, PlaceFacts],
    *,
    mark: str | None,
    pins: frozenset[str],
) -> FlushCheckpoint:
    """A sealed checkpoint as flush planning sees it, with its copies in every state."""
    return FlushCheckpoint(
        content_id=one.content_id,
        name=one.name,
        step=one.step,
        step_kind=one.step_kind,
        line=one.line,
        attempt=one.attempt,
        bytes=one.bytes,
        shard_count=one.shard_count,
        sealed_at_ns=one.sealed_at_ns,
        pins=pins,
        mark=mark,
        copies=tuple(
            FlushCopy(
                tier=places[copy.place].tier,
                is_shared=places[copy.place].node is None,
                state=copy.state,
                coverage=copy.coverage,
            )
            for copy in copies
        ),
    )
