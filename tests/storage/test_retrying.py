from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from ckptgov.errors import SlowDown, StorageError, TransientStorageError
from ckptgov.model.files import EntryKind
from ckptgov.storage._oserrors import os_error, translate
from ckptgov.storage._tree import MemoryFile
from ckptgov.storage.backoff import RetryPolicy
from ckptgov.storage.contract import Storage
from ckptgov.storage.memory import MemoryStorage
from ckptgov.storage.mounts import FileSystem
from ckptgov.storage.posix import PosixStorage
from ckptgov.storage.retrying import RetryingStorage
from ckptgov.testing.storage_contract import StorageContract

POLICY = RetryPolicy(tries=5, first_s=1.0, cap_s=3.0, total_s=100.0)


class FakeClock:
    def __init__(self) -> None:
        self.slept: list[float] = []

    def now_ns(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Flaky(MemoryStorage):
    """Raises what it is told to, call by call, before it does anything."""

    def __init__(self) -> None:
        super().__init__("flaky")
        self.coming: list[Exception] = []
        self.calls: list[str] = []
        self.is_network = False

    def meet(self, call: str) -> None:
        self.calls.append(call)
        if self.coming:
            raise self.coming.pop(0)

    def filesystem(self) -> FileSystem:
        return FileSystem(
            type="nfs4" if self.is_network else "ext4",
            source="",
            mount_point="/",
            is_network=self.is_network,
            granularity_ns=1,
        )


def meeting(name: str) -> Callable[..., object]:
    def call(self: Flaky, *arguments: object, **options: object) -> object:
        self.meet(name)
        return getattr(MemoryStorage, name)(self, *arguments, **options)

    return call


VERBS: dict[str, Callable[[Storage], object]] = {
    "list": lambda storage: storage.list("d"),
    "stat": lambda storage: storage.stat("d/a"),
    "stat_many": lambda storage: storage.stat_many("d", ["a"]),
    "open": lambda storage: storage.open("d/a"),
    "attributes": lambda storage: storage.attributes("d/a"),
    "pending": lambda storage: storage.pending(""),
    "sync_dir": lambda storage: storage.sync_dir("d"),
    "publish": lambda storage: storage.publish("d/b", [b"x"]),
    "replace": lambda storage: storage.replace("d/a", [b"x"]),
    "make_dirs": lambda storage: storage.make_dirs("e"),
    "remove": lambda storage: storage.remove("d/a"),
    "remove_dir": lambda storage: storage.remove_dir("empty"),
    "receive": lambda storage: storage.receive("d/b", 1),
    "rename_dir": lambda storage: storage.rename_dir("d", "e"),
    "link": lambda storage: storage.link("d/a", "d/b"),
}
AGAIN = ["list", "stat", "stat_many", "open", "attributes", "pending", "sync_dir"]
ONCE = [verb for verb in VERBS if verb not in AGAIN]

for verb in VERBS:
    setattr(Flaky, verb, meeting(verb))


@pytest.fixture
def flaky() -> Flaky:
    tree = Flaky()
    tree.put_file("d/a", b"bytes")
    tree.make_dirs("empty")
    tree.calls.clear()
    return tree


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def storage(flaky: Flaky, clock: FakeClock) -> RetryingStorage:
    return RetryingStorage(flaky, policy=POLICY, clock=clock, random=lambda: 0.5)


def transient(code: int = errno.ETIMEDOUT) -> Exception:
    error = translate(os_error(code), "flaky/d/a")
    error.__cause__ = os_error(code)
    return error


class TestRetryingStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return RetryingStorage(
            MemoryStorage(), policy=POLICY, clock=FakeClock(), random=lambda: 0.0
        )

    def put_link(self, storage: Storage, path: str, text: str) -> None:
        self.tree(storage).put_link(path, text)

    def put_fifo(self, storage: Storage, path: str) -> None:
        self.tree(storage).put_fifo(path)

    def break_listing(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree(storage).refuse("", StorageError("broken"))

    def tree(self, storage: Storage) -> MemoryStorage:
        assert isinstance(storage, RetryingStorage)
        assert isinstance(storage.inner, MemoryStorage)
        return storage.inner


@pytest.mark.parametrize("verb", AGAIN)
def test_a_look_is_made_again_after_growing_waits(
    storage: RetryingStorage, flaky: Flaky, clock: FakeClock, verb: str
) -> None:
    flaky.coming = [transient() for _ in range(4)]
    VERBS[verb](storage)
    assert flaky.calls == [verb] * 5
    assert clock.slept == [0.75, 1.5, 2.25, 2.25]


def test_after_the_last_try_the_error_says_how_often(
    storage: RetryingStorage, flaky: Flaky, clock: FakeClock
) -> None:
    flaky.coming = [transient() for _ in range(5)]
    with pytest.raises(TransientStorageError, match=r"d/a: Connection timed out.*tried 5 times"):
        storage.stat("d/a")
    assert flaky.calls == ["stat"] * 5
    flaky.coming = [transient() for _ in range(5)]
    with pytest.raises(TransientStorageError) as caught:
        storage.stat("d/a")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.hint


def test_an_error_that_is_raised_again_and_again_is_not_changed(clock: FakeClock) -> None:
    tree = MemoryStorage()
    tree.refuse("", TransientStorageError("flaky"))
    storage = RetryingStorage(tree, policy=POLICY, clock=clock, random=lambda: 0.5)
    for _ in range(2):
        with pytest.raises(TransientStorageError, match=r"^flaky \(tried 5 times\)$"):
            storage.list("")


@pytest.mark.parametrize("verb", ONCE)
def test_what_changes_the_tier_is_never_made_again(
    storage: RetryingStorage, flaky: Flaky, clock: FakeClock, verb: str
) -> None:
    flaky.coming = [transient()]
    with pytest.raises(TransientStorageError):
        VERBS[verb](storage)
    assert flaky.calls == [verb]
    assert clock.slept == []


def test_other_errors_are_told_at_once(
    storage: RetryingStorage, flaky: Flaky, clock: FakeClock
) -> None:
    flaky.coming = [StorageError("denied")]
    with pytest.raises(StorageError, match="denied"):
        storage.list("d")
    with pytest.raises(FileNotFoundError):
        storage.stat("absent")
    assert flaky.calls == ["list", "stat"]


def test_a_failing_device_is_asked_twice_more_and_a_directory_synced_once(
    storage: RetryingStorage, flaky: Flaky
) -> None:
    flaky.coming = [transient(errno.EIO) for _ in range(9)]
    with pytest.raises(TransientStorageError, match="tried 3 times"):
        storage.list("d")
    with pytest.raises(TransientStorageError):
        storage.sync_dir("d")
    assert flaky.calls == ["list"] * 3 + ["sync_dir"]


@pytest.mark.parametrize("verb", ["stat", "publish", "receive"])
def test_every_slow_down_is_passed_on(storage: RetryingStorage, flaky: Flaky, verb: str) -> None:
    told: list[str] = []
    storage.on_push_back = lambda: told.append("less")
    flaky.coming = [SlowDown("503")] * (2 if verb == "stat" else 1)
    try:
        VERBS[verb](storage)
    except SlowDown:
        assert verb != "stat"
    assert told == ["less"] * (2 if verb == "stat" else 1)


def test_a_slow_down_of_a_piece_is_passed_on_and_the_piece_not_sent_again(
    storage: RetryingStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    tries: list[int] = []
    storage.on_push_back = lambda: told.append("less")
    delivery = storage.receive("new", 1)

    def refuse(offset: int, piece: memoryview) -> None:
        tries.append(offset)
        raise SlowDown("503")

    monkeypatch.setattr(delivery._inner, "write", refuse)
    with pytest.raises(SlowDown):
        delivery.write(0, memoryview(b"x"))
    assert (told, tries) == (["less"], [0])


def test_a_backend_that_retries_itself_is_handed_through(flaky: Flaky, clock: FakeClock) -> None:
    flaky.retries_itself = True
    told: list[str] = []
    storage = RetryingStorage(
        flaky, policy=POLICY, clock=clock, random=lambda: 0.5, on_push_back=lambda: told.append("")
    )
    flaky.coming = [SlowDown("503")]
    with pytest.raises(SlowDown):
        storage.list("d")
    assert isinstance(storage.open("d/a"), MemoryFile)
    assert (flaky.calls, told, clock.slept) == (["list", "open"], [], [])
    assert storage.retries_itself


# stale names


@pytest.mark.parametrize("verb", ["stat", "open", "attributes"])
def test_on_a_network_file_system_an_absent_name_is_looked_for_after_a_listing(
    storage: RetryingStorage, flaky: Flaky, verb: str
) -> None:
    flaky.is_network = True
    flaky.coming = [FileNotFoundError(errno.ENOENT, "stale")]
    VERBS[verb](storage)
    assert flaky.calls == [verb, "list", verb]


def test_on_a_network_file_system_an_absent_directory_is_looked_for_from_above(
    storage: RetryingStorage, flaky: Flaky
) -> None:
    flaky.is_network = True
    flaky.put_file("x/y/z", b"")
    flaky.coming = [FileNotFoundError(errno.ENOENT, "stale") for _ in range(2)]
    assert storage.list("x/y")[0].kind is EntryKind.FILE
    assert flaky.calls == ["list"] * 5  # x/y, x, the root, x, x/y


def test_what_stays_absent_is_believed(storage: RetryingStorage, flaky: Flaky) -> None:
    flaky.is_network = True
    with pytest.raises(FileNotFoundError):
        storage.stat("d/absent")
    assert flaky.calls == ["stat", "list", "stat"]
    with pytest.raises(FileNotFoundError):
        storage.list("no/such/directory")
    assert storage.stat_many("d", ["a", "absent"])[1] is None


def test_many_absent_names_take_one_listing(
    storage: RetryingStorage, flaky: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky.is_network = True
    real, stale = MemoryStorage.stat_many, [True]

    def remembering(self: Flaky, directory: str, names: list[str], **options: bool) -> object:
        found = real(self, directory, names, **options)
        if stale.pop():
            found[1] = None
        stale.append(False)
        return found

    flaky.put_file("d/b", b"new")
    monkeypatch.setattr(Flaky, "stat_many", remembering)
    looks = storage.stat_many("d", ["a", "b", "absent"])
    assert [look and look.bytes for look in looks] == [5, 3, None]
    assert flaky.calls == ["list"]


def test_on_a_local_file_system_absent_is_absent(storage: RetryingStorage, flaky: Flaky) -> None:
    with pytest.raises(FileNotFoundError):
        storage.stat("d/absent")
    assert storage.stat_many("d", ["absent"]) == [None]
    assert flaky.calls == ["stat", "stat_many"]


def test_a_listing_that_fails_is_not_read_as_absent(storage: RetryingStorage, flaky: Flaky) -> None:
    flaky.is_network = True
    flaky.coming = [FileNotFoundError(errno.ENOENT, "stale"), StorageError("denied")]
    with pytest.raises(StorageError, match="denied"):
        storage.stat("d/a")


# open files


class Reads:
    """Lets the reads of open files meet errors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.coming: list[Exception] = []
        self.files: list[MemoryFile] = []
        for name in ("read_at", "read_into", "stat"):
            self.patch(monkeypatch, name, getattr(MemoryFile, name))

    def patch(
        self, monkeypatch: pytest.MonkeyPatch, name: str, real: Callable[..., object]
    ) -> None:
        def call(file: MemoryFile, *arguments: object) -> object:
            self.files.append(file)
            if self.coming:
                raise self.coming.pop(0)
            return real(file, *arguments)

        monkeypatch.setattr(MemoryFile, name, call)


def test_reads_are_made_again(
    storage: RetryingStorage, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = storage.open("d/a")
    reads = Reads(monkeypatch)
    reads.coming = [transient(), transient()]
    assert file.read_at(1, 3) == b"yte"
    reads.coming = [transient()]
    buffer = bytearray(3)
    assert file.read_into(memoryview(buffer), 2) == 3
    assert buffer == b"tes"
    assert len(clock.slept) == 3
    assert len(set(reads.files)) == 1


def test_a_stale_file_is_opened_again_while_it_is_the_same(
    storage: RetryingStorage, flaky: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = storage.open("d/a")
    reads = Reads(monkeypatch)
    reads.coming = [transient(errno.ESTALE)]
    assert file.read_at(0, 5) == b"bytes"
    assert flaky.calls == ["open", "open"]
    assert len(set(reads.files)) == 2
    file.close()


def test_a_stale_file_whose_name_leads_to_another_one_is_refused(
    storage: RetryingStorage, flaky: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = storage.open("d/a")
    MemoryStorage.replace(flaky, "d/a", [b"other"])
    Reads(monkeypatch).coming = [transient(errno.ESTALE)]
    with pytest.raises(StorageError, match="another file has taken its place"):
        file.read_at(0, 5)


def test_no_descriptor_of_a_stale_file_is_left_open(
    clock: FakeClock, tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with PosixStorage(tmp_path) as inner:
        inner.publish("a", [b"bytes"])
        storage = RetryingStorage(inner, policy=POLICY, clock=clock, random=lambda: 0.5)
        before = len(os.listdir("/proc/self/fd"))
        real, fails = os.pread, [True]

        def stale(fd: int, length: int, offset: int) -> bytes:
            if fails and fails.pop():
                raise os_error(errno.ESTALE)
            return real(fd, length, offset)

        with storage.open("a") as file:
            monkeypatch.setattr(os, "pread", stale)
            assert file.read_at(0, 5) == b"bytes"
            monkeypatch.undo()
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_sync_is_never_made_again(
    storage: RetryingStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def fail(_: MemoryFile) -> None:
        tries.append(1)
        raise transient(errno.EIO)

    monkeypatch.setattr(MemoryFile, "sync", fail)
    with storage.open("d/a") as file, pytest.raises(TransientStorageError):
        file.sync()
    assert len(tries) == 1
