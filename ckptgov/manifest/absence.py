"""Proof that a file is not there: an error is never "none"."""

from __future__ import annotations

from ckptgov.errors import StorageError
from ckptgov.manifest.names import shown
from ckptgov.model.files import EntryKind, Reader


class Absence:
    """Says whether a path is proven absent, listing each directory once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._listed: dict[str, dict[str, EntryKind] | None] = {}

    def of(self, path: str) -> str | None:
        """Why there is proven to be no file at ``path``; None where a listing has one after all.

        Absent is what the complete listing of its directory lacks, and what lies below something
        that is absent or no directory. A directory that its parent lists and that cannot be
        listed itself proves nothing, nor does a link that leads nowhere.

        Raises:
            StorageError: it can not be told.
        """
        kind = self._kind(path)
        if kind is EntryKind.FILE:
            return None
        if kind is EntryKind.SYMLINK:
            raise StorageError(f"{shown(path)} is a link that could not be followed")
        return "not there" if kind is None else f"not a file but {kind.value!r}"

    def _kind(self, path: str) -> EntryKind | None:
        parent, _, name = path.rpartition("/")
        entries = self._list(parent)
        if entries is not None:
            return entries.get(name)
        if not parent:
            raise StorageError("the root could not be listed")
        if self._kind(parent) in (EntryKind.DIR, EntryKind.SYMLINK):
            raise StorageError(f"{shown(parent)} is there and could not be listed")
        return None

    def _list(self, path: str) -> dict[str, EntryKind] | None:
        """Kinds by name; None for a directory that is not there."""
        if path not in self._listed:
            try:
                entries = self._reader.list(path)
            except (FileNotFoundError, NotADirectoryError):
                self._listed[path] = None
            else:
                self._listed[path] = {entry.name: entry.kind for entry in entries}
        return self._listed[path]
