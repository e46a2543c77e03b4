"""Du: bytes per tier, run and state, and what lies there besides.

Sealed copies and sightings are counted from the catalog, left-overs from storage just now. What
cannot be looked at is told, and never counted as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from ckptgov.catalog.facts import RunFacts
from ckptgov.errors import CkptgovError, PartlyDone, UnknownRun, UsageError
from ckptgov.model.settings import TierSettings
from ckptgov.model.usage import (
    UNSEALED,
    DuAnswer,
    LeftKind,
    LeftUsage,
    StateUsage,
    TierUsage,
)
from ckptgov.ops.context import Context
from ckptgov.ops.room import LeftOver, copies_at, free_and_total, left_at


def du(context: Context, *, run: str | None = None, tier: str | None = None) -> DuAnswer:
    """Bytes at every configured tier, or at one; of every run, or of one.

    Raises:
        UsageError: no such tier is configured.
        UnknownRun: no such run is registered.
    """
    tiers = [one for one in context.settings.tiers if tier in (None, one.name)]
    if tier is not None and not tiers:
        raise UsageError(f"no tier {tier!r} is configured", hint="'ckptgov tier list' shows them")
    used = tuple(_usage(context, one, _runs(context, run), only=run) for one in tiers)
    return DuAnswer(tiers=used, error=_error_of(used))


def _runs(context: Context, name: str | None) -> tuple[RunFacts, ...]:
    if name is None:
        return context.catalog.runs()
    found = context.catalog.run_by_name(name)
    if found is None:
        raise UnknownRun(f"no run {name!r} is registered", hint="'ckptgov run list' shows the runs")
    return (found,)


def _error_of(used: Sequence[TierUsage]) -> CkptgovError | None:
    failed = [one.error for one in used if one.error is not None]
    failed += [error for one in used for _what, error in one.failures]
    if not failed:
        return None
    return PartlyDone(
        f"{len(failed)} could not be looked at, and what is there is not counted; "
        f"first: {failed[0].message}",
        hint=failed[0].hint,
    )


def _usage(
    context: Context, tier: TierSettings, runs: Sequence[RunFacts], *, only: str | None
) -> TierUsage:
    known = context.catalog.place_by_root(tier.root, node=tier.node)
    usage = TierUsage(
        tier=tier.name,
        node=tier.node,
        root=tier.root,
        states=() if known is None else tuple(_states(context, runs, known.place)),
        quota_bytes=tier.quota_bytes,
    )
    try:
        place = context.place(tier)
        space = free_and_total(tier)
    except CkptgovError as error:
        return replace(usage, error=error)
    left, failures = left_at(context, place, runs)
    return replace(
        usage,
        left=tuple(_summed(one for one in left if only in (None, one.run))),
        failures=tuple(failures),
        free_bytes=None if space is None else space[0],
        total_bytes=None if space is None else space[1],
    )


def _states(context: Context, runs: Sequence[RunFacts], place: str) -> Iterator[StateUsage]:
    for run in runs:
        sums: dict[str, list[int]] = {}
        for copy, size in copies_at(context, run.identity.run_id, place):
            sums.setdefault(copy.state.value, []).append(size)
        for sighting in context.catalog.sightings(run.identity.run_id):
            if sighting.place == place:
                sums.setdefault(UNSEALED, []).append(sighting.bytes)
        for state in sorted(sums):
            yield StateUsage(
                run=run.identity.name,
                state=state,
                checkpoints=len(sums[state]),
                bytes=sum(sums[state]),
            )


def _summed(left: Iterable[LeftOver]) -> Iterator[LeftUsage]:
    sums: dict[tuple[str, LeftKind], list[LeftOver]] = {}
    for one in left:
        sums.setdefault((one.run or "", one.kind), []).append(one)
    for (run, kind), those in sorted(sums.items()):
        size = sum(one.bytes for one in those)
        yield LeftUsage(run=run or None, kind=kind, items=len(those), bytes=size)
