from __future__ import annotations

from collections.abc import Callable

import pytest

from ckptgov.errors import StorageError
from ckptgov.model.clock import SystemClock
from ckptgov.storage.backoff import RetryPolicy
from ckptgov.storage.contract import Storage, Traits
from ckptgov.storage.memory import MemoryStorage
from ckptgov.storage.paced import PacedStorage
from ckptgov.storage.retrying import RetryingStorage
from ckptgov.testing.storage_contract import SourceBroke, StorageContract


class Counting:
    """A pacer that lets everything through and counts it."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.push_backs = 0
        self.refuses = False

    def take(self, count_bytes: int, *, requests: int = 0) -> None:
        if self.refuses:
            raise KeyboardInterrupt
        self.taken.append((count_bytes, requests))

    def push_back(self) -> None:
        self.push_backs += 1

    @property
    def bytes(self) -> int:
        return sum(count for count, _ in self.taken)

    @property
    def requests(self) -> int:
        return sum(count for _, count in self.taken)


class Objects(MemoryStorage):
    """Says of itself that it has no directories."""

    def __init__(self) -> None:
        super().__init__()
        self.on_push_back: Callable[[], None] | None = None

    @property
    def traits(self) -> Traits:
        return Traits(has_directories=False, has_links=False)


@pytest.fixture
def read() -> Counting:
    return Counting()


@pytest.fixture
def write() -> Counting:
    return Counting()


class TestPacedStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return PacedStorage(
            MemoryStorage(), read=Counting(), write=Counting(), moved=lambda _: None
        )

    def put_link(self, storage: Storage, path: str, text: str) -> None:
        self.tree(storage).put_link(path, text)

    def put_fifo(self, storage: Storage, path: str) -> None:
        self.tree(storage).put_fifo(path)

    def break_listing(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree(storage).refuse("", StorageError("broken"))

    def tree(self, storage: Storage) -> MemoryStorage:
        assert isinstance(storage, PacedStorage)
        assert isinstance(storage.inner, MemoryStorage)
        return storage.inner


class TestUnpacedStorage(TestPacedStorage):
    @pytest.fixture
    def storage(self) -> Storage:
        return PacedStorage(MemoryStorage(), read=None, write=None)


def test_reads_take_what_they_may_give_before_they_give_it(read: Counting, write: Counting) -> None:
    tree = MemoryStorage()
    tree.put_file("a", b"0123456789")
    with PacedStorage(tree, read=read, write=write).open("a") as file:
        assert file.read_at(2, 4) == b"2345"
        assert file.read_at(8, 100) == b"89"
        assert file.read_at(50, 100) == b""
        file.read_into(memoryview(bytearray(64)), 0)
        assert read.taken == [(4, 0), (2, 0), (0, 0), (10, 0)]
        read.refuses = True
        with pytest.raises(KeyboardInterrupt):
            file.read_at(0, 1)
    assert write.taken == []


def test_what_a_file_grew_by_is_taken_too(read: Counting) -> None:
    tree = MemoryStorage()
    tree.put_file("a", b"01")
    with PacedStorage(tree, read=read, write=None).open("a") as file:
        file.read_at(0, 9)
        tree.put_file("a", b"0123456")
        file.read_at(0, 9)
    assert read.bytes == 2 + 7


def test_pieces_are_taken_before_they_are_handed_over_and_told_afterwards(
    read: Counting, write: Counting
) -> None:
    tree, moved = MemoryStorage(), []
    storage = PacedStorage(tree, read=read, write=write, moved=moved.append)
    delivery = storage.receive("a", 10)
    delivery.write(0, memoryview(b"01234"))
    assert (write.taken, moved) == ([(5, 0)], [5])
    write.refuses = True
    with pytest.raises(KeyboardInterrupt):
        delivery.write(5, memoryview(b"56789"))
    assert (delivery.sent_bytes, moved) == (5, [5])
    write.refuses = False
    delivery.write(5, memoryview(b"56789"))
    delivery.finish()
    assert (write.bytes, sum(moved), read.taken) == (10, 10, [])


def test_pieces_that_are_compared_are_read_from_a_file_system(
    read: Counting, write: Counting
) -> None:
    storage = PacedStorage(MemoryStorage(), read=read, write=write)
    first = storage.receive("a", 10)
    first.write(0, memoryview(b"01234"))
    first.abandon()
    write.taken.clear()
    second = storage.receive("a", 10)
    assert second.matches(0, memoryview(b"01234"))
    assert (read.bytes, write.bytes) == (5, 0)


def test_what_a_backend_sends_again_by_itself_is_taken_and_told(
    write: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []
    delivery = PacedStorage(Objects(), read=None, write=write, moved=moved.append).receive("a", 5)
    write.taken.clear()
    inner = delivery._inner
    real = inner.write

    def twice(offset: int, piece: memoryview) -> None:
        for _ in range(2):
            real(offset, piece)

    monkeypatch.setattr(inner, "write", twice)
    delivery.write(0, memoryview(b"01234"))
    assert (write.taken, moved) == ([(5, 1), (5, 0)], [10])


def test_published_bytes_are_taken(write: Counting) -> None:
    storage = PacedStorage(MemoryStorage(), read=None, write=write)
    storage.publish("a", [b"123", b"45"])
    storage.replace("a", [b"6"])
    assert write.taken == [(3, 0), (2, 0), (1, 0)]

    def source() -> object:
        yield b"1"
        raise SourceBroke

    with pytest.raises(SourceBroke):
        storage.publish("b", source())


def test_without_directories_each_call_is_a_request(read: Counting, write: Counting) -> None:
    tree = Objects()
    tree.put_file("a", b"0123456789")
    storage = PacedStorage(tree, read=read, write=write)
    storage.list("")
    storage.stat("a")
    storage.stat_many("", ["a"])
    storage.attributes("a")
    storage.pending("")
    with storage.open("a") as file:
        file.read_at(0, 10)
    assert read.requests == 7
    storage.publish("b", [b"x"])
    storage.remove("b")
    delivery = storage.receive("c", 1)
    delivery.write(0, memoryview(b"x"))
    delivery.finish()
    assert write.requests == 5


def test_on_a_file_system_calls_are_not_counted(read: Counting, write: Counting) -> None:
    storage = PacedStorage(MemoryStorage(), read=read, write=write)
    storage.make_dirs("d")
    storage.list("")
    storage.stat("d")
    assert (read.taken, write.taken) == ([], [])


@pytest.mark.parametrize("only", ["read", "write"])
def test_a_pacer_alone_counts_all_requests(only: str) -> None:
    pacer = Counting()
    tree = Objects()
    tree.put_file("a", b"x")
    storage = PacedStorage(tree, **{"read": None, "write": None, only: pacer})
    storage.stat("a")
    storage.remove("a")
    assert pacer.requests == 2


def test_push_backs_reach_the_writing_pacer_through_every_layer(
    read: Counting, write: Counting
) -> None:
    tree = Objects()
    retrying = RetryingStorage(tree, policy=RetryPolicy(), clock=SystemClock(), random=lambda: 0.0)
    PacedStorage(retrying, read=read, write=write)
    for layer in (tree, retrying):
        assert layer.on_push_back is not None
        layer.on_push_back()
    assert (read.push_backs, write.push_backs) == (0, 2)
    PacedStorage(retrying, read=read, write=None)
    tree.on_push_back()
    assert read.push_backs == 1
