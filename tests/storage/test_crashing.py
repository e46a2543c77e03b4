from __future__ import annotations

import contextlib

import pytest

from ckptgov.storage.contract import Storage
from ckptgov.storage.memory import MemoryStorage
from ckptgov.testing.crashing import Crash, CrashingStorage

CALLS = [
    ("make_dirs", "d"),
    ("publish", "d/a"),
    ("replace", "d/a"),
    ("remove", "d/a"),
    ("receive", "d/b"),
    ("write", "d/b"),
    ("write", "d/b"),
    ("finish", "d/b"),
    ("link", "d/c"),
    ("rename_dir", "d"),
    ("receive", "x"),
    ("discard", "x"),
    ("remove", "e/b"),
    ("remove", "e/c"),
    ("remove_dir", "e"),
]


def do_all(storage: Storage) -> None:
    storage.make_dirs("d")
    storage.list("d")
    storage.publish("d/a", [b"1"])
    storage.replace("d/a", [b"22"])
    storage.sync_dir("d")
    storage.remove("d/a")
    delivery = storage.receive("d/b", 2)
    for offset in range(2):
        if not (delivery.stands(offset, 1) and delivery.matches(offset, memoryview(b"x"))):
            delivery.write(offset, memoryview(b"x"))
    delivery.finish()
    storage.attributes("d/b")
    storage.link("d/b", "d/c")
    storage.rename_dir("d", "e")
    storage.receive("x", 1).discard()
    assert list(storage.pending("")) == []
    storage.remove("e/b")
    storage.remove("e/c")
    storage.remove_dir("e")


def test_without_a_crash_every_mutating_call_is_counted() -> None:
    storage = CrashingStorage(MemoryStorage())
    do_all(storage)
    assert storage.calls == CALLS


@pytest.mark.parametrize("crash_at", range(len(CALLS)))
def test_the_chosen_call_is_not_done_and_those_before_are(crash_at: int) -> None:
    storage = CrashingStorage(MemoryStorage(), crash_at)
    with pytest.raises(Crash):
        do_all(storage)
    assert storage.calls == CALLS[:crash_at]


def test_what_a_crash_leaves_is_what_was_done_before() -> None:
    tree = MemoryStorage()
    with pytest.raises(Crash):
        do_all(CrashingStorage(tree, 2))
    assert tree.stat("d/a").bytes == 1


def test_a_dead_process_does_nothing_more() -> None:
    tree = MemoryStorage()
    storage = CrashingStorage(tree, 0)
    with contextlib.suppress(Crash):
        storage.publish("a", [b""])
    for call in (storage.make_dirs, storage.list, storage.stat, storage.open, storage.sync_dir):
        with pytest.raises(Crash):
            call("")
    assert list(tree.list("")) == []


def test_a_delivery_of_a_dead_process_is_left_and_held_by_nobody() -> None:
    tree = MemoryStorage()
    storage = CrashingStorage(tree, CALLS.index(("finish", "d/b")))
    with pytest.raises(Crash):
        do_all(storage)
    [left] = tree.pending("")
    assert (left.bytes, left.is_held) == (2, False)
    delivery = tree.receive("d/b", 2)
    assert delivery.matches(0, memoryview(b"xx"))
    delivery.finish()
    assert tree.stat("d/b").bytes == 2


def test_a_dead_process_delivers_nothing_more() -> None:
    storage = CrashingStorage(MemoryStorage(), 1)
    delivery = storage.receive("a", 1)
    with pytest.raises(Crash):
        delivery.write(0, memoryview(b"x"))
    for call in (delivery.finish, delivery.abandon, delivery.discard):
        with pytest.raises(Crash):
            call()


def test_no_ordinary_except_clause_catches_a_crash() -> None:
    assert not issubclass(Crash, Exception)
