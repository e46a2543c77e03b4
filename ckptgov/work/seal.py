"""Seal: fsync every shard and its directories, digest, publish manifest, receipt and record.

In this order, so that a durable manifest never stands over bytes that a power cut could still
take. Killed anywhere, the next run converges: a manifest is create-once and a function of the
checkpoint alone, a missing receipt or record is added.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from ckptgov.errors import CkptgovError, StorageError
from ckptgov.layouts.base import join, members_root, split
from ckptgov.manifest.build import build_manifest
from ckptgov.manifest.digest import ChangedWhileRead, FileDigest, digest_many
from ckptgov.model.checkpoint import (
    Evidence,
    Manifest,
    Part,
    Receipt,
    Shard,
)
from ckptgov.model.clock import Clock
from ckptgov.model.facts import Finding, Reason, Sighting
from ckptgov.model.files import Token
from ckptgov.model.journal import LineOpened, NumberedRecord, Record, Sealed
from ckptgov.planning.lines import NewSave, attempt_of, line_for_save
from ckptgov.storage.contract import Storage
from ckptgov.work.author import Author, sealed_record_id
from ckptgov.work.copyproof import stat_shards
from ckptgov.work.runstore import RunStore

MAX_RACY_WAIT_NS = 3 * 10**9


class SealSettings(Struct, frozen=True, kw_only=True):
    """How bytes are read while sealing and verifying."""

    threads: int = 4
    drop_cache: bool = False
    margin_ns: int = 0
    progress: Callable[[int], None] | None = None


class Digested(Struct, frozen=True, kw_only=True):
    """The shards of a candidate with digests, and the tokens they had while being read."""

    shards: tuple[Shard, ...]
    tokens: tuple[tuple[str, Token], ...]
    oldest_mtime_ns: int
    newest_mtime_ns: int


class Journal(Protocol):
    """Where records are added."""

    def append(self, record: Record) -> int:
        """Add a record under the next free number and return that number."""
        ...


class NotStill(StorageError):
    """A shard changed between the proof and its digest, or may have within one clock tick."""

    kind = "being-written"

    def __init__(self, path: str, evidence: str) -> None:
        super().__init__(f"{path}: {evidence}")
        self.finding = Finding(Reason.BEING_WRITTEN, path, evidence)


class OnItsWayOut(StorageError):
    """A removal moved its manifest away and will move its files: it is not sealed again."""

    kind = "being-removed"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}: is on its way to the trash",
            hint="'ckptgov undelete' brings it back",
        )
        self.finding = Finding(Reason.UNVERIFIED, name, "is on its way to the trash")


def require_staying(
    store: RunStore, manifest: Manifest, tokens: Sequence[tuple[str, Token]]
) -> None:
    """Raise OnItsWayOut where the run's trash has an entry for exactly these files."""
    from ckptgov.work.leaving import is_leaving  # late: only who seals needs it

    if is_leaving(store, manifest.name, manifest.content_id, tokens):
        raise OnItsWayOut(manifest.name)


def digest_members(
    storage: Storage,
    base: str,
    members: Sequence[tuple[str, int]],
    *,
    name: str,
    clock: Clock,
    granularity_ns: int,
    settings: SealSettings,
    durable: bool,
) -> Digested:
    """Digest the members (path, size as proven), fsyncing each first when ``durable``.

    Raises:
        NotStill: a member changed since it was proven.
        StorageError: a member could not be read or made durable.
    """
    blank = [Shard(path, size, "") for path, size in members]
    before = stat_shards(storage, base, blank)
    tokens: dict[str, Token] = {}
    mtimes_ns: list[int] = []
    for path, size in members:
        stat = before[path]
        where = f"{name}/{path}" if path else name
        if stat is None:
            raise NotStill(where, "went away after it was proven")
        if stat.bytes != size:
            raise NotStill(where, f"has {stat.bytes} bytes now, {size} when it was proven")
        tokens[path] = stat.token
        mtimes_ns.append(stat.mtime_ns)
    wait_out_the_tick(mtimes_ns, clock, granularity_ns)
    digests = _read_all(storage, base, members, settings, durable, name)
    for path, digest in digests.items():
        where = f"{name}/{path}" if path else name
        if not _is_same(digest.token, tokens[path]):
            raise NotStill(where, "changed while it was read")
    ordered = [(path, digests[path]) for path, _ in members]
    return Digested(
        shards=tuple(Shard(path, one.bytes, one.digest, one.chunks) for path, one in ordered),
        tokens=tuple((path, one.token) for path, one in ordered),
        oldest_mtime_ns=min(mtimes_ns),
        newest_mtime_ns=max(mtimes_ns),
    )


def _is_same(one: Token, other: Token) -> bool:
    """Nothing changed at all; a listing tells no versions, so there the etag has to do."""
    return one == other or (one.etag is not None and one.same_content(other))


def wait_out_the_tick(mtimes_ns: Iterable[int], clock: Clock, granularity_ns: int) -> None:
    """Let the clock tick past the newest write, so that a later one must show in its mtime."""
    now = clock.now_ns()
    fresh = [mtime for mtime in mtimes_ns if 0 <= now - mtime <= granularity_ns]
    if fresh:
        wait_ns = min(max(fresh) + granularity_ns - now + 1_000_000, MAX_RACY_WAIT_NS)
        clock.sleep(wait_ns / 1e9)


