"""Node-scoped halves: parts on several nodes' disks that are one checkpoint, when proven so."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ckptgov.errors import CkptgovError
from ckptgov.layouts.base import members_root
from ckptgov.manifest.build import merge_parts
from ckptgov.manifest.digest import digest_file
from ckptgov.model.checkpoint import Evidence, Manifest, RunIdentity
from ckptgov.model.facts import Depth, Finding, Reason, Sighting
from ckptgov.planning.merge import Half, absent_everywhere, prove_one_save
from ckptgov.work.author import Author
from ckptgov.work.look import RunLook
from ckptgov.work.seal import (
    Digested,
    SealSettings,
    digest_sighting,
    part_of,
    publish_receipt,
    record_sealed,
)


class HalfAt(Struct, frozen=True, kw_only=True):
    """One node's half with the look that sees it."""

    look: RunLook
    sighting: Sighting


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


def seal_halves(
    name: str,
    halves: Sequence[HalfAt],
    *,
    identity: RunIdentity,
    author: Author,
    settings: SealSettings,
    window_ns: int,
) -> HalvesOutcome:
    """Merge the halves of one save, if they are one, and publish the manifest at every place."""
    seen = [_half(one) for one in halves]
    absent = absent_everywhere(seen)
    if absent:
        return HalvesOutcome(
            name=name,
            manifest=None,
            findings=tuple(
                Finding(
                    Reason.MISSING_SHARD, f"{name}/{path}", "lies on no node that was looked at"
                )
                for path in absent
            ),
        )
    doubt = prove_one_save(seen, window_ns=window_ns)
    if doubt is not None:
        return HalvesOutcome(
            name=name, manifest=None, findings=(Finding(Reason.UNPROVEN, name, doubt),)
        )
    return _merge(name, halves, identity=identity, author=author, settings=settings)


def _half(half: HalfAt) -> Half:
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


def _merge(
    name: str,
    halves: Sequence[HalfAt],
    *,
    identity: RunIdentity,
    author: Author,
    settings: SealSettings,
) -> HalvesOutcome:
    digested: list[Digested] = []
    parts = []
    for half in halves:
        look = half.look
        one = digest_sighting(
            look.place.storage,
            half.sighting,
            run_root=look.run_root,
            clock=author.clock,
            granularity_ns=look.granularity_ns,
            settings=settings,
        )
        part = part_of(half.sighting, one.shards, node=look.place.node)
        look.store.publish_part(
            part, group=look.place.uuid or "unregistered", member=look.place.node or 0
        )
        digested.append(one)
        parts.append(part)
    expected = {path for half in halves for path in half.sighting.expected}
    try:
        manifest = merge_parts(parts, expected_paths=expected)
    except CkptgovError as error:
        finding = Finding(Reason.UNPROVEN, name, f"not proven one save: {error.message}")
        return HalvesOutcome(name=name, manifest=None, findings=(finding,))
    for half, one in zip(halves, digested, strict=True):
        _publish_at(half, manifest, one, identity=identity, author=author, settings=settings)
    return HalvesOutcome(name=name, manifest=manifest)


def _publish_at(
    half: HalfAt,
    manifest: Manifest,
    digested: Digested,
    *,
    identity: RunIdentity,
    author: Author,
    settings: SealSettings,
) -> None:
    look = half.look
    look.store.publish_manifest(manifest)
    publish_receipt(
        look.store,
        manifest,
        place=look.place.uuid or "",
        tokens=digested.tokens,
        evidence=Evidence.DIGEST,
        at_ns=author.clock.now_ns(),
    )
    look.use_records([*look.records, *look.store.journal().records])
    record_sealed(
        look.store,
        look.records,
        manifest,
        run_id=identity.run_id,
        author=author,
        digested=digested,
        is_carried=half.sighting.is_carried,
        metrics=half.sighting.metrics,
        earlier=look.known_at_start,
        first_seen_at_ns=author.clock.now_ns(),
        margin_ns=settings.margin_ns,
    )
