"""How full places are: what file systems tell, quotas, and of object stores what the catalog sums.

No directory is walked for it: what lies there besides checkpoints is for ``du`` to find.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.facts import PlaceFacts
from ckptgov.errors import CkptgovError, CouldNotLook, StorageError
from ckptgov.model.copies import LEAVING, CopyState
from ckptgov.model.settings import TierSettings
from ckptgov.ops.context import Context
from ckptgov.ops.placed import moves_to_trash, placed
from ckptgov.planning.growth import SPAN_NS, Growth, Sample, growth
from ckptgov.work.tier import Place

if TYPE_CHECKING:
    from ckptgov.catalog.samples import TierSample


class Space(Struct, frozen=True, kw_only=True):
    """What a file system tells a writer. ``total_bytes`` is what is in use and what may still be
    written: room kept for root is neither; ``size_bytes`` is with it. ``files`` are names in use,
    None where it counts none (btrfs and others make them as they are wanted)."""

    used_bytes: int
    free_bytes: int
    total_bytes: int
    size_bytes: int
    files: int | None
    free_files: int | None


class TierFill(Struct, frozen=True, kw_only=True):
    """One place and how full it is. With ``error`` it could not be looked at, and no figure counts.

    ``used_bytes`` stands against the same thing that percentages of a policy are of: with a quota
    (or in an object store) what the catalog knows to lie there, sealed or not, in the trash too,
    and pending uploads; otherwise all that is in use on the file system, whoever's it is. So the
    trash takes room until it is purged, wherever it lies. ``free_bytes``,
    ``total_bytes``, ``files`` and ``free_files`` are the file system's, None where there is none;
    only ``files`` of an object store are what the catalog sums. ``pending_bytes``: of uploads
    begun in an object store, among ``used_bytes``.
    """

    tier: str
    node: str | None
    place: str
    used_bytes: int = 0
    free_bytes: int | None = None
    total_bytes: int | None = None
    files: int | None = None
    free_files: int | None = None
    quota_bytes: int | None = None
    pending_bytes: int = 0
    error: CkptgovError | None = None

    @property
    def size_bytes(self) -> int | None:
        """What percentages are of: the quota, else the file system's size; None: neither."""
        return self.quota_bytes if self.quota_bytes is not None else self.total_bytes

    @property
    def size_files(self) -> int | None:
        """The same of files."""
        if self.files is None or self.free_files is None:
            return None
        return self.files + self.free_files

    @property
    def room_bytes(self) -> int | None:
        """What may still be written: the smaller of what quota and file system leave."""
        rooms = [] if self.free_bytes is None else [self.free_bytes]
        if self.quota_bytes is not None:
            rooms.append(max(0, self.quota_bytes - self.used_bytes))
        return min(rooms, default=None)


def space_of(tier: TierSettings) -> Space | None:
    """What the file system of a tier's root tells; None for a tier that is none.

    Quotas are mostly not shown in it. A directory's project on ext4 and XFS is: there the figures
    are those of the project (statfs(2) of both looks at them).

    Raises:
        StorageError: it does not answer.
    """
    if tier.is_url:
        return None
    try:
        found = os.statvfs(tier.root)
    except OSError as error:
        raise StorageError(
            f"tier {tier.name} at {tier.root}: does not tell its free space: {error.strerror}",
            hint="is it mounted?",
        ) from error
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    free = found.f_bavail * found.f_frsize
    counts_files = found.f_files > 0
    return Space(
        used_bytes=used,
        free_bytes=free,
        total_bytes=used + free,
        size_bytes=found.f_blocks * found.f_frsize,
        files=found.f_files - found.f_ffree if counts_files else None,
        free_files=found.f_favail if counts_files else None,
    )


def tier_facts(context: Context) -> tuple[TierFill, ...]:
    """How full every configured tier is just now, in the order of the settings.

    Of a disk that only its own node sees, and of a place that does not answer or is another one,
    ``error`` says so. The catalog is summed, run by run, for object stores and quotas only.
    """
    return _facts(context, context.settings.tiers)


def tier_fill(context: Context, tier: TierSettings) -> TierFill:
    """The same of one tier."""
    return _facts(context, (tier,))[0]


def _facts(context: Context, tiers: Sequence[TierSettings]) -> tuple[TierFill, ...]:
    met: list[tuple[TierSettings, Place | None, TierFill]] = []
    for tier in tiers:
        try:
            place = _met(context, tier)
            met.append((tier, place, _spaced(tier, place, space_of(tier))))
        except CkptgovError as error:
            told = TierFill(tier=tier.name, node=tier.node, place=_known(context, tier))
            met.append((tier, None, replace(told, error=error)))
    summed = {fill.place for tier, place, fill in met if place is not None and _is_summed(tier)}
    held = held_at(context, [one for one in context.catalog.places() if one.place in summed])
    return tuple(
        fill if place is None or fill.place not in held else _held(tier, place, fill, held)
        for tier, place, fill in met
    )


