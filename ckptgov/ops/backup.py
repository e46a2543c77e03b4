"""The catalog as a file, and back: to a path of this machine, or below a tier's root.

A tier keeps them under ``.ckptgov-catalog/<catalog's UUID>/<time>.dump``, so that two catalogs
never touch each other's. What happened since is read from the tiers: they are the truth.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import IO

from msgspec import Struct

from ckptgov.errors import (
    Ambiguous,
    CkptgovError,
    CouldNotLook,
    LeaseLost,
    PartlyDone,
    UsageError,
)
from ckptgov.model.files import EntryKind, OpenFile
from ckptgov.model.settings import TierSettings
from ckptgov.ops.context import Context, make_directory
from ckptgov.ops.rebuild import read_tier, set_damaged_aside
from ckptgov.storage.contract import Storage
from ckptgov.wire.documents import Document, text
from ckptgov.work.locate import normal_path, open_place
from ckptgov.work.tier import check_identity, read_identity

DIRECTORY = ".ckptgov-catalog"
_NAME = re.compile(r"\d{8}T\d{6}\.\d{9}Z\.dump")
_PIECE_BYTES = 2**20


class BackedUp(Struct, frozen=True, kw_only=True):
    """A file that holds the catalog as it was. ``removed``: older ones that went for it."""

    path: str  # absolute; at a tier TIER/KEY, as ``restore_catalog`` takes it
    bytes: int
    removed: tuple[str, ...] = ()


class RestoredCatalog(Struct, frozen=True, kw_only=True):
    """What the catalog is again. ``error``: a tier could not be read for what happened since."""

    path: str
    bytes: int
    runs: int = 0
    checkpoints: int = 0
    epoch: int = 0
    error: CkptgovError | None = None


def back_up(
    context: Context, to: str, *, keep: int | None = None, dry_run: bool = False
) -> BackedUp:
    """Write the catalog to a new file, or to a tier by its name, read back and compared.

    ``keep``: at a tier, how many of this catalog's stay; the others are removed afterwards.

    Raises:
        UsageError: the file is there already, or ``keep`` is given for one.
        LeaseLost: a later instance of this catalog governs the tier: its copies stay the newest.
        StorageError: it cannot be written, or comes back otherwise than it was written.
    """
    tier = _tier_named(context, to)
    if tier is None and keep is not None:
        raise UsageError("how many to keep is for a tier", hint="name a tier, or remove them")
    with _spooled(context) as (spool, size, digest):
        if tier is None:
            path = normal_path(to)
            with _parent_of(path) as (storage, name):
                _put(storage, name, spool, digest, path, dry_run=dry_run)
            return BackedUp(path=path, bytes=size)
        own = f"{DIRECTORY}/{context.catalog.identity().uuid}"
        name = f"{_stamp(context.author.clock.now_ns())}.dump"
        with _opened(context, tier) as storage:
            _check_not_fenced(context, tier, storage)
            where = f"{tier.name}/{own}/{name}"
            _put(storage, f"{own}/{name}", spool, digest, where, dry_run=dry_run)
            gone = () if dry_run else _without_old(storage, own, keep)
        return BackedUp(path=where, bytes=size, removed=gone)


def told(one: BackedUp, *, dry_run: bool = False) -> Document:
    """The document of ``catalog backup``."""
    return {
        "dry_run": dry_run,
        "path": text(one.path),
        "bytes": one.bytes,
        "removed": [text(each) for each in one.removed],
    }


def restore_catalog(context: Context, source: str, *, dry_run: bool = False) -> RestoredCatalog:
    """Fill an empty catalog from such a file, then with what the tiers tell of the time since.

    ``source`` is a path, ``TIER/KEY``, or ``TIER`` for the newest one there. The epoch is raised
    above every tier's, so that an older instance of the same catalog is fenced off.

    Raises:
        UsageError: the catalog holds facts already, or there is no such file.
        Malformed: the file is damaged, or none of ours; the catalog is as it was.
        Ambiguous: a tier has those of several catalogs.
    """
    with _source(context, source) as (path, file):
        size = file.stat().bytes
        if dry_run:
            return RestoredCatalog(path=path, bytes=size)
        for moved in set_damaged_aside(context):
            context.talk(f"the damaged catalog was moved to {moved}")
        failed: list[CkptgovError] = []
        seen: set[str] = set()
        # One transaction: a mark that came after the copy was made is known when the copy is.
        with context.catalog.transaction():
            loaded = context.catalog.load(_reading(file))
            epoch = _fenced(context, loaded.uuid, loaded.epoch)
            for tier in context.settings.tiers:
                failed += read_tier(context, tier, seen, uuid=loaded.uuid, epoch=epoch)
    runs = [one.identity.run_id for one in context.catalog.runs()]
    return RestoredCatalog(
        path=path,
        bytes=size,
        runs=len(runs),
        checkpoints=sum(len(context.catalog.checkpoints(run_id)) for run_id in runs),
        epoch=epoch,
        error=_partly(failed),
    )


def _partly(failed: Sequence[CkptgovError]) -> PartlyDone | None:
    if not failed:
        return None
    return PartlyDone(
        f"the catalog is back; {len(failed)} places could not be read for what happened since, "
        f"first: {failed[0].message}",
        hint=failed[0].hint or "'ckptgov scan' reads them once they can be",
    )


def _check_not_fenced(context: Context, tier: TierSettings, storage: Storage) -> None:
    own, standing = context.catalog.identity(), read_identity(storage)
    if standing is not None and standing.catalog == own.uuid and standing.epoch > own.epoch:
        raise LeaseLost(
            f"tier {tier.name} is governed by this catalog's epoch {standing.epoch}; this is an "
            f"older instance of it, at epoch {own.epoch}",
            hint="stop whatever still uses the old one",
        )


def _fenced(context: Context, uuid: str, epoch: int) -> int:
    """An epoch above that of every tier that this catalog governs."""
    highest = epoch
    for tier in context.settings.tiers:
        try:
            with _opened(context, tier) as storage:
                identity = read_identity(storage)
        except CkptgovError:
            continue  # told when it is read for what happened since
        if identity is not None and identity.catalog == uuid:
            highest = max(highest, identity.epoch + 1)
    if highest > epoch:
        context.catalog.adopt_identity(uuid, highest)
    return highest


def _tier_named(context: Context, name: str) -> TierSettings | None:
    """The tier of this name that this process reaches; None where the word is a path."""
    found = [one for one in context.settings.tiers if one.name == name]
    if not found:
        if "/" not in name:
            raise UsageError(
                f"there is no tier {name!r}", hint=f"a file is named with its path: ./{name}"
            )
        return None
    if len(found) > 1 or found[0].node is not None:
        raise UsageError(f"tier {name!r} lies on nodes", hint="name a shared tier")
    return found[0]


@contextmanager
def _spooled(context: Context) -> Iterator[tuple[IO[bytes], int, bytes]]:
    """The dump in a file without a name, its size and its SHA-256."""
    make_directory(context.settings.home, mode=0o700)
    with tempfile.TemporaryFile(dir=context.settings.home) as spool:
        digest = hashlib.sha256()

        def write(piece: bytes) -> None:
            digest.update(piece)
            spool.write(piece)

        context.catalog.dump(write)
        yield spool, spool.tell(), digest.digest()


def _put(
    storage: Storage, key: str, spool: IO[bytes], digest: bytes, where: str, *, dry_run: bool
) -> None:
    if dry_run:
        return
    spool.seek(0)
    try:
        storage.publish(key, iter(lambda: spool.read(_PIECE_BYTES), b""))
    except FileExistsError as error:
        raise UsageError(f"{where}: is there already", hint="name a new file") from error
    again = hashlib.sha256()
    with storage.open(key) as file:
        read = _reading(file)
        while piece := read(_PIECE_BYTES):
            again.update(piece)
    if again.digest() != digest:
        raise CouldNotLook(f"{where}: comes back otherwise than it was written")


def _reading(file: OpenFile) -> Callable[[int], bytes]:
    at = 0

    def read(count: int) -> bytes:
        nonlocal at
        piece = file.read_at(at, count)
        at += len(piece)
        return piece

    return read


def _without_old(storage: Storage, directory: str, keep: int | None) -> tuple[str, ...]:
    """Remove all but the newest; what else lies there is not ours to judge."""
    if keep is None:
        return ()
    old = _names(storage, directory)[: -max(keep, 1)]
    for name in old:
        storage.remove(f"{directory}/{name}")
    return tuple(old)


def _names(storage: Storage, directory: str) -> list[str]:
    """Ours, oldest first: their names sort by time."""
    try:
        found = storage.list(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(
        one.name for one in found if one.kind is EntryKind.FILE and _NAME.fullmatch(one.name)
    )


@contextmanager
def _source(context: Context, source: str) -> Iterator[tuple[str, OpenFile]]:
    name, slash, key = source.partition("/")
    is_tier = any(one.name == name for one in context.settings.tiers)
    if not is_tier:
        path = normal_path(source)
        with _parent_of(path) as (storage, base), _file(storage, base, path) as file:
            yield path, file
        return
    tier = _tier_named(context, name)
    assert tier is not None
    with _opened(context, tier) as storage:
        chosen = key if slash else _newest(storage, name)
        with _file(storage, chosen, source) as file:
            yield f"{name}/{chosen}", file


@contextmanager
def _file(storage: Storage, key: str, told: str) -> Iterator[OpenFile]:
    try:
        file = storage.open(key)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(f"{told}: there is no such file") from error
    with file:
        yield file


def _newest(storage: Storage, tier: str) -> str:
    try:
        catalogs = [one.name for one in storage.list(DIRECTORY) if one.kind is EntryKind.DIR]
    except (FileNotFoundError, NotADirectoryError):
        catalogs = []
    found = {
        uuid: names[-1] for uuid in catalogs if (names := _names(storage, f"{DIRECTORY}/{uuid}"))
    }
    if not found:
        raise UsageError(f"tier {tier} has no copy of a catalog")
    if len(found) > 1:
        raise Ambiguous(
            f"tier {tier} has copies of {len(found)} catalogs",
            hint=f"name one: {tier}/{DIRECTORY}/<catalog>/<time>.dump",
        )
    uuid, name = found.popitem()
    return f"{DIRECTORY}/{uuid}/{name}"


@contextmanager
def _opened(context: Context, tier: TierSettings) -> Iterator[Storage]:
    """A tier's root, without the catalog: it may be about to be filled."""
    place = open_place(
        tier.root, tier=tier.name, endpoint=tier.endpoint, stall_s=context.settings.stall_s
    )
    with closing(place.storage) as storage:
        check_identity(storage, tier, known_place=None)
        yield storage


@contextmanager
def _parent_of(path: str) -> Iterator[tuple[Storage, str]]:
    parent, name = os.path.split(path)
    if "://" in path or not name:
        raise UsageError(f"{path}: name a file of this machine, or a tier")
    with closing(open_place(parent).storage) as storage:
        yield storage, name


def _stamp(at_ns: int) -> str:
    seconds, rest = divmod(at_ns, 10**9)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{rest:09d}Z"
