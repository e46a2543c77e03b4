"""One copy on its way out: what is known of it, and what else lies where it lies."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from ckptgov.errors import ForeignPlace, OverCapacity, RefusedBySafety, StaleState
from ckptgov.layouts.survey import is_checkpoint
from ckptgov.layouts.tree import join, split
from ckptgov.manifest.names import MAX_NAME_BYTES, file_name_of, percent_decode
from ckptgov.model.checkpoint import Manifest, Receipt, Shard, digits_of
from ckptgov.model.files import Entry, EntryKind, FileStat, Token
from ckptgov.storage.contract import Storage
from ckptgov.work import trash as trashes
from ckptgov.work.leaving import standing_tombstones
from ckptgov.work.look import RunLook
from ckptgov.work.runstore import SIDECAR, RunStore, StoredManifest
from ckptgov.work.tier import Place, read_identity
from ckptgov.work.trash import Standing, entry_name, standing_shards

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Case(Struct, kw_only=True):
    """A copy at a place, as its own files tell it, or as an entry of the trash does.

    ``receipt_file`` is None where the receipt is in the entry already, ``stored`` where the
    manifest is. ``entry`` is None where none was begun. ``listed`` are all manifests here.
    ``is_known_by_receipt``: a removal that found no room lost the manifest; the one here has only
    what the receipt knows.
    """

    place: Place
    store: RunStore
    manifest: Manifest
    receipt: Receipt
    receipt_file: str | None = None
    stored: StoredManifest | None = None
    entry: str | None = None
    listed: tuple[StoredManifest, ...]
    is_known_by_receipt: bool = False

    @property
    def storage(self) -> Storage:
        """Where it lies."""
        return self.store.storage

    @property
    def where(self) -> str:
        """Its path, for people."""
        return f"{self.place.root}/{join(self.store.run_root, self.manifest.name)}"

    @property
    def is_single(self) -> bool:
        """Whether it is one file."""
        return self.manifest.shards[0].path == ""

    @property
    def tokens(self) -> dict[str, Token]:
        """What was verified here, by shard."""
        return dict(self.receipt.tokens)

    @property
    def shards(self) -> list[Shard]:
        """The shards that this place is to hold."""
        tokens = self.tokens
        return [one for one in self.manifest.shards if one.path in tokens]

    def standing(self) -> Standing:
        """What stands in its place now."""
        return standing_shards(self.storage, self.store.run_root, self.manifest, self.receipt)


def require_identity(place: Place) -> None:
    """Raise ForeignPlace unless the root is the place it is taken for."""
    identity = read_identity(place.storage)
    if place.uuid is None or identity is None or identity.place != place.uuid:
        raise ForeignPlace(
            f"{place.root}: is not the registered place it should be; nothing is removed there",
            hint="is the file system mounted? 'ckptgov tier check' tells more",
        )


def store_through(place: Place, look_or_store: RunLook | RunStore) -> RunStore:
    """The run's own files, through the storage that was given for this."""
    store = look_or_store.store if isinstance(look_or_store, RunLook) else look_or_store
    return RunStore(place.storage, store.run_root, sidecar=store.sidecar)


def sealed_case(place: Place, store: RunStore, content_id: str) -> Case:
    """The copy by its manifest, which stands.

    Raises:
        StaleState: it is not sealed here, or was never verified here.
        RefusedBySafety: it lies here under two names.
    """
    prefix, listed = digits_of(content_id)[:16], store.manifests()
    found = [
        (stored, manifest)
        for stored in listed
        if stored.content_prefix == prefix
        and (manifest := store.manifest(stored)).content_id == content_id
    ]
    if not found:
        raise not_here(place, content_id)
    if len(found) == 1:
        return _with_receipt(place, store, *found[0], listed)
    cases: list[Case] = []
    for stored, manifest in found:
        with suppress(StaleState):
            cases.append(_with_receipt(place, store, stored, manifest, listed))
    lying = [one for one in cases if one.standing().ours]
    if len(lying) > 1:
        names = " and ".join(sorted(one.manifest.name for one in lying))
        raise RefusedBySafety(
            f"{place.root}/{store.run_root}: the same checkpoint lies here twice: {names}",
            hint="remove the name that is not wanted",
        )
    if not cases:
        raise not_here(place, content_id)
    return (lying or cases)[0]  # the others were rewritten since (last.ckpt is, at every save)


