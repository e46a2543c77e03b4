"""Node-scoped halves: parts on several nodes' disks that are one checkpoint, when proven so.

Three steps, so that they can be done by different processes: each node digests its own part,
somebody merges the parts, and each node publishes what came of it beside its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import CkptgovError, NoneRestorable, VerificationFailed
from ckptgov.layouts.base import join, members_root
from ckptgov.manifest.build import merge_parts
from ckptgov.manifest.digest import digest_file
from ckptgov.model.checkpoint import Evidence, Manifest, Part, RunIdentity, Shard
from ckptgov.model.facts import Depth, Finding, Found, Reason, ResumeArgs, SeenShard, Sighting
from ckptgov.model.files import Token
from ckptgov.model.journal import NumberedRecord
from ckptgov.planning.merge import Half, absent_everywhere, prove_one_save
from ckptgov.work.author import Author
from ckptgov.work.copyproof import base_of, stat_shards
from ckptgov.work.flush import copy_journal
from ckptgov.work.look import RunLook
from ckptgov.work.runstore import RunStore
from ckptgov.work.seal import (
    Digested,
    NotStill,
    SealSettings,
    digest_members,
    digest_sighting,
    part_of,
    publish_receipt,
    record_sealed,
    require_staying,
    sync_directories,
)


class HalfAt(Struct, frozen=True, kw_only=True):
    """One node's half with the look that sees it."""

    look: RunLook
    sighting: Sighting


class DigestedPart(Struct, frozen=True, kw_only=True):
    """One node's part, and what proves that parts are one save.

    ``expected``: every path the loader's index demands, as far as this node's index tells.
    ``common_digest``: of the file that every part of one save holds alike, if there is one.
    ``tokens``: of its shards while they were digested, until ``digested_at_ns``. ``members``: how
    many of the parts that its writer counts (``Part.expected_parts``) it stands for.
    """

    place: str
    part: Part
    members: int = 1
    expected: tuple[str, ...]
    common_digest: str | None
    oldest_mtime_ns: int
    newest_mtime_ns: int
    is_carried: bool
    metrics: tuple[tuple[str, str], ...] = ()
    tokens: tuple[tuple[str, Token], ...] = ()
    digested_at_ns: int = 0


class ToldByWriter(Struct, frozen=True, kw_only=True):
    """The parts of one save (one name, one save id) that its writers left at one place."""

    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """The checkpoint's path below the run root."""
        return self.parts[0].name

    def joined(self, node: str | None) -> Part:
        """All of them as the part of this node.

        Raises:
            NoneRestorable, VerificationFailed: they contradict one another.
        """
        plain = [replace(part, expected_parts=None) for part in self.parts]
        whole = merge_parts(plain, expected_paths=None)
        counts = {part.expected_parts for part in self.parts}
        return replace(
            self.parts[0],
            world_size=whole.world_size,
            rank=None,
            node=node,
            expected_parts=counts.pop() if len(counts) == 1 else None,
            shards=whole.shards,
        )


class HalvesOutcome(Struct, frozen=True, kw_only=True):
    """One save seen in halves: sealed, or what is missing or unproven."""

    name: str
    manifest: Manifest | None
    findings: tuple[Finding, ...] = ()


def halves_of(looks: Sequence[RunLook]) -> dict[str, list[HalfAt]]:
    """Unsealed candidates that miss shards here, by name, seen from at least one place."""
    found: dict[str, list[HalfAt]] = {}
    for look in looks:
        for one in look.unsealed():
            sighting = look.sighting(one, Depth.STRUCTURE)
            reasons = {finding.reason for finding in sighting.findings}
            if sighting.shards and reasons <= {Reason.MISSING_SHARD}:
                found.setdefault(one.name, []).append(HalfAt(look=look, sighting=sighting))
    return {
        name: halves
        for name, halves in found.items()
        if any(half.sighting.findings for half in halves)
    }


