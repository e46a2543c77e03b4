"""Undo of a removal while its files lie in the trash."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from ckptgov.errors import PathEscapes, StaleState, StorageError
from ckptgov.layouts.markers import is_marker
from ckptgov.layouts.tree import join, split
from ckptgov.model.checkpoint import Manifest, Receipt
from ckptgov.model.files import FileStat
from ckptgov.work import trash as trashes
from ckptgov.work.copyproof import stat_shards
from ckptgov.work.leaving import Leaving
from ckptgov.work.look import RunLook
from ckptgov.work.purge import drop_entry
from ckptgov.work.removal_case import Case, require_identity, shared_shards, store_through
from ckptgov.work.removal_files import files_below, is_directory, lies_as_directory, own_directory
from ckptgov.work.runstore import RunStore, StoredManifest
from ckptgov.work.tier import Place
from ckptgov.work.trash import FILES, MANIFEST, PROBE, PURGING, RECEIPT, Standing, TrashEntry


def put_back(place: Place, look_or_store: RunLook | RunStore, trash: str) -> str:
    """Bring a checkpoint back from the trash; its name. Called again, go on with it.

    Its files are where they were, then its manifest. It has no receipt there, so it has to be
    verified before it counts, and the tombstone stands until somebody records that it is back.

    Raises:
        StaleState: nothing that could be put back is in the trash any more.
        StorageError: something else has its name by now, or a part of it is gone: what was not
            brought back yet stays in the trash.
        PathEscapes: the path is none of an entry in this run's trash.
        ForeignPlace: the root is another place's, or nobody's: nothing was touched.
    """
    require_identity(place)
    store = store_through(place, look_or_store)
    if not trashes.is_entry(store, trash):
        raise PathEscapes(f"{trash}: is no entry of this run's trash")
    entry = trashes.read_entry(store, trash)
    if entry.manifest is None:
        return _came_back(store, entry)
    if entry.damage or entry.receipt is None:
        raise StorageError(
            f"{trash}: {entry.damage or 'its files have gone already'}; it cannot be put back",
            hint="restore another copy of the checkpoint",
        )
    _bring_back(_case_of(place, store, entry, entry.manifest, entry.receipt), trash)
    _publish_again(store, trash, entry.manifest)
    _drop(store, trash)
    return entry.name


def is_coming_back(place: Place, look_or_store: RunLook | RunStore, trash: str) -> bool:
    """Whether :func:`put_back` was begun for an entry, and cut off: something of it stands where it
    was, or its manifest does and was not verified since. Something else there ends it.

    Raises:
        StorageError: it could not be looked at.
        PathEscapes: a symlink stands in its place.
    """
    assert place.uuid is not None
    store = store_through(place, look_or_store)
    published = _published_again(store, trash)
    if published is not None:
        return not Leaving(store, place.uuid, store.journal().records).counts(*published)
    entry = trashes.read_entry(store, trash)
    if entry.manifest is None or entry.receipt is None or entry.damage:
        return False  # a purge has come so far
    if not store.storage.traits.has_directories or _is_being_purged(store, trash):
        return False
    case = _case_of(place, store, entry, entry.manifest, entry.receipt)
    standing = case.standing()
    if not standing.ours or standing.others:
        return False
    aside = _aside(case, trash)
    back = standing.ours.keys() - aside.keys() - shared_shards(case) - _of_other_entries(case)
    return bool(back) and not _gone(case, standing, aside)  # what is not whole cannot come back


def _of_other_entries(case: Case) -> set[str]:
    """Shards that other entries of this name have too: it may be those that were left standing."""
    assert case.entry is not None
    mark = trashes.marks_of(case.entry)[1]
    others = [
        trashes.read_receipt(case.store, path)
        for path in trashes.entry_paths(case.store)
        if path != case.entry and trashes.marks_of(path)[1] == mark
    ]
    tokens = case.tokens
    return {
        path
        for receipt in others
        if receipt is not None
        for path, token in receipt.tokens
        if path in tokens and token.same_content(tokens[path])
    }


def _published_again(store: RunStore, trash: str) -> tuple[StoredManifest, Manifest] | None:
    """The manifest of an entry's checkpoint where it stands under its name."""
    prefix, mark = trashes.marks_of(trash)
    for stored in store.manifests():
        if stored.content_prefix == prefix:
            manifest = store.manifest(stored)
            if trashes.name_mark(manifest.name) == mark:
                return stored, manifest
    return None


