"""Answers to text or JSON, and the exit code they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckptgov.errors import NoneRestorable
from ckptgov.model.answers import (
    Check,
    RunListing,
    ScanAnswer,
    SealedCheckpoint,
    VerifyAnswer,
)
from ckptgov.model.facts import Finding, Note, Verdict
from ckptgov.wire import documents, settings
from ckptgov_cli import output
from ckptgov_cli.exits import code_of

if TYPE_CHECKING:
    from ckptgov.model.checkpoint import Manifest
    from ckptgov.model.journal import Record
    from ckptgov.model.removed import RemovedCopy
    from ckptgov.model.verbs import RegisteredRun
    from ckptgov.ops.backup import BackedUp, RestoredCatalog
    from ckptgov.ops.rebuild import Rebuilt

MOST_FINDINGS = 10
_HEADER = ("STEP", "NAME", "LAYOUT", "SIZE", "LINE", "EVIDENCE", "STATE")


def _finding(one: Finding) -> str:
    return f"{one.reason.value}: {one.path}: {one.evidence}"


def _findings(findings: Sequence[Finding]) -> None:
    """The first few: a torn checkpoint of a thousand ranks has a thousand findings."""
    for each in findings[:MOST_FINDINGS]:
        output.talk(f"  {_finding(each)}")
    if len(findings) > MOST_FINDINGS:
        output.talk(f"  and {len(findings) - MOST_FINDINGS} more; --json has all of them")


def _notes(notes: Sequence[Note]) -> None:
    for one in notes:
        output.talk(f"note: {one.path or '-'}: {one.text}")


def _step(step: int | None, kind: str) -> str:
    if step is None:
        return "-"
    return f"{step}" if kind == "step" else f"{step} ({kind})"


def _row(verdict: Verdict) -> list[str]:
    one = verdict.checkpoint
    state = "restorable" if verdict.is_restorable else verdict.findings[0].reason.value
    name = f"{one.name} [{one.variant}]" if one.variant else one.name
    return [
        _step(one.step, one.step_kind.value),
        name,
        one.layout,
        output.size(one.bytes),
        str(one.line),
        one.evidence.value,
        state,
    ]


def listing(one: RunListing, *, as_json: bool) -> int:
    """The table of ``list``."""
    if as_json:
        output.emit(documents.listing(one))
        return 0
    output.table(_HEADER, [_row(each) for each in one.verdicts])
    if not one.verdicts:
        output.talk(f"{one.root}: no checkpoints")
    _notes(one.notes)
    return 0


def _of_step(one: RunListing, step: int | None) -> list[Verdict]:
    return [each for each in one.verdicts if step in (None, each.checkpoint.step)]


def _picked(one: RunListing, step: int | None) -> list[Verdict]:
    found = _of_step(one, step)
    if step is not None and not found:
        raise NoneRestorable(f"{one.root}: there is no checkpoint of step {step}")
    return found


def show(one: RunListing, *, step: int | None, as_json: bool) -> int:
    """One checkpoint in full."""
    picked = _picked(one, step)
    if step is None:
        picked = [each for each in picked if each.is_restorable][:1]
        if not picked:
            raise NoneRestorable(f"{one.root}: none restorable", hint="'ckptgov explain' says why")
    if as_json:
        output.emit({"run": one.run, "checkpoints": [documents.listed(each) for each in picked]})
        return 0
    for verdict in picked:
        _show(verdict)
    return 0


def _show(verdict: Verdict) -> None:
    one = verdict.checkpoint
    fields: list[tuple[str, str]] = [
        ("name", one.name),
        ("step", _step(one.step, one.step_kind.value)),
        ("layout", one.layout),
        ("state", "restorable" if verdict.is_restorable else verdict.findings[0].reason.value),
        ("evidence", one.evidence.value),
        ("content id", one.content_id or "not sealed"),
        ("size", output.size(one.bytes)),
        ("saved by", f"{one.world_size or '?'} ranks"),
        ("fits", _fits(one.reshardable)),
        ("complete for", ", ".join(each.value for each in one.purposes) or "nothing"),
        ("line", f"{one.line}, attempt {one.attempt}"),
    ]
    for label, value in fields:
        output.line(f"{label:<13} {value}")
    for copy in one.copies:
        held = "all shards" if copy.shards is None else f"{len(copy.shards)} shards"
        output.line(f"{'copy':<13} {held} at {copy.root} ({copy.tier or 'unregistered'})")
    for each in verdict.findings:
        output.line(f"{'why not':<13} {_finding(each)}")


def _fits(reshardable: bool | None) -> str:
    match reshardable:
        case True:
            return "any number of ranks"
        case False:
            return "the number of ranks that saved it"
        case None:
            return "not known"


def explain(
    one: RunListing,
    removed: Sequence[RemovedCopy] = (),
    *,
    step: int | None,
    as_json: bool,
) -> int:
    """Every reason, of what a plan let go as well: only a step of which nothing is told is 5."""
    from ckptgov_cli import render_removed

    picked = [] if removed and not _of_step(one, step) else _picked(one, step)
    if as_json:
        output.emit(_explained(one, picked, removed))
        return 0
    is_first = True
    for verdict in picked:
        name = f"{_step(verdict.checkpoint.step, verdict.checkpoint.step_kind.value)}"
        output.line(f"{name}\t{verdict.checkpoint.name}")
        if verdict.is_restorable:
            word = "the newest restorable" if is_first else "restorable, a newer one is offered"
            output.line(f"  {word} (evidence {verdict.checkpoint.evidence.value})")
            is_first = False
        for each in verdict.findings:
            output.line(f"  {_finding(each)}")
        render_removed.beneath(verdict.checkpoint, removed)
    render_removed.alone([each.checkpoint for each in picked], removed)
    for debris in one.staging:
        output.line(f"-\t{debris.path}\n  staging: {output.size(debris.bytes)}, never a checkpoint")
    _notes(one.notes)
    return 0


def _explained(
    one: RunListing, picked: Sequence[Verdict], removed: Sequence[RemovedCopy]
) -> documents.Document:
    from ckptgov.wire.removed import removed_copy

    return {
        **documents.listing(one),
        "checkpoints": [documents.listed(each) for each in picked],
        "removals": [removed_copy(each) for each in removed],
    }


def scan(answer: ScanAnswer, *, as_json: bool, dry_run: bool) -> int:
    """What a scan found and did."""
    if as_json:
        output.emit(documents.scan(answer))
        return code_of(answer.error)
    for run in answer.runs:
        would = "would be scanned" if dry_run else f"{len(run.sealed)} sealed now"
        output.line(f"run {run.listing.run} at {run.listing.root}: {would}")
        output.table(_HEADER, [_row(each) for each in run.listing.verdicts])
        for verdict in run.listing.verdicts:
            for each in verdict.findings[:1]:
                output.talk(f"  {_finding(each)}")
        for name, error in run.failures:
            output.talk(f"  failed: {name}: {error.message}")
        for name in run.lost:
            output.talk(f"  gone from this place: {name}")
        for debris in run.listing.staging:
            output.talk(f"  staging: {debris.path}: {output.size(debris.bytes)}")
        _notes(run.listing.notes)
    if not answer.runs and answer.error is None:
        output.talk("no runs found")
    if answer.error is not None:
        output.complain(answer.error)
    return code_of(answer.error)


def commit(one: SealedCheckpoint, *, as_json: bool, dry_run: bool) -> int:
    """The checkpoint that was sealed."""
    if as_json:
        output.emit({"dry_run": dry_run, **documents.sealed(one)})
        return 0
    word = "would seal" if dry_run else "sealed"
    content = f" as {one.content_id}" if one.content_id else ""
    output.line(
        f"{word} {one.name} (step {one.step}, {one.shards} shards, {output.size(one.bytes)})"
        f"{content}"
    )
    return 0


def verify(answer: VerifyAnswer, *, as_json: bool) -> int:
    """Each checkpoint's state; the findings name shard and evidence."""
    if as_json:
        output.emit(documents.verify(answer))
        return code_of(answer.error)
    for one in answer.checkpoints:
        step = _step(one.step, one.step_kind.value)
        output.line(f"{step}\t{one.name}\t{one.layout}\t{one.evidence}\t{one.state}")
        _findings(one.findings)
        _notes(one.notes)
    _notes(answer.notes)
    if answer.error is not None:
        output.complain(answer.error)
    return code_of(answer.error)


