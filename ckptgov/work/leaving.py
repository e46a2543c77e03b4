"""What of a run is on its way out of one place: the journal says so, the trash how far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckptgov.layouts.tree import split
from ckptgov.manifest.names import file_name_of
from ckptgov.model.checkpoint import Manifest, Receipt, digits_of
from ckptgov.model.files import Token
from ckptgov.model.journal import NumberedRecord, Tombstone, Undelete
from ckptgov.work.runstore import RunStore, StoredManifest
from ckptgov.work.trash import (
    entry_paths,
    known_by_receipt,
    marks_of,
    name_mark,
    read_entry,
    read_receipt,
    standing_shards,
    token_mark,
)


class Leaving:
    """What of a run is on its way out of one place: its journal says so, its trash how far.

    Looks into the trash only where the journal has a tombstone that stands: it is always written
    first.
    """

    def __init__(
        self, store: RunStore, place: str | None, records: Sequence[NumberedRecord]
    ) -> None:
        self._store = store
        self._place = place
        self._tombstones = standing_tombstones(records, place)
        self._entries: tuple[str, ...] | None = None
        self._begun: dict[str, list[Receipt]] | None = None

    def is_removed(self, manifest: Manifest, receipt: Receipt | None) -> bool:
        """Whether a manifest that stands here is of what a tombstone has taken away.

        One that was made again after it counts anew: where an entry tells which incarnation went,
        by its files' tokens, else by when they were verified. (An object's ETag may be the same
        whenever the same bytes are stored, so there it is always the time.)
        """
        tombstone = self._tombstones.get(manifest.content_id)
        if tombstone is None:
            return False
        if receipt is None:
            return True
        begin = f"{digits_of(manifest.content_id)[:16]}.{name_mark(manifest.name)}"
        entries = [one for path in self._paths() if (one := split(path)[1]).startswith(begin)]
        if entries and self._store.storage.traits.has_directories:
            return f"{begin}{token_mark(receipt.tokens)}" in entries
        return receipt.verified_at_ns <= tombstone.stamp.at_ns

    def counts(self, stored: StoredManifest, manifest: Manifest) -> bool:
        """Whether a manifest that stands here was verified here, and since it was last removed."""
        if self._place is None:
            return False
        numbered = self._store.receipts().get((stored.encoded_name, stored.content_prefix), [])
        receipt = self._store.newest_receipt(numbered, self._place, notes=[])
        return receipt is not None and not self.is_removed(manifest, receipt)

    def is_replaced(self, manifest: Manifest, receipt: Receipt | None) -> bool:
        """Whether another thing was saved in the place of what a tombstone has taken away.

        ``receipt`` None: it lies in the trash already, where the manifest did not get to.
        """
        store, receipt = self._store, receipt or self._receipt_in_trash(manifest)
        if receipt is None:
            return False
        standing = standing_shards(store.storage, store.run_root, manifest, receipt)
        return bool(standing.others)

    def _receipt_in_trash(self, manifest: Manifest) -> Receipt | None:
        begin = f"{digits_of(manifest.content_id)[:16]}.{name_mark(manifest.name)}"
        found = [
            receipt
            for path in self._paths()
            if split(path)[1].startswith(begin)
            and (receipt := read_receipt(self._store, path)) is not None
        ]
        return found[-1] if found else None

    def holds(self, name: str) -> bool:
        """Whether files of a checkpoint of this name still stand as its trash entry knows them, or
        the receipt of a removal that has found no room for an entry yet."""
        if not self._tombstones:
            return False
        mark = name_mark(name)
        entries = (path for path in self._paths() if marks_of(path)[1] == mark)
        return any(self._stands_as_entry(path, name) for path in entries) or any(
            self._stands(known_by_receipt(name, one), one) for one in self._begun_of(name)
        )

    def _stands_as_entry(self, path: str, name: str) -> bool:
        entry = read_entry(self._store, path)
        if entry.manifest is None or entry.receipt is None or entry.name != name:
            return False
        return self._stands(entry.manifest, entry.receipt)

    def _stands(self, manifest: Manifest, receipt: Receipt) -> bool:
        store = self._store
        standing = standing_shards(store.storage, store.run_root, manifest, receipt)
        return bool(standing.ours) and not standing.others

    def _begun_of(self, name: str) -> list[Receipt]:
        """Receipts under this name, older than the tombstone of what they vouch for."""
        if self._place is None:
            return []
        if self._begun is None:
            self._begun = {}
            prefixes = {digits_of(one)[:16] for one in self._tombstones}
            for (encoded, prefix), numbered in self._store.receipts().items():
                if prefix in prefixes:
                    receipt = self._store.newest_receipt(numbered, self._place, notes=[])
                    if receipt is not None and self._is_older(receipt):
                        self._begun.setdefault(encoded, []).append(receipt)
        return self._begun.get(file_name_of(name), [])

    def _is_older(self, receipt: Receipt) -> bool:
        tombstone = self._tombstones.get(receipt.content_id)
        return tombstone is not None and receipt.verified_at_ns <= tombstone.stamp.at_ns

    def _paths(self) -> tuple[str, ...]:
        if self._entries is None:
            self._entries = entry_paths(self._store)
        return self._entries


def standing_tombstones(
    records: Iterable[NumberedRecord], place: str | None
) -> dict[str, Tombstone]:
    """Content ids that were removed at a place, or everywhere, and not brought back since."""
    found: dict[str, Tombstone] = {}
    for item in sorted(records, key=_in_order):
        match item.record:
            case Tombstone(content_id=content_id, place=at) if at in (None, place):
                found[content_id] = item.record
            case Undelete(content_id=content_id, place=at) if at in (None, place):
                found.pop(content_id, None)
            case _:
                pass
    return found


def _in_order(item: NumberedRecord) -> tuple[int, int, str]:
    """Records of two places may share a number; then the later one counts as later."""
    return item.number, item.record.stamp.at_ns, item.record.stamp.id


def is_leaving(
    store: RunStore, name: str, content_id: str, tokens: Iterable[tuple[str, Token]]
) -> bool:
    """Whether exactly these files are being removed under this name; looks anew."""
    own = f"{digits_of(content_id)[:16]}.{name_mark(name)}{token_mark(tokens)}"
    return bool(entry_paths(store, own))
