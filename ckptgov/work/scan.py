"""Scan one run root at one place: heal what is sealed, seal what is proven, newest first.

A generator, so that the caller can seal the newest checkpoint of every run before the rest of any.
Killed at any point, the next scan converges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from ckptgov.errors import CkptgovError, Malformed, StorageError
from ckptgov.manifest.names import file_name_of
from ckptgov.model.checkpoint import (
    Evidence,
    Manifest,
    RunIdentity,
    VerifyLevel,
)
from ckptgov.model.facts import Depth, Finding, Found, Note, Reason, Sighting
from ckptgov.model.journal import Lost
from ckptgov.work.author import Author
from ckptgov.work.look import RunLook, SealedCopy
from ckptgov.work.runstore import writable_store
from ckptgov.work.seal import (
    Digested,
    NotStill,
    OnItsWayOut,
    SealSettings,
    digest_sighting,
    manifest_of,
    publish_receipt,
    record_sealed,
    require_staying,
)
from ckptgov.work.verify import verify_sealed

Elsewhere = Callable[[RunLook, Sighting], Digested | None]
"""Digests of a proven candidate that others made; None: there are none, digest it here.

Raises ``NotYet`` while others are at it.
"""


class NotYet(CkptgovError):
    """Others are digesting a candidate: it is sealed by a later scan."""

    kind = "being-digested"

    def __init__(self, name: str, evidence: str) -> None:
        super().__init__(f"{name}: {evidence}")
        self.finding = Finding(Reason.UNVERIFIED, name, evidence)


class SealedNow(Struct, frozen=True, kw_only=True):
    """A checkpoint this scan sealed, or found sealed and made whole again."""

    manifest: Manifest
    bytes: int
    is_new: bool


class Failure(Struct, frozen=True, kw_only=True):
    """A checkpoint that could not be sealed or compared, and why."""

    name: str
    error: CkptgovError


class ScanProgress(Struct, kw_only=True):
    """What a scan has done so far; grows while it runs."""

    identity: RunIdentity
    first_seen: Mapping[tuple[str, str], int] = field(default_factory=dict)
    sealed: list[SealedNow] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    doubts: tuple[Finding, ...] = ()
    notes: list[Note] = field(default_factory=list)
    elsewhere: Elsewhere | None = None


def prepare(look: RunLook, identity: RunIdentity) -> ScanProgress:
    """Make ``run.json`` stand in the run's store (the first write to a run root)."""
    look.store, standing = writable_store(look.store, identity)
    return ScanProgress(identity=standing)


def pending_bytes(look: RunLook) -> int:
    """Bytes of the candidates that are not sealed yet, as far as their names tell."""
    total = 0
    for found in look.unsealed():
        try:
            total += sum(one.bytes for one in look.sighting(found, Depth.STRUCTURE).shards)
        except CkptgovError:
            continue
    return total


def scan_steps(
    look: RunLook,
    progress: ScanProgress,
    *,
    author: Author,
    settings: SealSettings,
) -> Iterator[SealedNow]:
    """Do the work of a scan; yields after every checkpoint that was sealed or healed."""
    for stored in sorted(look.stored, key=lambda one: one.file, reverse=True):
        copy = look.sealed(stored)
        if copy is None or look.is_removed(copy):
            continue
        try:
            healed = _heal(look, progress, copy, author=author, settings=settings)
        except CkptgovError as error:
            progress.failures.append(Failure(name=copy.manifest.name, error=error))
            continue
        if healed is not None:
            progress.sealed.append(healed)
            yield healed
    for found in _newest_first(look.unsealed()):
        done = _seal_found(look, progress, found, author=author, settings=settings)
        if done is not None:
            progress.sealed.append(done)
            yield done


def _newest_first(found: Sequence[Found]) -> list[Found]:
    return sorted(found, key=lambda one: one.step if one.step is not None else -1, reverse=True)


def _heal(
    look: RunLook,
    progress: ScanProgress,
    copy: SealedCopy,
    *,
    author: Author,
    settings: SealSettings,
) -> SealedNow | None:
    """Complete what a killed seal left, notice what was rewritten or deleted since."""
    manifest, proof = copy.manifest, copy.proof
    if look.partial:
        return None
    if len(proof.missing) == len(manifest.shards):
        _note_lost(look, progress, manifest, author, "its files are gone from this place")
        return None
    if proof.evidence is Evidence.DIGEST:
        record_standing(look, progress.identity, copy, author=author, settings=settings)
        return None
    if proof.evidence is Evidence.STRUCTURE and look.place.uuid is not None:
        outcome = verify_sealed(
            look, copy, level=VerifyLevel.DIGEST, clock=author.clock, settings=settings
        )
        if outcome.findings:
            return None
        record_standing(look, progress.identity, copy, author=author, settings=settings)
        return SealedNow(manifest=manifest, bytes=manifest.bytes, is_new=False)
    return _seal_rewritten(look, progress, copy, author=author, settings=settings)


def record_standing(
    look: RunLook,
    identity: RunIdentity,
    copy: SealedCopy,
    *,
    author: Author,
    settings: SealSettings,
) -> None:
    """Add the ``sealed`` record that a killed seal did not get to; nothing where it stands."""
    record_sealed(
        look.store,
        look.records,
        copy.manifest,
        run_id=identity.run_id,
        author=author,
        digested=Digested(
            shards=copy.manifest.shards,
            tokens=(),
            oldest_mtime_ns=copy.proof.newest_mtime_ns,
            newest_mtime_ns=copy.proof.newest_mtime_ns,
        ),
        is_carried=True,
        earlier=look.known_at_start,
        first_seen_at_ns=author.clock.now_ns(),
        margin_ns=settings.margin_ns,
    )