def told_by_writer(look: RunLook) -> list[ToldByWriter]:
    """What cooperative writers on this node said of their saves, where no manifest names them yet.

    Parts of several ranks with one save id are one: what this node holds of that save.
    """
    sealed = {one.manifest.name for stored in look.stored if (one := look.sealed(stored))}
    saves: dict[tuple[str, str], list[Part]] = {}
    for part in look.store.parts():
        if part.save_id is not None and part.name not in sealed:
            saves.setdefault((part.name, part.save_id), []).append(part)
    return [ToldByWriter(parts=tuple(parts)) for _key, parts in sorted(saves.items())]


def digest_half(half: HalfAt, *, author: Author, settings: SealSettings) -> DigestedPart:
    """Make one node's half durable, digest it, and leave its part beside it.

    Raises:
        NotStill: it changed while it was read.
        StorageError: it could not be read, made durable or written beside.
    """
    look = half.look
    common = _common_digest(half)
    digested = digest_sighting(
        look.place.storage,
        half.sighting,
        run_root=look.run_root,
        clock=author.clock,
        granularity_ns=look.granularity_ns,
        settings=settings,
    )
    told = DigestedPart(
        place=look.place.uuid or "",
        part=part_of(half.sighting, digested.shards, node=look.place.node),
        expected=half.sighting.expected,
        common_digest=common,
        oldest_mtime_ns=digested.oldest_mtime_ns,
        newest_mtime_ns=half.sighting.newest_mtime_ns,
        is_carried=half.sighting.is_carried,
        metrics=half.sighting.metrics,
        tokens=digested.tokens,
        digested_at_ns=author.clock.now_ns(),
    )
    _leave(look, told.part, group=look.place.uuid or "unregistered")
    return told


def digest_told(
    look: RunLook, told: ToldByWriter, *, author: Author, settings: SealSettings
) -> DigestedPart:
    """Compare what cooperative writers said of their parts with what lies here, durably.

    Raises:
        NotStill: it changed while it was read.
        NoneRestorable, VerificationFailed: the parts contradict one another, or what lies here.
        StorageError: it could not be read or made durable.
    """
    part = told.joined(look.place.node)
    found = look.found_named(part.name)
    sighting = look.sighting(found, Depth.STRUCTURE) if found is not None else None
    base = join(look.run_root, part.name if found is None else members_root(found))
    paths = [shard.path for shard in part.shards]
    digested = digest_members(
        look.place.storage,
        base,
        [(shard.path, shard.bytes) for shard in part.shards],
        name=part.name,
        clock=author.clock,
        granularity_ns=look.granularity_ns,
        settings=settings,
        durable=True,
    )
    sync_directories(look.place.storage, look.run_root, base, paths)
    if differing := set(digested.shards) - set(part.shards):
        path = min(shard.path for shard in differing)
        raise VerificationFailed(f"{join(part.name, path)}: differs from what its writer said")
    return DigestedPart(
        place=look.place.uuid or "",
        part=part,
        members=len(told.parts),
        expected=tuple(dict.fromkeys([*paths, *(sighting.expected if sighting else ())])),
        common_digest=None,
        oldest_mtime_ns=digested.oldest_mtime_ns,
        newest_mtime_ns=digested.newest_mtime_ns,
        is_carried=False,
        metrics=sighting.metrics if sighting is not None else (),
        tokens=digested.tokens,
        digested_at_ns=author.clock.now_ns(),
    )


def _leave(look: RunLook, part: Part, *, group: str) -> None:
    look.store.publish_part(part, group=group, member=look.place.node or 0)


def merge(parts: Sequence[DigestedPart], *, window_ns: int) -> HalvesOutcome:
    """The manifest of the save that the parts are, if they are one and nothing is missing.

    With one save id in all of them their writer said that they are one; otherwise the layout's
    common file and the times must. Parts of other saves under the same name are left aside.
    """
    outcomes = [_merge_group(group, window_ns=window_ns) for group in _by_save(parts)]
    whole = [one for one in outcomes if one.manifest is not None]
    if whole:
        return whole[0]
    if len(outcomes) > 1 and not absent_everywhere([_as_half(one) for one in parts]):
        return _doubted(
            parts[0].part.name, "not proven one save: the common file differs between the places"
        )
    return outcomes[0]