def _with_receipt(
    place: Place,
    store: RunStore,
    stored: StoredManifest,
    manifest: Manifest,
    listed: tuple[StoredManifest, ...],
) -> Case:
    """The receipt stands in its own place, or in an entry that was begun before a kill."""
    assert place.uuid is not None
    for item in store.receipts().get((stored.encoded_name, stored.content_prefix), []):
        receipt = store.newest_receipt([item], place.uuid, notes=[])
        if receipt is not None and receipt.content_id == manifest.content_id:
            own = entry_name(manifest.name, receipt)
            return Case(
                place=place,
                store=store,
                manifest=manifest,
                receipt=receipt,
                receipt_file=item[1],
                stored=stored,
                entry=next(iter(trashes.entry_paths(store, own)), None),
                listed=listed,
            )
    begun = f"{stored.content_prefix}.{trashes.name_mark(manifest.name)}"
    for path in reversed(trashes.entry_paths(store, begun)):
        receipt = trashes.read_receipt(store, path)
        if receipt is not None and receipt.content_id == manifest.content_id:
            return Case(
                place=place,
                store=store,
                manifest=manifest,
                receipt=receipt,
                stored=stored,
                entry=path,
                listed=listed,
            )
    raise StaleState(
        f"{place.root}/{join(store.run_root, manifest.name)}: no receipt tells what was verified "
        "here; left alone",
        hint="'ckptgov verify' makes one",
    )


def trashed_case(place: Place, store: RunStore, content_id: str) -> Case | None:
    """The copy by its entry in the trash; None where no entry tells of it."""
    paths = trashes.entry_paths(store, digits_of(content_id)[:16])
    listed = store.manifests() if paths else ()
    cases = [
        Case(
            place=place,
            store=store,
            manifest=one.manifest,
            receipt=one.receipt,
            entry=one.trash,
            listed=listed,
        )
        for one in (trashes.read_entry(store, path) for path in reversed(paths))
        if one.content_id == content_id and one.manifest is not None and one.receipt is not None
    ]
    # One that was moved earlier may wait beside one that is being moved.
    moving = (one for one in cases if one.standing().ours)
    return next(moving, cases[0] if cases else None)


def receipted_case(place: Place, store: RunStore, content_id: str) -> Case | None:
    """The copy by its receipt and its tombstone: all that a removal without room leaves at first.

    None where there is no such receipt.
    """
    assert place.uuid is not None
    prefix = digits_of(content_id)[:16]
    for (encoded, own), numbered in store.receipts().items():
        if own != prefix or len(encoded) > MAX_NAME_BYTES - 3:  # a name that was cut tells nothing
            continue
        receipt = store.newest_receipt(numbered, place.uuid, notes=[])
        if receipt is None or receipt.content_id != content_id:
            continue
        if content_id in standing_tombstones(store.journal().records, place.uuid):
            name = percent_decode(encoded.replace("%2f", "/"), encoded)
            return Case(
                place=place,
                store=store,
                manifest=trashes.known_by_receipt(name, receipt),
                receipt=receipt,
                listed=store.manifests(),
                is_known_by_receipt=True,
            )
    return None


