"""The ``.ckptgov`` directory of one run root: manifests, receipts, journal, identity.

Everything in it is create-once. A manifest or receipt that does not decode counts for nothing; a
journal record of a binding kind that does not decode makes the run unanswerable.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

from msgspec import Struct

from ckptgov.errors import Malformed, StorageError
from ckptgov.layouts.survey import is_trainers_own
from ckptgov.layouts.tree import join, split
from ckptgov.manifest.forms.identities import decode_run, encode_run
from ckptgov.manifest.forms.manifests import (
    decode_manifest,
    decode_manifest_header,
    decode_part,
    encode_manifest,
    encode_part,
)
from ckptgov.manifest.forms.receipts import decode_receipt, encode_receipt
from ckptgov.manifest.forms.records import decode_record, encode_record
from ckptgov.manifest.names import (
    file_name_of,
    manifest_file_name,
    parse_manifest_file_name,
    parse_receipt_file_name,
    parse_record_file_name,
    parse_restart_file_name,
    part_file_name,
    receipt_file_name,
    record_file_name,
    restart_file_name,
)
from ckptgov.model.checkpoint import Manifest, ManifestHeader, Part, Receipt, RunIdentity, digits_of
from ckptgov.model.facts import Note
from ckptgov.model.files import EntryKind
from ckptgov.model.journal import BINDING_KINDS, KIND_OF, NumberedRecord, Record, Restart
from ckptgov.storage.contract import Storage

SIDECAR = ".ckptgov"
FOREIGN = f"{SIDECAR}/foreign"
MAX_NUMBER_TRIES = 10_000
RECEIPTS_KEPT = 2
_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
MAX_FILE_BYTES = 256 * 2**20
"""The largest cap of any form (forms, version 1); more is refused unread."""


class StoredManifest(Struct, frozen=True):
    """A manifest file as its name tells it; nothing of it was read."""

    file: str
    encoded_name: str
    content_prefix: str


class JournalRead(Struct, frozen=True):
    """The journal in its own order, with notes on records that do not decode and do not bind."""

    records: tuple[NumberedRecord, ...]
    notes: tuple[Note, ...] = ()


class RunStore:
    """What ckptgov keeps of one run root. ``sidecar`` is a path below the storage's root."""

    def __init__(self, storage: Storage, run_root: str, *, sidecar: str | None = None) -> None:
        self.storage = storage
        self.run_root = run_root
        self.sidecar = sidecar if sidecar is not None else join(run_root, SIDECAR)

    def identity(self) -> RunIdentity | None:
        """``run.json``, or None when there is none. Raises Malformed when it does not decode."""
        path = f"{self.sidecar}/run.json"
        raw = self._read_if_there(path)
        return None if raw is None else decode_run(raw, where=path)

    def create(self, identity: RunIdentity) -> RunIdentity:
        """Write ``run.json`` unless one stands; returns the one that stands."""
        standing = self.identity()
        if standing is not None:
            return standing
        try:
            self._publish(f"{self.sidecar}/run.json", encode_run(identity))
        except FileExistsError:
            standing = self.identity()
            if standing is None:
                raise
            return standing
        return identity

    def manifests(self) -> tuple[StoredManifest, ...]:
        """Every manifest file by its name; files of other names are none of ours."""
        stored = []
        for name in self._names("manifests"):
            parsed = parse_manifest_file_name(name)
            if parsed is not None:
                stored.append(StoredManifest(name, parsed[0], parsed[1]))
        return tuple(stored)

    def manifests_of(self, content_id: str) -> tuple[StoredManifest, ...]:
        """Those whose file names begin the content id as this one does."""
        prefix = digits_of(content_id)[:16]
        return tuple(one for one in self.manifests() if one.content_prefix == prefix)

    def header(self, stored: StoredManifest) -> ManifestHeader:
        """The members before the shards, over a file whose ``self`` matches."""
        path = f"{self.sidecar}/manifests/{stored.file}"
        return decode_manifest_header(self._read(path), where=path)

    def manifest(self, stored: StoredManifest) -> Manifest:
        """The whole manifest; its content id must be the one its name says."""
        path = f"{self.sidecar}/manifests/{stored.file}"
        manifest = decode_manifest(self._read(path), where=path)
        if manifest_file_name(manifest.name, manifest.content_id) != stored.file:
            raise Malformed(f"{path}: names another checkpoint than its file name")
        return manifest

    def manifest_path(self, manifest: Manifest) -> str:
        """Where the manifest stands while its checkpoint is sealed here."""
        return f"{self.sidecar}/manifests/{manifest_file_name(manifest.name, manifest.content_id)}"

    def publish_manifest(self, manifest: Manifest) -> bool:
        """Seal: True when this call published it, False when the same one stood already."""
        path = self.manifest_path(manifest)
        raw = encode_manifest(manifest)
        try:
            self._publish(path, raw)
        except FileExistsError as error:
            if self._read(path) != raw:
                raise Malformed(
                    f"{path}: stands already with other bytes",
                    hint="move the file aside after comparing it with a good copy, then scan again",
                ) from error
            return False
        return True

    def receipts(self) -> dict[tuple[str, str], list[tuple[int, str]]]:
        """(encoded name, content prefix) to its (number, file name), highest number first."""
        found: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for name in self._names("receipts"):
            parsed = parse_receipt_file_name(name)
            if parsed is not None:
                found.setdefault((parsed[0], parsed[1]), []).append((parsed[2], name))
        for numbered in found.values():
            numbered.sort(reverse=True)
        return found

    def newest_receipt(
        self, numbered: Iterable[tuple[int, str]], place: str, *, notes: list[Note]
    ) -> Receipt | None:
        """The highest one of this place that decodes; one that does not counts for nothing."""
        for _number, name in numbered:
            path = f"{self.sidecar}/receipts/{name}"
            try:
                receipt = decode_receipt(self._read(path), where=path)
            except FileNotFoundError:
                continue
            except Malformed as error:
                notes.append(Note("unreadable-receipt", path, error.message))
                continue
            if receipt.place == place:
                return receipt
        return None

    def publish_receipt(self, name: str, receipt: Receipt) -> None:
        """Add a receipt under the next free number; all but the two newest go."""
        key = (file_name_of(name), digits_of(receipt.content_id)[:16])
        raw = encode_receipt(receipt)

        def path_of(number: int) -> str:
            return f"{self.sidecar}/receipts/{receipt_file_name(name, receipt.content_id, number)}"

        taken = self.receipts().get(key, [])
        self._publish_numbered(max((n for n, _ in taken), default=0) + 1, path_of, raw)
        for _number, old in taken[RECEIPTS_KEPT - 1 :]:
            self._remove_quietly(f"{self.sidecar}/receipts/{old}")

    def journal(self) -> JournalRead:
        """Every record, in order.

        Raises:
            Malformed: a record of a binding kind does not decode; leaving it out could offer what
                must not be offered.
        """
        records: list[NumberedRecord] = []
        notes: list[Note] = []
        for name in self._names("journal"):
            parsed = parse_record_file_name(name)
            is_restart = parse_restart_file_name(name) is not None
            if parsed is None and not is_restart:
                continue
            number, kind = parsed if parsed is not None else (0, "restart")
            path = f"{self.sidecar}/journal/{name}"
            try:
                record = decode_record(self._read(path), where=path)
                _check_kind(record, kind, path)
            except Malformed as error:
                if kind in BINDING_KINDS or kind not in KIND_OF.values():
                    raise Malformed(
                        f"{error.message}; an answer that ignores a {kind} record could be wrong",
                        hint="restore the record from another place of the run, or move it away "
                        "after judging what it said",
                    ) from error
                notes.append(Note("unreadable-record", path, error.message))
                continue
            records.append(NumberedRecord(number, record))
        records.sort(key=lambda item: (item.number, item.record.stamp.id))
        return JournalRead(tuple(records), tuple(notes))

    def append(self, record: Record) -> int:
        """Add a record under the next free number and return that number."""
        kind = KIND_OF[type(record)]
        raw = encode_record(record)
        numbers = [
            parsed[0]
            for name in self._names("journal")
            if (parsed := parse_record_file_name(name)) is not None
        ]
        return self._publish_journal(max(numbers, default=0) + 1, kind, raw)

    def adopt(self, number: int, kind: str, record: Record) -> int:
        """Add a record that another place of the run has, under its number there if it is free."""
        return self._publish_journal(max(number, 1), kind, encode_record(record))

    def _publish_journal(self, number: int, kind: str, raw: bytes) -> int:
        """Two kinds racing may share a number; readers order those by id, the same everywhere."""
        for candidate in range(number, number + MAX_NUMBER_TRIES):
            path = f"{self.sidecar}/journal/{record_file_name(candidate, kind)}"
            try:
                self._publish(path, raw)
            except FileExistsError:
                continue
            return candidate
        raise StorageError(f"{self.sidecar}/journal: no free number found")

    def publish_restart(self, record: Restart) -> Restart:
        """Decide one (restart id, epoch); returns the decision that won."""
        path = f"{self.sidecar}/journal/{restart_file_name(record.restart_id, record.epoch)}"
        try:
            self._publish(path, encode_record(record))
        except FileExistsError:
            return self.restart(record.restart_id, record.epoch) or record
        return record

    def restart(self, restart_id: str, epoch: int) -> Restart | None:
        """The decision of (restart id, epoch), or None when none was made."""
        path = f"{self.sidecar}/journal/{restart_file_name(restart_id, epoch)}"
        raw = self._read_if_there(path)
        if raw is None:
            return None
        record = decode_record(raw, where=path)
        if not isinstance(record, Restart) or record.restart_id != restart_id:
            raise Malformed(f"{path}: holds no decision for restart id {restart_id!r}")
        return record

    def parts(self, name: str | None = None) -> tuple[Part, ...]:
        """The parts that lie here and decode: of the save called ``name``, or of every one."""
        prefix = "" if name is None else file_name_of(name) + "."
        parts = []
        for file in self._names("parts"):
            if not file.startswith(prefix):
                continue
            path = f"{self.sidecar}/parts/{file}"
            try:
                part = decode_part(self._read(path), where=path)
            except Malformed:
                continue
            if name is None or part.name == name:
                parts.append(part)
        return tuple(parts)

    def publish_part(self, part: Part, *, group: str, member: int | str) -> None:
        """Write a part; an older one of the same group and member is replaced.

        Parts are working state on the way to a manifest, not facts: nothing is offered from them.
        """
        path = f"{self.sidecar}/parts/{part_file_name(part.name, group, member)}"
        raw = encode_part(part)
        if self._read_if_there(path) == raw:
            return
        self._ensure_directory(path)
        try:
            self.storage.publish(path, [raw])
        except FileExistsError:
            self.storage.replace(path, [raw])

    def _publish_numbered(self, number: int, path_of: Callable[[int], str], raw: bytes) -> int:
        for candidate in range(number, number + MAX_NUMBER_TRIES):
            try:
                self._publish(path_of(candidate), raw)
            except FileExistsError:
                continue
            return candidate
        raise StorageError(f"{path_of(number)}: no free number found")

    def _publish(self, path: str, raw: bytes) -> None:
        self._ensure_directory(path)
        self.storage.publish(path, [raw])

    def _ensure_directory(self, path: str) -> None:
        self.storage.make_dirs(split(path)[0], like=self.run_root)

    def _names(self, directory: str) -> list[str]:
        return [
            entry.name
            for entry in self._entries(f"{self.sidecar}/{directory}")
            if entry.kind is EntryKind.FILE
        ]

    def _entries(self, path: str) -> list[_Entry]:
        try:
            return [_Entry(one.name, one.kind) for one in self.storage.list(path)]
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            raise StorageError(f"{path}: is not a directory") from error

    def _read(self, path: str) -> bytes:
        with self.storage.open(path) as file:
            size = file.stat().bytes
            if size > MAX_FILE_BYTES:
                raise Malformed(f"{path}: {size} bytes, more than the {MAX_FILE_BYTES} allowed")
            return file.read_at(0, size + 1)

    def _read_if_there(self, path: str) -> bytes | None:
        try:
            return self._read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _remove_quietly(self, path: str) -> None:
        """Old receipts are tidied at leisure; the newest counts whether or not this works."""
        try:
            self.storage.remove(path)
        except (FileNotFoundError, StorageError):
            return


