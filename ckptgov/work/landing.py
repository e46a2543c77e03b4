"""Land a checkpoint at a place: staged, proven, then visible all at once, under a free name.

Where there are directories, shards are staged under ``.ckptgov/staging/<content id>/``, each
linked in when it is whole, framework markers last; whoever sees the set complete renames it into
place, refusing a taken name. On object stores shards go to their final keys and nothing names
them until a manifest does. Killed anywhere, the next try finds what arrived and goes on; two
movers of one checkpoint only ever write temporary names of their own.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import CkptgovError, StorageError
from ckptgov.layouts.markers import is_marker
from ckptgov.layouts.tree import join, split
from ckptgov.manifest.names import attempt_name, without_attempt
from ckptgov.manifest.pool import Stopped, Stopper, in_parallel
from ckptgov.model.checkpoint import Manifest, Shard
from ckptgov.model.files import EntryKind, FileStat, Token
from ckptgov.model.settings import Proof
from ckptgov.storage.contract import TEMP_PREFIX, ArrivalProof, Storage
from ckptgov.work.copy import (
    Arrived,
    CopySettings,
    ShardCopy,
    ShardSource,
    SourceFault,
    WrongArrival,
    copy_shards,
    read_back,
)
from ckptgov.work.copyproof import stat_shards
from ckptgov.work.owned import STAGING, directory_of, remove_below

MAX_ATTEMPTS = 1000
MAX_RACES = 8
"""How often movers of one checkpoint may get ahead of this one before something else is wrong."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_OWN = ".ckptgov"


class Form(StrEnum):
    """How a checkpoint lies below its run root."""

    DIRECTORY = "directory"  # all shards beneath a directory of its name
    FILE = "file"  # one file of its name
    GROUP = "group"  # files beside other checkpoints' in one directory


class Landing(Struct, frozen=True, kw_only=True):
    """What is to land where. ``sources`` are below each shard's path, nearest first; a shard
    without one can only be there already.

    ``only`` limits it to some shards (a node that needs no others): never a whole checkpoint, so
    each is put in place by itself and may join others that stand there already.
    """

    manifest: Manifest
    form: Form
    sources: Mapping[str, tuple[ShardSource, ...]]
    target: Storage
    run_root: str
    sidecar: str
    proof: Proof
    copying: CopySettings
    on_fault: Callable[[SourceFault], None]
    may_take_attempt_name: bool = True
    only: frozenset[str] | None = None

    @property
    def shards(self) -> tuple[Shard, ...]:
        """What has to be there in the end."""
        if self.only is None:
            return self.manifest.shards
        return tuple(shard for shard in self.manifest.shards if shard.path in self.only)

    def base(self, name: str) -> str:
        """What shard paths hang from when the checkpoint is called ``name``."""
        full = join(self.run_root, name)
        return split(full)[0] if self.form is Form.GROUP else full

    @property
    def staging(self) -> str:
        """Where shards wait for each other."""
        return directory_of(self.sidecar, STAGING, self.manifest.content_id)

    def staged(self, shard: Shard) -> str:
        """Where one shard waits."""
        return join(self.staging, shard.path or self.manifest.name.rpartition("/")[2])


class Landed(Struct, frozen=True, kw_only=True):
    """A checkpoint that stands at the target, or what is still missing of it.

    ``tokens`` are of compared bytes and empty where the proof was "none".
    """

    name: str
    tokens: tuple[tuple[str, Token], ...] = ()
    missing: tuple[str, ...] = ()
    sent_bytes: int = 0
    resumed_bytes: int = 0
    stood_already: bool = False
    read_at: tuple[tuple[str, int, int], ...] = ()  # place, how many shards it gave, their bytes

    @property
    def is_whole(self) -> bool:
        """Nothing is missing."""
        return not self.missing


class NameTaken(StorageError):
    """Something else stands under every name the checkpoint could have; it was not touched."""

    kind = "name-taken"


class _Taken(Exception):
    """Something else lies under the name; the next one is tried. Never leaves this module."""


def land(landing: Landing) -> Landed:
    """Bring the checkpoint to the target, and return it standing there whole, or in part.

    Raises:
        CopyFailed: a shard has sources and none of them gave its bytes.
        NameTaken: every name it may have is taken by something else.
        StorageError: the target failed; or the manifest names files of our own.
    """
    _require_foreign(landing)
    try:
        for name in _names(landing):
            with suppress(_Taken):
                return _land_beside_others(landing, name)
    except StorageError as error:
        if getattr(error.__cause__, "errno", None) in _FULL:
            # Nobody else gets room while we wait for some.
            discard_staging(landing.target, landing.staging)
        raise
    except OSError as error:  # a file where a directory should be, or the other way round
        raise StorageError(f"{landing.target.root}: {error}") from error
    where = f"{landing.target.root}/{join(landing.run_root, landing.manifest.name)}"
    raise NameTaken(
        f"{where}: stands already with other bytes",
        hint="name another directory, or move away what lies there",
    )