def is_full(error: BaseException) -> bool:
    """Whether a call failed for want of room: space, inodes or a quota."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OverCapacity) or getattr(seen, "errno", None) in _FULL:
            return True
        seen = seen.__cause__
    return False


def not_here(place: Place, content_id: str) -> StaleState:
    """What to raise where a copy is not."""
    return StaleState(f"{place.root}: {content_id[:23]} is not sealed here any more")


def require_unchanged(case: Case, standing: Standing) -> None:
    """Raise StaleState where anything stands in its place that was not verified."""
    if standing.others:
        raise StaleState(
            f"{join(case.where, min(standing.others))}: is not what was verified here; nothing "
            "was touched",
            hint="a scan tells what it is now",
        )


def extras_of(case: Case, standing: Standing) -> dict[str, FileStat]:
    """Files beside the shards in the checkpoint's own directory, by path below it.

    Raises:
        RefusedBySafety: another checkpoint, a run or a mount lies there.
    """
    if not standing.is_directory or not case.storage.traits.has_directories:
        return {}
    _refuse_named_below(case)
    extras: dict[str, FileStat] = {}
    shards = {one.path for one in case.manifest.shards}
    try:
        device = case.storage.stat(standing.base).device
    except (FileNotFoundError, NotADirectoryError):
        return {}
    todo = [""]
    while todo:
        below = todo.pop()
        directory = join(standing.base, below)
        entries = case.storage.list(directory)
        _refuse_run_root(case, directory, entries)
        strange = [path for one in entries if (path := join(below, one.name)) not in shards]
        for path, stat in _stats(case.storage, directory, strange).items():
            if stat.device != device:
                raise _refused(case, path, "another file system is mounted there")
            if stat.kind is EntryKind.DIR:
                _refuse_checkpoint(case, standing, path, shards)
                todo.append(path)
            else:
                extras[path] = stat
    return extras


def are_somebodys(case: Case, look: RunLook, extras: Mapping[str, FileStat]) -> bool:
    """Whether extras may be a part of another save, which was not sealed yet: one was written after
    the checkpoint was compared, or more than one save is seen under its name. Then they stay."""
    if not extras:
        return False  # before the run is walked for nothing
    if any(one.mtime_ns > case.receipt.verified_at_ns for one in extras.values()):
        return True
    saves = (one for one in look.survey.found if one.name == case.manifest.name)
    return len(tuple(saves)) > 1


def _stats(storage: Storage, directory: str, paths: Sequence[str]) -> dict[str, FileStat]:
    stats = storage.stat_many(directory, [split(path)[1] for path in paths])
    return {path: stat for path, stat in zip(paths, stats, strict=True) if stat is not None}


def _refuse_named_below(case: Case) -> None:
    """No manifest may name what lies in the directory, but the one that goes."""
    encoded = file_name_of(case.manifest.name)
    for one in case.listed:
        is_cut = len(one.encoded_name) > MAX_NAME_BYTES - 3  # then its end is missing
        if not (one.encoded_name.startswith(f"{encoded}%2f") or is_cut):
            continue
        manifest = trashes.readable(case.store, one)
        if manifest is not None and manifest.name.startswith(f"{case.manifest.name}/"):
            raise _refused(case, manifest.name, "that is another checkpoint of the run")


def _refuse_run_root(case: Case, directory: str, entries: Sequence[Entry]) -> None:
    if any(one.name == SIDECAR for one in entries):
        raise _refused(case, directory, "that is the root of a run")


def _refuse_checkpoint(case: Case, standing: Standing, path: str, shards: Iterable[str]) -> None:
    """Only a directory without a shard of this one can be another checkpoint."""
    if any(shard.startswith(f"{path}/") for shard in shards):
        return
    if is_checkpoint(case.storage, join(standing.base, path)):
        raise _refused(case, path, "that is another checkpoint")


def _refused(case: Case, path: str, why: str) -> RefusedBySafety:
    return RefusedBySafety(
        f"{case.where}: holds {path}, and {why}; nothing was touched",
        hint="move one of the two elsewhere",
    )


def shared_shards(case: Case) -> frozenset[str]:
    """Shards that another set under the same name has too, as far as it stands here."""
    assert case.place.uuid is not None
    return trashes.claimed_by_others(case.store, case.manifest, case.place.uuid, case.listed)
