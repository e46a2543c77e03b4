"""Checkpoints as the catalog knows them: states and coverage of copies to what ``choose`` judges.

A copy counts only while it is VERIFIED with evidence ``digest`` at a place that can be reached
(P1). Manifests are read only where an answer must tell what no column holds: which shards a part
is, and whether another number of ranks can load it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlacedCopy, SealedFacts, SightingFacts
from ckptgov.layouts.base import resume_args
from ckptgov.layouts.fit import reshardable_of
from ckptgov.manifest.forms.manifests import decode_manifest
from ckptgov.model.checkpoint import Evidence, Manifest
from ckptgov.model.copies import GONE, CopyState, holds
from ckptgov.model.facts import (
    CheckpointFacts,
    CopyFacts,
    Finding,
    Found,
    Reason,
)
from ckptgov.ops.sighted import facts_of_sighting
from ckptgov.ops.standing_run import Site, StandingRun
from ckptgov.ops.withheld import CONDEMNED_WORDS
from ckptgov.planning.merge import join_places

_WORDS = {
    CopyState.SIGHTED: (Reason.UNVERIFIED, "its bytes were not compared with a manifest here"),
    CopyState.PARTIAL: (Reason.MISSING_SHARD, "only a part of it has arrived there"),
    CopyState.REOPENED: (Reason.REOPENED, "changed since it was verified"),
    CopyState.CORRUPT: (Reason.CORRUPT, "its bytes differed when last compared there"),
    CopyState.UNREADABLE: (Reason.UNREADABLE, "could not be read when last looked at"),
    CopyState.CONDEMNED: (Reason.SUPERSEDED, CONDEMNED_WORDS),
}


def counts(copy: CopyFacts) -> bool:
    """Whether a copy, or the part it is, may be handed out."""
    return copy.is_reachable and copy.evidence is Evidence.DIGEST


def facts_of(
    run: StandingRun, sealed: SealedFacts, placed: Sequence[PlacedCopy]
) -> CheckpointFacts | None:
    """One sealed checkpoint; None where no copy of it is left.

    ``reshardable`` is None and the shards of parts are empty until ``completed``.
    """
    standing = [one for one in placed if one.state not in GONE]
    if not standing:
        return None
    order = {place: index for index, place in enumerate(run.sites)}
    standing.sort(key=lambda one: order.get(one.place, len(order)))
    copies = tuple(_copy_facts(run.sites.get(one.place), one) for one in standing)
    findings, is_gathered = _findings(sealed, standing, copies)
    evidence = Evidence.NONE
    if not findings:
        evidence = Evidence.DIGEST
    found = Found(
        name=sealed.name, layout=sealed.layout, step=sealed.step, step_kind=sealed.step_kind
    )
    return CheckpointFacts(
        name=sealed.name,
        layout=sealed.layout,
        step=sealed.step,
        step_kind=sealed.step_kind,
        content_id=sealed.content_id,
        purposes=sealed.purposes,
        world_size=sealed.world_size,
        reshardable=None,
        bytes=sealed.bytes,
        line=sealed.line,
        attempt=sealed.attempt,
        evidence=evidence,
        findings=findings,
        copies=copies,
        resume=resume_args(found, step=sealed.step, tag=sealed.name.rpartition("/")[2]),
        shard_count=sealed.shard_count,
        is_gathered=is_gathered,
    )


def _copy_facts(site: Site | None, placed: PlacedCopy) -> CopyFacts:
    is_compared = placed.state is CopyState.VERIFIED and placed.evidence is Evidence.DIGEST
    return CopyFacts(
        place=placed.place,
        tier=site.place.tier if site is not None else "",
        node=site.place.node if site is not None else None,
        root=site.address if site is not None else "",
        name=placed.name,
        shards=None if placed.coverage is None else (),
        evidence=Evidence.DIGEST if is_compared else Evidence.NONE,
        verified_at_ns=placed.verified_at_ns,
        findings=() if is_compared else _state_findings(placed),
        is_reachable=site is not None and site.why_not is None,
    )


def _state_findings(placed: PlacedCopy) -> tuple[Finding, ...]:
    if placed.findings:
        return placed.findings
    reason, words = _WORDS.get(placed.state, _WORDS[CopyState.SIGHTED])
    return (Finding(reason, placed.name, words),)


def _findings(
    sealed: SealedFacts, placed: Sequence[PlacedCopy], copies: Sequence[CopyFacts]
) -> tuple[tuple[Finding, ...], bool]:
    """What speaks against it, and whether only several places together have all of it."""
    if any(counts(copy) and copy.shards is None for copy in copies):
        return (), False
    held = 0
    for one, copy in zip(placed, copies, strict=True):
        if counts(copy) and one.coverage is not None:
            held |= int.from_bytes(one.coverage, "little")
    held &= (1 << sealed.shard_count) - 1
    if held.bit_count() == sealed.shard_count > 0:
        return (), True
    return tuple(dict.fromkeys(_against(sealed, copies, held.bit_count()))), False


def _against(
    sealed: SealedFacts, copies: Sequence[CopyFacts], held_count: int
) -> Iterable[Finding]:
    for copy in copies:
        if copy.is_reachable:
            yield from copy.findings
    for copy in copies:
        if not copy.is_reachable:
            where = f"node {copy.node}" if copy.node is not None else f"tier {copy.tier}"
            yield Finding(Reason.UNREACHABLE, copy.name, f"a copy on {where} is out of reach")
    if any(counts(copy) for copy in copies):
        missing = sealed.shard_count - held_count
        yield Finding(
            Reason.MISSING_SHARD,
            sealed.name,
            f"{missing} of {sealed.shard_count} shards lie on no node that can be reached",
        )


def completed(
    catalog: Catalog, run_id: str, one: CheckpointFacts, placed: Sequence[PlacedCopy]
) -> CheckpointFacts:
    """The same with what only its manifest tells."""
    assert one.content_id is not None
    coverage = {each.place: each.coverage for each in placed}
    is_partial = any(copy.shards is not None for copy in one.copies)
    if not is_partial:
        return replace(one, reshardable=reshardable(catalog, run_id, one))
    paths = [shard.path for shard in manifest_of(catalog, run_id, one.content_id).shards]
    copies = tuple(
        copy if copy.shards is None else replace(copy, shards=_covered(paths, coverage[copy.place]))
        for copy in one.copies
    )
    return replace(one, copies=copies, reshardable=reshardable_of(one.layout, paths))


def _covered(paths: Sequence[str], coverage: bytes | None) -> tuple[str, ...]:
    return tuple(path for index, path in enumerate(paths) if holds(coverage, index))


def manifest_of(catalog: Catalog, run_id: str, content_id: str) -> Manifest:
    """The catalog's copy of a manifest."""
    raw = catalog.manifest_bytes(run_id, content_id)
    return decode_manifest(raw, where=f"the catalog's manifest of {content_id}")