def _require_foreign(landing: Landing) -> None:
    """No layout takes our own files for shards; a manifest that names some was not written so."""
    for shard in landing.manifest.shards:
        path = join(landing.manifest.name, shard.path)
        if any(one == _OWN or one.startswith(TEMP_PREFIX) for one in path.split("/")):
            raise StorageError(
                f"{path}: is a name of ckptgov's own files; nothing is put there",
                hint="'ckptgov verify' tells whether the manifest is sound",
            )


def _land_beside_others(landing: Landing, name: str) -> Landed:
    """Another mover that is done first takes what was staged away with it: then look again."""
    for _ in range(MAX_RACES):
        try:
            return _land_as(landing, name)
        except FileNotFoundError as error:
            failure: Exception = error
        except StorageError as error:
            if not _stands(landing, name):
                raise
            failure = error
    raise StorageError(
        f"{landing.target.root}/{landing.staging}: what is staged there keeps going away",
        hint="something else removes it; is another tool cleaning up that directory?",
    ) from failure


def _stands(landing: Landing, name: str) -> bool:
    """Whether every shard has its name and size by now; says nothing about bytes."""
    with suppress(CkptgovError, OSError):
        found = stat_shards(landing.target, landing.base(name), landing.shards)
        return all(
            (stat := found[one.path]) is not None and stat.bytes == one.bytes
            for one in landing.shards
        )
    return False


def _land_as(landing: Landing, name: str) -> Landed:
    _require_form(landing, name)
    if not landing.target.traits.has_directories:
        return _land_under_keys(landing, name)
    if landing.form is Form.DIRECTORY and landing.only is None:
        return _land_as_directory(landing, name)
    return _land_as_files(landing, name)


def _require_form(landing: Landing, name: str) -> None:
    """_Taken where something of another form has the name: looks would seek the shards there."""
    if landing.form is Form.FILE:
        return
    stat = _stat_or_none(landing.target, join(landing.run_root, name))
    if stat is None:
        return
    is_directory = stat.kind is EntryKind.DIR
    if landing.form is Form.GROUP:
        is_hidden = is_directory and landing.may_take_attempt_name
    else:
        is_hidden = not is_directory
    if is_hidden:
        raise _Taken


def form_of(manifest: Manifest, base: str, run_root: str) -> Form:
    """How a checkpoint lies whose shards hang from ``base``."""
    if manifest.shards[0].path == "":
        return Form.FILE
    return Form.DIRECTORY if base == join(run_root, manifest.name) else Form.GROUP


def _names(landing: Landing) -> Iterator[str]:
    own = landing.manifest.name
    yield own
    if landing.may_take_attempt_name:
        for number in range(1, MAX_ATTEMPTS):
            yield attempt_name(number, without_attempt(own))


def _land_as_directory(landing: Landing, name: str) -> Landed:
    landed: Landed | None = None
    try:
        landed = _brought_as_directory(landing, name)
    finally:
        if landed is None or landed.missing or landed.stood_already:
            # Whoever was quicker took the file that was being written along with what was staged.
            with suppress(CkptgovError, OSError):
                _clear_leftovers(landing.target, join(landing.run_root, name))
    return landed


def _brought_as_directory(landing: Landing, name: str) -> Landed:
    target, full = landing.target, join(landing.run_root, name)
    if _stat_or_none(target, full) is not None:
        return _accept(landing, name)
    arrived = _copy_all(landing, landing.shards, landing.staged)
    missing = _missing(landing, arrived)
    if missing:
        return _landed(landing, name, arrived, missing)
    arrived = _all_proven(landing, arrived)
    missing = _missing(landing, arrived)
    if missing:
        return _landed(landing, name, arrived, missing)
    _clear_leftovers(target, landing.staging)
    try:
        target.rename_dir(landing.staging, full)
    except FileExistsError:
        return _accept(landing, name)  # another mover was quicker
    if not _stands(landing, name):
        # A straggler may clear away what is staged (restores and full tiers do) until it moves.
        with suppress(CkptgovError, OSError):
            target.rename_dir(full, landing.staging)
        raise StorageError(
            f"{target.root}/{full}: a part of it was removed as it was put in place",
            hint="flush it again: what is still there is used",
        )
    return _landed(landing, name, arrived, ())


