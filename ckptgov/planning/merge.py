"""Join what several places hold of one run into one set of facts.

Copies of one content id are one checkpoint. Halves on node-local disks are one checkpoint only
when proven one save.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.model.checkpoint import Evidence
from ckptgov.model.facts import (
    CheckpointFacts,
    CopyFacts,
    Finding,
    Reason,
    Sighting,
)


class Half(Struct, frozen=True, kw_only=True):
    """One place's sighting of a save, with the digest of the layout's common file if it has one."""

    place: str
    node: str | None
    sighting: Sighting
    common_digest: str | None


def prove_one_save(halves: Sequence[Half], *, window_ns: int) -> str | None:
    """None when the halves are one save, otherwise what speaks against it.

    Proven by the layout's own common file (equal bytes at every place) and by times that fit in a
    window. A file that two halves hold under one path must have one size.
    """
    digests = {half.common_digest for half in halves}
    if None in digests:
        return "not proven one save: no common file of the layout lies at every place"
    if len(digests) != 1:
        return "not proven one save: the common file differs between the places"
    newest = max(half.sighting.newest_mtime_ns for half in halves)
    oldest = min(half.sighting.newest_mtime_ns for half in halves)
    if newest - oldest > window_ns:
        return (
            f"not proven one save: written {(newest - oldest) / 1e9:.0f} s apart, "
            f"more than {window_ns / 1e9:.0f} s"
        )
    sizes: dict[str, int] = {}
    for half in halves:
        for shard in half.sighting.shards:
            if sizes.setdefault(shard.path, shard.bytes) != shard.bytes:
                return f"not proven one save: {shard.path} has two sizes"
    return None


def absent_everywhere(halves: Sequence[Half]) -> list[str]:
    """Paths that the layout's index demands and no place holds, sorted."""
    held = {shard.path for half in halves for shard in half.sighting.shards}
    expected = {path for half in halves for path in half.sighting.expected}
    return sorted(expected - held, key=lambda path: path.encode("utf-8", "surrogateescape"))


def join_places(places: Iterable[Sequence[CheckpointFacts]]) -> tuple[CheckpointFacts, ...]:
    """One entry per content id (or per name and variant while unsealed) over all places."""
    grouped: dict[tuple[str, ...], list[CheckpointFacts]] = {}
    for facts in places:
        for one in facts:
            key = (one.content_id,) if one.content_id else ("", one.name, one.variant)
            grouped.setdefault(key, []).append(one)
    return tuple(_join(group) for group in grouped.values())


def _join(group: Sequence[CheckpointFacts]) -> CheckpointFacts:
    if len(group) == 1:
        return group[0]
    copies = tuple(copy for one in group for copy in one.copies)
    whole = [one for one in group if not one.findings]
    if whole:
        best = min(whole, key=lambda one: 0 if one.evidence is Evidence.DIGEST else 1)
        return replace(best, copies=copies)
    if group[0].content_id is None:
        findings = tuple(dict.fromkeys(finding for one in group for finding in one.findings))
        return replace(group[0], copies=copies, findings=findings)
    held = _held_by(copies)
    is_gathered = _is_gathered(group, copies)
    missing = tuple(
        dict.fromkeys(
            finding for one in group for finding in one.findings if not _is_held(finding, one, held)
        )
    )
    evidence = Evidence.DIGEST if not missing else Evidence.NONE
    return replace(
        group[0], copies=copies, findings=missing, evidence=evidence, is_gathered=is_gathered
    )


def _is_gathered(group: Sequence[CheckpointFacts], copies: Sequence[CopyFacts]) -> bool:
    """Whether every shard has sound bytes at some reachable place."""
    sound = {path for copy in copies if copy.is_reachable for path in copy.sound}
    wanted = max((one.shard_count for one in group), default=0)
    return 0 < wanted == len(sound)


def _held_by(copies: Iterable[CopyFacts]) -> frozenset[str]:
    """Shards of which some reachable place holds compared bytes."""
    return frozenset(
        path
        for copy in copies
        if copy.evidence is Evidence.DIGEST and copy.is_reachable and copy.shards is not None
        for path in copy.shards
    )


def _is_held(finding: Finding, one: CheckpointFacts, held: frozenset[str]) -> bool:
    """Whether the shard a finding misses lies, compared, at another place."""
    return finding.reason is Reason.MISSING_SHARD and (
        finding.path.removeprefix(one.name + "/") in held
    )
