"""The first half of a removal: the tombstone, then receipt and manifest to the trash."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ckptgov.errors import CkptgovError
from ckptgov.manifest.forms.manifests import encode_manifest
from ckptgov.manifest.forms.receipts import encode_receipt
from ckptgov.storage.contract import Storage
from ckptgov.work import trash as trashes
from ckptgov.work.purge import drop_entry
from ckptgov.work.removal_case import Case
from ckptgov.work.removal_room import (
    enter_without_room,
    publish_same,
    record_after,
    record_before,
    want_of_room,
)
from ckptgov.work.trash import FILES, MANIFEST, RECEIPT, entry_name


def new_entry(case: Case, now_ns: int) -> str:
    """The path of the entry that a removal begun now gets."""
    day = trashes.date_of(now_ns)
    return f"{trashes.trash_of(case.store)}/{day}/{entry_name(case.manifest.name, case.receipt)}"


def unseal(
    case: Case, entry: str, *, tombstone: Callable[[], None], still: Callable[[], None]
) -> None:
    """The record, then the receipt and the manifest to the entry: nothing is sealed any more.

    ``still`` is asked when the entry is made, and nothing makes that later: for a process that was
    stopped after this, while others moved the copy and brought it back, there is no entry any
    more, and it takes nothing.

    Raises:
        OverCapacity: there is no room for the record; see ``removal_room``.
    """
    if not case.storage.traits.has_directories:
        tombstone()
        _copy_in(case, entry)
        return
    is_recorded = want_of_room(tombstone) is None
    is_made = want_of_room(lambda: _make(case, entry)) is None
    if is_made:
        _ask(case, entry, still)
    if not is_made or want_of_room(lambda: _move_in(case, entry)) is not None:
        record_before(case, entry, tombstone)
        enter_without_room(case, entry)
    elif not is_recorded:
        record_after(case, entry, tombstone)


def _copy_in(case: Case, entry: str) -> None:
    assert case.stored is not None
    storage = case.storage
    publish_same(storage, f"{entry}/{RECEIPT}", encode_receipt(case.receipt))
    publish_same(storage, f"{entry}/{MANIFEST}", encode_manifest(case.manifest))
    with suppress(FileNotFoundError):
        storage.remove(f"{case.store.sidecar}/manifests/{case.stored.file}")


def _make(case: Case, entry: str) -> None:
    case.storage.make_dirs(f"{entry}/{FILES}", like=case.store.run_root)


def _ask(case: Case, entry: str, still: Callable[[], None]) -> None:
    try:
        still()
    except BaseException:
        with suppress(CkptgovError, OSError):  # another one's is not empty
            case.storage.remove_dir(f"{entry}/{FILES}")
            drop_entry(case.store, entry)
        raise


def _move_in(case: Case, entry: str) -> None:
    assert case.stored is not None
    storage, sidecar = case.storage, case.store.sidecar
    if case.receipt_file is not None:
        _move_over(storage, f"{sidecar}/receipts/{case.receipt_file}", f"{entry}/{RECEIPT}")
    _move_over(storage, f"{sidecar}/manifests/{case.stored.file}", f"{entry}/{MANIFEST}")


def _move_over(storage: Storage, source: str, target: str) -> None:
    """Rename one of our own files; what a removal that was undone left under the name goes."""
    try:
        storage.rename(source, target, parents=False)
    except FileExistsError:
        storage.remove(target)
        storage.rename(source, target, parents=False)
