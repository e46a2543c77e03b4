"""Parts of one save, merged: what several nodes hold of a checkpoint becomes one.

Promises: a save is sealed once, whichever process of the service merges it; before it is offered
each node looks again at what it digested and publishes manifest, receipt and record beside it.
What is not proven one save is kept as parts, and told.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlacedCopy, PlaceFacts, RecordFacts, RunFacts
from ckptgov.errors import Malformed, NotAllowed, UnknownRun
from ckptgov.manifest.forms.manifests import decode_manifest, encode_manifest
from ckptgov.manifest.forms.records import decode_record, encode_record
from ckptgov.manifest.names import check_path
from ckptgov.model.checkpoint import Manifest, Shard
from ckptgov.model.cluster import NewTask, PartFacts, TaskKind
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Note, Reason
from ckptgov.model.journal import KIND_OF, NumberedRecord, Record, Sealed
from ckptgov.ops.context import Context
from ckptgov.ops.posting import LEDGER, posted_record
from ckptgov.ops.posting_copies import put_copy
from ckptgov.ops.record import coverage_of, sealed_facts
from ckptgov.ops.standing import pages
from ckptgov.wire.facts import PostedRecord, packed
from ckptgov.wire.parts import (
    PartAnswer,
    PartState,
    PublishPayload,
    ToldPart,
    decode_part,
    encode_part,
    encode_payload,
)
from ckptgov.work.halves import DigestedPart, digested_of, merge, parts_of_save
from ckptgov.work.seal import record_sealed

PUBLISH_PRIORITY = 50


def put_part(context: Context, run: str, told: ToldPart, *, node: str | None) -> PartAnswer:
    """Take one node's part; when it is the last of its save, seal the save.

    ``node`` is who says so; None where any node may.

    Raises:
        UnknownRun: no such run.
        NotAllowed: the part's place is not the node's own.
        Malformed: paths that no file can have.
    """
    catalog = context.catalog
    facts = catalog.run_by_name(run)
    if facts is None:
        raise UnknownRun(f"no run {run!r} is registered", hint="'ckptgov run list' shows the runs")
    _check(told)
    with catalog.transaction():
        place = _own_place(catalog, told.place, node)
        standing = _standing(catalog, facts.identity.run_id, told)
        if standing is not None:
            _publish_at(context, facts, place, told, standing)
            return PartAnswer(state=PartState.SEALED, content_id=standing.content_id)
        return _merge(context, facts, told)


def doubts_of(context: Context, run_id: str) -> tuple[Note, ...]:
    """Why parts that lie here are not a checkpoint yet, one note a save."""
    saves: dict[str, list[ToldPart]] = {}
    for one in context.catalog.parts_of(run_id):
        if not one.name.startswith(LEDGER):
            saves.setdefault(one.name, []).append(decode_part(one.told))
    notes = []
    for _name, told in sorted(saves.items()):
        outcome = merge([_digested(one) for one in told], window_ns=_window_ns(context))
        notes += [Note("halves", one.path, one.evidence) for one in outcome.findings]
    return tuple(notes)


def _check(told: ToldPart) -> None:
    part = told.part
    for path in filter(None, (part.name, told.run_root)):
        check_path(path, "part")
    if not part.name or not part.shards:
        raise Malformed("part: without a name, or without shards")
    for shard in part.shards:
        if shard.path:
            check_path(shard.path, f"part of {part.name}")
    if [shard.path for shard in part.shards] != [path for path, _token in told.tokens]:
        raise Malformed(f"part of {part.name}: its tokens are not those of its shards")


def _own_place(catalog: Catalog, place: str, node: str | None) -> PlaceFacts:
    known = next((one for one in catalog.places() if one.place == place), None)
    if known is None or known.node is None or node not in (None, known.node):
        raise NotAllowed(f"place {place} is no disk of node {node}")
    return known


def _standing(catalog: Catalog, run_id: str, told: ToldPart) -> Manifest | None:
    """The sealed checkpoint that this part is of, when it came before."""
    own = frozenset(told.part.shards)
    step = told.part.step
    sealed = (
        reversed(catalog.checkpoints(run_id))
        if step is None
        else chain.from_iterable(pages(catalog, run_id, step=step))
    )
    for one in sealed:
        if one.name == told.part.name:
            manifest = _manifest(catalog, run_id, one.content_id)
            if own.issubset(manifest.shards):
                return manifest
    return None


def _manifest(catalog: Catalog, run_id: str, content_id: str) -> Manifest:
    raw = catalog.manifest_bytes(run_id, content_id)
    return decode_manifest(raw, where=f"catalog manifest of {content_id}")


def _merge(context: Context, run: RunFacts, told: ToldPart) -> PartAnswer:
    catalog, run_id, name = context.catalog, run.identity.run_id, told.part.name
    _keep(context, run_id, told)
    here = [decode_part(one.told) for one in catalog.parts(run_id, name)]
    digested = [_digested(one) for one in here]
    outcome = merge(digested, window_ns=_window_ns(context))
    if outcome.manifest is None:
        reasons = {one.reason for one in outcome.findings}
        is_waiting = reasons <= {Reason.MISSING_SHARD}
        state = PartState.WAITING if is_waiting else PartState.UNPROVEN
        return PartAnswer(state=state, findings=outcome.findings)
    own = parts_of_save(digested, outcome.manifest)
    _seal(context, run, outcome.manifest, own)
    catalog.drop_parts(run_id, name)
    places = {one.place: one for one in catalog.places()}
    for one in here:
        if any(one.place == each.place for each in own):
            _publish_at(context, run, places[one.place], one, outcome.manifest)
        else:
            _keep(context, run_id, one)  # of another save under this name, which may yet be whole
    return PartAnswer(state=PartState.SEALED, content_id=outcome.manifest.content_id)


def _keep(context: Context, run_id: str, told: ToldPart) -> None:
    context.catalog.put_part(
        PartFacts(
            run_id=run_id,
            name=told.part.name,
            place=told.place,
            told=encode_part(told),
            posted_at_ns=context.author.clock.now_ns(),
        )
    )


def _digested(told: ToldPart) -> DigestedPart:
    return DigestedPart(
        place=told.place,
        part=told.part,
        members=told.members,
        expected=told.expected,
        common_digest=told.common_digest,
        oldest_mtime_ns=told.oldest_mtime_ns,
        newest_mtime_ns=told.newest_mtime_ns,
        is_carried=told.is_carried,
        metrics=told.metrics,
        tokens=told.tokens,
        digested_at_ns=told.digested_at_ns,
    )


def _window_ns(context: Context) -> int:
    return int(context.settings.save_window_s * 1e9)


class CatalogJournal:
    """The run's records in the catalog, as a journal to add to. Inside a transaction only."""

    def __init__(self, catalog: Catalog, run_id: str) -> None:
        self._catalog = catalog
        self._run_id = run_id
        self.records = [
            NumberedRecord(
                one.number, decode_record(one.raw, where=f"catalog record {one.record_id}")
            )
            for one in catalog.records(run_id)
        ]

    def append(self, record: Record) -> int:
        """Add a record under the next free number."""
        number = max((item.number for item in self.records), default=0) + 1
        self.records.append(NumberedRecord(number, record))
        self._catalog.put_records(
            [
                RecordFacts(
                    run_id=self._run_id,
                    record_id=record.stamp.id,
                    number=number,
                    kind=KIND_OF[type(record)],
                    at_ns=record.stamp.at_ns,
                    raw=encode_record(record),
                )
            ]
        )
        return number