def parts_of_save(parts: Sequence[DigestedPart], manifest: Manifest) -> list[DigestedPart]:
    """Those of the parts that the manifest was merged from."""
    shards = frozenset(manifest.shards)
    return [one for one in parts if shards.issuperset(one.part.shards)]


def _by_save(parts: Sequence[DigestedPart]) -> list[list[DigestedPart]]:
    """Parts that could be one save: by the id they share, or by their common file."""
    groups: dict[tuple[str, str | None], list[DigestedPart]] = {}
    for one in parts:
        key = ("id", one.part.save_id) if one.part.save_id else ("file", one.common_digest)
        groups.setdefault(key, []).append(one)
    return sorted(groups.values(), key=len, reverse=True)


def _merge_group(parts: Sequence[DigestedPart], *, window_ns: int) -> HalvesOutcome:
    name = parts[0].part.name
    halves = [_as_half(one) for one in parts]
    absent = absent_everywhere(halves)
    if absent:
        return HalvesOutcome(name=name, manifest=None, findings=tuple(_absent(name, absent)))
    if parts[0].part.save_id is not None:
        uncounted = _uncounted(parts)
        if uncounted is not None:
            return HalvesOutcome(name=name, manifest=None, findings=(uncounted,))
    elif (doubt := prove_one_save(halves, window_ns=window_ns)) is not None:
        return _doubted(name, doubt)
    expected = {path for one in parts for path in one.expected}
    own = [replace(one.part, expected_parts=None) for one in parts]  # they were counted above
    try:
        manifest = merge_parts(own, expected_paths=expected)
    except (NoneRestorable, VerificationFailed) as error:
        return _doubted(name, f"not proven one save: {error.message}")
    return HalvesOutcome(name=name, manifest=manifest)


def _uncounted(parts: Sequence[DigestedPart]) -> Finding | None:
    """What speaks against parts with one save id being all of it: only their writer can count."""
    name = parts[0].part.name
    counts = {one.part.expected_parts for one in parts}
    count = counts.pop()
    if counts or count is None:
        doubt = "not proven one save: its writers do not say, or not alike, how many parts it has"
        return Finding(Reason.UNPROVEN, name, doubt)
    there = sum(one.members for one in parts)
    if there < count:
        return Finding(Reason.MISSING_SHARD, name, f"{there} of its {count} parts are there")
    if there > count:
        return Finding(Reason.UNPROVEN, name, f"not proven one save: {there} parts, not {count}")
    return None


def _absent(name: str, paths: Iterable[str]) -> Iterable[Finding]:
    for path in paths:
        yield Finding(Reason.MISSING_SHARD, f"{name}/{path}", "lies on no node that was looked at")


def _doubted(name: str, doubt: str) -> HalvesOutcome:
    return HalvesOutcome(
        name=name, manifest=None, findings=(Finding(Reason.UNPROVEN, name, doubt),)
    )


def _as_half(one: DigestedPart) -> Half:
    """A part as proving wants to see it: only sizes, times and paths of the sighting count."""
    part = one.part
    return Half(
        place=one.place,
        node=part.node,
        common_digest=one.common_digest,
        sighting=Sighting(
            found=Found(
                name=part.name, layout=part.layout, step=part.step, step_kind=part.step_kind
            ),
            step=part.step,
            step_kind=part.step_kind,
            shards=tuple(SeenShard(shard.path, shard.bytes) for shard in part.shards),
            expected=one.expected,
            resume=ResumeArgs(path=part.name, parent="", step=part.step, tag=part.name),
            newest_mtime_ns=one.newest_mtime_ns,
        ),
    )


def digested_of(parts: Sequence[DigestedPart], manifest: Manifest) -> Digested:
    """The merged save as sealing it wants to know it."""
    return Digested(
        shards=manifest.shards,
        tokens=(),
        oldest_mtime_ns=min(one.oldest_mtime_ns for one in parts),
        newest_mtime_ns=max(one.newest_mtime_ns for one in parts),
    )


