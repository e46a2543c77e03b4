"""Commit: a person or a cooperative writer declares a checkpoint complete.

It waives what only its writer can know: the full set that nothing on disk tells, and times that
say a shard is younger than its marker. It never waives a shard that is missing, short or corrupt.
"""

from __future__ import annotations

from msgspec.structs import replace

from ckptgov.errors import UsageError, VerificationFailed
from ckptgov.layouts.base import resume_args, split
from ckptgov.layouts.names import is_staging, step_of_name
from ckptgov.layouts.proof import WRITTEN_AFTER
from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.facts import Depth, Finding, Found, Reason, SeenShard, Sighting
from ckptgov.work.look import RunLook

DECLARED = "declared"


def declared_sighting(look: RunLook, name: str, *, step: int | None) -> Sighting:
    """The sighting to seal for a checkpoint that is declared complete.

    Raises:
        UsageError: it is staging, holds no files, or names another step than the layout proves.
        VerificationFailed: a shard is missing, short or corrupt.
    """
    if any(is_staging(part) for part in name.split("/")):
        raise UsageError(f"{name}: a framework's temporary name is never a checkpoint")
    found = look.found_named(name)
    if found is None:
        return _bare_sighting(look, name, step)
    sighting = look.sighting(found, Depth.DEEP)
    standing = [one for one in sighting.findings if not _is_waived(one)]
    if standing:
        first = standing[0]
        raise VerificationFailed(
            f"{first.path}: {first.evidence} ({first.reason.value})",
            hint="a checkpoint with missing or torn shards cannot be committed",
        )
    return _with_step(sighting, step)


def _is_waived(finding: Finding) -> bool:
    if finding.reason is Reason.UNPROVEN:
        return True
    return finding.reason is Reason.TORN and finding.evidence.startswith(WRITTEN_AFTER)


def _with_step(sighting: Sighting, step: int | None) -> Sighting:
    if step is None or step == sighting.step:
        return replace(sighting, findings=())
    if sighting.step is not None and sighting.step_kind is StepKind.STEP:
        raise UsageError(f"{sighting.name}: is step {sighting.step}, not {step}")
    return replace(sighting, findings=(), step=step, step_kind=StepKind.STEP)


def _bare_sighting(look: RunLook, name: str, step: int | None) -> Sighting:
    """Every regular file beneath a directory of no known layout, or one file."""
    tree = look.tree
    if tree.is_file(name):
        members = [SeenShard("", tree.stat(name).bytes)]
    else:
        members = [
            SeenShard(path, tree.stat(f"{name}/{path}").bytes)
            for path in tree.files_below(name)
            if not any(is_staging(part) for part in path.split("/"))
        ]
    if not members or all(one.bytes == 0 for one in members):
        raise UsageError(f"{name}: holds nothing to commit")
    kind = StepKind.STEP
    if step is None:
        named = step_of_name(split(name)[1])
        step, kind = named if named is not None else (None, StepKind.NONE)
    found = Found(
        name=name, layout=DECLARED, step=step, step_kind=kind, is_file=members[0].path == ""
    )
    mtimes = [tree.stat(f"{name}/{one.path}" if one.path else name).mtime_ns for one in members]
    return Sighting(
        found=found,
        step=step,
        step_kind=kind,
        shards=tuple(members),
        expected=tuple(one.path for one in members),
        purposes=(Purpose.RESUME, Purpose.WEIGHTS),
        resume=resume_args(found, step=step, tag=split(name)[1]),
        newest_mtime_ns=max(mtimes),
        oldest_mtime_ns=min(mtimes),
    )
