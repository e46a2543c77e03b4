"""Verify: compare again what lies at a place, and say so where the next look finds it.

A digest that matches renews the receipt. One that differs while its token holds is corrupt: the
newest receipt then says so, because tokens alone would go on vouching for it. What could not be
read keeps its last verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ckptgov.errors import StorageError
from ckptgov.manifest.compare import ShardReport, ShardState, compare
from ckptgov.model.checkpoint import Evidence, Manifest, StepKind, VerifyLevel
from ckptgov.model.clock import Clock
from ckptgov.model.facts import Depth, Finding, Found, Note, Reason
from ckptgov.model.files import FileStat, Token
from ckptgov.work.copyproof import base_of, stat_shards
from ckptgov.work.look import RunLook, SealedCopy
from ckptgov.work.seal import SealSettings, publish_receipt, wait_out_the_tick


class VerifyOutcome(Struct, frozen=True, kw_only=True):
    """What verifying one checkpoint at one place found. Whole when ``findings`` is empty."""

    name: str
    step: int | None
    step_kind: StepKind
    layout: str
    content_id: str | None
    variant: str
    bytes: int
    evidence: Evidence
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...] = ()
    verified_at_ns: int | None = None
    held: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Bytes differ or are missing; being unable to read is not a failure of the bytes."""
        return any(one.reason is not Reason.UNREADABLE for one in self.findings)


def verify_sealed(
    look: RunLook,
    copy: SealedCopy,
    *,
    level: VerifyLevel,
    clock: Clock,
    settings: SealSettings,
    write: bool = True,
) -> VerifyOutcome:
    """Compare a sealed checkpoint with its manifest, as deep as ``level`` says.

    Only ``digest`` changes what is offered: it renews or demotes the receipt of this place, where
    the place is registered and can be written.
    """
    manifest = copy.manifest
    storage = look.place.storage
    base = base_of(storage, look.run_root, manifest)
    only = copy.proof.held if look.partial and copy.proof.held else None
    if level is VerifyLevel.DIGEST:
        # What is written after this look shows in its token; within one tick it would not.
        wait_out_the_tick([copy.proof.newest_mtime_ns], clock, look.granularity_ns)
    reports = compare(
        manifest,
        storage,
        base,
        level=level,
        paths=only,
        threads=settings.threads,
        drop_cache=settings.drop_cache,
        progress=settings.progress,
    )
    findings = [_finding_of(one, manifest.name) for one in reports if one.state in _REASONS]
    if level is VerifyLevel.STRUCTURE and not findings:
        findings += _layout_findings(look, manifest)
    notes: tuple[Note, ...] = ()
    at_ns = None
    if level is VerifyLevel.DIGEST:
        at_ns = clock.now_ns()
        if write and look.place.uuid is not None:
            notes = _write_verdict(look, copy, reports, at_ns)
    return VerifyOutcome(
        name=manifest.name,
        step=manifest.step,
        step_kind=manifest.step_kind,
        layout=manifest.layout,
        content_id=manifest.content_id,
        variant="",
        bytes=manifest.bytes,
        evidence=_evidence(level, findings),
        findings=tuple(findings),
        notes=notes,
        verified_at_ns=at_ns if not findings else None,
        held=tuple(one.path for one in reports if one.state is ShardState.MATCHES),
    )


def verify_unsealed(look: RunLook, found: Found, *, level: VerifyLevel) -> VerifyOutcome:
    """The layout's own proof of a checkpoint that has no manifest yet."""
    depth = Depth.DEEP if level is VerifyLevel.DIGEST else Depth.STRUCTURE
    sighting = look.sighting(found, depth)
    return VerifyOutcome(
        name=sighting.name,
        step=sighting.step,
        step_kind=sighting.step_kind,
        layout=sighting.layout,
        content_id=None,
        variant=found.variant,
        bytes=sighting.bytes,
        evidence=Evidence.NONE if sighting.findings else Evidence.STRUCTURE,
        findings=sighting.findings,
        notes=sighting.notes,
    )


