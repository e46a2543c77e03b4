"""What one place's bytes are worth: tokens against the newest receipt, sizes against the manifest.

Nothing is read here but file attributes. A token that holds stands for bytes compared earlier.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from ckptgov.errors import StorageError
from ckptgov.layouts.tree import split
from ckptgov.model.checkpoint import Evidence, Manifest, Receipt, Shard
from ckptgov.model.facts import Finding, Note, Reason
from ckptgov.model.files import EntryKind, FileStat, Token
from ckptgov.storage.contract import Storage


class CopyProof(Struct, frozen=True, kw_only=True):
    """Evidence for one copy, and what speaks against it.

    ``held`` lists the shards that lie here with the manifest's size; ``changed`` those whose token
    no longer holds; ``sound`` those whose compared bytes have not changed since, whatever became
    of the others.
    """

    evidence: Evidence
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...] = ()
    held: tuple[str, ...] = ()
    sound: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    verified_at_ns: int | None = None
    newest_mtime_ns: int = 0


def base_of(storage: Storage, run_root: str, manifest: Manifest) -> str:
    """Where the shards' paths hang from: the checkpoint itself, or its parent for a file group."""
    name = f"{run_root}/{manifest.name}" if run_root else manifest.name
    if manifest.shards[0].path == "":
        return name
    try:
        if storage.stat(name).kind is EntryKind.DIR:
            return name
    except (FileNotFoundError, NotADirectoryError):
        return split(name)[0] if _looks_like_group(manifest) else name
    return split(name)[0]


def _looks_like_group(manifest: Manifest) -> bool:
    stem = manifest.name.rpartition("/")[2]
    return all(shard.path.startswith(stem) for shard in manifest.shards)


def stat_shards(storage: Storage, base: str, shards: Sequence[Shard]) -> dict[str, FileStat | None]:
    """Attributes of every shard by path, None for an absent one; directories resolved once.

    Raises:
        StorageError: a directory could not be looked into.
    """
    if len(shards) == 1 and shards[0].path == "":
        return {"": _stat_or_none(storage, base)}
    by_directory: dict[str, list[str]] = {}
    for shard in shards:
        by_directory.setdefault(split(shard.path)[0], []).append(shard.path)
    found: dict[str, FileStat | None] = {}
    for directory, paths in by_directory.items():
        where = f"{base}/{directory}" if directory and base else directory or base
        names = [path.rpartition("/")[2] for path in paths]
        try:
            stats: Sequence[FileStat | None] = storage.stat_many(where, names)
        except (FileNotFoundError, NotADirectoryError):
            stats = [None] * len(names)
        found.update(zip(paths, stats, strict=True))
    return found


def _stat_or_none(storage: Storage, path: str) -> FileStat | None:
    try:
        return storage.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def prove_copy(
    storage: Storage,
    run_root: str,
    manifest: Manifest,
    receipt: Receipt | None,
    *,
    granularity_ns: int,
    only: Collection[str] | None = None,
) -> CopyProof:
    """Judge a copy by attributes alone.

    Without a receipt of this place, matching sizes are structure evidence at best. ``only`` limits
    the look to the shards a part of a node-scoped checkpoint is to hold.
    """
    shards = [one for one in manifest.shards if only is None or one.path in only]
    base = base_of(storage, run_root, manifest)
    try:
        stats = stat_shards(storage, base, shards)
    except StorageError as error:
        finding = Finding(Reason.UNREADABLE, manifest.name, error.message)
        return CopyProof(evidence=Evidence.NONE, findings=(finding,))
    return _judge(manifest, shards, stats, receipt, granularity_ns)


def _judge(
    manifest: Manifest,
    shards: Sequence[Shard],
    stats: dict[str, FileStat | None],
    receipt: Receipt | None,
    granularity_ns: int,
) -> CopyProof:
    findings: list[Finding] = []
    notes: list[Note] = []
    held: list[str] = []
    kept: list[str] = []
    missing: list[str] = []
    changed: list[str] = []
    tokens = dict(receipt.tokens) if receipt is not None else {}
    newest = 0
    for shard in shards:
        path = f"{manifest.name}/{shard.path}" if shard.path else manifest.name
        stat = stats[shard.path]
        if stat is None:
            missing.append(shard.path)
            findings.append(Finding(Reason.MISSING_SHARD, path, "is not there"))
            continue
        newest = max(newest, stat.mtime_ns)
        wrong = _wrong_size(shard, stat, path)
        if wrong is not None:
            findings.append(wrong)
            changed.append(shard.path)
            continue
        held.append(shard.path)
        if receipt is None:
            continue
        token = tokens.get(shard.path)
        if token is None:
            findings.append(Finding(Reason.UNVERIFIED, path, "was not verified at this place"))
        elif not stat.token.same_content(token):
            changed.append(shard.path)
            findings.append(Finding(Reason.REOPENED, path, _changed_words(token, stat)))
        elif 0 <= receipt.verified_at_ns - token.mtime_ns < granularity_ns:
            findings.append(
                Finding(Reason.REOPENED, path, "was verified within the clock's granularity")
            )
        else:
            kept.append(shard.path)
            if stat.ctime_ns != token.ctime_ns:
                notes.append(Note("queued-for-verification", path, "its attributes were changed"))
    if missing and len(missing) == len(shards):
        findings = [Finding(Reason.MISSING_SHARD, manifest.name, "its files are gone")]
    if receipt is not None and receipt.evidence is not Evidence.DIGEST:
        findings.append(
            Finding(
                Reason.CORRUPT,
                manifest.name,
                "its bytes differed when last compared here",
            )
        )
    is_compared = receipt is not None and receipt.evidence is Evidence.DIGEST
    is_whole = is_compared and not findings
    return CopyProof(
        evidence=Evidence.DIGEST if is_whole else _fallback(receipt, findings),
        findings=tuple(findings),
        notes=tuple(notes),
        held=tuple(held),
        sound=tuple(kept) if is_compared else (),
        changed=tuple(changed),
        missing=tuple(missing),
        verified_at_ns=receipt.verified_at_ns if receipt is not None else None,
        newest_mtime_ns=newest,
    )


def _fallback(receipt: Receipt | None, findings: Sequence[Finding]) -> Evidence:
    return Evidence.STRUCTURE if receipt is None and not findings else Evidence.NONE


def _wrong_size(shard: Shard, stat: FileStat, path: str) -> Finding | None:
    if stat.kind is not EntryKind.FILE:
        return Finding(Reason.TORN, path, f"is a {stat.kind.value}, not a file")
    if stat.bytes == shard.bytes:
        return None
    word = "short" if stat.bytes < shard.bytes else "long"
    return Finding(Reason.TORN, path, f"{word}: {stat.bytes} of {shard.bytes} bytes")


def _changed_words(token: Token, stat: FileStat) -> str:
    now = stat.token
    changed = [
        name
        for name in ("bytes", "mtime_ns", "inode")
        if getattr(now, name) != getattr(token, name)
    ]
    return f"changed since it was verified ({', '.join(changed)})"