def _read_all(
    storage: Storage,
    base: str,
    members: Sequence[tuple[str, int]],
    settings: SealSettings,
    durable: bool,
    name: str,
) -> dict[str, FileDigest]:
    by_full = {join(base, path): path for path, _ in members}
    digests: dict[str, FileDigest] = {}
    for full, outcome in digest_many(
        list(by_full),
        storage,
        threads=settings.threads,
        drop_cache=settings.drop_cache,
        sync=durable,
        progress=settings.progress,
    ):
        if isinstance(outcome, FileDigest):
            digests[by_full[full]] = outcome
        elif isinstance(outcome, ChangedWhileRead | FileNotFoundError):
            path = join(name, by_full[full])
            raise NotStill(path, "changed while it was read") from outcome
        elif isinstance(outcome, CkptgovError):
            raise outcome
        else:
            raise StorageError(f"{full}: {outcome}") from outcome
    return digests


def sync_directories(storage: Storage, run_root: str, base: str, paths: Sequence[str]) -> None:
    """Make the names durable: every directory of a shard, up to and including the run root."""
    directories: dict[str, None] = {}
    for path in paths:
        current = split(join(base, path))[0]
        while True:
            directories[current] = None
            if current in ("", run_root) or not _is_below(current, run_root):
                break
            current = split(current)[0]
    directories[run_root] = None
    for directory in directories:
        storage.sync_dir(directory)


def digest_sighting(
    storage: Storage,
    sighting: Sighting,
    *,
    run_root: str,
    clock: Clock,
    granularity_ns: int,
    settings: SealSettings,
) -> Digested:
    """Make a proven candidate durable and digest it."""
    base = join(run_root, members_root(sighting.found))
    members = [(shard.path, shard.bytes) for shard in sighting.shards]
    digested = digest_members(
        storage,
        base,
        members,
        name=sighting.name,
        clock=clock,
        granularity_ns=granularity_ns,
        settings=settings,
        durable=True,
    )
    sync_directories(storage, run_root, base, [path for path, _ in members])
    return digested


def manifest_of(sighting: Sighting, shards: Sequence[Shard]) -> Manifest:
    """The manifest of a proven candidate: a function of the checkpoint alone."""
    return build_manifest(
        name=sighting.name,
        step=sighting.step,
        step_kind=sighting.step_kind,
        layout=sighting.layout,
        world_size=sighting.world_size,
        purposes=sighting.purposes,
        shards=shards,
    )


def part_of(sighting: Sighting, shards: Sequence[Shard], *, node: str | None) -> Part:
    """One node's part of a save that several nodes' disks share."""
    return Part(
        name=sighting.name,
        step=sighting.step,
        step_kind=sighting.step_kind,
        layout=sighting.layout,
        world_size=sighting.world_size,
        purposes=sighting.purposes,
        node=node,
        shards=tuple(shards),
    )


def publish_receipt(
    store: RunStore,
    manifest: Manifest,
    *,
    place: str,
    tokens: Sequence[tuple[str, Token]],
    evidence: Evidence,
    at_ns: int,
) -> Receipt:
    """Say what was verified at a place."""
    ordered = sorted(tokens, key=lambda item: item[0].encode("utf-8", "surrogateescape"))
    receipt = Receipt(
        content_id=manifest.content_id,
        place=place,
        evidence=evidence,
        verified_at_ns=at_ns,
        tokens=tuple(ordered),
    )
    store.publish_receipt(manifest.name, receipt)
    return receipt


def record_sealed(
    store: Journal,
    records: Sequence[NumberedRecord],
    manifest: Manifest,
    *,
    run_id: str,
    author: Author,
    digested: Digested,
    is_carried: bool,
    metrics: tuple[tuple[str, str], ...] = (),
    save_id: str | None = None,
    earlier: Container[str],
    first_seen_at_ns: int,
    margin_ns: int,
) -> Sealed:
    """Append the ``sealed`` record, and before it the record of a line it opens.

    Already recorded: returns the record that stands.
    """
    record_id = sealed_record_id(run_id, manifest.content_id, manifest.name)
    standing = next(
        (
            item.record
            for item in records
            if isinstance(item.record, Sealed) and item.record.stamp.id == record_id
        ),
        None,
    )
    if standing is not None:
        return standing
    line, attempt = 1, 0
    if manifest.step is not None:
        save = NewSave(
            content_id=manifest.content_id,
            step=manifest.step,
            step_kind=manifest.step_kind,
            oldest_mtime_ns=digested.oldest_mtime_ns,
            newest_mtime_ns=digested.newest_mtime_ns,
            is_carried=is_carried,
        )
        line, opening = line_for_save(
            save,
            records,
            earlier=earlier,
            first_seen_at_ns=first_seen_at_ns,
            margin_ns=margin_ns,
        )
        if opening is not None:
            store.append(
                LineOpened(
                    stamp=author.stamp(run_id),
                    line=opening.line,
                    parent=opening.parent,
                    base_step=opening.base_step,
                    cause=opening.cause,
                )
            )
        attempt = attempt_of(records, content_id=manifest.content_id, step=manifest.step, line=line)
    record = Sealed(
        stamp=author.stamp(run_id, record_id=record_id),
        content_id=manifest.content_id,
        step=manifest.step,
        step_kind=manifest.step_kind,
        line=line,
        attempt=attempt,
        save_id=save_id,
        metrics=metrics,
    )
    store.append(record)
    return record


def _is_below(path: str, root: str) -> bool:
    return root == "" or path.startswith(root + "/")
