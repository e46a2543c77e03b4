"""A manifest against a tree: what stands at each shard's path, and whether its bytes are right."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum

from msgspec import Struct

from ckptgov.errors import CkptgovError, UsageError
from ckptgov.manifest.absence import Absence
from ckptgov.manifest.digest import ChangedWhileRead, FileDigest, digest_file
from ckptgov.manifest.names import shown
from ckptgov.manifest.pool import Stopped, Stopper, in_parallel
from ckptgov.model.checkpoint import Manifest, Shard, VerifyLevel
from ckptgov.model.files import EntryKind, Reader, Token


class ShardState(StrEnum):
    """What comparing one shard found. Only MATCHES proves anything about the bytes."""

    MATCHES = "matches"
    MISSING = "missing"  # proven absent by a complete listing
    SHORT = "short"
    LONG = "long"
    DIFFERS = "differs"  # read twice, the second time past the page cache
    UNREADABLE = "unreadable"  # could not be looked at or read: says nothing about it
    CHANGED = "changed"  # changed while it was read: no token, to be compared again


class ShardReport(Struct, frozen=True, kw_only=True):
    """One shard's comparison. ``token`` is of the very file whose size or bytes were seen."""

    path: str
    state: ShardState
    expected_bytes: int
    found_bytes: int | None = None
    expected_digest: str
    found_digest: str | None = None
    token: Token | None = None
    detail: str = ""