_REASONS: dict[ShardState, Reason] = {
    ShardState.MISSING: Reason.MISSING_SHARD,
    ShardState.SHORT: Reason.TORN,
    ShardState.LONG: Reason.TORN,
    ShardState.DIFFERS: Reason.CORRUPT,
    ShardState.UNREADABLE: Reason.UNREADABLE,
    ShardState.CHANGED: Reason.BEING_WRITTEN,
}

_WRONG = frozenset({ShardState.MISSING, ShardState.SHORT, ShardState.LONG, ShardState.DIFFERS})


def _finding_of(report: ShardReport, name: str) -> Finding:
    path = f"{name}/{report.path}" if report.path else name
    words = {
        ShardState.MISSING: "is not there",
        ShardState.SHORT: f"short: {report.found_bytes} of {report.expected_bytes} bytes",
        ShardState.LONG: f"long: {report.found_bytes} of {report.expected_bytes} bytes",
        ShardState.DIFFERS: (
            f"digest differs: {report.found_digest}, the manifest says {report.expected_digest}"
        ),
        ShardState.CHANGED: "changed while it was read",
    }
    evidence = words.get(report.state, report.detail or "could not be read")
    if report.state is ShardState.DIFFERS and report.detail:
        evidence = f"{evidence} ({report.detail})"
    return Finding(_REASONS[report.state], path, evidence)


def _evidence(level: VerifyLevel, findings: Sequence[Finding]) -> Evidence:
    if findings:
        return Evidence.NONE
    return Evidence.DIGEST if level is VerifyLevel.DIGEST else Evidence.STRUCTURE


def _layout_findings(look: RunLook, manifest: Manifest) -> tuple[Finding, ...]:
    found = look.found_named(manifest.name)
    if found is None:
        return ()
    findings = look.sighting(found, Depth.STRUCTURE).findings
    return tuple(one for one in findings if one.reason is not Reason.UNPROVEN)


def _write_verdict(
    look: RunLook, copy: SealedCopy, reports: Sequence[ShardReport], at_ns: int
) -> tuple[Note, ...]:
    """Renew the receipt, or demote it; a place that cannot be written gets a note instead."""
    evidence = _verdict(copy, reports)
    if evidence is None:
        return ()
    tokens = _tokens_of(look, copy, reports)
    if not tokens:
        return ()
    try:
        publish_receipt(
            look.store,
            copy.manifest,
            place=look.place.uuid or "",
            tokens=tokens,
            evidence=evidence,
            at_ns=at_ns,
        )
    except StorageError as error:
        return (Note("verdict-not-written", copy.manifest.name, error.message),)
    return ()


def _verdict(copy: SealedCopy, reports: Sequence[ShardReport]) -> Evidence | None:
    """What the next receipt says; None leaves the last one.

    ``structure`` is all that is left of bytes that were compared and differ. Only what the look
    still vouched for is demoted: a token that changed says enough by itself.
    """
    states = {one.state for one in reports}
    if states == {ShardState.MATCHES}:
        return Evidence.DIGEST
    if states & _WRONG and not copy.proof.findings:
        return Evidence.STRUCTURE
    return None


def _tokens_of(
    look: RunLook, copy: SealedCopy, reports: Sequence[ShardReport]
) -> list[tuple[str, Token]]:
    """The tokens read with the bytes; for shards that did not match, as they stand now."""
    base = base_of(look.place.storage, look.run_root, copy.manifest)
    stats: dict[str, FileStat | None] = {}
    if any(one.token is None for one in reports):
        stats = stat_shards(look.place.storage, base, copy.manifest.shards)
    tokens = []
    for one in reports:
        stat = stats.get(one.path)
        token = one.token if one.token is not None else stat.token if stat is not None else None
        if token is not None:
            tokens.append((one.path, token))
    return tokens
