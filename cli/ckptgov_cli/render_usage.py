"""What takes room, and what was found beside checkpoints, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator

from ckptgov.model.copies import CopyState
from ckptgov.model.retention import RunLife
from ckptgov.model.usage import (
    CopyChange,
    DuAnswer,
    Fate,
    LeftKind,
    ReconcileAnswer,
    RunUsage,
    TierReconciled,
    TierUsage,
)
from ckptgov.wire import usage as documents
from ckptgov.wire import usage_sums
from ckptgov.wire.usage_sums import By, sums_of, where
from ckptgov_cli import output
from ckptgov_cli.exits import code_of
from ckptgov_cli.output import size

_USAGE = ("TIER", "RUN", "STATE", "COUNT", "BYTES")
_SUMS = ("COPIES", "BYTES", "CONDEMNED", "TRASH", "LEFT-OVERS")
_RUNS = ("LIFE", "OWNER", "LAST STEP")
_LEFT = ("TIER", "WHAT", "PATH", "BYTES", "AGE", "FATE", "WHY")
_NONE = "-"


def usage(answer: DuAnswer, *, as_json: bool, by: By | None = None) -> int:
    """What takes room."""
    if as_json:
        document = documents.du(answer)
        if by is not None:
            document |= usage_sums.by_document(answer, by)
        output.emit(document)
        return code_of(answer.error)
    if by is None:
        output.table(_USAGE, list(_rows(answer)))
    else:
        _by_table(answer, by)
    for tier in answer.tiers:
        _tier_line(tier)
    for run in answer.runs:
        if run.life is RunLife.DEAD:
            output.talk(_dead(run))
    if answer.error is not None:
        output.complain(answer.error)
    return code_of(answer.error)


def _rows(answer: DuAnswer) -> Iterator[list[str]]:
    for tier in answer.tiers:
        at = where(tier.tier, tier.node)
        for one in tier.states:
            yield [at, one.run, one.state, str(one.checkpoints), size(one.bytes)]
        for left in tier.left:
            kind = left.kind.value
            yield [at, left.run or _NONE, kind, str(left.items), size(left.bytes)]


def _by_table(answer: DuAnswer, by: By) -> None:
    runs = {one.run: one for one in answer.runs}
    sums = sums_of(answer, by)
    rows = []
    for key, one in sums.items():
        row = [key or _NONE, str(one.copies), size(one.bytes), size(one.condemned_bytes)]
        row += [size(one.trash_bytes), size(one.left_bytes)]
        if by is By.RUN:
            row += _run_cells(runs.get(key))
        rows.append(row)
    header = (by.value.upper(), *_SUMS, *(_RUNS if by is By.RUN else ()))
    output.table(header, rows)


def _run_cells(run: RunUsage | None) -> list[str]:
    if run is None:
        return [_NONE] * len(_RUNS)
    step = _NONE if run.last_step is None else str(run.last_step)
    return [run.life.value, run.owner or _NONE, step]


def _tier_line(tier: TierUsage) -> None:
    """Totals of one tier, or why it could not be looked at."""
    at = where(tier.tier, tier.node)
    if tier.error is not None:
        output.talk(f"{at}: could not be looked at: {tier.error.message}")
        return
    for what, error in tier.failures:
        output.talk(f"{at}: {what}: {error.message}")
    told = [f"{size(tier.checkpoint_bytes)} of checkpoints"]
    if tier.condemned_bytes:
        told.append(f"{size(tier.condemned_bytes)} of them condemned")
    if tier.trash_bytes:
        told.append(f"{size(tier.trash_bytes)} in the trash")
    if tier.free_bytes is not None and tier.total_bytes is not None:
        told.append(f"{size(tier.free_bytes)} of {size(tier.total_bytes)} free")
    if tier.free_files is not None:
        told.append(f"{tier.free_files} files free")
    if tier.quota_bytes is not None:
        told.append(f"quota {size(tier.quota_bytes)}")
    told += _growth(tier)
    output.talk(f"{at} at {tier.root}: {', '.join(told)}")


def _growth(tier: TierUsage) -> list[str]:
    per_day = tier.grows_bytes_per_day
    if per_day is None:
        return []
    if per_day <= 0:
        return ["not growing"]
    told = [f"grows {size(round(per_day))} a day"]
    if tier.full_in_days is not None:
        told.append(f"full in {tier.full_in_days:.0f} days")
    return told


def _dead(run: RunUsage) -> str:
    owner = f" of {run.owner}" if run.owner else ""
    step = "no step" if run.last_step is None else f"last step {run.last_step}"
    return f"dead: {run.run}{owner}: {size(run.bytes)}, {run.checkpoints} checkpoints, {step}"


def reconciled(answer: ReconcileAnswer, *, as_json: bool, dry_run: bool) -> int:
    """What was cleared and what was kept, with reasons."""
    if as_json:
        output.emit(documents.reconciled(answer))
        return code_of(answer.error)
    output.table(_LEFT, [row for tier in answer.tiers for row in _left_rows(tier)])
    for tier in answer.tiers:
        for change in tier.changes:
            output.talk(f"{tier.tier}: {_change(change, dry_run=dry_run)}")
        if tier.orphans_not_told:
            output.talk(f"{tier.tier}: and {tier.orphans_not_told} smaller orphans")
        _staging_line(tier)
    if answer.error is not None:
        output.complain(answer.error)
    return code_of(answer.error)


def _left_rows(tier: TierReconciled) -> Iterator[list[str]]:
    for what, path, bytes_, age_s, fate, why in _left_told(tier):
        yield [tier.tier, what, path, size(bytes_), f"{age_s / 3600:.1f} h", fate.value, why]


def _left_told(tier: TierReconciled) -> Iterator[tuple[str, str, int, float, Fate, str]]:
    for one in tier.leftovers:
        why = one.text or one.reason.value
        yield one.kind.value, one.path, one.bytes, one.age_s, one.fate, why
    for left in tier.staging:
        why = left.text or left.reason.value
        kind = LeftKind.FRAMEWORK_STAGING.value
        yield kind, left.path, left.bytes, left.age_s, left.fate, why
    for orphan in tier.orphans:
        why = f"{orphan.files} files of no run; told only"
        yield "orphan", orphan.path, orphan.bytes, orphan.age_s, Fate.KEPT, why
    for trash in tier.trash:
        why = trash.text or trash.reason.value
        yield "trash", trash.path, trash.bytes, trash.due_s, Fate.KEPT, why


def _change(change: CopyChange, *, dry_run: bool) -> str:
    before = change.before.value if change.before is not None else "unknown"
    word = "would be recorded as" if dry_run else "recorded as"
    told = f"{change.run} {change.checkpoint}: {before} {word} {change.after.value}"
    if change.after is not CopyState.LOST:
        return told
    left = change.copies_left
    others = "" if left is None else f"; {left or 'no'} whole verified copies are left"
    return f"{told}: removed by its trainer or by hand, {size(change.bytes)}{others}"


def _staging_line(tier: TierReconciled) -> None:
    held = sum(one.bytes for one in tier.staging if one.fate is not Fate.REMOVED)
    if held:
        output.talk(f"{tier.tier}: {size(held)} are held by left-overs of frameworks")
