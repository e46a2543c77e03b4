"""What protects a checkpoint from every rule and every limit; no policy overrides it.

A protected checkpoint stays, and may lose no more than copies that it does not need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from ckptgov.model.checkpoint import Purpose
from ckptgov.model.policy import Floors
from ckptgov.model.retention import KeepReason, Why
from ckptgov.planning.retention_view import Seen
from ckptgov.planning.retention_words import moment, nanoseconds, span, span_ns

Shields = dict[str, list[Why]]
"""Content id to what protects it."""


def shields_of(
    newest_first: Sequence[Seen], floors: Floors, *, now_ns: int, may_be_emptied: bool
) -> Shields:
    """What protects which checkpoint of a run.

    ``may_be_emptied`` (of a retired run whose policy says so) lifts the floors and what is said of
    the newest; pins, leases, start points and what is awaited still hold.
    """
    shields: Shields = {}
    found = [] if may_be_emptied else [_newest(newest_first), _least(newest_first, floors)]
    for content_id, why in (each for some in (*found, _claims(newest_first)) for each in some):
        shields.setdefault(content_id, []).append(why)
    if not may_be_emptied:
        for content_id, why in _young(newest_first, floors, now_ns):
            shields.setdefault(content_id, []).append(why)
    return {key: list(dict.fromkeys(whys)) for key, whys in shields.items()}


_Shield = tuple[str, Why]


def _newest(newest_first: Sequence[Seen]) -> Iterator[_Shield]:
    """By purpose, the newest restorable and the newest durable one.

    Both over all places and over those within reach: one that is away may not come back, and one
    within reach may be the lesser.
    """
    offered = [one for one in newest_first if is_offered(one)]
    for durably in (False, True):
        found: dict[tuple[str, bool], list[str]] = {}
        for purpose, anywhere in product(Purpose, (True, False)):
            newest = _first(offered, purpose, anywhere=anywhere, durably=durably)
            if newest is not None and purpose not in found.get((newest, True), ()):
                found.setdefault((newest, anywhere), []).append(purpose.value)
        for (content_id, anywhere), purposes in found.items():
            yield content_id, _newest_why(" and ".join(purposes), durably, anywhere)


def _first(
    offered: Sequence[Seen], purpose: Purpose, *, anywhere: bool, durably: bool
) -> str | None:
    for one in offered:
        if purpose in one.checkpoint.purposes and one.is_restorable(
            anywhere=anywhere, durably=durably
        ):
            return one.checkpoint.content_id
    return None


def _newest_why(purposes: str, durably: bool, anywhere: bool) -> Why:
    reason = KeepReason.NEWEST_DURABLE if durably else KeepReason.NEWEST_RESTORABLE
    kind = "durable" if durably else "restorable"
    reach = "" if anywhere else " within reach"
    return Why(reason, f"kept: the newest {kind} checkpoint{reach} for {purposes}")


def is_offered(one: Seen) -> bool:
    """Whether ``latest`` may hand it out, as far as its history goes."""
    return one.has_step and one.is_on_path and one.checkpoint.mark is None


def _least(newest_first: Sequence[Seen], floors: Floors) -> Iterator[_Shield]:
    for rank, one in enumerate(_kept_at_least(newest_first, floors), 1):
        text = (
            f"kept: restorable checkpoint {rank} of the {floors.min_restorable} that every run "
            "keeps (min_restorable)"
        )
        yield one.checkpoint.content_id, Why(KeepReason.FLOOR_RESTORABLE, text)


def _kept_at_least(newest_first: Sequence[Seen], floors: Floors) -> Iterator[Seen]:
    """The newest so many to resume from, each whole at one tier within reach; a step once."""
    steps: set[int | None] = set()
    for one in newest_first:
        if len(steps) >= floors.min_restorable:
            return
        held = one.checkpoint
        if held.step in steps or Purpose.RESUME not in held.purposes or not is_offered(one):
            continue
        if any(tier.is_whole for tier in one.tiers.values()):
            steps.add(held.step)
            yield one


def stale_proof(newest_first: Sequence[Seen], floors: Floors, *, since_ns: int) -> Why | None:
    """What holds every prune of a run back: that what it is left with was not compared lately.

    That are the newest within reach for each purpose, and those that ``min_restorable`` keeps.
    """
    offered = [one for one in newest_first if is_offered(one)]
    newest = {_first(offered, purpose, anywhere=False, durably=False) for purpose in Purpose}
    relied = [one for one in offered if one.checkpoint.content_id in newest]
    for one in (*relied, *_kept_at_least(newest_first, floors)):
        if not one.is_compared(since_ns):
            text = (
                f"kept: {one.checkpoint.name}, which the run would be left with, was not compared "
                f"since {moment(since_ns)}; 'ckptgov verify' does"
            )
            return Why(KeepReason.STALE_PROOF, text)
    return None


def _claims(newest_first: Iterable[Seen]) -> Iterator[_Shield]:
    for one in newest_first:
        held = one.checkpoint
        if held.is_start_point:
            text = "kept: a restart began from it, and nothing newer is durable yet"
            yield held.content_id, Why(KeepReason.START_POINT, text)
        if held.pins:
            text = f"kept: pinned as {', '.join(sorted(held.pins))}"
            yield held.content_id, Why(KeepReason.PINNED, text)
        if held.leases:
            text = f"kept: in use by {', '.join(sorted(held.leases))}"
            yield held.content_id, Why(KeepReason.LEASED, text)
        if held.awaited_by:
            text = f"kept: has yet to arrive at {', '.join(sorted(held.awaited_by))}"
            yield held.content_id, Why(KeepReason.UNDRAINED, text)


def _young(newest_first: Iterable[Seen], floors: Floors, now_ns: int) -> Iterator[_Shield]:
    least_ns = nanoseconds(floors.min_age_s)
    for one in newest_first:
        age_ns = now_ns - one.checkpoint.saved_at_ns
        if age_ns < least_ns:
            text = f"kept: {span_ns(age_ns)} old, and min_age is {span(floors.min_age_s)}"
            yield one.checkpoint.content_id, Why(KeepReason.FLOOR_AGE, text)