def _seal(
    context: Context, run: RunFacts, manifest: Manifest, parts: Sequence[DigestedPart]
) -> None:
    catalog, run_id = context.catalog, run.identity.run_id
    journal = CatalogJournal(catalog, run_id)
    record = record_sealed(
        journal,
        tuple(journal.records),
        manifest,
        run_id=run_id,
        author=context.author,
        digested=digested_of(parts, manifest),
        is_carried=any(one.is_carried for one in parts),
        metrics=next((one.metrics for one in parts if one.metrics), ()),
        save_id=parts[0].part.save_id,
        earlier=frozenset(item.record.stamp.id for item in journal.records),
        first_seen_at_ns=_first_seen_ns(context, run_id, manifest.name),
        margin_ns=int(context.settings.clock_margin_s * 1e9),
    )
    facts = sealed_facts(
        run_id,
        manifest,
        line=record.line,
        attempt=record.attempt,
        sealed_at_ns=record.stamp.at_ns,
    )
    catalog.put_sealed(facts, encode_manifest(manifest))


def _first_seen_ns(context: Context, run_id: str, name: str) -> int:
    seen = [one.first_seen_at_ns for one in context.catalog.sightings(run_id) if one.name == name]
    return min(seen, default=context.author.clock.now_ns())


def _publish_at(
    context: Context, run: RunFacts, place: PlaceFacts, told: ToldPart, manifest: Manifest
) -> None:
    """Have the node look again and publish; until it says so its copy is not offered."""
    catalog, run_id = context.catalog, run.identity.run_id
    held = next(
        (
            one
            for one in catalog.copies(run_id)
            if (one.content_id, one.place) == (manifest.content_id, place.place)
        ),
        None,
    )
    if held is not None and held.state is CopyState.VERIFIED:
        return
    if held is None or held.state is CopyState.LOST:
        put_copy(catalog, _sighted(run_id, place, told, manifest), held, told.digested_at_ns)
    payload = PublishPayload(
        run=run.identity,
        place=place.place,
        run_root=told.run_root,
        name=manifest.name,
        manifest=packed(encode_manifest(manifest)),
        tokens=told.tokens,
        digested_at_ns=told.digested_at_ns,
        records=_records_of(catalog, run_id, manifest.content_id),
    )
    catalog.tasks.add(
        NewTask(
            kind=TaskKind.PUBLISH,
            key=f"publish:{run_id}:{manifest.content_id}:{place.place}",
            payload=encode_payload(payload),
            node=place.node,
            for_run=run.identity.name,
            priority=PUBLISH_PRIORITY,
        )
    )


def _records_of(catalog: Catalog, run_id: str, content_id: str) -> tuple[PostedRecord, ...]:
    """What the node must know to judge this checkpoint; the rest reaches it with its next post."""
    found = []
    for one in catalog.records(run_id):
        if one.kind == "metric":
            continue
        if one.kind == "sealed":
            record = decode_record(one.raw, where=f"catalog record {one.record_id}")
            if not isinstance(record, Sealed) or record.content_id != content_id:
                continue
        found.append(posted_record(one))
    return tuple(found)


def _sighted(run_id: str, place: PlaceFacts, told: ToldPart, manifest: Manifest) -> PlacedCopy:
    own: Sequence[Shard] = told.part.shards
    return PlacedCopy(
        run_id=run_id,
        content_id=manifest.content_id,
        place=place.place,
        name=manifest.name,
        state=CopyState.SIGHTED,
        coverage=coverage_of(manifest, [shard.path for shard in own]),
    )
