"""Take one checkpoint's copy away from one place: measured, moved aside, purged, or put back.

No catalog: who may go was decided before. Each call looks at what stands and goes on from there,
so that after a kill the same call finishes. The order is the reverse of sealing: a tombstone
record, then the receipt and the manifest go to the trash (from here on nothing is sealed), then
the files, markers first; the purge ends with the entry's own files. Nothing is touched whose token
is not the receipt's, nothing is followed that is a symlink, and nothing goes by a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec import Struct

from ckptgov.model.checkpoint import digits_of
from ckptgov.model.files import EntryKind, FileStat
from ckptgov.work.leaving import standing_tombstones
from ckptgov.work.look import RunLook
from ckptgov.work.purge import Purged, purge
from ckptgov.work.put_back import is_coming_back, put_back
from ckptgov.work.removal_case import (
    Case,
    are_somebodys,
    extras_of,
    not_here,
    receipted_case,
    require_identity,
    require_unchanged,
    sealed_case,
    shared_shards,
    store_through,
    trashed_case,
)
from ckptgov.work.removal_files import (
    Moved,
    Stop,
    ask,
    dangling,
    drop_empty_parents,
    files_below,
    move_files,
    moved_into,
    sizes,
)
from ckptgov.work.removal_room import enter_without_room, record_after, remove_receipts
from ckptgov.work.removal_unseal import new_entry, unseal
from ckptgov.work.runstore import RunStore
from ckptgov.work.tier import Place
from ckptgov.work.trash import (
    FILES,
    date_of,
    entry_paths,
    trash_entries,
    trash_of,
)

__all__ = [
    "Freed",
    "Purged",
    "Trashed",
    "is_coming_back",
    "measure",
    "move_aside",
    "purge",
    "put_back",
    "trash_entries",
]


class Freed(Struct, frozen=True, kw_only=True):
    """What removing a copy would free.

    ``bytes`` are those that no other name holds. They and ``files`` count the ``extras`` too:
    files in its own directory that are no shards (paths below the checkpoint) and go with it.
    ``size_bytes`` is the size of its shards that are here, freed or not.
    """

    bytes: int
    files: int
    extras: tuple[str, ...]
    size_bytes: int


class Trashed(Struct, frozen=True, kw_only=True):
    """A copy that was moved aside, or of which something resisted.

    ``trash`` is its entry, below the place's root. ``left`` tells what resisted (path and why):
    call again later. ``extras`` as in :class:`Freed`; ``dangling`` are framework pointers (paths
    below the place's root) that lead to nothing now, left as they are. ``note`` says what else
    became of it.
    """

    trash: str
    moved_files: int
    moved_bytes: int
    left: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    dangling: tuple[str, ...] = ()
    note: str = ""


def measure(place: Place, look: RunLook, content_id: str) -> Freed:
    """What removing the copy at this place would free, now. Writes nothing.

    Raises:
        StaleState: it is not sealed here, or a shard is not what was verified.
        RefusedBySafety: something else lies in its directory; or it lies here twice.
        ForeignPlace: the root is another place's, or nobody's.
        StorageError: it could not be looked at.
    """
    require_identity(place)
    case = sealed_case(place, store_through(place, look), content_id)
    standing = case.standing()
    require_unchanged(case, standing)
    extras = extras_of(case, standing)
    shared = shared_shards(case)
    goes_along = {} if shared or are_somebodys(case, look, extras) else extras
    going = [stat for path, stat in standing.ours.items() if path not in shared]
    going += goes_along.values()
    return Freed(
        bytes=_own_bytes(going),
        files=len(going),
        extras=tuple(sorted(goes_along)),
        size_bytes=sizes(standing.ours.values()),
    )


def _own_bytes(stats: Iterable[FileStat]) -> int:
    """Bytes that no name beside these holds."""
    names: dict[tuple[int, int], list[FileStat]] = {}
    total = 0
    for one in stats:
        if one.kind is not EntryKind.FILE:
            continue
        if one.links <= 1:
            total += one.bytes
        else:
            names.setdefault((one.device, one.inode), []).append(one)
    return total + sum(same[0].bytes for same in names.values() if len(same) >= same[0].links)


def move_aside(
    place: Place,
    look: RunLook,
    content_id: str,
    *,
    now_ns: int,
    tombstone: Callable[[], None],
    still: Callable[[], None],
    stop: Stop | None = None,
) -> Trashed:
    """Move the copy at this place to the run's trash; called again, go on with it.

    ``tombstone`` writes the record where the journal is kept and at this place. It is called
    before anything is touched, again by each call that finds the manifest still standing, and
    once more where there was no room for it; so it must do nothing where its record stands. (On a
    full tier the manifest goes before it, and a file of the checkpoint may have to; what is left
    can then be purged and not undone.) ``still`` raises where this removal is over for the caller;
    it is asked between that and the first move. A file that is gone already is no error.

    Raises:
        StaleState: it is not sealed here, or a shard is not what was verified: nothing was
            touched; or another thing took its place in between and is where it was.
        RefusedBySafety: its directory holds another checkpoint, a run or a mount, or it lies here
            under two names: nothing was touched.
        OverCapacity: there is no room for the record, and none that this place could make:
            nothing but the manifest may be gone, and a scan seals it again.
        ForeignPlace: the root is another place's, or nobody's: nothing was touched.
        PathEscapes: a symlink stands in its place: nothing of it was touched.
        FileNotFoundError: the entry is gone: another process came to the end of this, and perhaps
            brought it back; nothing more was taken.
        StorageError: storage failed; some of it may be moved. Call again.
        Interrupted: ``stop`` said so. Call again.
    """
    require_identity(place)
    ask(stop)
    store = store_through(place, look)
    if store.manifests_of(content_id):
        case = sealed_case(place, store, content_id)
        if case.entry is None or case.receipt_file is not None:  # else its receipt went before
            standing = case.standing()
            require_unchanged(case, standing)
            extras_of(case, standing)  # refuses what may not go along
        entry = case.entry or new_entry(case, now_ns)
        unseal(case, entry, tombstone=tombstone, still=still)
        return _moved(case, look, entry, stop)
    found = trashed_case(place, store, content_id)
    if found is not None and found.entry is not None:
        if content_id not in standing_tombstones(store.journal().records, place.uuid):
            record_after(found, found.entry, tombstone)
        return _moved(found, look, found.entry, stop)
    begun = receipted_case(place, store, content_id)
    if begun is None:
        return _without_names(place, store, content_id, now_ns)
    entry = new_entry(begun, now_ns)
    enter_without_room(begun, entry)
    return _moved(begun, look, entry, stop)


def _moved(case: Case, look: RunLook, entry: str, stop: Stop | None) -> Trashed:
    trashed = _with_files(case, look, entry, stop)
    if not trashed.left:
        remove_receipts(case)
    return trashed


def _with_files(case: Case, look: RunLook, entry: str, stop: Stop | None) -> Trashed:
    standing = case.standing()
    if not case.storage.traits.has_directories:  # nothing is moved: the objects stay
        return Trashed(
            trash=entry, moved_files=len(standing.ours), moved_bytes=sizes(standing.ours.values())
        )
    left = move_files(case, look, standing, entry, stop)
    is_taken = bool(case.standing().others)
    if not left and not is_taken:
        drop_empty_parents(case)
    moved: Moved = moved_into(case, entry)
    return Trashed(
        trash=entry,
        moved_files=moved.files,
        moved_bytes=moved.bytes,
        left=tuple(left),
        extras=moved.extras,
        dangling=dangling(case),
        note="something else has taken its place since, and was left there" if is_taken else "",
    )


def _without_names(place: Place, store: RunStore, content_id: str, now_ns: int) -> Trashed:
    """An entry without its receipt: there was no room for it, or a purge has come so far.

    Raises:
        StaleState: there is none, nor a record that this was ever begun.
    """
    storage = store.storage
    for path in reversed(entry_paths(store, digits_of(content_id)[:16])):
        files: tuple[str, ...] = ()
        with suppress(FileNotFoundError, NotADirectoryError):
            files = files_below(storage, f"{path}/{FILES}", {})
        return Trashed(
            trash=path,
            moved_files=len(files),
            moved_bytes=sum(storage.stat(f"{path}/{FILES}/{one}").bytes for one in files),
            note="what an undelete needs is not there",
        )
    if content_id not in standing_tombstones(store.journal().records, place.uuid):
        raise not_here(place, content_id)
    nothing = f"{digits_of(content_id)[:16]}.{'0' * 16}"
    return Trashed(
        trash=f"{trash_of(store)}/{date_of(now_ns)}/{nothing}",
        moved_files=0,
        moved_bytes=0,
        note="nothing of it was left to be moved",
    )
