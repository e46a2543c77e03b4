"""A removal where there is no room: for the record of it, or for the trash it goes to.

What takes no room goes first: a file system without a free byte still renames, and often makes a
directory. Then the manifest's own bytes are given up, and last those of the checkpoint, one file
after the other, markers first: it was to go anyway, and can then be purged and not undone. None of
its files goes while room at this place would not help.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ckptgov.errors import CkptgovError, OverCapacity, StaleState
from ckptgov.layouts.markers import is_marker
from ckptgov.layouts.tree import join
from ckptgov.manifest.forms.manifests import encode_manifest
from ckptgov.manifest.forms.receipts import encode_receipt
from ckptgov.manifest.names import file_name_of, receipt_file_name
from ckptgov.model.checkpoint import digits_of
from ckptgov.storage.contract import Storage
from ckptgov.work import trash as trashes
from ckptgov.work.removal_case import Case, is_full, shared_shards
from ckptgov.work.trash import FILES, MANIFEST, PROBE, RECEIPT

_PROBE_BYTES = 4096
"""More than a record has."""


def want_of_room(call: Callable[[], None]) -> Exception | None:
    """Make a call; what it raised for want of room, None where it was done."""
    try:
        call()
    except (CkptgovError, OSError) as error:
        if not is_full(error):
            raise
        return error
    return None


def record_before(case: Case, entry: str, tombstone: Callable[[], None]) -> None:
    """Write the record into the room of the manifest: nothing is sealed without it, whatever else
    goes. Then of the receipt, that a later call could have gone on by.

    Raises:
        OverCapacity: that was not enough; nothing but these may be gone.
    """
    assert case.stored is not None
    _keep_receipt(case, entry)
    _drop(case.storage, f"{case.store.sidecar}/manifests/{case.stored.file}")
    for but in (case.receipt_file, None):
        remove_receipts(case, but=but)
        error = want_of_room(tombstone)
        if error is None:
            return
    with suppress(CkptgovError, OSError):  # back to how it was, which had room
        case.store.publish_manifest(case.manifest)
        case.store.publish_receipt(case.manifest.name, case.receipt)
    raise _no_room(case) from error


def _keep_receipt(case: Case, entry: str) -> None:
    """Back from the entry, if it got so far: there it would not tell which name it is of."""
    name, content_id = case.manifest.name, case.manifest.content_id
    key = (file_name_of(name), digits_of(content_id)[:16])
    newest = max((number for number, _ in case.store.receipts().get(key, [])), default=0)
    file = case.receipt_file or receipt_file_name(name, content_id, newest + 1)
    with suppress(FileNotFoundError):
        want_of_room(
            lambda: case.storage.rename(
                f"{entry}/{RECEIPT}", f"{case.store.sidecar}/receipts/{file}"
            )
        )


def record_after(case: Case, entry: str, tombstone: Callable[[], None]) -> None:
    """Write the record once manifest and receipt are in the entry.

    Raises:
        OverCapacity: it is not this place that has no room; or all its files were not enough.
    """
    probe = f"{entry}/{PROBE}"

    def try_out() -> None:
        with suppress(FileExistsError):
            case.storage.publish(probe, [bytes(_PROBE_BYTES)])

    is_elsewhere = want_of_room(try_out) is None  # then room here is no use
    if not is_elsewhere:
        _freeing(case, try_out)
    _drop(case.storage, probe)
    error = want_of_room(tombstone)
    if error is None:
        return
    if is_elsewhere:
        _seal_again(case, entry)
    raise _no_room(case) from error


def enter_without_room(case: Case, entry: str) -> None:
    """Make the entry, and room for it as long as there is anything to make it of.

    The receipt stays where it is until then: with the tombstone it tells a later call how far
    this one came.
    """

    def enter() -> None:
        case.storage.make_dirs(f"{entry}/{FILES}", like=case.store.run_root)
        publish_same(case.storage, f"{entry}/{RECEIPT}", encode_receipt(case.receipt))
        if not case.is_known_by_receipt:
            publish_same(case.storage, f"{entry}/{MANIFEST}", encode_manifest(case.manifest))

    _freeing(case, enter)


def _freeing(case: Case, call: Callable[[], None]) -> None:
    """Make a call until it has room, or nothing is left that could make it."""
    if want_of_room(call) is None:
        return
    standing = case.standing()
    shared = shared_shards(case)
    going = [path for path in standing.ours if path not in shared]
    for path in sorted(going, key=lambda path: not is_marker(path)):
        with suppress(FileNotFoundError, StaleState):
            case.storage.remove(join(standing.base, path), only=case.tokens[path])
        if want_of_room(call) is None:
            return


def _seal_again(case: Case, entry: str) -> None:
    """As far as that goes: what stands is whole, and a scan seals it again too."""
    storage, sidecar = case.storage, case.store.sidecar
    if case.stored is None:
        return
    with suppress(CkptgovError, OSError):
        storage.rename(f"{entry}/{MANIFEST}", f"{sidecar}/manifests/{case.stored.file}")
        if case.receipt_file is not None:
            storage.rename(f"{entry}/{RECEIPT}", f"{sidecar}/receipts/{case.receipt_file}")
        storage.remove_tree(entry)


def _no_room(case: Case) -> OverCapacity:
    return OverCapacity(
        f"{case.where}: there is no room even for the record of its removal",
        hint="free a few KiB on the tier, and on the one that keeps the run's journal",
    )


def _drop(storage: Storage, path: str) -> None:
    with suppress(FileNotFoundError):
        storage.remove(path)


def publish_same(storage: Storage, path: str, raw: bytes) -> None:
    """Let a file of our own have these bytes."""
    try:
        storage.publish(path, [raw])
    except FileExistsError:
        if trashes.read_if_there(storage, path) != raw:
            storage.replace(path, [raw])


def remove_receipts(case: Case, *, but: str | None = None) -> None:
    """Those left of this checkpoint: they would vouch for the files of a later one."""
    key = (file_name_of(case.manifest.name), digits_of(case.manifest.content_id)[:16])
    for _number, name in case.store.receipts().get(key, []):
        if name != but:
            _drop(case.storage, f"{case.store.sidecar}/receipts/{name}")
