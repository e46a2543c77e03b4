"""A node's parts of saves: digested by its agent, and published when the service merged them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ckptgov.errors import CkptgovError, CouldNotLook, Malformed
from ckptgov.manifest.forms.manifests import decode_manifest
from ckptgov.model.facts import Depth
from ckptgov.model.journal import NumberedRecord
from ckptgov.model.pacing import FlowClass
from ckptgov.model.settings import TierSettings
from ckptgov.ops.context import Context
from ckptgov.ops.moving import moving, paced_reading
from ckptgov.ops.own_disks import OwnDisk
from ckptgov.ops.policies import settle_s_of
from ckptgov.ops.posting import decoded_record
from ckptgov.ops.record import record_look, record_run
from ckptgov.wire.facts import unpacked
from ckptgov.wire.parts import DigestOutcome, DigestPayload, PublishPayload, ToldPart
from ckptgov.work.halves import (
    DigestedPart,
    HalfAt,
    ToldByWriter,
    digest_half,
    digest_told,
    halves_of,
    publish_beside,
    told_by_writer,
)
from ckptgov.work.look import RunLook
from ckptgov.work.runstore import writable_store
from ckptgov.work.seal import digest_members, sync_directories
from ckptgov.work.tier import Place

Signature = tuple[object, ...]


class FoundHalf(Struct, frozen=True, kw_only=True):
    """A half that lies on one of the node's disks. ``signature`` changes with its files."""

    run: str
    look: RunLook
    name: str
    half: HalfAt | ToldByWriter
    signature: Signature


def found_halves(context: Context, disks: Sequence[OwnDisk]) -> Iterator[FoundHalf]:
    """Saves of which this node holds a part and that stand still; one told by its writer counts
    as its writer told it."""
    for disk in disks:
        for run_root in disk.run_roots:
            run = context.catalog.run_at(disk.place.uuid or "", run_root)
            if run is None:
                continue
            name = run.identity.name
            look = context.look(disk.place, run_root, partial=True, run=name)
            yield from _halves_in(context, look, name)


def _halves_in(context: Context, look: RunLook, run: str) -> Iterator[FoundHalf]:
    told = told_by_writer(look)
    for one in told:
        said: Signature = tuple((part.save_id, part.rank, part.shards) for part in one.parts)
        yield FoundHalf(run=run, look=look, name=one.name, half=one, signature=said)
    names = {one.name for one in told}
    now_ns = context.author.clock.now_ns()
    own_s = settle_s_of(context, run)
    settle_s = context.settings.settle_s if own_s is None else own_s
    for name, halves in halves_of([look]).items():
        sighting = halves[0].sighting
        age_s = (now_ns - sighting.newest_mtime_ns) / 1e9
        if name in names or age_s < settle_s:
            continue
        sizes = tuple((one.path, one.bytes) for one in sighting.shards)
        signature = (sighting.newest_mtime_ns, sizes)
        yield FoundHalf(run=run, look=look, name=name, half=halves[0], signature=signature)


def digest_found(context: Context, found: FoundHalf) -> ToldPart:
    """Digest one half, within the budgets, as its part is told.

    Raises:
        NotStill: it is being written.
        CkptgovError: it could not be read, or is not what its writer said.
    """
    look = found.look
    settings = context.seal_settings_at(look.place)
    with paced_reading(context, [look], what="seal", flow_class=FlowClass.DURABLE):
        match found.half:
            case HalfAt() as half:
                part = digest_half(half, author=context.author, settings=settings)
            case ToldByWriter() as told:
                part = digest_told(look, told, author=context.author, settings=settings)
    return _told(part, look.run_root)


def _told(part: DigestedPart, run_root: str) -> ToldPart:
    return ToldPart(
        place=part.place,
        run_root=run_root,
        part=part.part,
        members=part.members,
        expected=part.expected,
        common_digest=part.common_digest,
        oldest_mtime_ns=part.oldest_mtime_ns,
        newest_mtime_ns=part.newest_mtime_ns,
        is_carried=part.is_carried,
        metrics=part.metrics,
        tokens=part.tokens,
        digested_at_ns=part.digested_at_ns,
    )


def publish_merged(context: Context, payload: PublishPayload, *, node: str) -> str:
    """Publish a merged manifest beside the node's own part; the content id.

    Journal, manifest, receipt, then the catalog: killed anywhere, the same again converges.

    Raises:
        NotStill: a shard was rewritten since it was digested; nothing was published.
        CouldNotLook: the place is none of this node's disks, or not there now.
    """
    place = _own_place(context, payload.place, node)
    run = payload.run
    manifest = decode_manifest(unpacked(payload.manifest), where=f"merged {payload.name}")
    records = [
        NumberedRecord(one.number, decoded_record(one, run.run_id)) for one in payload.records
    ]
    look = context.look(place, payload.run_root, partial=True, run=run.name)
    store, standing = writable_store(look.store, run)
    if standing.run_id != run.run_id:
        raise Malformed(f"{place.root}/{payload.run_root}: belongs to run {standing.name!r}")
    publish_beside(
        look,
        store,
        manifest,
        tokens=payload.tokens,
        digested_at_ns=payload.digested_at_ns,
        records=records,
    )
    seen = context.look(place, payload.run_root, partial=True, run=run.name)
    at_ns = context.author.clock.now_ns()
    record_run(context.catalog, seen, run, at_ns)
    sightings = [seen.sighting(one, Depth.STRUCTURE) for one in seen.unsealed()]
    record_look(context.catalog, seen, run.run_id, at_ns=at_ns, sightings=sightings)
    return manifest.content_id


def _own_place(context: Context, uuid: str, node: str) -> Place:
    for tier in context.settings.tiers:
        place = _place_or_none(context, tier) if tier.node == node else None
        if place is not None and place.uuid == uuid:
            return place
    raise CouldNotLook(f"place {uuid} is no disk of node {node} that is there now")


def _place_or_none(context: Context, tier: TierSettings) -> Place | None:
    try:
        return context.place(tier)
    except CkptgovError:
        return None


def digest_range(context: Context, payload: DigestPayload) -> DigestOutcome:
    """Digest some shards of a candidate on a shared tier, within its budgets.

    Raises:
        NotStill: one of them is not what was proven.
        CouldNotLook: the tier is not configured here, or another place lies at its root.
    """
    tier = next((one for one in context.settings.tiers if one.name == payload.tier), None)
    if tier is None:
        raise CouldNotLook(f"tier {payload.tier} is not configured here")
    place = context.place(tier)
    if place.uuid != payload.place:
        raise CouldNotLook(f"tier {payload.tier}: place {place.uuid} lies here")
    size = sum(count for _path, count in payload.members)
    with moving(
        context, what=f"seal {payload.name}", flow_class=FlowClass.DURABLE, bytes_=size
    ) as movement:
        storage = movement.reading(place) if tier.budget.read_bytes_per_s else place.storage
        digested = digest_members(
            storage,
            payload.base,
            payload.members,
            name=payload.name,
            clock=context.author.clock,
            granularity_ns=place.storage.filesystem().granularity_ns,
            settings=context.seal_settings_at(place),
            durable=True,
        )
    sync_directories(
        place.storage, payload.run_root, payload.base, [path for path, _ in payload.members]
    )
    return DigestOutcome(shards=digested.shards, tokens=digested.tokens)