def _case_of(
    place: Place, store: RunStore, entry: TrashEntry, manifest: Manifest, receipt: Receipt
) -> Case:
    return Case(
        place=place,
        store=store,
        manifest=manifest,
        receipt=receipt,
        entry=entry.trash,
        listed=store.manifests(),
    )


def _came_back(store: RunStore, entry: TrashEntry) -> str:
    """The name of a checkpoint whose manifest an earlier call put back already."""
    published = _published_again(store, entry.trash)
    if published is None:
        raise StaleState(
            f"{entry.trash}: nothing that could be put back lies there ({entry.damage})",
            hint="restore another copy of the checkpoint",
        )
    _drop(store, entry.trash)
    return published[1].name


def _drop(store: RunStore, trash: str) -> None:
    for name in (PROBE, RECEIPT) if store.storage.traits.has_directories else (RECEIPT,):
        with suppress(FileNotFoundError):
            store.storage.remove(f"{trash}/{name}")
    store.storage.remove_tree(f"{trash}/{FILES}", keeps=lambda _: True)  # empty directories only
    drop_entry(store, trash)


def _bring_back(case: Case, trash: str) -> None:
    storage, standing = case.storage, case.standing()
    is_own = lies_as_directory(case, trash)
    full = join(case.store.run_root, case.manifest.name)
    source, target = _source(case, trash), full if is_own or case.is_single else split(full)[0]
    aside = _aside(case, trash)
    _require_whole(case, standing, aside)
    if not aside:
        return
    try:
        if is_own and not is_directory(storage, full):
            storage.rename_dir(source, target)
            return
        paths = sorted(aside, key=is_marker)  # markers last
        if is_own:
            paths = [*files_below(storage, source, aside), *paths]
        for path in paths:
            storage.rename(join(source, path), join(target, path))
    except FileExistsError as error:
        raise _name_taken(target) from error


def _source(case: Case, trash: str) -> str:
    """What the shards' paths hang from in an entry."""
    if case.is_single or lies_as_directory(case, trash):
        return own_directory(trash, case.manifest)
    return f"{trash}/{FILES}"


def _aside(case: Case, trash: str) -> dict[str, FileStat]:
    """The shards that lie in an entry; on an object store none is moved."""
    if not case.storage.traits.has_directories:
        return {}
    found = stat_shards(case.storage, _source(case, trash), case.shards)
    return {path: stat for path, stat in found.items() if stat is not None}


def _gone(case: Case, standing: Standing, aside: Mapping[str, FileStat]) -> list[str]:
    """Shards that neither stand in their place nor lie in the entry."""
    there = standing.ours.keys() | aside.keys()
    return [one.path for one in case.shards if one.path not in there]


def _require_whole(case: Case, standing: Standing, aside: Mapping[str, FileStat]) -> None:
    gone = _gone(case, standing, aside)
    if standing.others:
        raise _name_taken(join(standing.base, min(standing.others)))
    if gone:
        raise StorageError(
            f"{case.where}: {len(gone)} of its {len(case.shards)} files are gone already; it is "
            "not put back",
            hint="restore another copy of the checkpoint",
        )


def _name_taken(path: str) -> StorageError:
    return StorageError(
        f"{path}: something else has this name by now; what is in the trash stays there",
        hint="move it elsewhere, then undelete again",
    )


def _publish_again(store: RunStore, trash: str, manifest: Manifest) -> None:
    """The manifest's own bytes go back under its name."""
    path = store.manifest_path(manifest)
    if store.storage.traits.has_directories:
        store.storage.make_dirs(split(path)[0], like=store.run_root)
        with suppress(FileExistsError):
            store.storage.rename(f"{trash}/{MANIFEST}", path)
            return
    _require_no_purge(store, trash)
    store.publish_manifest(manifest)  # or the same stands; Malformed where another does
    try:
        _require_no_purge(store, trash)  # one began before it could see the manifest
    except StorageError:
        with suppress(FileNotFoundError):
            store.storage.remove(path)
        raise
    with suppress(FileNotFoundError):
        store.storage.remove(f"{trash}/{MANIFEST}")


def _require_no_purge(store: RunStore, trash: str) -> None:
    """On object stores, what a purge has begun to remove stands where it stood."""
    if not store.storage.traits.has_directories and _is_being_purged(store, trash):
        raise StorageError(
            f"{trash}: its purge has begun; it cannot be put back",
            hint="restore another copy of the checkpoint",
        )


def _is_being_purged(store: RunStore, trash: str) -> bool:
    try:
        store.storage.stat(f"{trash}/{PURGING}")
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
