"""A run's trash: what was moved aside at one place, and what is on its way there.

::

    <sidecar>/trash/<YYYY-MM-DD>/<content id, 16 hex>.<name, 8 hex><tokens, 8 hex>/
        receipt.json    the place's newest receipt, as it stood
        manifest.json   the manifest, as it stood; while it is here nothing is sealed from it
        files/          what was moved: the directory itself under its own last name, or files
                        under their shard's path (a single file under its own last name)
        purging/        the same, once a purge has begun: nobody brings it back from here

An entry's name tells of which checkpoint's which incarnation it is without a file being opened:
the last two parts are the beginnings of SHA-256 over the checkpoint's name, and over what the
receipt's tokens say of bytes. A checkpoint that was made again has other tokens, so its removal
gets another entry, and what lies in an older one says nothing about it.

On object stores nothing is moved: an entry has the two files, and the objects stay where they are
until they are purged by the exact names in them. There ``purging`` is an empty object.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, date, datetime

from msgspec import Struct

from ckptgov.errors import Malformed, StorageError
from ckptgov.layouts.tree import join, split
from ckptgov.manifest.forms.manifests import decode_manifest
from ckptgov.manifest.forms.receipts import decode_receipt
from ckptgov.manifest.names import file_name_of
from ckptgov.model.checkpoint import Manifest, Receipt, Shard, StepKind, digits_of
from ckptgov.model.files import EntryKind, FileStat, Token
from ckptgov.storage.contract import Storage
from ckptgov.work.copyproof import stat_shards
from ckptgov.work.owned import TRASH, names_in
from ckptgov.work.runstore import MAX_FILE_BYTES, RunStore, StoredManifest

CLOCKS_APART_NS = 300 * 10**9
"""How far a store's clock may lie from that of whoever verified an object."""

MANIFEST, RECEIPT, FILES, PURGING = "manifest.json", "receipt.json", "files", "purging"
PROBE = "room"
"""A file that tries out whether anything has room; it stays only where that was killed."""

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ENTRY = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{8})([0-9a-f]{8})")


class TrashEntry(Struct, frozen=True, kw_only=True):
    """One entry of a trash. ``trash`` is its path below the place's root.

    ``moved``: nothing of it stands where it was (on an object store: its manifest does not).
    ``damage`` says what is wrong with an entry that cannot be told; then ``content_id`` and
    ``name`` are empty, whatever else is known is given, and nothing is guessed.
    """

    trash: str
    since: date
    content_id: str
    name: str
    manifest: Manifest | None
    receipt: Receipt | None
    moved: bool
    damage: str = ""


class Standing(Struct, frozen=True, kw_only=True):
    """What stands in a checkpoint's place: ``ours`` have the receipt's tokens, ``others`` not.

    ``base`` is what the shards' paths hang from; ``is_directory`` that it is the checkpoint's own.
    """

    base: str
    is_directory: bool
    ours: dict[str, FileStat]
    others: dict[str, FileStat]


def trash_of(store: RunStore) -> str:
    """Where a run's trash lies."""
    return f"{store.sidecar}/{TRASH}"


def entry_name(name: str, receipt: Receipt) -> str:
    """What the entry of one incarnation of a checkpoint is called."""
    prefix = digits_of(receipt.content_id)[:16]
    return f"{prefix}.{name_mark(name)}{token_mark(receipt.tokens)}"


def name_mark(name: str) -> str:
    """The part that stands for the checkpoint's name."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def token_mark(tokens: Iterable[tuple[str, Token]]) -> str:
    """The part that stands for the state of the files: equal while ``same_content`` holds."""
    said = hashlib.sha256()
    for path, one in sorted(tokens):
        raw = path.encode("utf-8", "surrogateescape")
        what = one.etag if one.etag is not None else f"{one.mtime_ns} {one.inode}"
        said.update(b"%d:%b\0%d %b\n" % (len(raw), raw, one.bytes, what.encode()))
    return said.hexdigest()[:8]


def date_of(now_ns: int) -> str:
    """The date an entry is filed under, UTC."""
    return datetime.fromtimestamp(now_ns // 10**9, UTC).date().isoformat()


def is_entry(store: RunStore, trash: str) -> bool:
    """Whether a path is one that an entry of this run's trash may have."""
    directory, name = split(trash)
    above, day = split(directory)
    is_named = _DATE.fullmatch(day) is not None and _ENTRY.fullmatch(name) is not None
    return above == trash_of(store) and is_named