def _land_as_files(landing: Landing, name: str) -> Landed:
    """Files among those of other checkpoints: each is linked to its own free name."""
    target, base = landing.target, landing.base(name)
    stood = _standing(landing, name)
    wanted = [shard for shard in landing.shards if shard.path not in stood]
    arrived = _copy_all(landing, wanted, landing.staged)
    missing = _missing(landing, [*stood.values(), *arrived])
    if missing:
        return _landed(landing, name, [*stood.values(), *arrived], missing)
    arrived = _all_proven(landing, arrived)
    missing = _missing(landing, [*stood.values(), *arrived])
    if missing:
        return _landed(landing, name, [*stood.values(), *arrived], missing)
    in_order = sorted(arrived, key=lambda one: is_marker(one.shard.path))
    placed = [_linked(landing, one, join(base, one.shard.path)) for one in in_order]
    discard_staging(target, landing.staging)  # only now: whoever misses it finds all in place
    placed = [_settled(target, one) for one in placed]
    return _landed(landing, name, [*stood.values(), *placed], ())


def _land_under_keys(landing: Landing, name: str) -> Landed:
    """Nothing is sent before what stands there was compared: it may be another checkpoint's."""
    base = landing.base(name)
    stats = stat_shards(landing.target, base, landing.shards)
    there: list[Arrived] = []
    for shard in landing.shards:
        stat = stats[shard.path]
        if stat is None:
            continue
        if stat.kind is not EntryKind.FILE or stat.bytes != shard.bytes:
            raise _Taken
        one = _stood(shard, join(base, shard.path), stat)
        there.append(replace(one, resumed_bytes=stat.bytes))
    stood = _all_proven(landing, there, is_staged=False)
    if len(stood) < len(there):
        return _landed(landing, name, stood, _missing(landing, stood))
    wanted = [shard for shard in landing.shards if stats[shard.path] is None]
    arrived = _copy_all(landing, wanted, lambda shard: join(base, shard.path))
    missing = _missing(landing, [*stood, *arrived])
    if missing:
        return _landed(landing, name, [*stood, *arrived], missing)
    arrived = [*stood, *_all_proven(landing, arrived, is_staged=False)]
    return _landed(landing, name, arrived, _missing(landing, arrived))


def _accept(landing: Landing, name: str) -> Landed:
    """What stands under the name, if it is this checkpoint: compared, then taken as arrived."""
    stood = _standing(landing, name)
    if len(stood) < len(landing.shards):
        raise _Taken
    discard_staging(landing.target, landing.staging)
    return _landed(landing, name, list(stood.values()), ())


def _standing(landing: Landing, name: str) -> dict[str, Arrived]:
    """The shards that stand under the name, compared; _Taken where something else does."""
    base = landing.base(name)
    stats = stat_shards(landing.target, base, landing.shards)
    there = [(shard, stat) for shard in landing.shards if (stat := stats[shard.path]) is not None]
    if any(stat.kind is not EntryKind.FILE or stat.bytes != shard.bytes for shard, stat in there):
        raise _Taken
    stood = {}
    for shard, stat in there:
        try:
            stood[shard.path] = read_back(
                landing.target, _stood(shard, join(base, shard.path), stat)
            )
        except WrongArrival as error:
            raise _Taken from error
    return stood


def _stood(shard: Shard, path: str, stat: FileStat) -> Arrived:
    return Arrived(shard=shard, path=path, stat=stat, proof=ArrivalProof.NONE, place=None)


def _copy_all(
    landing: Landing, shards: Sequence[Shard], path_of: Callable[[Shard], str]
) -> list[Arrived]:
    """Everything that has a source or is there already; markers after all others."""
    arrived: list[Arrived] = []
    for is_last in (False, True):
        wave = [one for one in shards if is_marker(one.path) is is_last]
        if is_last and len(arrived) < len(shards) - len(wave):
            break  # a marker must not vouch for shards that are still on their way
        copies = []
        for shard in wave:
            path, sources = path_of(shard), landing.sources.get(shard.path, ())
            if sources:
                copies.append(ShardCopy(shard=shard, path=path, sources=sources))
            elif (stat := _stat_or_none(landing.target, path)) is not None:
                arrived.append(_stood(shard, path, stat))
        arrived += copy_shards(
            copies, landing.target, settings=landing.copying, on_fault=landing.on_fault
        )
    return arrived


