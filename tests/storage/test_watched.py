from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from ckptgov.errors import StorageError, TimedOut
from ckptgov.model.clock import SystemClock
from ckptgov.storage._memory_delivery import MemoryDelivery
from ckptgov.storage._tree import MemoryFile
from ckptgov.storage.contract import Storage
from ckptgov.storage.memory import MemoryStorage
from ckptgov.storage.watched import WatchedStorage
from ckptgov.testing.storage_contract import StorageContract

STALL_S = 0.25
LONG_S = 60.0


def watched(inner: Storage, stall_s: float = LONG_S) -> WatchedStorage:
    return WatchedStorage(inner, stall_s=stall_s, clock=SystemClock())


class TestWatchedStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return watched(MemoryStorage())

    def put_link(self, storage: Storage, path: str, text: str) -> None:
        self.tree(storage).put_link(path, text)

    def put_fifo(self, storage: Storage, path: str) -> None:
        self.tree(storage).put_fifo(path)

    def break_listing(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree(storage).refuse("", StorageError("broken"))

    def tree(self, storage: Storage) -> MemoryStorage:
        assert isinstance(storage, WatchedStorage)
        assert isinstance(storage.inner, MemoryStorage)
        return storage.inner


@pytest.fixture
def tree() -> MemoryStorage:
    tree = MemoryStorage("tier")
    tree.put_file("d/a", b"bytes")
    return tree


class Stuck:
    """Lets one call block until the test ends, or is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.gate = threading.Event()
        self.came_back = threading.Event()
        real = getattr(owner, name)

        def blocked(*arguments: object, **options: object) -> object:
            self.gate.wait()
            try:
                return real(*arguments, **options)
            finally:
                self.came_back.set()

        monkeypatch.setattr(owner, name, blocked)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type, str], Stuck]]:
    made: list[Stuck] = []

    def make(owner: type, name: str) -> Stuck:
        made.append(Stuck(monkeypatch, owner, name))
        return made[-1]

    yield make
    for each in made:
        each.gate.set()


Maker = Callable[[type, str], Stuck]


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("list", lambda storage: storage.list("d")),
        ("stat", lambda storage: storage.stat("d/a")),
        ("open", lambda storage: storage.open("d/a")),
        ("sync_dir", lambda storage: storage.sync_dir("d")),
        ("publish", lambda storage: storage.publish("d/b", [b"x"])),
        ("receive", lambda storage: storage.receive("d/b", 1)),
        ("rename_dir", lambda storage: storage.rename_dir("d", "e")),
        ("filesystem", lambda storage: storage.filesystem()),
    ],
)
def test_a_call_that_never_answers_is_given_up(
    tree: MemoryStorage, stuck: Maker, verb: str, call: Callable[[Storage], object]
) -> None:
    stuck(MemoryStorage, verb)
    with pytest.raises(TimedOut, match=rf"^tier.*: {verb} made no progress for 0.25 s$") as caught:
        call(watched(tree, STALL_S))
    assert caught.value.exit_code == 11
    assert caught.value.hint


def test_the_next_call_of_the_same_thread_is_served(tree: MemoryStorage, stuck: Maker) -> None:
    stuck(MemoryStorage, "list")
    storage = watched(tree, STALL_S)
    with pytest.raises(TimedOut):
        storage.list("d")
    assert storage.stat("d/a").bytes == 5


def test_a_stuck_read_ends_its_file(tree: MemoryStorage, stuck: Maker) -> None:
    file = watched(tree, STALL_S).open("d/a")
    read = stuck(MemoryFile, "read_into")
    closed = stuck(MemoryFile, "close")
    closed.gate.set()
    with memoryview(bytearray(5)) as view, pytest.raises(TimedOut):
        file.read_into(view, 0)
    with pytest.raises(StorageError, match="never came back"):
        file.read_at(0, 1)
    file.close()
    assert not closed.came_back.is_set()  # another thread still reads from it
    read.gate.set()
    assert closed.came_back.wait(LONG_S)


def test_a_stuck_piece_ends_its_delivery(tree: MemoryStorage, stuck: Maker) -> None:
    delivery = watched(tree, STALL_S).receive("d/b", 5)
    piece = stuck(MemoryDelivery, "write")
    discarded = stuck(MemoryDelivery, "discard")
    discarded.gate.set()
    with pytest.raises(TimedOut, match="tier/d/b: write"):
        delivery.write(0, memoryview(b"bytes"))
    for call in (lambda: delivery.write(0, memoryview(b"bytes")), delivery.finish):
        with pytest.raises(StorageError, match="never came back"):
            call()
    delivery.discard()
    assert not discarded.came_back.is_set()
    piece.gate.set()
    assert discarded.came_back.wait(LONG_S)
    assert list(tree.pending("")) == []


def test_what_is_discarded_after_the_call_came_back_is_so_at_once(
    tree: MemoryStorage, stuck: Maker
) -> None:
    delivery = watched(tree, STALL_S).receive("d/b", 5)
    piece = stuck(MemoryDelivery, "write")
    with pytest.raises(TimedOut):
        delivery.write(0, memoryview(b"bytes"))
    piece.gate.set()
    delivery.discard()
    assert piece.came_back.wait(LONG_S)
    while list(tree.pending("")):  # the worker removes it as it comes back, or we did
        threading.Event().wait(0.001)


def test_a_source_may_take_its_time(tree: MemoryStorage) -> None:
    def slow() -> Iterator[bytes]:
        threading.Event().wait(2 * STALL_S)
        yield b"x"

    assert watched(tree, STALL_S).publish("d/b", slow()).bytes == 1


def test_a_tier_that_answers_each_call_is_slow_and_not_stalled(
    tree: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryDelivery.write

    def slow(self: MemoryDelivery, offset: int, piece: memoryview) -> None:
        threading.Event().wait(STALL_S / 4)
        real(self, offset, piece)

    monkeypatch.setattr(MemoryDelivery, "write", slow)
    delivery = watched(tree, STALL_S).receive("d/b", 5)
    for offset in range(5):
        delivery.write(offset, memoryview(b"x"))
    delivery.finish()
    assert tree.stat("d/b").bytes == 5


def test_a_process_that_was_stopped_takes_no_tier_for_stalled(tree: MemoryStorage) -> None:
    class Leaping(SystemClock):
        now = 0.0

        def monotonic(self) -> float:
            self.now += 3600.0
            return self.now

    slow = MemoryStorage.list

    class Slow(MemoryStorage):
        def list(self, path: str) -> object:  # type: ignore[override]
            threading.Event().wait(0.3)
            return slow(self, path)

    storage = WatchedStorage(Slow(), stall_s=2.0, clock=Leaping())
    assert storage.list("") == []


def test_errors_pass_through_with_their_cause(tree: MemoryStorage) -> None:
    storage = watched(tree)
    with pytest.raises(FileNotFoundError):
        storage.stat("absent")
    cause = OSError("why")
    error = StorageError("broken")
    error.__cause__ = cause
    tree.refuse("d", error)
    with pytest.raises(StorageError, match="broken") as caught:
        storage.list("d")
    assert caught.value.__cause__ is cause


def test_one_worker_serves_all_calls_of_a_thread_and_ends_with_the_storage(
    tree: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: set[threading.Thread] = set()
    real = MemoryStorage.stat

    def noted(self: MemoryStorage, path: str) -> object:
        served.add(threading.current_thread())
        return real(self, path)

    monkeypatch.setattr(MemoryStorage, "stat", noted)
    storage = watched(tree)
    for _ in range(20):
        storage.stat("d/a")
    [worker] = served
    assert worker is not threading.current_thread()
    assert worker.daemon
    del storage
    gc.collect()
    worker.join(LONG_S)
    assert not worker.is_alive()


def test_a_call_that_was_given_up_does_not_keep_the_process(tmp_path: os.PathLike[str]) -> None:
    script = """
import threading
from ckptgov.errors import TimedOut
from ckptgov.model.clock import SystemClock
from ckptgov.storage.memory import MemoryStorage
from ckptgov.storage.watched import WatchedStorage

class Stuck(MemoryStorage):
    def list(self, path):
        threading.Event().wait()

try:
    WatchedStorage(Stuck(), stall_s=0.05, clock=SystemClock()).list("")
except TimedOut:
    raise SystemExit(11)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 11


def test_an_interrupt_waits_for_the_call_before_its_buffer_is_given_back(
    tree: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = watched(tree).open("d/a")
    buffer = bytearray(5)
    real, waits = threading.Event.wait, []

    def interrupted(self: threading.Event, timeout: float | None = None) -> bool:
        waits.append(timeout)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return real(self, timeout)

    monkeypatch.setattr(threading.Event, "wait", interrupted)
    with memoryview(buffer) as view, pytest.raises(KeyboardInterrupt):
        file.read_into(view, 0)
    monkeypatch.undo()
    assert buffer == b"bytes"
    assert file.read_at(0, 2) == b"by"