def entry_paths(store: RunStore, prefix: str = "") -> tuple[str, ...]:
    """Paths of the entries whose names begin so, oldest date first.

    Raises:
        StorageError: the trash could not be listed.
    """
    top = trash_of(store)
    return tuple(
        f"{top}/{day}/{name}"
        for day in names_in(store.storage, top)
        if _DATE.fullmatch(day)
        for name in names_in(store.storage, f"{top}/{day}")
        if name.startswith(prefix) and _ENTRY.fullmatch(name)
    )


def trash_entries(store: RunStore) -> tuple[TrashEntry, ...]:
    """Everything in the run's trash at this place, by path.

    Raises:
        StorageError: the trash, or what stands in a checkpoint's place, could not be looked at.
    """
    return tuple(read_entry(store, path) for path in entry_paths(store))


def read_entry(store: RunStore, path: str) -> TrashEntry:
    """One entry as it lies."""
    since = date.fromisoformat(split(split(path)[0])[1])
    receipt = read_receipt(store, path)
    manifest, damage = _manifest_of(store, path)
    if manifest is not None:
        damage = _disagreement(path, manifest, receipt)
    if manifest is None or damage:
        return TrashEntry(
            trash=path,
            since=since,
            content_id="",
            name="",
            manifest=manifest,
            receipt=receipt,
            moved=has_files(store, path),
            damage=damage,
        )
    return TrashEntry(
        trash=path,
        since=since,
        content_id=manifest.content_id,
        name=manifest.name,
        manifest=manifest,
        receipt=receipt,
        moved=_is_moved(store, manifest, receipt),
    )


def read_receipt(store: RunStore, path: str) -> Receipt | None:
    """The receipt of an entry; None where there is none that decodes."""
    raw = read_if_there(store.storage, f"{path}/{RECEIPT}")
    if raw is None:
        return None
    try:
        return decode_receipt(raw, where=f"{path}/{RECEIPT}")
    except Malformed:
        return None


def _manifest_of(store: RunStore, path: str) -> tuple[Manifest | None, str]:
    raw = read_if_there(store.storage, f"{path}/{MANIFEST}")
    if raw is None:
        return None, f"has no {MANIFEST}"
    try:
        return decode_manifest(raw, where=f"{path}/{MANIFEST}"), ""
    except Malformed as error:
        return None, error.message


def _disagreement(path: str, manifest: Manifest, receipt: Receipt | None) -> str:
    prefix, mark = marks_of(path)
    if not digits_of(manifest.content_id).startswith(prefix) or name_mark(manifest.name) != mark:
        return f"its {MANIFEST} is of another checkpoint"
    if receipt is not None and receipt.content_id != manifest.content_id:
        return f"its {RECEIPT} is of another checkpoint"
    return ""


def marks_of(path: str) -> tuple[str, str]:
    """The beginning of the content id, and the mark of the name, that an entry is called by."""
    found = _ENTRY.fullmatch(split(path)[1])
    return (found[1], found[2]) if found else ("", "")


def has_files(store: RunStore, path: str) -> bool:
    """Whether anything of a checkpoint lies in an entry."""
    for directory in (FILES, PURGING):
        with suppress(FileNotFoundError, NotADirectoryError):
            if store.storage.list(f"{path}/{directory}"):
                return True
    return False