def _stat_or_none(target: Storage, path: str) -> FileStat | None:
    try:
        return target.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _missing(landing: Landing, arrived: Sequence[Arrived]) -> tuple[str, ...]:
    there = {one.shard.path for one in arrived}
    return tuple(shard.path for shard in landing.shards if shard.path not in there)


def _all_proven(
    landing: Landing, arrived: Sequence[Arrived], *, is_staged: bool = True
) -> list[Arrived]:
    """Those whose bytes were compared as demanded, a few at a time; all, unless told to stop."""
    stopper = Stopper(landing.copying.stop)

    def prove(one: Arrived) -> Arrived:
        return _proven(landing, one, is_staged=is_staged)

    done = in_parallel(arrived, prove, threads=landing.copying.threads, stopper=stopper)
    return [proven for _, proven in done]


def _proven(landing: Landing, one: Arrived, *, is_staged: bool = True) -> Arrived:
    """The shard with its bytes compared as the tier's proof demands.

    What stood there already is always compared: nobody here saw it arrive. A staged file with
    wrong bytes is removed and, unless it was written just now, copied once more.
    """
    if one.place is not None and (
        landing.proof is Proof.NONE
        or (landing.proof is Proof.ARRIVAL_CHECKSUM and one.proof is ArrivalProof.CHECKSUM)
    ):
        return one
    try:
        return read_back(landing.target, one)
    except WrongArrival as error:
        if not is_staged and (one.place is None or not _is_as_sent(landing.target, one)):
            raise _Taken from error  # another's object, there before or put in the place of ours
        landing.target.remove(one.path)
        if one.place is not None:
            raise
    sources = landing.sources.get(one.shard.path, ())
    copies = [ShardCopy(shard=one.shard, path=one.path, sources=sources)]
    for again in copy_shards(
        copies, landing.target, settings=landing.copying, on_fault=landing.on_fault
    ):
        return _proven(landing, again)
    raise Stopped


def _is_as_sent(target: Storage, one: Arrived) -> bool:
    stat = _stat_or_none(target, one.path)
    return stat is not None and stat.token.same_content(one.stat.token)


def _linked(landing: Landing, one: Arrived, path: str) -> Arrived:
    """The staged shard under its own name, or what another mover put there, compared."""
    target = landing.target
    try:
        target.link(one.path, path)
    except FileExistsError:
        stat = target.stat(path)
        try:
            return read_back(target, _stood(one.shard, path, stat))
        except WrongArrival as error:
            raise _Taken from error
    return replace(one, path=path)


def _settled(target: Storage, one: Arrived) -> Arrived:
    """As it stands with one name only: each link, made or removed, changes the ctime."""
    stat = target.stat(one.path)
    if not stat.token.same_content(one.stat.token):
        raise StorageError(f"{target.root}/{one.path}: changed as it was put in place")
    return replace(one, stat=stat)


def _landed(
    landing: Landing, name: str, arrived: Sequence[Arrived], missing: tuple[str, ...]
) -> Landed:
    is_compared = not missing and (
        landing.proof is not Proof.NONE or all(one.place is None for one in arrived)
    )
    read_at: dict[str, tuple[int, int]] = {}
    for one in arrived:
        if one.place is not None:
            shards, bytes_ = read_at.get(one.place, (0, 0))
            read_at[one.place] = (shards + 1, bytes_ + one.shard.bytes)
    return Landed(
        name=name,
        tokens=tuple((one.shard.path, one.stat.token) for one in arrived) if is_compared else (),
        missing=missing,
        sent_bytes=sum(one.sent_bytes for one in arrived),
        resumed_bytes=sum(one.resumed_bytes for one in arrived),
        stood_already=not missing and all(one.place is None for one in arrived),
        read_at=tuple((place, *counts) for place, counts in sorted(read_at.items())),
    )


def _clear_leftovers(target: Storage, directory: str) -> None:
    """Temporary names of movers that died; a living one takes its own away."""
    for pending in target.pending(directory):
        if not pending.is_held:
            with suppress(StorageError):
                target.forget(pending)


def discard_staging(target: Storage, directory: str) -> None:
    """Remove what is staged; what cannot be removed is left to reconcile."""
    with suppress(CkptgovError, OSError):
        _clear_leftovers(target, directory)
    # A temporary name that is still there is a living mover's.
    remove_below(target, directory, keeps=lambda entry: entry.name.startswith(TEMP_PREFIX))
