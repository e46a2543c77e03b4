"""What the parts of the storage contract suite share: hooks, flags and small readers."""

from __future__ import annotations

import pytest

from ckptgov.storage.contract import Storage


def content(storage: Storage, path: str) -> bytes:
    with storage.open(path) as file:
        return file.read_at(0, file.stat().bytes)


def names(storage: Storage, path: str = "") -> list[str]:
    return [entry.name for entry in storage.list(path)]


class ContractBase:
    """Subclass it with a ``storage`` fixture: an empty tree, to itself.

    ``has_directories``, ``has_symlinks`` (FIFOs too) and ``has_raw_names`` (names of any bytes)
    are what a file system has and an object store has not.
    """

    has_directories = True
    has_symlinks = True
    has_raw_names = True

    def put_link(self, storage: Storage, path: str, text: str) -> None:
        """Hook: make a symlink; its directory exists."""
        raise NotImplementedError

    def put_fifo(self, storage: Storage, path: str) -> None:
        """Hook: make an entry that is neither file, directory nor symlink."""
        raise NotImplementedError

    def break_listing(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hook: from now on listings of the root fail after their first entry."""
        raise NotImplementedError

    @pytest.fixture
    def of_directories(self) -> None:
        if not self.has_directories:
            pytest.skip("no directories in this kind of storage")

    @pytest.fixture
    def of_symlinks(self) -> None:
        if not self.has_symlinks:
            pytest.skip("no symlinks in this kind of storage")
