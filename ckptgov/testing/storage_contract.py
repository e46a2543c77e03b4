"""The promises of ``ckptgov.storage.contract.Storage`` as tests, the same for every backend.

A backend's tests subclass :class:`StorageContract`, give it a ``storage`` fixture and the three
hooks, say what its kind of storage does not have, and call ``pytest.register_assert_rewrite`` in
their ``conftest.py`` for this module and those of ``ckptgov.testing`` that it is made of.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from ckptgov.errors import PathEscapes, StorageError
from ckptgov.model.files import Entry, EntryKind
from ckptgov.storage.contract import TEMP_PREFIX, Storage
from ckptgov.testing._contract_base import content, names
from ckptgov.testing.delivery_contract import DeliveryContract
from ckptgov.testing.moving_contract import MovingContract
from ckptgov.testing.removing_contract import RemovingContract

ODD_NAMES = [
    pytest.param("x" * 240, id="240 characters"),
    pytest.param("not utf-8 \udcff\udc80", id="not UTF-8"),
    pytest.param("  blanks  ", id="blanks"),
    pytest.param("line\nbreak\tand tab", id="newline"),
    pytest.param("-rf", id="leading dash"),
    pytest.param("*?[a]{b}", id="glob"),
    pytest.param("...", id="dots"),
    pytest.param(".hidden", id="hidden"),
    pytest.param("a:b\\c'\"$(d)%2F", id="punctuation"),
    pytest.param("größe-步-\u202e", id="not ASCII"),
]

BAD_PATHS = [
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "a/../b",
    ".",
    "a/./b",
    "a//b",
    "a/",
    "nul\0",
    "\ud800",
]

VERBS: dict[str, Callable[[Storage, str], object]] = {
    "list": lambda storage, path: storage.list(path),
    "stat": lambda storage, path: storage.stat(path),
    "stat_many": lambda storage, path: storage.stat_many(path, ["x"]),
    "read_link": lambda storage, path: storage.read_link(path),
    "open": lambda storage, path: storage.open(path),
    "publish": lambda storage, path: storage.publish(path, [b"x"]),
    "replace": lambda storage, path: storage.replace(path, [b"x"]),
    "make_dirs": lambda storage, path: storage.make_dirs(path),
    "remove": lambda storage, path: storage.remove(path),
    "remove_dir": lambda storage, path: storage.remove_dir(path),
    "remove_tree": lambda storage, path: storage.remove_tree(path),
    "sync_dir": lambda storage, path: storage.sync_dir(path),
    "attributes": lambda storage, path: storage.attributes(path),
    "receive": lambda storage, path: storage.receive(path, 1).discard(),
    "pending": lambda storage, path: storage.pending(path),
    "rename_dir from": lambda storage, path: storage.rename_dir(path, "free"),
    "rename_dir to": lambda storage, path: storage.rename_dir("real", path),
    "rename from": lambda storage, path: storage.rename(path, "free"),
    "rename to": lambda storage, path: storage.rename("real/d/x", path),
    "link from": lambda storage, path: storage.link(path, "free"),
    "link to": lambda storage, path: storage.link("real/d/x", path),
}

CREATING = ("publish", "make_dirs", "receive")
OF_DIRECTORIES = ("make_dirs", "remove_dir", "sync_dir", "pending")
MOVING = ("rename_dir from", "rename_dir to", "rename from", "rename to", "link from", "link to")
NO_ERROR_IF_ABSENT = (*CREATING, "remove_tree")


class SourceBroke(Exception):
    """Raised by a source of chunks, not by the storage."""


def breaking(*chunks: bytes) -> Iterator[bytes]:
    yield from chunks
    raise SourceBroke


class StorageContract(DeliveryContract, MovingContract, RemovingContract):
    """Subclass it with a ``storage`` fixture: an empty tree, to itself."""

    def need(self, verb: str) -> None:
        """Skip a verb that this kind of storage refuses, or does nothing for."""
        if not self.has_directories and verb in OF_DIRECTORIES + MOVING:
            pytest.skip("no directories in this kind of storage")

    # publish

    def test_what_was_published_can_be_read_back(self, storage: Storage) -> None:
        storage.publish("a", [b"one ", b"", b"two"])
        assert content(storage, "a") == b"one two"

    def test_an_empty_file_can_be_published(self, storage: Storage) -> None:
        assert storage.publish("empty", []).bytes == 0
        assert content(storage, "empty") == b""

    def test_publish_tells_what_a_look_at_the_file_tells(self, storage: Storage) -> None:
        told = storage.publish("a", [b"12345"])
        assert told.kind is EntryKind.FILE
        assert told.token == storage.stat("a").token
        with storage.open("a") as file:
            assert told.token == file.stat().token

    def test_a_taken_path_is_refused_and_its_file_untouched(self, storage: Storage) -> None:
        before = storage.publish("a", [b"first"])
        with pytest.raises(FileExistsError):
            storage.publish("a", [b"second"])
        assert content(storage, "a") == b"first"
        assert storage.stat("a").token == before.token
        assert names(storage) == ["a"]

    @pytest.mark.usefixtures("of_directories")
    def test_a_directory_takes_a_path_as_well(self, storage: Storage) -> None:
        storage.make_dirs("d")
        with pytest.raises(FileExistsError):
            storage.publish("d", [b"x"])

    def test_the_bytes_for_a_taken_path_are_not_even_asked_for(self, storage: Storage) -> None:
        storage.publish("a", [b"first"])
        with pytest.raises(FileExistsError):
            storage.publish("a", breaking())

    def test_a_path_taken_while_the_bytes_were_written_is_refused(self, storage: Storage) -> None:
        def slow() -> Iterator[bytes]:
            yield b"second"
            storage.publish("a", [b"first"])

        with pytest.raises(FileExistsError):
            storage.publish("a", slow())
        assert content(storage, "a") == b"first"
        assert names(storage) == ["a"]

    def test_a_source_that_breaks_leaves_nothing(self, storage: Storage) -> None:
        with pytest.raises(SourceBroke):
            storage.publish("a", breaking(b"half"))
        assert names(storage) == []
        storage.publish("a", [b"whole"])
        assert content(storage, "a") == b"whole"

    def test_an_error_of_the_source_passes_through_as_it_is(self, storage: Storage) -> None:
        def missing() -> Iterator[bytes]:
            yield b"half"
            raise FileNotFoundError("the source")

        with pytest.raises(FileNotFoundError, match="the source"):
            storage.publish("a", missing())

    def test_nothing_is_visible_before_the_last_byte(self, storage: Storage) -> None:
        def looking() -> Iterator[bytes]:
            yield b"half"
            assert "a" not in names(storage)
            with pytest.raises(FileNotFoundError):
                storage.stat("a")
            yield b"whole"

        storage.publish("a", looking())
        assert "a" in names(storage)

    def test_publish_creates_missing_directories(self, storage: Storage) -> None:
        storage.publish("d/e/a", [b"x"])
        assert storage.list("d") == [Entry("e", EntryKind.DIR)]
        assert storage.list("d/e") == [Entry("a", EntryKind.FILE)]

    @pytest.mark.usefixtures("of_directories")
    def test_a_file_in_the_place_of_a_directory_is_told(self, storage: Storage) -> None:
        storage.publish("a", [b"x"])
        for call in (
            lambda: storage.publish("a/b", [b"x"]),
            lambda: storage.make_dirs("a/b"),
            lambda: storage.make_dirs("a"),
            lambda: storage.list("a"),
            lambda: storage.stat("a/b"),
            lambda: storage.stat_many("a", ["b"]),
            lambda: storage.open("a/b"),
            lambda: storage.remove("a/b"),
            lambda: storage.remove_dir("a"),
            lambda: storage.sync_dir("a"),
        ):
            with pytest.raises(NotADirectoryError):
                call()

    def test_of_many_publishers_of_one_path_exactly_one_wins(self, storage: Storage) -> None:
        start = threading.Barrier(8)
        won: list[bytes] = []

        def publish(number: int) -> None:
            mine = str(number).encode() * 1000
            start.wait(timeout=60)
            try:
                storage.publish("d/a", [mine])
            except FileExistsError:
                return
            won.append(mine)

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert content(storage, "d/a") == won[0]
        assert names(storage, "d") == ["a"]

    # list, stat

    def test_a_listing_is_complete_and_sorted_by_raw_bytes(self, storage: Storage) -> None:
        wanted = ["a", "B", "a-", "a/x", "Z", "ä", "\udcff", "10", "9", "\uffff", "\U0001f600"]
        if not self.has_raw_names:
            wanted.remove("\udcff")
        for path in wanted:
            storage.publish(path.replace("a/x", "dir/x"), [b""])
        expected = sorted([*(set(wanted) - {"a/x"}), "dir"], key=os.fsencode)
        assert names(storage) == expected

    @pytest.mark.usefixtures("of_symlinks")
    def test_a_listing_tells_kinds_without_following(self, storage: Storage) -> None:
        storage.make_dirs("d")
        storage.publish("f", [b""])
        self.put_link(storage, "l", "d")
        self.put_fifo(storage, "p")
        kinds = {entry.name: entry.kind for entry in storage.list("")}
        assert kinds == {
            "d": EntryKind.DIR,
            "f": EntryKind.FILE,
            "l": EntryKind.SYMLINK,
            "p": EntryKind.OTHER,
        }

    def test_a_listing_that_fails_part_way_raises(
        self, storage: Storage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in "abc":
            storage.publish(name, [b""])
        self.break_listing(storage, monkeypatch)
        with pytest.raises(StorageError):
            storage.list("")

    def test_an_absent_directory_is_not_an_empty_one(self, storage: Storage) -> None:
        with pytest.raises(FileNotFoundError):
            storage.list("absent")
        if self.has_directories:
            storage.make_dirs("empty")
            assert storage.list("empty") == []

    def test_the_root_is_a_directory(self, storage: Storage) -> None:
        assert storage.stat("").kind is EntryKind.DIR
        assert list(storage.list("")) == []
        storage.make_dirs("")
        storage.sync_dir("")
        for verb in (storage.remove, storage.open, storage.read_link):
            with pytest.raises(IsADirectoryError):
                verb("")
        with pytest.raises(StorageError):
            storage.remove_dir("")
        assert storage.root

    @pytest.mark.parametrize("verb", VERBS)
    def test_an_absent_path_is_told(self, storage: Storage, verb: str) -> None:
        self.need(verb)
        if verb in NO_ERROR_IF_ABSENT:
            VERBS[verb](storage, "absent/x")
            return
        with pytest.raises(FileNotFoundError):
            VERBS[verb](storage, "absent/x")
        assert names(storage) == []

    def test_stat_tells_size_kind_and_identity(self, storage: Storage) -> None:
        storage.publish("a", [b"12345"])
        storage.publish("b", [b"1"])
        a, b = storage.stat("a"), storage.stat("b")
        assert (a.bytes, b.bytes) == (5, 1)
        assert (a.inode != b.inode) or not self.has_directories
        assert a.device == b.device
        assert a.mode & 0o111 == 0

    def test_many_looks_are_aligned_with_their_names(self, storage: Storage) -> None:
        storage.publish("d/a", [b"1"])
        storage.publish("d/b", [b"22"])
        b, absent, a = storage.stat_many("d", ["b", "absent", "a"])
        assert b == storage.stat_many("d", ["b"])[0]
        assert b is not None
        assert a is not None
        assert absent is None
        assert (b.token, a.token) == (storage.stat("d/b").token, storage.stat("d/a").token)
        assert storage.stat_many("d", ["a"], birth=True) == [storage.stat("d/a")]
        if self.has_symlinks:
            self.put_link(storage, "d/l", "nowhere")
            [link] = storage.stat_many("d", ["l"])
            assert link is not None
            assert link.kind is EntryKind.SYMLINK

    @pytest.mark.parametrize("name", ["", ".", "..", "d/a", "/d", "../d"])
    def test_many_looks_take_plain_names_only(self, storage: Storage, name: str) -> None:
        storage.publish("d/a", [b""])
        with pytest.raises(PathEscapes):
            storage.stat_many("", [name])

    # names and paths

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_names_work_everywhere(self, storage: Storage, name: str) -> None:
        if not self.has_raw_names and "\udcff" in name:
            pytest.skip("names are UTF-8 in this kind of storage")
        path = f"{name}/{name}"
        storage.publish(path, [b"x"])
        storage.replace(path, [b"yy"])
        assert storage.list("") == [Entry(name, EntryKind.DIR)]
        assert storage.list(name) == [Entry(name, EntryKind.FILE)]
        assert storage.stat(path).bytes == 2
        assert storage.stat_many(name, [name])[0] is not None
        assert content(storage, path) == b"yy"
        if self.has_symlinks:
            self.put_link(storage, f"{name}/l", name)
            assert storage.read_link(f"{name}/l") == name
            assert content(storage, f"{name}/l") == b"yy"
            storage.remove(f"{name}/l")
        storage.remove(path)
        delivery = storage.receive(path, 3)
        delivery.write(0, memoryview(b"zzz"))
        delivery.finish()
        assert content(storage, path) == b"zzz"
        storage.remove(path)
        if self.has_directories:
            storage.remove_dir(name)
        assert names(storage) == []

    @pytest.mark.parametrize("path", BAD_PATHS)
    @pytest.mark.parametrize("verb", VERBS)
    def test_a_path_that_is_not_plainly_below_the_root_is_refused(
        self, storage: Storage, verb: str, path: str
    ) -> None:
        self.need(verb)
        storage.publish("a/x", [b"x"])
        with pytest.raises(PathEscapes):
            VERBS[verb](storage, path)
        assert names(storage) == ["a"]

    # symlinks

    @pytest.mark.usefixtures("of_symlinks")
    @pytest.mark.parametrize("verb", VERBS)
    def test_no_call_but_open_goes_through_a_linked_directory(
        self, storage: Storage, verb: str
    ) -> None:
        storage.publish("real/d/x", [b"x"])
        self.put_link(storage, "link", "real")
        if verb == "open":
            assert content(storage, "link/d/x") == b"x"
            return
        for path in ("link/d/x", "link/d/new", "link/x", "link/d"):
            with pytest.raises(PathEscapes):
                VERBS[verb](storage, path)
        assert content(storage, "real/d/x") == b"x"
        assert names(storage, "real/d") == ["x"]
        assert names(storage, "real") == ["d"]

    @pytest.mark.usefixtures("of_symlinks")
    @pytest.mark.parametrize(
        "verb",
        [
            *("list", "stat_many", "make_dirs", "remove_dir", "remove_tree", "sync_dir", "pending"),
            "rename_dir from",
        ],
    )
    def test_a_link_is_no_directory(self, storage: Storage, verb: str) -> None:
        storage.make_dirs("real")
        self.put_link(storage, "link", "real")
        with pytest.raises(PathEscapes):
            VERBS[verb](storage, "link")

    @pytest.mark.usefixtures("of_symlinks")
    def test_a_link_is_looked_at_and_not_followed(self, storage: Storage) -> None:
        storage.publish("a", [b"12345"])
        self.put_link(storage, "l", "a")
        assert storage.stat("l").kind is EntryKind.SYMLINK
        assert storage.read_link("l") == "a"
        with pytest.raises(StorageError):
            storage.read_link("a")

    @pytest.mark.usefixtures("of_symlinks")
    def test_a_link_takes_a_path_and_nothing_is_written_through_it(self, storage: Storage) -> None:
        storage.publish("a", [b"x"])
        self.put_link(storage, "l", "a")
        self.put_link(storage, "dangling", "new")
        for path in ("l", "dangling"):
            with pytest.raises(FileExistsError):
                storage.publish(path, [b"y"])
            with pytest.raises(PathEscapes):
                storage.replace(path, [b"y"])
        assert content(storage, "a") == b"x"
        assert names(storage) == ["a", "dangling", "l"]

    @pytest.mark.usefixtures("of_symlinks")
    def test_removing_a_link_removes_only_the_link(self, storage: Storage) -> None:
        storage.publish("d/a", [b"x"])
        self.put_link(storage, "l", "d/a")
        self.put_link(storage, "ld", "d")
        storage.remove("l")
        storage.remove("ld")
        assert names(storage) == ["d"]
        assert content(storage, "d/a") == b"x"

    @pytest.mark.usefixtures("of_symlinks")
    @pytest.mark.parametrize(
        "text", ["../a", "./../d/../a", "up/a", "//a"[2:], "../d/./../d//same", "chain1"]
    )
    def test_reading_follows_links_beneath_the_root(self, storage: Storage, text: str) -> None:
        storage.publish("a", [b"x"])
        storage.publish("d/same", [b"x"])
        storage.publish("d/a", [b"x"])
        self.put_link(storage, "d/up", "..")
        self.put_link(storage, "d/chain1", "up/d/chain2")
        self.put_link(storage, "d/chain2", "same")
        self.put_link(storage, "d/l", text)
        assert content(storage, "d/l") == b"x"

    @pytest.mark.usefixtures("of_symlinks")
    @pytest.mark.parametrize(
        "text", ["/", "/etc/passwd", "../..", "../../x", "../d/../../d/a", "loop", "l"]
    )
    def test_reading_follows_no_link_out_of_the_root(self, storage: Storage, text: str) -> None:
        storage.publish("d/a", [b"x"])
        self.put_link(storage, "d/loop", "loop")
        self.put_link(storage, "d/l", text)
        with pytest.raises(PathEscapes):
            storage.open("d/l")

    @pytest.mark.usefixtures("of_symlinks")
    def test_reading_follows_forty_links_and_no_more(self, storage: Storage) -> None:
        storage.publish("0", [b"x"])
        for number in range(1, 42):
            self.put_link(storage, str(number), str(number - 1))
        assert content(storage, "40") == b"x"
        with pytest.raises(PathEscapes):
            storage.open("41")

    @pytest.mark.usefixtures("of_symlinks")
    def test_a_dangling_link_is_an_absent_file(self, storage: Storage) -> None:
        self.put_link(storage, "l", "nowhere")
        with pytest.raises(FileNotFoundError):
            storage.open("l")

    @pytest.mark.usefixtures("of_symlinks")
    def test_a_link_to_a_directory_is_no_file(self, storage: Storage) -> None:
        storage.make_dirs("d")
        self.put_link(storage, "l", "d")
        for path in ("d", "l"):
            with pytest.raises(IsADirectoryError):
                storage.open(path)

    @pytest.mark.usefixtures("of_symlinks")
    def test_what_is_no_file_is_neither_opened_nor_removed(self, storage: Storage) -> None:
        self.put_fifo(storage, "p")
        self.put_link(storage, "l", "p")
        for call in (storage.open, storage.remove, storage.remove_dir):
            with pytest.raises(StorageError):
                call("p")
        with pytest.raises(StorageError):
            storage.open("l")
        assert names(storage) == ["l", "p"]

    # remove, replace, make_dirs

    def test_a_removed_file_is_gone(self, storage: Storage) -> None:
        storage.publish("d/a", [b"x"])
        storage.remove("d/a")
        assert names(storage, "d") == []
        with pytest.raises(FileNotFoundError):
            storage.remove("d/a")

    @pytest.mark.usefixtures("of_directories")
    def test_files_and_directories_are_removed_by_their_own_calls(self, storage: Storage) -> None:
        storage.publish("d/a", [b"x"])
        with pytest.raises(IsADirectoryError):
            storage.remove("d")
        with pytest.raises(StorageError):
            storage.remove_dir("d")
        assert content(storage, "d/a") == b"x"
        storage.remove("d/a")
        storage.remove_dir("d")
        assert names(storage) == []

    @pytest.mark.usefixtures("of_directories")
    def test_an_open_file_keeps_its_bytes_when_its_name_goes(self, storage: Storage) -> None:
        storage.publish("a", [b"old"])
        with storage.open("a") as file:
            storage.replace("a", [b"newer"])
            assert file.read_at(0, 10) == b"old"
            storage.remove("a")
            assert file.read_at(0, 10) == b"old"

    def test_replacing_puts_new_bytes_and_a_new_token(self, storage: Storage) -> None:
        before = storage.publish("a", [b"old"])
        after = storage.replace("a", [b"new"])
        assert content(storage, "a") == b"new"
        assert after.token == storage.stat("a").token
        assert not after.token.same_content(before.token)
        assert names(storage) == ["a"]

    def test_replacing_never_makes_a_new_file(self, storage: Storage) -> None:
        with pytest.raises(FileNotFoundError):
            storage.replace("a", [b"x"])
        assert names(storage) == []

    @pytest.mark.usefixtures("of_directories")
    def test_replacing_a_directory_is_refused(self, storage: Storage) -> None:
        storage.make_dirs("d")
        with pytest.raises(IsADirectoryError):
            storage.replace("d", [b"x"])

    def test_a_source_that_breaks_leaves_the_old_bytes(self, storage: Storage) -> None:
        storage.publish("a", [b"old"])
        with pytest.raises(SourceBroke):
            storage.replace("a", breaking(b"half"))
        assert content(storage, "a") == b"old"
        assert names(storage) == ["a"]

    @pytest.mark.usefixtures("of_directories")
    def test_directories_can_be_made_again(self, storage: Storage) -> None:
        storage.make_dirs("d/e")
        inode = storage.stat("d/e").inode
        storage.make_dirs("d/e")
        storage.make_dirs("d/e/f", like="d")
        assert storage.stat("d/e").inode == inode
        assert names(storage, "d/e") == ["f"]

    @pytest.mark.usefixtures("of_directories")
    def test_the_example_of_new_directories_must_be_one(self, storage: Storage) -> None:
        storage.publish("a", [b""])
        with pytest.raises(FileNotFoundError):
            storage.make_dirs("d", like="absent")
        with pytest.raises(NotADirectoryError):
            storage.make_dirs("d", like="a")
        assert names(storage) == ["a"]

    # reading

    @pytest.mark.parametrize(
        ("offset", "length", "expected"),
        [
            (0, 10, b"0123456789"),
            (2, 3, b"234"),
            (8, 5, b"89"),
            (10, 5, b""),
            (99, 1, b""),
            (3, 0, b""),
        ],
    )
    def test_reads_are_shorter_only_at_the_end(
        self, storage: Storage, offset: int, length: int, expected: bytes
    ) -> None:
        storage.publish("a", [b"0123456789"])
        with storage.open("a") as file:
            assert file.read_at(offset, length) == expected
            buffer = bytearray(b"." * length)
            with memoryview(buffer) as view:
                assert file.read_into(view, offset) == len(expected)
            assert bytes(buffer) == expected.ljust(length, b".")

    def test_a_file_can_be_synced_and_its_cache_dropped(self, storage: Storage) -> None:
        storage.publish("a", [b"0123456789"])
        with storage.open("a") as file:
            file.sync()
            file.drop_cache(0, 10)
            assert file.read_at(0, 4) == b"0123"
            file.close()

    def test_the_storage_tells_what_it_lies_on(self, storage: Storage) -> None:
        found = storage.filesystem()
        assert found.type
        assert found.mount_point
        assert found.granularity_ns > 0

    def test_temporary_names_are_gone_afterwards(self, storage: Storage) -> None:
        storage.publish("d/a", [b"x" * 2**20] * 3)
        storage.replace("d/a", [b"x"])
        with pytest.raises(FileExistsError):
            storage.publish("d/a", [b"y"])
        assert not any(name.startswith(TEMP_PREFIX) for name in names(storage, "d"))