def claimed_by_others(
    store: RunStore, manifest: Manifest, place: str, listed: Iterable[StoredManifest]
) -> frozenset[str]:
    """Shards that another set under the same name has here too, as far as it stands.

    ``listed``: the manifests that stand here, or those of them that may matter.
    """
    encoded, own = file_name_of(manifest.name), digits_of(manifest.content_id)[:16]
    claimed: set[str] = set()
    for one in listed:
        if one.encoded_name != encoded or one.content_prefix == own:
            continue
        other = readable(store, one)
        if other is None or other.name != manifest.name:
            continue
        numbered = store.receipts().get((one.encoded_name, one.content_prefix), [])
        receipt = store.newest_receipt(numbered, place, notes=[])
        if receipt is not None:
            claimed |= standing_shards(store.storage, store.run_root, other, receipt).ours.keys()
    return frozenset(claimed)


def readable(store: RunStore, stored: StoredManifest) -> Manifest | None:
    """A manifest that stands; None where it does not decode, or went away meanwhile."""
    try:
        return store.manifest(stored)
    except (Malformed, FileNotFoundError):
        return None


def _is_moved(store: RunStore, manifest: Manifest, receipt: Receipt | None) -> bool:
    if not store.storage.traits.has_directories:
        return not store.manifests_of(manifest.content_id)
    if receipt is None:
        return True  # it went with the purge, which comes after the move
    standing = standing_shards(store.storage, store.run_root, manifest, receipt)
    if not standing.ours or standing.others:
        return True
    claimed = claimed_by_others(store, manifest, receipt.place, store.manifests())
    return standing.ours.keys() <= claimed


def standing_shards(
    storage: Storage, run_root: str, manifest: Manifest, receipt: Receipt
) -> Standing:
    """Compare what stands in the checkpoint's place with the tokens of a receipt.

    Raises:
        StorageError: it could not be looked at.
        PathEscapes: a symlink stands where a directory of it should be.
    """
    full = join(run_root, manifest.name)
    tokens = dict(receipt.tokens)
    shards = [one for one in manifest.shards if one.path in tokens]
    is_single = manifest.shards[0].path == ""
    found: list[Standing] = []
    for base in (full, split(full)[0]) if _may_be_group(manifest) else (full,):
        ours: dict[str, FileStat] = {}
        others: dict[str, FileStat] = {}
        for path, stat in stat_shards(storage, base, shards).items():
            if stat is not None:
                (ours if _is_same(stat, tokens[path], receipt) else others)[path] = stat
        is_own = not is_single and base == full
        found.append(Standing(base=base, is_directory=is_own, ours=ours, others=others))
        if ours:
            return found[-1]
    return next((one for one in found if one.others), found[0])


def _is_same(stat: FileStat, token: Token, receipt: Receipt) -> bool:
    """Whether it is what was verified. The same bytes stored again have the same ETag: then it is
    the time they were stored that tells, as far as two clocks can."""
    is_stored_since = (
        token.etag is not None and stat.mtime_ns > receipt.verified_at_ns + CLOCKS_APART_NS
    )
    return stat.kind is EntryKind.FILE and stat.token.same_content(token) and not is_stored_since


def known_by_receipt(name: str, receipt: Receipt) -> Manifest:
    """What a receipt alone tells of a checkpoint: its files and their sizes."""
    return Manifest(
        content_id=receipt.content_id,
        name=name,
        step=None,
        step_kind=StepKind.NONE,
        layout="",
        world_size=None,
        purposes=(),
        shards=tuple(Shard(path, token.bytes, "") for path, token in receipt.tokens),
    )


def _may_be_group(manifest: Manifest) -> bool:
    """Files beside other checkpoints' begin with the name that they share."""
    stem = split(manifest.name)[1]
    return all(one.path.startswith(stem) for one in manifest.shards)


def read_if_there(storage: Storage, path: str) -> bytes | None:
    """A small file's bytes; None where there is none."""
    try:
        with storage.open(path) as file:
            size = file.stat().bytes
            if size > MAX_FILE_BYTES:
                raise StorageError(f"{path}: {size} bytes, more than the {MAX_FILE_BYTES} allowed")
            return file.read_at(0, size)
    except (FileNotFoundError, NotADirectoryError):
        return None
