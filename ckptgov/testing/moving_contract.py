"""The promises of ``rename_dir`` and ``link``: a part of the contract suite."""

from __future__ import annotations

import pytest

from ckptgov.errors import StorageError
from ckptgov.storage.contract import Storage
from ckptgov.testing._contract_base import ContractBase, content, names


class MovingContract(ContractBase):
    """Run as a part of ``StorageContract``."""

    def test_a_directory_is_moved_with_all_that_is_in_it(self, storage: Storage) -> None:
        storage.publish("d/e/a", [b"x"])
        if not storage.traits.has_directories:
            with pytest.raises(StorageError):
                storage.rename_dir("d", "new")
            assert content(storage, "d/e/a") == b"x"
            return
        storage.rename_dir("d", "new/deep")
        assert content(storage, "new/deep/e/a") == b"x"
        assert names(storage) == ["new"]

    @pytest.mark.usefixtures("of_directories")
    def test_without_parents_none_is_made(self, storage: Storage) -> None:
        storage.publish("d/a", [b"x"])
        storage.publish("b", [b"y"])
        with pytest.raises(FileNotFoundError):
            storage.rename_dir("d", "new/d", parents=False)
        with pytest.raises(FileNotFoundError):
            storage.rename("b", "new/b", parents=False)
        assert names(storage) == ["b", "d"]
        storage.make_dirs("new")
        storage.rename_dir("d", "new/d", parents=False)
        storage.rename("b", "new/b", parents=False)
        assert names(storage, "new") == ["b", "d"]

    @pytest.mark.usefixtures("of_directories")
    @pytest.mark.parametrize("target", ["file", "empty", "full", "d", "", "link"])
    def test_a_directory_is_never_moved_onto_anything(self, storage: Storage, target: str) -> None:
        storage.publish("d/a", [b"moved"])
        storage.publish("file", [b"x"])
        storage.make_dirs("empty")
        storage.publish("full/a", [b"x"])
        self.put_link(storage, "link", "empty")
        before = names(storage)
        with pytest.raises(FileExistsError):
            storage.rename_dir("d", target)
        assert names(storage) == before
        assert names(storage, "empty") == []
        assert content(storage, "d/a") == b"moved"
        assert content(storage, "full/a") == b"x"

    @pytest.mark.usefixtures("of_directories")
    def test_only_a_directory_is_moved_and_never_into_itself(self, storage: Storage) -> None:
        storage.publish("d/a", [b"x"])
        with pytest.raises(NotADirectoryError):
            storage.rename_dir("d/a", "new")
        for source, target in (("d", "d/e/f"), ("", "new")):
            with pytest.raises(StorageError):
                storage.rename_dir(source, target)
        with pytest.raises(FileNotFoundError):
            storage.rename_dir("absent", "made/new")
        assert names(storage) == ["d"]
        assert names(storage, "d") == ["a"]

    def test_a_second_name_keeps_the_bytes_when_the_first_goes(self, storage: Storage) -> None:
        storage.publish("a", [b"x"])
        if not storage.traits.has_links:
            with pytest.raises(StorageError):
                storage.link("a", "b")
            return
        storage.link("a", "d/b")
        assert storage.stat("d/b").links == 2
        assert storage.stat("d/b").inode == storage.stat("a").inode
        storage.remove("a")
        assert content(storage, "d/b") == b"x"
        assert storage.stat("d/b").links == 1

    @pytest.mark.usefixtures("of_directories")
    def test_a_second_name_is_free_and_for_a_file(self, storage: Storage) -> None:
        storage.publish("a", [b"x"])
        storage.publish("b", [b"y"])
        storage.make_dirs("d")
        for target in ("b", "d", "a"):
            with pytest.raises(FileExistsError):
                storage.link("a", target)
        with pytest.raises(IsADirectoryError):
            storage.link("d", "second")
        assert content(storage, "b") == b"y"
        assert names(storage) == ["a", "b", "d"]