def publish_beside(
    look: RunLook,
    store: RunStore,
    manifest: Manifest,
    *,
    tokens: Sequence[tuple[str, Token]],
    digested_at_ns: int,
    records: Sequence[NumberedRecord],
) -> None:
    """Publish a merged manifest at one place, for the shards that were digested there.

    The journal first, so that whoever reads only this place knows what speaks against it.

    Raises:
        NotStill: a shard is not what was digested any more; nothing was published.
        OnItsWayOut: it is being removed here; nothing was published.
    """
    _check_still(look, manifest, tokens)
    require_staying(store, manifest, tokens)
    copy_journal(store, records)
    store.publish_manifest(manifest)
    publish_receipt(
        store,
        manifest,
        place=look.place.uuid or "",
        tokens=tokens,
        evidence=Evidence.DIGEST,
        at_ns=digested_at_ns,
    )


def _check_still(look: RunLook, manifest: Manifest, tokens: Sequence[tuple[str, Token]]) -> None:
    by_path = {shard.path: shard for shard in manifest.shards}
    shards: list[Shard] = []
    for path, _token in tokens:
        if path not in by_path:
            raise NotStill(join(manifest.name, path), "is no shard of what was merged")
        shards.append(by_path[path])
    base = base_of(look.place.storage, look.run_root, manifest)
    stats = stat_shards(look.place.storage, base, shards)
    for path, token in tokens:
        stat = stats[path]
        if stat is None or not stat.token.same_content(token):
            raise NotStill(join(manifest.name, path), "was rewritten after it was digested")


def seal_halves(
    name: str,
    halves: Sequence[HalfAt],
    *,
    identity: RunIdentity,
    author: Author,
    settings: SealSettings,
    window_ns: int,
) -> HalvesOutcome:
    """Merge the halves that this process sees, if they are one, and publish at every place."""
    seen = [_seen(one) for one in halves]
    absent = absent_everywhere(seen)
    if absent:  # before anything is read
        return HalvesOutcome(name=name, manifest=None, findings=tuple(_absent(name, absent)))
    doubt = prove_one_save(seen, window_ns=window_ns)
    if doubt is not None:
        return _doubted(name, doubt)
    parts = [digest_half(half, author=author, settings=settings) for half in halves]
    outcome = merge(parts, window_ns=window_ns)
    if outcome.manifest is not None:
        for half, part in zip(halves, parts, strict=True):
            _publish_here(half, outcome.manifest, part, identity, author, settings)
    return outcome


def _seen(half: HalfAt) -> Half:
    return Half(
        place=half.look.place.uuid or "",
        node=half.look.place.node,
        sighting=half.sighting,
        common_digest=_common_digest(half),
    )


def _common_digest(half: HalfAt) -> str | None:
    """The digest of the file that every part of one save holds alike, if this place has it."""
    common = half.sighting.common_file
    if common is None:
        return None
    root = members_root(half.sighting.found)
    path = f"{root}/{common}" if root else common
    try:
        with half.look.tree.open(path) as file:
            return digest_file(file).digest
    except (FileNotFoundError, CkptgovError):
        return None


def _publish_here(
    half: HalfAt,
    manifest: Manifest,
    part: DigestedPart,
    identity: RunIdentity,
    author: Author,
    settings: SealSettings,
) -> None:
    look = half.look
    publish_beside(
        look,
        look.store,
        manifest,
        tokens=part.tokens,
        digested_at_ns=part.digested_at_ns,
        records=(),
    )
    look.use_records([*look.records, *look.store.journal().records])
    record_sealed(
        look.store,
        look.records,
        manifest,
        run_id=identity.run_id,
        author=author,
        digested=digested_of([part], manifest),
        is_carried=part.is_carried,
        metrics=part.metrics,
        earlier=look.known_at_start,
        first_seen_at_ns=author.clock.now_ns(),
        margin_ns=settings.margin_ns,
    )
