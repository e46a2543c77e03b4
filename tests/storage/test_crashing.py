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
    ("remove_dir", "d"),
]


def do_all(storage: Storage) -> None:
    storage.make_dirs("d")
    storage.list("d")
    storage.publish("d/a", [b"1"])
    storage.replace("d/a", [b"22"])
    storage.sync_dir("d")
    storage.remove("d/a")
    storage.remove_dir("d")


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


def test_no_ordinary_except_clause_catches_a_crash() -> None:
    assert not issubclass(Crash, Exception)
