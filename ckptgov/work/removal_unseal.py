"""The first half of a removal: the tombstone, then receipt and manifest to the trash."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

from ckptgov.errors import CkptgovError, OverCapacity
from ckptgov.manifest.forms.manifests import encode_manifest
from ckptgov.manifest.forms.receipts import encode_receipt
from ckptgov.manifest.names import file_name_of
from ckptgov.model.checkpoint import digits_of
from ckptgov.storage.contract import Storage
from ckptgov.work import trash as trashes
from ckptgov.work.removal_case import Case
from ckptgov.work.trash import MANIFEST, RECEIPT, entry_name

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def new_entry(case: Case, now_ns: int) -> str:
    """The path of the entry that a removal begun now gets."""
    day = trashes.date_of(now_ns)
    return f"{trashes.trash_of(case.store)}/{day}/{entry_name(case.manifest.name, case.receipt)}"


def unseal(case: Case, entry: str, tombstone: Callable[[], None]) -> None:
    """The record, then the receipt and the manifest to the entry: nothing is sealed any more.

    Where there is no room for record or entry, what the manifest takes is freed for them.

    Raises:
        OverCapacity: that was not enough. The checkpoint's own files are whole.
    """
    has_directories = case.storage.traits.has_directories
    try:
        tombstone()
        _enter(case, entry)
    except (CkptgovError, OSError) as error:
        if not has_directories or not is_full(error):
            raise
        _without_room(case, entry, tombstone)


def _without_room(case: Case, entry: str, tombstone: Callable[[], None]) -> None:
    """The manifest first: without it nothing is sealed, whatever else goes."""
    _remove_own_files(case)
    try:
        tombstone()
        case.storage.make_dirs(entry, like=case.store.run_root)
    except (CkptgovError, OSError) as error:
        if not is_full(error):
            raise
        with suppress(CkptgovError, OSError):  # back to how it was, which had room
            case.store.publish_manifest(case.manifest)
            case.store.publish_receipt(case.manifest.name, case.receipt)
        raise OverCapacity(
            f"{case.where}: there is no room even for the record of its removal",
            hint="free a few KiB on the tier; the checkpoint's own files were not touched",
        ) from error
    # Without them it can be purged and not undone.
    with suppress(CkptgovError, OSError):
        _publish_same(case.storage, f"{entry}/{RECEIPT}", encode_receipt(case.receipt))
        _publish_same(case.storage, f"{entry}/{MANIFEST}", encode_manifest(case.manifest))


def is_full(error: BaseException) -> bool:
    """Whether a call failed for want of room: space, inodes or a quota."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OverCapacity) or getattr(seen, "errno", None) in _FULL:
            return True
        seen = seen.__cause__
    return False


def _enter(case: Case, entry: str) -> None:
    storage, sidecar = case.storage, case.store.sidecar
    assert case.stored is not None
    manifest = f"{sidecar}/manifests/{case.stored.file}"
    if storage.traits.has_directories:
        storage.make_dirs(entry, like=case.store.run_root)
        if case.receipt_file is not None:
            _move_over(storage, f"{sidecar}/receipts/{case.receipt_file}", f"{entry}/{RECEIPT}")
        _move_over(storage, manifest, f"{entry}/{MANIFEST}")
    else:
        _publish_same(storage, f"{entry}/{RECEIPT}", encode_receipt(case.receipt))
        _publish_same(storage, f"{entry}/{MANIFEST}", encode_manifest(case.manifest))
        with suppress(FileNotFoundError):
            storage.remove(manifest)
    remove_receipts(case)


def _move_over(storage: Storage, source: str, target: str) -> None:
    """Rename one of our own files; what a removal that was undone left under the name goes."""
    try:
        storage.rename(source, target)
    except FileExistsError:
        storage.remove(target)
        storage.rename(source, target)


def _publish_same(storage: Storage, path: str, raw: bytes) -> None:
    try:
        storage.publish(path, [raw])
    except FileExistsError:
        if trashes.read_if_there(storage, path) != raw:
            storage.replace(path, [raw])


def _remove_own_files(case: Case) -> None:
    assert case.stored is not None
    with suppress(FileNotFoundError):
        case.storage.remove(f"{case.store.sidecar}/manifests/{case.stored.file}")
    remove_receipts(case)


def remove_receipts(case: Case) -> None:
    """Those left of this checkpoint: they would vouch for the files of a later one."""
    key = (file_name_of(case.manifest.name), digits_of(case.manifest.content_id)[:16])
    for _number, name in case.store.receipts().get(key, []):
        with suppress(FileNotFoundError):
            case.storage.remove(f"{case.store.sidecar}/receipts/{name}")
