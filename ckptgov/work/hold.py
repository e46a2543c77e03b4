"""Hold a checkpoint that its trainer may rotate away before it has arrived elsewhere.

Each shard gets a second name under ``.ckptgov/held/<content id>/``: no bytes are copied, and none
are lost when the trainer removes the first name. Space is given back when the hold is released.
An overwrite in place goes through to the held name too; the flush compares every byte anyway.
"""

from __future__ import annotations

from contextlib import suppress

from ckptgov.errors import StorageError
from ckptgov.layouts.tree import join
from ckptgov.model.files import EntryKind
from ckptgov.work.copyproof import base_of
from ckptgov.work.look import RunLook, SealedCopy
from ckptgov.work.owned import HELD, contents_in, directory_of, remove_below


def hold(look: RunLook, copy: SealedCopy) -> bool:
    """Give every sound shard its second name; whether all of them have one now.

    False where the tier has no hard links, or a shard went away first.
    """
    storage, manifest = look.place.storage, copy.manifest
    if not storage.traits.has_links:
        return False
    base = base_of(storage, look.run_root, manifest)
    where = directory_of(look.store.sidecar, HELD, manifest.content_id)
    for path in copy.proof.sound:
        try:
            storage.link(join(base, path), _held_name(where, manifest.name, path))
        except FileExistsError:
            continue
        except (OSError, StorageError):  # it went away; or something lies where we hold
            return False
    return True


def held_shards(look: RunLook, copy: SealedCopy) -> dict[str, str]:
    """Shard path to its held name below the place's root, of those with the right size."""
    storage, manifest = look.place.storage, copy.manifest
    where = directory_of(look.store.sidecar, HELD, manifest.content_id)
    found: dict[str, str] = {}
    for shard in manifest.shards:
        path = _held_name(where, manifest.name, shard.path)
        with suppress(FileNotFoundError, NotADirectoryError):
            stat = storage.stat(path)
            if stat.kind is EntryKind.FILE and stat.bytes == shard.bytes:
                found[shard.path] = path
    return found


def held_contents(look: RunLook) -> frozenset[str]:
    """Content ids of which a hold stands at the place."""
    if not look.place.storage.traits.has_links:
        return frozenset()
    return contents_in(look.place.storage, look.store.sidecar, HELD)


def release(look: RunLook, content_id: str) -> None:
    """Take the second names away; what cannot be removed is left to the next release."""
    remove_below(look.place.storage, directory_of(look.store.sidecar, HELD, content_id))


def _held_name(where: str, name: str, path: str) -> str:
    return join(where, path or name.rpartition("/")[2])