def compare(
    manifest: Manifest,
    reader: Reader,
    base: str,
    *,
    level: VerifyLevel,
    paths: Collection[str] | None = None,
    threads: int = 4,
    drop_cache: bool = False,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[ShardReport, ...]:
    """Compare the shards below ``base`` with the manifest; one report each, in its order.

    ``base`` is the checkpoint's path below the reader's root (the file itself for a single-file
    checkpoint). ``paths`` picks shards. Below level DIGEST only presence and size are looked at.
    ``progress`` gets the bytes of each read, in the reading threads. After ``stop`` said so,
    shards not compared yet have no report.

    Raises:
        UsageError: ``paths`` names what is no shard of this manifest.
    """
    shards = _picked(manifest, paths)
    stopper = Stopper(stop)
    look = _Comparison(
        reader,
        base,
        reads=level is VerifyLevel.DIGEST,
        drop_cache=drop_cache,
        progress=progress,
        stopper=stopper,
    )
    done = in_parallel(shards, look.report, threads=min(threads, len(shards)), stopper=stopper)
    reports = {shard.path: report for shard, report in done}
    return tuple(reports[shard.path] for shard in shards if shard.path in reports)


def _picked(manifest: Manifest, paths: Collection[str] | None) -> tuple[Shard, ...]:
    if paths is None:
        return manifest.shards
    wanted = frozenset(paths)
    shards = tuple(shard for shard in manifest.shards if shard.path in wanted)
    if foreign := wanted - {shard.path for shard in shards}:
        raise UsageError(f"{shown(min(foreign))} is no shard of {shown(manifest.name)}")
    return shards


class _Comparison:
    """One comparison's way of looking at a shard; its methods run in several threads."""

    def __init__(
        self,
        reader: Reader,
        base: str,
        *,
        reads: bool,
        drop_cache: bool,
        progress: Callable[[int], None] | None,
        stopper: Stopper,
    ) -> None:
        self._reader = reader
        self._base = base
        self._reads = reads
        self._drop_cache = drop_cache
        self._progress = progress
        self._stopper = stopper
        self._absence = Absence(reader)

    def report(self, shard: Shard) -> ShardReport:
        """What stands at the shard's path."""
        base = self._base
        path = f"{base}/{shard.path}" if base and shard.path else base or shard.path
        try:
            return self._seen(shard, path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            return self._not_seen(shard, path, error)
        except ChangedWhileRead as error:
            return _report(shard, ShardState.CHANGED, detail=error.message)
        except (CkptgovError, OSError) as error:
            return _report(shard, ShardState.UNREADABLE, detail=str(error))

    def _not_seen(self, shard: Shard, path: str, cause: OSError) -> ShardReport:
        """MISSING where a complete listing lacks it; one that it has after all is looked at."""
        try:
            missing = self._absence.of(path)
            if missing is not None:
                return _report(shard, ShardState.MISSING, detail=missing)
            # Entry caches of network file systems hide a name until its directory is listed.
            return self._seen(shard, path)
        except ChangedWhileRead as error:
            return _report(shard, ShardState.CHANGED, detail=error.message)
        except (CkptgovError, OSError) as error:
            return _report(shard, ShardState.UNREADABLE, detail=f"{cause}; then: {error}")

    def _seen(self, shard: Shard, path: str) -> ShardReport:
        if not self._reads:
            stat = self._reader.stat(path)
            if stat.kind is EntryKind.FILE:
                return _by_size(shard, stat.token) or _report(
                    shard, ShardState.MATCHES, token=stat.token
                )
        with self._reader.open(path) as file:
            token = file.stat().token
            if (wrong := _by_size(shard, token)) is not None:
                return wrong
            if not self._reads:
                return _report(shard, ShardState.MATCHES, token=token)
            found = digest_file(
                file, token=token, progress=self._counted, drop_cache=self._drop_cache
            )
        if found.digest == shard.digest:
            return _by_digest(shard, found)
        return self._read_again(shard, path, found)

    def _read_again(self, shard: Shard, path: str, first: FileDigest) -> ShardReport:
        """A mismatch counts only when it is there past the page cache too, in an unchanged file."""
        with self._reader.open(path) as file:
            file.drop_cache(0, first.bytes)
            second = digest_file(file, progress=self._counted, drop_cache=self._drop_cache)
        if second.token != first.token:
            return _report(shard, ShardState.CHANGED, detail="changed between two readings")
        if second.digest == shard.digest:
            return _by_digest(shard, second, "the first reading differed, the second did not")
        if second.digest != first.digest:
            return _by_digest(shard, second, "two readings differ from each other too")
        return _by_digest(shard, second)

    def _counted(self, count: int) -> None:
        if self._stopper():
            raise Stopped
        if self._progress is not None:
            self._progress(count)


def _by_size(shard: Shard, token: Token) -> ShardReport | None:
    if token.bytes == shard.bytes:
        return None
    is_short = token.bytes < shard.bytes
    return _report(
        shard,
        ShardState.SHORT if is_short else ShardState.LONG,
        token=token,
        detail=f"{token.bytes} of {shard.bytes} bytes",
    )


def _by_digest(shard: Shard, found: FileDigest, detail: str = "") -> ShardReport:
    if found.digest == shard.digest:
        return _report(
            shard, ShardState.MATCHES, token=found.token, digest=found.digest, detail=detail
        )
    notes = [note for note in (_wrong_chunks(shard, found), detail) if note]
    return _report(
        shard,
        ShardState.DIFFERS,
        token=found.token,
        digest=found.digest,
        detail="; ".join(notes),
    )


def _wrong_chunks(shard: Shard, found: FileDigest) -> str:
    """Which 64 MiB chunks differ, counted from 1; the first ten of them."""
    count = len(shard.chunks)
    if count != len(found.chunks):
        return ""
    wrong = [n for n in range(count) if shard.chunks[n] != found.chunks[n]]
    if len(wrong) == 1:
        return f"chunk {wrong[0] + 1} of {count} differs"
    shown_ones = ", ".join(str(n + 1) for n in wrong[:10])
    more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
    return f"chunks {shown_ones}{more} of {count} differ" if wrong else ""


def _report(
    shard: Shard,
    state: ShardState,
    *,
    token: Token | None = None,
    digest: str | None = None,
    detail: str = "",
) -> ShardReport:
    return ShardReport(
        path=shard.path,
        state=state,
        expected_bytes=shard.bytes,
        found_bytes=None if token is None else token.bytes,
        expected_digest=shard.digest,
        found_digest=digest,
        token=token,
        detail=detail,
    )