def _seal_rewritten(
    look: RunLook,
    progress: ScanProgress,
    copy: SealedCopy,
    *,
    author: Author,
    settings: SealSettings,
) -> SealedNow | None:
    """A new attempt in the same place: most shards rewritten, the marker newest, the layout whole.

    Anything less stays re-opened until somebody compares it.
    """
    found = look.found_named(copy.manifest.name)
    rewritten = len(copy.proof.changed) + len(copy.proof.missing)
    if found is None or 2 * rewritten <= len(copy.manifest.shards):
        return None
    sighting = look.sighting(found, Depth.DEEP)
    if sighting.findings:
        return None
    done = _seal_sighting(look, progress, sighting, author=author, settings=settings)
    if done is not None and done.manifest.content_id != copy.manifest.content_id:
        _note_lost(look, progress, copy.manifest, author, "was overwritten by a later attempt")
    return done


def _note_lost(
    look: RunLook, progress: ScanProgress, manifest: Manifest, author: Author, why: str
) -> None:
    place = look.place.uuid
    if place is None or any(
        isinstance(item.record, Lost)
        and (item.record.content_id, item.record.place) == (manifest.content_id, place)
        for item in look.records
    ):
        return
    look.store.append(
        Lost(
            stamp=author.stamp(progress.identity.run_id, reason=why),
            content_id=manifest.content_id,
            place=place,
        )
    )
    progress.lost.append(manifest.name)


def _seal_found(
    look: RunLook,
    progress: ScanProgress,
    found: Found,
    *,
    author: Author,
    settings: SealSettings,
) -> SealedNow | None:
    sighting = look.sighting(found, Depth.STRUCTURE)
    if not sighting.findings:
        sighting = look.sighting(found, Depth.DEEP)
    progress.notes += sighting.notes
    if sighting.findings:
        progress.sightings.append(sighting)
        return None
    if _is_part_of_sealed(look, sighting):
        return None
    return _seal_sighting(look, progress, sighting, author=author, settings=settings)


def _is_part_of_sealed(look: RunLook, sighting: Sighting) -> bool:
    """Whether every file of it belongs, as it stands, to a set that is sealed under its name.

    Of several sets in one directory, a file that all of them need counts to one at a time: what
    is left of another is no new save.
    """
    encoded = file_name_of(sighting.name)
    paths = {shard.path for shard in sighting.shards}
    copies = (look.sealed(one) for one in look.stored if one.encoded_name == encoded)
    return any(
        copy is not None and not look.is_removed(copy) and paths <= {*copy.proof.sound}
        for copy in copies
    )


def _seal_sighting(
    look: RunLook,
    progress: ScanProgress,
    sighting: Sighting,
    *,
    author: Author,
    settings: SealSettings,
) -> SealedNow | None:
    try:
        manifest = seal(
            look,
            sighting,
            identity=progress.identity,
            author=author,
            settings=settings,
            first_seen_at_ns=progress.first_seen.get((sighting.name, sighting.found.variant)),
            digested=progress.elsewhere(look, sighting) if progress.elsewhere else None,
        )
    except (NotStill, NotYet, OnItsWayOut) as error:
        progress.sightings.append(replace(sighting, findings=(error.finding,)))
        return None
    except (StorageError, Malformed) as error:
        finding = Finding(Reason.UNREADABLE, sighting.name, error.message)
        progress.sightings.append(replace(sighting, findings=(finding,)))
        progress.failures.append(Failure(name=sighting.name, error=error))
        return None
    return SealedNow(manifest=manifest, bytes=manifest.bytes, is_new=True)


def seal(
    look: RunLook,
    sighting: Sighting,
    *,
    identity: RunIdentity,
    author: Author,
    settings: SealSettings,
    first_seen_at_ns: int | None = None,
    save_id: str | None = None,
    metrics: tuple[tuple[str, str], ...] = (),
    digested: Digested | None = None,
) -> Manifest:
    """Seal one proven checkpoint: shards durable, digested, manifest, receipt, record.

    ``digested``: others made it durable and digested it; its tokens hold.

    Raises:
        NotStill: it changed while it was read.
        OnItsWayOut: it is being removed.
        StorageError: it could not be read, made durable or published.
    """
    if digested is None:
        digested = digest_sighting(
            look.place.storage,
            sighting,
            run_root=look.run_root,
            clock=author.clock,
            granularity_ns=look.granularity_ns,
            settings=settings,
        )
    manifest = manifest_of(sighting, digested.shards)
    require_staying(look.store, manifest, digested.tokens)
    look.store.publish_manifest(manifest)
    if look.place.uuid is not None:
        publish_receipt(
            look.store,
            manifest,
            place=look.place.uuid,
            tokens=digested.tokens,
            evidence=Evidence.DIGEST,
            at_ns=author.clock.now_ns(),
        )
    look.use_records(look.store.journal().records)
    record_sealed(
        look.store,
        look.records,
        manifest,
        run_id=identity.run_id,
        author=author,
        digested=digested,
        is_carried=sighting.is_carried,
        metrics=metrics or sighting.metrics,
        save_id=save_id,
        earlier=look.known_at_start,
        first_seen_at_ns=(author.clock.now_ns() if first_seen_at_ns is None else first_seen_at_ns),
        margin_ns=settings.margin_ns,
    )
    return manifest