class _Entry(Struct, frozen=True):
    name: str
    kind: EntryKind


def store_at(storage: Storage, run_root: str) -> RunStore:
    """The run's store: beside its checkpoints, or under the tier root where that is read-only."""
    own = RunStore(storage, run_root)
    if run_root == "" or own.identity() is not None:
        return own
    foreign = RunStore(storage, run_root, sidecar=foreign_sidecar(run_root))
    return foreign if foreign.identity() is not None else own


def foreign_sidecar(run_root: str) -> str:
    """Where the tree of a run root lives that cannot be written."""
    return f"{FOREIGN}/{file_name_of(run_root)}"


def writable_store(store: RunStore, identity: RunIdentity) -> tuple[RunStore, RunIdentity]:
    """The store after ``run.json`` stands in it.

    Where the run root may not be written, or a trainer would take our directory for a save of its
    own, it moves under the tier root; any other failure (a full
    disk, an I/O error) may pass, and a store that moved for it would be looked for in vain.
    """
    try:
        _check_is_shared(store)
        return store, store.create(identity)
    except StorageError as error:
        is_refused = getattr(error.__cause__, "errno", None) in _NOT_WRITABLE
        if not is_refused and not isinstance(error, _NotShared):
            raise
        foreign = RunStore(store.storage, store.run_root, sidecar=foreign_sidecar(store.run_root))
        if foreign.sidecar == store.sidecar or store.run_root == "":
            raise
        try:
            return foreign, foreign.create(identity)
        except StorageError:
            raise error from error.__cause__


class _NotShared(StorageError):
    """Nothing of ours may lie in the run root."""


def _check_is_shared(store: RunStore) -> None:
    if store.sidecar != join(store.run_root, SIDECAR):
        return
    path = store.run_root or store.storage.root
    if is_trainers_own(store.storage, store.run_root, path.rstrip("/").rpartition("/")[2]):
        raise _NotShared(
            f"{path}: accelerate takes every entry in it for a save, so nothing may be added",
            hint="name the directory above it",
        )


def _check_kind(record: Record, kind: str, path: str) -> None:
    if KIND_OF[type(record)] != kind:
        raise Malformed(f"{path}: holds a {KIND_OF[type(record)]} record")