def manifest(one: Manifest, *, form: str) -> int:
    """The file itself, or lines for ``xxhsum -c``."""
    if form == "json":
        from ckptgov.manifest.forms.manifests import encode_manifest

        output.line(encode_manifest(one).decode("ascii").rstrip("\n"))
        return 0
    from ckptgov.manifest.xxhsum import xxhsum_lines

    for each in xxhsum_lines(one):
        output.line(each)
    return 0


def record(one: Record, *, as_json: bool, dry_run: bool) -> int:
    """The record that was written."""
    from ckptgov.manifest.forms.records import encode_record

    text = encode_record(one).decode("ascii").rstrip("\n")
    if as_json:
        import json

        output.emit({"dry_run": dry_run, "record": json.loads(text)})
        return 0
    word = "would write" if dry_run else "wrote"
    output.line(f"{word} {text}")
    return 0


def checks(found: Sequence[Check], *, as_json: bool) -> int:
    """Checks with severity and fix; 9 if one failed."""
    failed = any(one.severity == "failure" for one in found)
    if as_json:
        document: documents.Document = {
            "checks": [
                {"name": one.name, "severity": one.severity, "text": one.text, "fix": one.fix}
                for one in found
            ]
        }
        output.emit(document)
        return 9 if failed else 0
    for one in found:
        output.line(f"{one.severity}\t{one.name}\t{one.text}")
        if one.fix and one.severity != "ok":
            output.talk(f"  fix: {one.fix}")
    return 9 if failed else 0


