"""What the catalog knows to lie at places, page by page: no run is ever held whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from ckptgov.catalog.facts import PlacedCopy, PlaceFacts, SealedFacts
from ckptgov.manifest.forms.manifests import decode_manifest
from ckptgov.model.copies import CopyState, holds
from ckptgov.ops.context import Context
from ckptgov.ops.standing import pages

_TAKES_NOTHING = frozenset({CopyState.LOST, CopyState.PURGED})


class Placed(Struct, frozen=True):
    """One sealed checkpoint's copy, and what it takes at its place."""

    sealed: SealedFacts
    copy: PlacedCopy
    bytes: int
    files: int


def placed(context: Context, run_id: str, places: Collection[PlaceFacts]) -> Iterator[Placed]:
    """A run's copies at some places, newest checkpoint first.

    Lost and purged ones take nothing. Nor does what was moved to the trash of a file system: it is
    found there, and whoever sums up a place adds it. In an object store it stays in its place until
    it is purged.
    """
    wanted = {one.place: one for one in places}
    for page in pages(context.catalog, run_id, step=None):
        copies = context.catalog.copies_of(run_id, [one.content_id for one in page])
        for sealed in page:
            for copy in copies.get(sealed.content_id, ()):
                place = wanted.get(copy.place)
                if place is not None:
                    yield _measured(context, sealed, copy, is_moved=_is_moved(copy, place))


def moves_to_trash(place: PlaceFacts) -> bool:
    """Whether what is trashed there is moved aside; in an object store it stays where it was."""
    return "://" not in place.root


def _is_moved(copy: PlacedCopy, place: PlaceFacts) -> bool:
    return copy.state is CopyState.TRASHED and moves_to_trash(place)


def _measured(context: Context, sealed: SealedFacts, copy: PlacedCopy, *, is_moved: bool) -> Placed:
    if is_moved or copy.state in _TAKES_NOTHING:
        return Placed(sealed, copy, 0, 0)
    size, files = size_of(context, sealed, copy.coverage)
    return Placed(sealed, copy, size, files)


def size_of(context: Context, sealed: SealedFacts, coverage: bytes | None) -> tuple[int, int]:
    """Bytes and number of those shards that a copy has, or had; ``coverage`` None: of all."""
    if coverage is None:
        return sealed.bytes, sealed.shard_count
    raw = context.catalog.manifest_bytes(sealed.run_id, sealed.content_id)
    shards = decode_manifest(raw, where=f"the catalog's manifest of {sealed.name}").shards
    return held_of([shard.bytes for shard in shards], coverage)


def held_of(sizes: Sequence[int], coverage: bytes) -> tuple[int, int]:
    """The same by the shards' sizes."""
    held = [one for index, one in enumerate(sizes) if holds(coverage, index)]
    return sum(held), len(held)
