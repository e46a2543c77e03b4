"""The end of what was moved aside: its files, then the entry's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

from ckptgov.errors import CkptgovError, PathEscapes, StaleState
from ckptgov.layouts.markers import is_marker
from ckptgov.layouts.tree import join, split
from ckptgov.model.checkpoint import Manifest, Receipt, digits_of
from ckptgov.storage.contract import Storage
from ckptgov.work import trash as trashes
from ckptgov.work.leaving import Leaving
from ckptgov.work.look import RunLook
from ckptgov.work.removal_case import is_full, require_identity, store_through
from ckptgov.work.removal_files import Stop, ask, each, in_words, sizes
from ckptgov.work.runstore import RunStore
from ckptgov.work.tier import Place
from ckptgov.work.trash import (
    FILES,
    MANIFEST,
    PROBE,
    PURGING,
    RECEIPT,
    Standing,
    claimed_by_others,
    standing_shards,
)


class Purged(Struct, frozen=True, kw_only=True):
    """What a purge removed; ``left`` tells what resisted: call again later."""

    files: int
    bytes: int
    left: tuple[str, ...] = ()


def purge(
    place: Place,
    look_or_store: RunLook | RunStore,
    content_id: str,
    trash: str,
    *,
    stop: Stop | None = None,
) -> Purged:
    """Remove an entry of the trash for good; called again, go on with it. Needs no room.

    What is to go is put out of the reach of an undelete first, so that a process that was stopped
    for long and goes on here takes nothing of what another one has brought back meanwhile.

    On an object store exactly the objects go that the entry names, in the state it names them.

    Raises:
        PathEscapes: the path is none of an entry of this checkpoint in this run's trash.
        StaleState: its manifest still stands: it was not moved aside.
        ForeignPlace: the root is another place's, or nobody's: nothing was touched.
        StorageError: it could not be looked at.
        Interrupted: ``stop`` said so. Call again.
    """
    require_identity(place)
    store = store_through(place, look_or_store)
    prefix = digits_of(content_id)[:16]
    if not trashes.is_entry(store, trash) or not split(trash)[1].startswith(f"{prefix}."):
        raise PathEscapes(f"{trash}: is no entry of {content_id[:23]} in this run's trash")
    has_directories = store.storage.traits.has_directories
    if has_directories:
        purged = _purge_tree(store, trash, stop)
    else:
        purged = _purge_keys(place, store, trash, stop)
    if purged.left:
        return purged
    left = [*_resisting(store.storage, f"{trash}/{PROBE}")] if has_directories else []
    left += _resisting(store.storage, f"{trash}/{RECEIPT}")
    left += [] if has_directories else _resisting(store.storage, f"{trash}/{PURGING}")
    left += _resisting(store.storage, f"{trash}/{MANIFEST}")
    left += drop_entry(store, trash) if not left else []
    return Purged(files=purged.files, bytes=purged.bytes, left=tuple(left))


def _purge_tree(store: RunStore, trash: str, stop: Stop | None) -> Purged:
    ask(stop)
    earlier = _emptied(store.storage, f"{trash}/{PURGING}", stop)
    if earlier.left:
        return earlier
    now = _emptied(store.storage, _out_of_reach(store.storage, trash), stop)
    return Purged(files=earlier.files + now.files, bytes=earlier.bytes + now.bytes, left=now.left)


def _out_of_reach(storage: Storage, trash: str) -> str:
    """Rename what lies in an entry to where no undelete looks for it; where it is then."""
    files, purging = f"{trash}/{FILES}", f"{trash}/{PURGING}"
    try:
        storage.rename_dir(files, purging)
    except FileNotFoundError:
        pass  # nothing is left, or it was brought back
    except (CkptgovError, OSError) as error:
        if not is_full(error):
            raise
        return files  # not even a name fits: room goes first
    return purging


def _emptied(storage: Storage, directory: str, stop: Stop | None) -> Purged:
    removed = storage.remove_tree(directory, gone=lambda _count: ask(stop))
    left = list(removed.left)
    if left and removed.error is not None:
        left[0] = in_words(left[0], removed.error)
    return Purged(files=removed.files, bytes=removed.bytes, left=tuple(left))


def _purge_keys(place: Place, store: RunStore, trash: str, stop: Stop | None) -> Purged:
    entry = trashes.read_entry(store, trash)
    if entry.manifest is None or entry.damage:
        is_there = trashes.read_if_there(store.storage, f"{trash}/{MANIFEST}") is not None
        return Purged(files=0, bytes=0, left=(f"{trash}: {entry.damage}",) if is_there else ())
    if entry.receipt is None:
        return Purged(files=0, bytes=0)  # they went before it
    standing = standing_shards(store.storage, store.run_root, entry.manifest, entry.receipt)
    listed = store.manifests()
    claimed = claimed_by_others(store, entry.manifest, entry.receipt.place, listed)
    is_new = _announce(store.storage, trash)
    try:
        if _is_sealed_again(place, store, entry.manifest):
            return Purged(files=0, bytes=0)  # not ours any more
    except StaleState:
        if is_new:
            with suppress(CkptgovError, FileNotFoundError):
                store.storage.remove(f"{trash}/{PURGING}")
        raise
    return _purge_objects(store.storage, standing, entry.receipt, claimed, stop)


def _announce(storage: Storage, trash: str) -> bool:
    """Say in the entry that its objects go, before the last look at whether they may.

    An undelete publishes the manifest and then looks for this: of the two, one sees the other.
    """
    try:
        storage.publish(f"{trash}/{PURGING}", [])
    except FileExistsError:
        return False
    except (CkptgovError, OSError) as error:
        if not is_full(error):
            raise
        return False  # room goes first
    return True


def _purge_objects(
    storage: Storage,
    standing: Standing,
    receipt: Receipt,
    claimed: frozenset[str],
    stop: Stop | None,
) -> Purged:
    """Exactly the objects that the entry names, and no other set of this name does."""
    tokens = dict(receipt.tokens)

    def remove(path: str) -> str:
        full = join(standing.base, path)
        try:
            storage.remove(full, only=tokens[path])
        except (FileNotFoundError, StaleState):
            return ""  # gone; or another one has the key, and that is not ours
        except (CkptgovError, OSError) as error:
            return in_words(full, error)
        return ""

    going = standing.ours.keys() - claimed
    ordered = sorted(going, key=lambda path: (not is_marker(path), path))
    left = tuple(text for text in each(storage, ordered, remove, stop) if text)
    return Purged(
        files=len(going) - len(left),
        bytes=0 if left else sizes(standing.ours[path] for path in going),
        left=left,
    )


def _is_sealed_again(place: Place, store: RunStore, manifest: Manifest) -> bool:
    """Whether its manifest stands, and counts: the same bytes were brought here anew.

    Raises:
        StaleState: it stands since before.
    """
    assert place.uuid is not None
    stored = store.manifests_of(manifest.content_id)
    if not stored:
        return False
    leaving = Leaving(store, place.uuid, store.journal().records)
    if not all(leaving.counts(one, manifest) for one in stored):
        raise StaleState(f"{manifest.name}: its manifest still stands; it was not moved aside")
    return True


def _resisting(storage: Storage, path: str) -> Iterator[str]:
    try:
        storage.remove(path)
    except FileNotFoundError:
        return
    except (CkptgovError, OSError) as error:
        yield in_words(path, error)


def drop_entry(store: RunStore, trash: str) -> list[str]:
    """Remove the empty directory of an entry, and of its date after the last; what resisted."""
    if not store.storage.traits.has_directories:
        return []
    try:
        store.storage.remove_dir(trash)
    except FileNotFoundError:
        pass
    except (CkptgovError, OSError) as error:
        return [in_words(trash, error)]
    with suppress(CkptgovError, OSError):  # another one of that date
        store.storage.remove_dir(split(trash)[0])
    return []