def held_at(context: Context, places: Iterable[PlaceFacts]) -> dict[str, tuple[int, int]]:
    """Bytes and shards that the catalog knows to lie at places, sealed or not, by place.

    The trash is among them, for what its purge frees: it takes up a quota like anything else.
    """
    wanted = list(places)
    sums = {one.place: [0, 0] for one in wanted}
    for run_id in dict.fromkeys(one.run_id for one in context.catalog.roots() if one.place in sums):
        for one in placed(context, run_id, wanted):
            sums[one.copy.place][0] += one.bytes
            sums[one.copy.place][1] += one.files
        for seen in context.catalog.sightings(run_id):
            if seen.place in sums:
                sums[seen.place][0] += seen.bytes
    for place in wanted:
        if moves_to_trash(place):
            _add_trash(context, place.place, sums[place.place])
    return {place: (size, files) for place, (size, files) in sums.items()}


def _add_trash(context: Context, place: str, sums: list[int]) -> None:
    """Count what was moved aside: ``placed`` leaves that out."""
    for one in context.catalog.removals.removals(place=place, states=(CopyState.TRASHED,)):
        sums[0] += one.bytes
        sums[1] += one.files


def held_of(context: Context, run_ids: Sequence[str], tier: str) -> tuple[int, int]:
    """Bytes and shards of sealed checkpoints that some runs hold at a tier, on all its places.

    What is condemned or in the trash does not count: it is on its way out.
    """
    places = [one for one in context.catalog.places() if one.tier == tier and one.is_current]
    size = files = 0
    for run_id in run_ids:
        for one in placed(context, run_id, places):
            if one.copy.state not in LEAVING:
                size, files = size + one.bytes, files + one.files
    return size, files


def measure_capacity(context: Context) -> tuple[TierSample, ...]:
    """Sample every place that can be looked at, and keep the samples; what was kept.

    Growth comes from them. What could not be looked at leaves no sample: never a zero.
    """
    return keep_samples(context, tier_facts(context))


def keep_samples(context: Context, facts: Iterable[TierFill]) -> tuple[TierSample, ...]:
    """Keep what was measured just now; without what could not be looked at."""
    from ckptgov.catalog.samples import TierSample  # SQLModel: dear to import

    at_ns = context.catalog.now_ns()
    taken = tuple(
        TierSample(
            place=one.place,
            at_ns=at_ns,
            used_bytes=one.used_bytes,
            free_bytes=one.free_bytes,
            total_bytes=one.total_bytes,
            files=one.files,
            free_files=one.free_files,
            quota_bytes=one.quota_bytes,
            quota_files=None,
        )
        for one in facts
        if one.error is None
    )
    for sample in taken:
        context.catalog.samples.add(sample)
    return taken


def growth_at(context: Context, fill: TierFill) -> Growth | None:
    """How a place fills by the samples of the last week; None: unknown.

    Samples that were taken under another quota, or with none, count other bytes and are left out.
    """
    now_ns = context.catalog.now_ns()
    kept = context.catalog.samples.samples(fill.place, since_ns=now_ns - SPAN_NS)
    alike = [
        Sample(one.at_ns, one.used_bytes)
        for one in kept
        if (one.quota_bytes is None) is (fill.quota_bytes is None)
    ]
    return growth(alike, now_ns=now_ns, room_bytes=fill.room_bytes)


def _met(context: Context, tier: TierSettings) -> Place:
    if not context.is_here(tier):
        raise CouldNotLook(
            f"tier {tier.name} on {tier.node}: only its own node sees how full it is"
        )
    return context.place(tier)


def _known(context: Context, tier: TierSettings) -> str:
    known = context.catalog.place_by_root(tier.root, node=tier.node)
    return known.place if known is not None else ""


def _spaced(tier: TierSettings, place: Place, space: Space | None) -> TierFill:
    assert place.uuid is not None
    fill = TierFill(tier=tier.name, node=tier.node, place=place.uuid, quota_bytes=tier.quota_bytes)
    if space is None:
        return fill
    return replace(
        fill,
        used_bytes=space.used_bytes,
        free_bytes=space.free_bytes,
        total_bytes=space.total_bytes,
        files=space.files,
        free_files=space.free_files,
    )


def _is_summed(tier: TierSettings) -> bool:
    return tier.is_url or tier.quota_bytes is not None


def _held(
    tier: TierSettings, place: Place, fill: TierFill, held: Mapping[str, tuple[int, int]]
) -> TierFill:
    size, files = held[fill.place]
    try:
        pending = sum(one.bytes for one in place.storage.pending("")) if tier.is_url else 0
    except CkptgovError as error:
        return replace(fill, error=error)
    in_use = files if tier.is_url else fill.files
    return replace(fill, used_bytes=size + pending, files=in_use, pending_bytes=pending)
