"""Write into the catalog what a fresh look found: the one way facts get there.

Used after a scan, a verification, a commit and by a rebuild, so that all of them leave the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import (
    PlacedCopy,
    RecordFacts,
    RunRootFacts,
    SealedFacts,
)
from ckptgov.manifest.forms.manifests import encode_manifest
from ckptgov.manifest.forms.records import encode_record
from ckptgov.model.checkpoint import Evidence, Manifest, RunIdentity
from ckptgov.model.copies import LEAVING, TRANSITIONS, CopyState
from ckptgov.model.facts import Reason, Sighting
from ckptgov.model.journal import KIND_OF, NumberedRecord
from ckptgov.work.copyproof import CopyProof
from ckptgov.work.look import RunLook, SealedCopy


def record_run(catalog: Catalog, look: RunLook, identity: RunIdentity, at_ns: int) -> None:
    """Register the run and where it lies at this place.

    Raises:
        UsageError: the name belongs to another run.
    """
    assert look.place.uuid is not None
    root = RunRootFacts(
        run_id=identity.run_id,
        place=look.place.uuid,
        path=look.run_root,
        sidecar=look.store.sidecar,
    )
    with catalog.transaction():  # a run that lies nowhere could not be asked about
        catalog.put_run(identity, at_ns)
        catalog.put_run_root(root)


def record_look(
    catalog: Catalog,
    look: RunLook,
    run_id: str,
    *,
    at_ns: int,
    sightings: Sequence[Sighting] | None,
) -> None:
    """Record copies and journal, and the unsealed candidates where the look was complete."""
    assert look.place.uuid is not None
    copies = [copy for one in look.stored if (copy := look.sealed(one)) is not None]
    with catalog.transaction():
        standing = {(one.content_id, one.place): one for one in catalog.copies(run_id)}
        done: dict[str, CopyState] = {}
        for copy in sorted(copies, key=_verified_first):
            content_id = copy.manifest.content_id
            if content_id in done:
                continue
            _put_sealed(catalog, look, copy, run_id, at_ns)
            held = standing.get((content_id, look.place.uuid))
            done[content_id] = _put_copy(catalog, look, copy, run_id, held, at_ns)
        catalog.put_records([_record_facts(run_id, item) for item in look.records])
        if sightings is not None:
            catalog.put_sightings(run_id, look.place.uuid, sightings, at_ns)


def _verified_first(copy: SealedCopy) -> int:
    """One content under two names at one place counts once, by its better copy."""
    return 0 if copy.proof.evidence is Evidence.DIGEST else 1


def sealed_facts(
    run_id: str, manifest: Manifest, *, line: int, attempt: int, sealed_at_ns: int
) -> SealedFacts:
    """A sealed checkpoint as the catalog keeps it: its manifest, and where in the run it stands."""
    return SealedFacts(
        run_id=run_id,
        content_id=manifest.content_id,
        name=manifest.name,
        step=manifest.step,
        step_kind=manifest.step_kind,
        layout=manifest.layout,
        world_size=manifest.world_size,
        purposes=manifest.purposes,
        bytes=manifest.bytes,
        shard_count=len(manifest.shards),
        line=line,
        attempt=attempt,
        sealed_at_ns=sealed_at_ns,
    )


def _put_sealed(catalog: Catalog, look: RunLook, copy: SealedCopy, run_id: str, at_ns: int) -> None:
    manifest = copy.manifest
    record = look.sealed_records.get(manifest.content_id)
    catalog.put_sealed(
        sealed_facts(
            run_id,
            manifest,
            line=record.line if record is not None else look.lines.active.number,
            attempt=record.attempt if record is not None else 0,
            sealed_at_ns=record.stamp.at_ns if record is not None else at_ns,
        ),
        encode_manifest(manifest),
    )


def _put_copy(
    catalog: Catalog,
    look: RunLook,
    copy: SealedCopy,
    run_id: str,
    held: PlacedCopy | None,
    at_ns: int,
) -> CopyState:
    proof, manifest = copy.proof, copy.manifest
    assert look.place.uuid is not None
    state = state_of(proof, manifest, is_gone=look.is_gone(copy))
    coverage = coverage_of(manifest, proof.held) if look.partial else None
    if held is None:
        catalog.put_copy(
            PlacedCopy(
                run_id=run_id,
                content_id=manifest.content_id,
                place=look.place.uuid,
                name=manifest.name,
                state=state,
                coverage=coverage,
                evidence=proof.evidence,
                verified_at_ns=proof.verified_at_ns,
                findings=proof.findings,
            ),
            at_ns,
        )
        return state
    if held.state in LEAVING:  # decided: what lies there says nothing against it
        return held.state
    if state is CopyState.SIGHTED and held.state is not CopyState.LOST:
        state = CopyState.REOPENED
    if state is held.state:
        if proof.verified_at_ns is not None and proof.verified_at_ns != held.verified_at_ns:
            catalog.confirm(
                run_id,
                manifest.content_id,
                look.place.uuid,
                expected=held.state,
                at_ns=proof.verified_at_ns,
                evidence=proof.evidence,
                findings=proof.findings,
                coverage=coverage,
            )
        return state
    if state in TRANSITIONS[held.state]:
        catalog.transition(
            run_id,
            manifest.content_id,
            look.place.uuid,
            expected=held.state,
            to=state,
            at_ns=at_ns,
            evidence=proof.evidence,
            verified_at_ns=proof.verified_at_ns,
            findings=proof.findings,
            coverage=coverage,
            name=manifest.name,
        )
        return state
    return held.state


def state_of(proof: CopyProof, manifest: Manifest, *, is_gone: bool) -> CopyState:
    """The state that a proof by attributes stands for."""
    reasons = {one.reason for one in proof.findings}
    if is_gone or len(proof.missing) == len(manifest.shards):
        return CopyState.LOST
    if proof.evidence is Evidence.DIGEST:
        return CopyState.VERIFIED
    if Reason.UNREADABLE in reasons:
        return CopyState.UNREADABLE
    if Reason.CORRUPT in reasons:
        return CopyState.CORRUPT
    return CopyState.REOPENED if reasons else CopyState.SIGHTED


def coverage_of(manifest: Manifest, held: Sequence[str]) -> bytes | None:
    """Bit i for shard i in manifest order; None when all of them lie there."""
    if len(held) == len(manifest.shards):
        return None
    wanted = set(held)
    bits = bytearray((len(manifest.shards) + 7) // 8)
    for index, shard in enumerate(manifest.shards):
        if shard.path in wanted:
            bits[index // 8] |= 1 << (index % 8)
    return bytes(bits)


def _record_facts(run_id: str, item: NumberedRecord) -> RecordFacts:
    return RecordFacts(
        run_id=run_id,
        record_id=item.record.stamp.id,
        number=item.number,
        kind=KIND_OF[type(item.record)],
        at_ns=item.record.stamp.at_ns,
        raw=encode_record(item.record),
    )
