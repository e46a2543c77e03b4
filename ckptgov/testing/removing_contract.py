"""The promises of ``remove``, ``rename`` and ``remove_tree``: a part of the contract suite."""

from __future__ import annotations

import pytest

from ckptgov.errors import StaleState, StorageError
from ckptgov.model.files import Entry
from ckptgov.storage.contract import Storage
from ckptgov.testing._contract_base import ContractBase, content, names


class Enough(Exception):
    """Raised by whoever is told of progress."""


class RemovingContract(ContractBase):
    """Run as a part of ``StorageContract``."""

    # only

    def test_a_file_that_is_still_the_one_that_was_meant_goes(self, storage: Storage) -> None:
        storage.publish("d/a", [b"x"])
        token = storage.stat("d/a").token
        storage.remove("d/a", only=token)
        with pytest.raises(FileNotFoundError):
            storage.remove("d/a", only=token)

    def test_a_file_that_was_made_again_stays(self, storage: Storage) -> None:
        before = storage.publish("a", [b"first"]).token
        storage.remove("a")
        storage.publish("a", [b"second one"])
        with pytest.raises(StaleState):
            storage.remove("a", only=before)
        assert content(storage, "a") == b"second one"

    def test_a_file_that_was_replaced_stays(self, storage: Storage) -> None:
        before = storage.publish("a", [b"old"]).token
        after = storage.replace("a", [b"newer"]).token
        with pytest.raises(StaleState):
            storage.remove("a", only=before)
        assert content(storage, "a") == b"newer"
        storage.remove("a", only=after)
        assert names(storage) == []

    # rename

    @pytest.mark.usefixtures("of_directories")
    def test_a_renamed_file_is_the_same_one(self, storage: Storage) -> None:
        before = storage.publish("d/a", [b"x"])
        storage.rename("d/a", "new/deep/b", only=before.token)
        assert content(storage, "new/deep/b") == b"x"
        assert storage.stat("new/deep/b").token.same_content(before.token)
        assert names(storage, "d") == []
        storage.rename("new/deep/b", "d/a", durable=False)
        storage.sync_dir("d")
        storage.sync_dir("new/deep")
        assert content(storage, "d/a") == b"x"

    def test_without_directories_nothing_is_renamed(self, storage: Storage) -> None:
        storage.publish("a", [b"x"])
        if storage.traits.has_directories:
            storage.rename("a", "b")
            assert names(storage) == ["b"]
            return
        with pytest.raises(StorageError):
            storage.rename("a", "b")
        assert names(storage) == ["a"]

    @pytest.mark.usefixtures("of_directories")
    @pytest.mark.parametrize("target", ["file", "d", "link", "a"])
    def test_a_file_is_never_renamed_onto_anything(self, storage: Storage, target: str) -> None:
        storage.publish("a", [b"x"])
        storage.publish("file", [b"y"])
        storage.make_dirs("d")
        self.put_link(storage, "link", "nowhere")
        before = names(storage)
        with pytest.raises(FileExistsError):
            storage.rename("a", target)
        assert names(storage) == before
        assert (content(storage, "a"), content(storage, "file")) == (b"x", b"y")

    @pytest.mark.usefixtures("of_directories")
    def test_a_file_that_was_made_again_keeps_its_name(self, storage: Storage) -> None:
        before = storage.publish("a", [b"first"]).token
        storage.remove("a")
        storage.publish("a", [b"second one"])
        with pytest.raises(StaleState):
            storage.rename("a", "b", only=before)
        assert names(storage) == ["a"]

    @pytest.mark.usefixtures("of_directories")
    def test_a_link_is_renamed_itself_and_a_directory_is_not(self, storage: Storage) -> None:
        storage.publish("real/a", [b"x"])
        self.put_link(storage, "link", "real")
        storage.rename("link", "new")
        assert storage.read_link("new") == "real"
        with pytest.raises(IsADirectoryError):
            storage.rename("real", "b")
        assert names(storage) == ["new", "real"]

    # remove_tree

    def test_a_tree_goes_with_all_that_is_in_it_and_nothing_beside_it(
        self, storage: Storage
    ) -> None:
        for path in ("t/a", "t/d/b", "t/d/e/c", "t2/a", "t.txt", "other/t/a"):
            storage.publish(path, [b"xy"])
        told: list[int] = []
        removed = storage.remove_tree("t", gone=told.append)
        assert (removed.files, removed.left, removed.error) == (3, (), None)
        assert sum(told) >= 3
        if self.has_directories:
            assert removed.bytes == 6
            assert "t" not in names(storage)
        with pytest.raises(FileNotFoundError):
            storage.stat("t/d/e/c")
        for path in ("t2/a", "t.txt", "other/t/a"):
            assert content(storage, path) == b"xy"

    def test_a_tree_that_is_gone_is_no_error(self, storage: Storage) -> None:
        assert storage.remove_tree("absent/tree").files == 0

    def test_the_root_is_never_removed_as_a_tree(self, storage: Storage) -> None:
        storage.publish("a", [b"x"])
        with pytest.raises(StorageError):
            storage.remove_tree("")
        assert names(storage) == ["a"]

    @pytest.mark.usefixtures("of_directories")
    def test_a_file_is_no_tree(self, storage: Storage) -> None:
        storage.publish("a", [b"x"])
        with pytest.raises(NotADirectoryError):
            storage.remove_tree("a")
        assert names(storage) == ["a"]

    def test_what_is_to_be_kept_stays_and_nothing_else(self, storage: Storage) -> None:
        for path in ("t/a", "t/d/keep", "t/d/b", "t/e/c"):
            storage.publish(path, [b"x"])
        asked: list[Entry] = []

        def keeps(entry: Entry) -> bool:
            asked.append(entry)
            return entry.name == "keep"

        removed = storage.remove_tree("t", keeps=keeps)
        assert (removed.files, removed.left, removed.error) == (3, (), None)
        assert content(storage, "t/d/keep") == b"x"
        assert sorted(one.name for one in asked) == ["a", "b", "c", "keep"]
        if self.has_directories:
            assert names(storage, "t") == ["d"]

    @pytest.mark.usefixtures("of_symlinks")
    def test_links_in_a_tree_go_themselves(self, storage: Storage) -> None:
        storage.publish("outside/a", [b"x"])
        storage.publish("t/a", [b"x"])
        for name, text in (("up", "../outside"), ("file", "../outside/a"), ("none", "nowhere")):
            self.put_link(storage, f"t/{name}", text)
        self.put_link(storage, "t/abs", "/etc")
        assert storage.remove_tree("t").files == 5
        assert names(storage) == ["outside"]
        assert content(storage, "outside/a") == b"x"

    def test_whoever_is_told_of_progress_may_end_it(self, storage: Storage) -> None:
        for name in "abc":
            storage.publish(f"t/{name}", [b"x"])

        def enough(_: int) -> None:
            raise Enough

        with pytest.raises(Enough):
            storage.remove_tree("t", gone=enough)
        assert storage.remove_tree("t").error is None
