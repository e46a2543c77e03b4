from __future__ import annotations

import itertools

import pytest

from ckptgov.errors import StorageError, TransientStorageError
from ckptgov.storage.contract import Storage
from ckptgov.storage.memory import MemoryStorage
from ckptgov.testing.storage_contract import StorageContract


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()

    def put_link(self, storage: Storage, path: str, text: str) -> None:
        assert isinstance(storage, MemoryStorage)
        storage.put_link(path, text)

    def put_fifo(self, storage: Storage, path: str) -> None:
        assert isinstance(storage, MemoryStorage)
        storage.put_fifo(path)

    def break_listing(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(storage, MemoryStorage)
        storage.refuse("", StorageError("broken"))


@pytest.fixture
def tree() -> MemoryStorage:
    return MemoryStorage(now_ns=itertools.count(1000).__next__)


def test_every_stamp_comes_from_the_given_clock(tree: MemoryStorage) -> None:
    before = tree.publish("a", [b"x"])
    after = tree.publish("b", [b"x"])
    assert before.mtime_ns == before.ctime_ns == before.btime_ns
    assert 1000 < before.mtime_ns < after.mtime_ns < 1100
    assert tree.stat("").mtime_ns > after.mtime_ns


def test_a_file_put_again_is_overwritten_in_place(tree: MemoryStorage) -> None:
    first = tree.put_file("d/a", b"one", mtime_ns=5, btime_ns=3)
    second = tree.put_file("d/a", b"three", mtime_ns=7)
    assert (first.mtime_ns, second.mtime_ns) == (5, 7)
    assert (first.btime_ns, second.btime_ns) == (3, 3)
    assert first.inode == second.inode
    assert second.bytes == 5
    assert second.ctime_ns > first.ctime_ns


def test_touching_back_changes_the_ctime_only(tree: MemoryStorage) -> None:
    before = tree.put_file("a", b"x", mtime_ns=5)
    tree.touch("a", mtime_ns=5)
    after = tree.stat("a")
    assert before.token.same_content(after.token)
    assert before.token != after.token


def test_new_directories_take_after_their_example(tree: MemoryStorage) -> None:
    tree.make_dirs("old")
    tree.touch("old", mode=0o2775, uid=7, gid=8)
    tree.make_dirs("old/new/newer", like="old")
    made = tree.stat("old/new/newer")
    assert (made.mode & 0o7777, made.uid, made.gid) == (0o2775, 7, 8)


def test_a_refused_path_refuses_everything_beneath_it_until_it_is_let_go(
    tree: MemoryStorage,
) -> None:
    tree.publish("d/e/a", [b"x"])
    tree.refuse("d", TransientStorageError("flaky"))
    for call in (tree.list, tree.stat, tree.open, tree.remove):
        with pytest.raises(TransientStorageError):
            call("d/e/a")
    assert tree.list("")
    tree.refuse("d", None)
    assert tree.stat("d/e/a").bytes == 1


def test_the_storage_below_the_source_may_be_read_while_publishing(tree: MemoryStorage) -> None:
    tree.publish("a", [b"x"])
    with tree.open("a") as source:
        tree.publish("b", (source.read_at(at, 1) for at in range(1)))
    assert tree.stat("b").bytes == 1
