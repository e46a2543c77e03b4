"""A tree removed by the other calls of the contract, for storage whose paths cannot be swapped
under a call, and for wrappers that count or bound single calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ckptgov.errors import CkptgovError, StorageError
from ckptgov.model.files import Entry, EntryKind, FileStat, Token
from ckptgov.storage._paths import split
from ckptgov.storage.contract import Removed, Traits

MAX_LEFT = 100


class Calls(Protocol):
    """The part of a storage that it takes."""

    @property
    def traits(self) -> Traits: ...

    def list(self, path: str) -> Sequence[Entry]: ...

    def stat(self, path: str) -> FileStat: ...

    def remove(self, path: str, *, only: Token | None = None) -> None: ...

    def remove_dir(self, path: str) -> None: ...


def remove_by_calls(
    storage: Calls,
    directory: str,
    *,
    keeps: Callable[[Entry], bool] | None,
    gone: Callable[[int], None] | None,
) -> Removed:
    """``Storage.remove_tree``."""
    if not split(directory):
        raise StorageError("the root is never removed")
    removal = _Removal(storage, keeps, gone)
    try:
        entries = storage.list(directory)
    except FileNotFoundError:
        return Removed()
    removal.empty(directory, entries)
    return Removed(
        files=removal.files,
        bytes=removal.bytes,
        left=tuple(removal.left),
        error=removal.error,
    )


class _Removal:
    def __init__(
        self,
        storage: Calls,
        keeps: Callable[[Entry], bool] | None,
        gone: Callable[[int], None] | None,
    ) -> None:
        self._storage = storage
        self._keeps = keeps
        self._gone = gone
        self.files = self.bytes = 0
        self.left: list[str] = []
        self.error: CkptgovError | OSError | None = None

    def empty(self, directory: str, entries: Sequence[Entry]) -> bool:
        """Whether the directory is gone."""
        is_empty = True
        for entry in entries:
            path = f"{directory}/{entry.name}"
            if entry.kind is EntryKind.DIR:
                is_empty = self._below(path) and is_empty
            elif self._keeps is not None and self._keeps(entry):
                is_empty = False
            else:
                is_empty = self._file(path) and is_empty
        if not is_empty or not self._storage.traits.has_directories:
            return is_empty
        return self._gone_after(self._storage.remove_dir, directory)

    def _below(self, directory: str) -> bool:
        try:
            entries = self._storage.list(directory)
        except FileNotFoundError:
            return True
        except (CkptgovError, OSError) as error:
            return self._resisted(directory, error)
        return self.empty(directory, entries)

    def _file(self, path: str) -> bool:
        own_bytes = self._own_bytes(path)
        if not self._gone_after(self._storage.remove, path):
            return False
        self.files, self.bytes = self.files + 1, self.bytes + own_bytes
        if self._gone is not None:
            self._gone(1)
        return True

    def _own_bytes(self, path: str) -> int:
        if not self._storage.traits.has_directories:
            return 0  # a look costs a request
        try:
            found = self._storage.stat(path)
        except (CkptgovError, OSError):
            return 0  # the removal tells
        return found.bytes if found.kind is EntryKind.FILE and found.links <= 1 else 0

    def _gone_after(self, remove: Callable[[str], None], path: str) -> bool:
        try:
            remove(path)
        except FileNotFoundError:
            return True
        except (CkptgovError, OSError) as error:
            return self._resisted(path, error)
        return True

    def _resisted(self, path: str, error: CkptgovError | OSError) -> bool:
        self.error = self.error or error
        if len(self.left) < MAX_LEFT:
            self.left.append(path)
        return False
