"""What takes room at a tier, and whether more would fit.

Sealed copies and sightings are counted from the catalog, left-overs from storage just now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ckptgov.catalog.facts import RunFacts, RunRootFacts
from ckptgov.errors import CkptgovError
from ckptgov.layouts.survey import survey
from ckptgov.layouts.tree import Tree, join
from ckptgov.model.copies import LEAVING
from ckptgov.model.facts import Reason
from ckptgov.model.settings import TierSettings
from ckptgov.model.usage import LeftKind
from ckptgov.ops.admission import require_below_limit
from ckptgov.ops.capacity import space_of
from ckptgov.ops.context import Context
from ckptgov.ops.placed import placed
from ckptgov.planning.room import Debris, Room, room_for
from ckptgov.work.look import look_settings
from ckptgov.work.owned import HELD, STAGING, TRASH, below, names_in
from ckptgov.work.tier import Place

_OURS = {LeftKind.STAGING: STAGING, LeftKind.HELD: HELD, LeftKind.TRASH: TRASH}
_TORN = frozenset({Reason.TORN, Reason.MISSING_SHARD})


class LeftOver(Struct, frozen=True, kw_only=True):
    """Something at a place that is no checkpoint. ``path`` below the tier root."""

    run: str | None
    kind: LeftKind
    path: str
    bytes: int


def free_and_total(tier: TierSettings) -> tuple[int, int] | None:
    """Bytes a writer may still take from the tier's file system, and its size.

    None for a tier that is no file system here. A quota is mostly not shown in them.

    Raises:
        StorageError: the file system does not answer.
    """
    space = space_of(tier)
    return None if space is None else (space.free_bytes, space.size_bytes)


def room_at(
    context: Context,
    tier: TierSettings,
    needed_bytes: int,
    *,
    reserved_bytes: int = 0,
    run: str | None = None,
) -> tuple[Room, tuple[Debris, ...]]:
    """Whether ``needed_bytes`` fit at a tier, and what lies there that might go, largest first.

    ``reserved_bytes`` is what flows under way to it have yet to write, ``run`` whose bytes they
    are. Where neither a quota
    counts nor anything is missing, the tier is not searched for left-overs.

    Raises:
        OverCapacity: a policy's limit there is passed, and no rule lets anything go.
        CouldNotLook: the tier, or a part of it that counts, could not be looked at.
    """
    place = context.place(tier)
    space = free_and_total(tier) if context.is_here(tier) else None
    require_below_limit(context, tier, needed_bytes, run=run)

    def verdict(used_bytes: int, debris: Sequence[Debris]) -> Room:
        return room_for(
            needed_bytes,
            free_bytes=None if space is None else space[0],
            quota_bytes=tier.quota_bytes,
            used_bytes=used_bytes,
            reserved_bytes=reserved_bytes,
            debris_bytes=sum(one.bytes for one in debris),
        )

    if tier.quota_bytes is None and (fast := verdict(0, ())).fits:
        return fast, ()
    used_bytes, debris = _taken(context, place)
    return verdict(used_bytes, debris), debris


def _taken(context: Context, place: Place) -> tuple[int, tuple[Debris, ...]]:
    """Bytes of checkpoints, whole or unproven, and everything else that lies there."""
    assert place.uuid is not None
    used = 0
    runs = context.catalog.runs()
    left, failures = left_at(context, place, runs)
    if failures:
        raise failures[0][1]
    debris = [Debris(path=one.path, bytes=one.bytes) for one in left]
    here = [one for one in context.catalog.places() if one.place == place.uuid]
    for run in runs:
        run_id = run.identity.run_id
        roots = [one for one in context.catalog.roots_of(run_id) if one.place == place.uuid]
        for one in placed(context, run_id, here):
            if one.bytes and roots and one.copy.state in LEAVING:
                debris.append(Debris(path=join(roots[0].path, one.copy.name), bytes=one.bytes))
            else:
                used += one.bytes
        for seen in context.catalog.sightings(run_id):
            if seen.place != place.uuid:
                continue
            if roots and any(finding.reason in _TORN for finding in seen.findings):
                debris.append(Debris(path=join(roots[0].path, seen.name), bytes=seen.bytes))
            else:
                used += seen.bytes
    return used, tuple(sorted(debris, key=lambda one: (-one.bytes, one.path)))


def left_at(
    context: Context, place: Place, runs: Sequence[RunFacts]
) -> tuple[list[LeftOver], list[tuple[str, CkptgovError]]]:
    """Everything at a place that is no checkpoint, and what could not be looked at.

    Deliveries in no root of ``runs`` bear no run.
    """
    left: list[LeftOver] = []
    failures: list[tuple[str, CkptgovError]] = []
    roots = [
        (run.identity.name, root)
        for run in runs
        for root in context.catalog.roots_of(run.identity.run_id)
        if root.place == place.uuid
    ]
    for name, root in roots:
        try:
            left += _left_in_run(context, place, name, root)
        except CkptgovError as error:
            failures.append((name, error))
    try:
        for one in place.storage.pending(""):
            run = next((name for name, root in roots if lies_in(one.path, root)), None)
            left.append(LeftOver(run=run, kind=LeftKind.PENDING, path=one.path, bytes=one.bytes))
    except CkptgovError as error:
        failures.append(("pending deliveries", error))
    return left, failures


def lies_in(path: str, root: RunRootFacts) -> bool:
    """Whether a path below the tier root lies in a run's root or its sidecar there."""
    return any(top == "" or path.startswith(f"{top}/") for top in (root.path, root.sidecar))


def _left_in_run(
    context: Context, place: Place, run: str, root: RunRootFacts
) -> Iterator[LeftOver]:
    settings = look_settings(
        place, context.author.clock, clock_margin_s=context.settings.clock_margin_s
    )
    try:
        with Tree(place.storage, root.path, settings) as tree:
            staging = survey(tree).staging
    except (FileNotFoundError, NotADirectoryError):
        staging = ()  # the run's root is gone from this place
    for one in staging:
        path = join(root.path, one.path)
        yield LeftOver(run=run, kind=LeftKind.FRAMEWORK_STAGING, path=path, bytes=one.bytes)
    for kind, directory in _OURS.items():
        for name in names_in(place.storage, f"{root.sidecar}/{directory}"):
            path = f"{root.sidecar}/{directory}/{name}"
            found = below(place.storage, path)
            size = found.own_bytes if kind is LeftKind.HELD else found.bytes
            yield LeftOver(run=run, kind=kind, path=path, bytes=size)