class _Remembered:
    """What a content id was once found to be: it never changes. The least used are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[tuple[str, str], bool | None] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, str]) -> tuple[bool, bool | None]:
        """(whether it is known, what it is)."""
        with self._lock:
            if key not in self._found:
                return False, None
            self._found.move_to_end(key)
            return True, self._found[key]

    def put(self, key: tuple[str, str], told: bool | None) -> None:
        with self._lock:
            self._found[key] = told
            while len(self._found) > self._most:
                self._found.popitem(last=False)


_fits = _Remembered(most=50_000)


def is_fit_known(one: CheckpointFacts) -> bool:
    """Whether ``reshardable`` costs no reading of the manifest."""
    return _fits.get((one.layout, one.content_id or ""))[0]


def reshardable(catalog: Catalog, run_id: str, one: CheckpointFacts) -> bool | None:
    """Whether another number of ranks can load it, as its manifest tells."""
    assert one.content_id is not None
    key = (one.layout, one.content_id)
    is_known, told = _fits.get(key)
    if not is_known:
        shards = manifest_of(catalog, run_id, one.content_id).shards
        told = reshardable_of(one.layout, [shard.path for shard in shards])
        _fits.put(key, told)
    return told


def sighted(run: StandingRun, sightings: Iterable[SightingFacts]) -> list[CheckpointFacts]:
    """Unsealed checkpoints as the last scan saw them: they give reasons, never an answer."""
    return list(join_places([_sighted(run, one)] for one in sightings if one.place in run.sites))


def _sighted(run: StandingRun, one: SightingFacts) -> CheckpointFacts:
    site = run.sites[one.place]
    line = run.lines.active.number
    if one.step is not None:
        line = run.lines.line_of_unsealed(one.step, one.newest_mtime_ns)
    return facts_of_sighting(
        one,
        site.place,
        root=site.address,
        name=one.name,
        line=line,
        is_reachable=site.why_not is None,
    )