def runs(found: Sequence[RegisteredRun], *, as_json: bool, dry_run: bool = False) -> int:
    """The registered runs."""
    if as_json:
        output.emit(settings.runs(found, dry_run=dry_run))
        return 0
    if dry_run:
        output.talk("would create:")
    rows = [
        [one.name, str(one.checkpoints), output.size(one.bytes), ", ".join(one.roots)]
        for one in found
    ]
    output.table(("RUN", "SEALED", "SIZE", "ROOTS"), rows)
    return 0


def rebuilt(one: Rebuilt, *, as_json: bool, dry_run: bool) -> int:
    """What a rebuild found."""
    if as_json:
        document: documents.Document = {
            "dry_run": dry_run,
            "tiers": one.tiers,
            "runs": one.runs,
            "checkpoints": one.checkpoints,
            "epoch": one.epoch,
        }
        output.emit(documents.with_error(document, one.error))
        return code_of(one.error)
    word = "would read" if dry_run else "read"
    output.line(
        f"{word} {one.tiers} tiers: {one.runs} runs, {one.checkpoints} sealed checkpoints, "
        f"epoch {one.epoch}"
    )
    if one.error is not None:
        output.complain(one.error)
    return code_of(one.error)


def backed_up(one: BackedUp, *, as_json: bool, dry_run: bool) -> int:
    """Where the catalog was written to: what ``catalog restore`` takes."""
    if as_json:
        from ckptgov.ops.backup import told

        output.emit(told(one, dry_run=dry_run))
        return 0
    for name in one.removed:
        output.talk(f"removed {name}")
    output.talk(f"{'would write' if dry_run else 'wrote'} {output.size(one.bytes)}")
    output.line(one.path)
    return 0


def restored_catalog(one: RestoredCatalog, *, as_json: bool, dry_run: bool) -> int:
    """What the catalog holds again."""
    if as_json:
        document: documents.Document = {
            "dry_run": dry_run,
            "path": documents.text(one.path),
            "bytes": one.bytes,
            "runs": one.runs,
            "checkpoints": one.checkpoints,
            "epoch": one.epoch,
        }
        output.emit(documents.with_error(document, one.error))
        return code_of(one.error)
    if dry_run:
        output.line(f"would load {one.path}, {output.size(one.bytes)}")
        return 0
    output.line(
        f"loaded {one.path}: {one.runs} runs, {one.checkpoints} sealed checkpoints, "
        f"epoch {one.epoch}"
    )
    if one.error is not None:
        output.complain(one.error)
    return code_of(one.error)
