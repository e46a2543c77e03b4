"""Copying shards: what arrives was compared, what is wrong is told and taken from elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from ckptgov.errors import StorageError
from ckptgov.model.checkpoint import Shard
from ckptgov.model.facts import Reason
from ckptgov.storage.contract import ArrivalProof, Traits
from ckptgov.storage.memory import MemoryStorage
from ckptgov.work.copy import (
    CopyFailed,
    CopySettings,
    ShardCopy,
    ShardSource,
    SourceFault,
    WrongArrival,
    copy_shards,
    read_back,
)

PIECE = 2**20
BYTES = bytes(range(256)) * 16 * 1024 + b"tail"  # four pieces and a bit
ONE = CopySettings(threads=1)


class Meddled(MemoryStorage):
    """A source to which something happens when a piece at ``at`` was read."""

    def __init__(self, act: Callable[[MemoryStorage], None], *, at: int = 0) -> None:
        super().__init__("meddled")
        self._act = act
        self._at = at

    def open(self, path: str):
        file = super().open(path)
        read_into = file.read_into

        def reading(buffer: memoryview, offset: int) -> int:
            count = read_into(buffer, offset)
            if offset == self._at:
                self._act(self)
            return count

        file.read_into = reading  # type: ignore[method-assign]
        return file


@pytest.fixture
def target() -> MemoryStorage:
    return MemoryStorage("target")


@pytest.fixture
def copied(target: MemoryStorage, shard_of: Callable[[str, bytes], Shard]):
    """Copies one shard of BYTES from the given sources; its faults collect in ``faults``."""

    class Copying:
        def __init__(self) -> None:
            self.faults: list[SourceFault] = []
            self.target = target

        def __call__(self, *sources: MemoryStorage, settings: CopySettings = ONE):
            shard = shard_of("a", BYTES)
            copy = ShardCopy(
                shard=shard,
                path="staging/a",
                sources=tuple(
                    ShardSource(storage=one, path="run/a", place=f"place {number}")
                    for number, one in enumerate(sources)
                ),
            )
            arrived = copy_shards(
                [copy], self.target, settings=settings, on_fault=self.faults.append
            )
            return list(arrived)

        @property
        def reasons(self) -> list[tuple[str, Reason]]:
            return [(one.place, one.finding.reason) for one in self.faults]

    return Copying()


def source(content: bytes = BYTES) -> MemoryStorage:
    storage = MemoryStorage("source")
    storage.put_file("run/a", content, mtime_ns=1_700_000_000_000_000_000)
    storage.touch("run/a", mode=0o640, mtime_ns=1_700_000_000_000_000_000)
    return storage


def content_of(storage: MemoryStorage, path: str = "staging/a") -> bytes:
    with storage.open(path) as file:
        return file.read_at(0, file.stat().bytes)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def is_bare(storage: MemoryStorage) -> bool:
    """Nothing published and nothing on its way."""
    return not storage.pending("") and not any(
        entry.name == "a" for entry in storage.list("staging")
    )


def test_a_copy_has_the_bytes_the_mode_and_the_time(copied) -> None:
    (arrived,) = copied(source())
    assert content_of(copied.target) == BYTES
    assert arrived.stat.mode & 0o777 == 0o640
    assert arrived.stat.mtime_ns == 1_700_000_000_000_000_000
    assert (arrived.place, arrived.sent_bytes, arrived.resumed_bytes) == ("place 0", len(BYTES), 0)


@pytest.mark.parametrize("at", [0, len(BYTES) // 2, len(BYTES) - 1])
def test_a_wrong_byte_is_never_published(copied, at: int) -> None:
    with pytest.raises(CopyFailed, match="differs from the manifest"):
        copied(source(flipped(BYTES, at)))
    assert is_bare(copied.target)
    assert copied.reasons == [("place 0", Reason.CORRUPT)]


def test_the_next_source_takes_over_and_the_fault_is_told(copied) -> None:
    (arrived,) = copied(source(flipped(BYTES, 7)), source())
    assert content_of(copied.target) == BYTES
    assert arrived.place == "place 1"
    assert copied.reasons == [("place 0", Reason.CORRUPT)]


def test_a_source_of_another_size_is_torn_and_not_read(copied) -> None:
    (arrived,) = copied(source(BYTES[:-1]), source())
    assert (arrived.place, copied.reasons) == ("place 1", [("place 0", Reason.TORN)])


def test_a_source_that_is_gone_is_told_as_missing(copied) -> None:
    (arrived,) = copied(MemoryStorage("empty"), source())
    assert (arrived.place, copied.reasons) == ("place 1", [("place 0", Reason.MISSING_SHARD)])


def test_a_source_that_cannot_be_read_is_not_called_corrupt(copied) -> None:
    broken = source()
    broken.refuse("run/a", StorageError("I/O error"))
    (arrived,) = copied(broken, source())
    assert (arrived.place, copied.reasons) == ("place 1", [("place 0", Reason.UNREADABLE)])


def test_a_source_that_shrinks_while_it_is_read_fails(copied) -> None:
    shrinking = Meddled(lambda tree: tree.put_file("run/a", BYTES[:PIECE]) and None)
    shrinking.put_file("run/a", BYTES)
    with pytest.raises(CopyFailed):
        copied(shrinking)
    assert is_bare(copied.target)
    assert copied.reasons == [("place 0", Reason.TORN)]


def test_a_source_that_grows_while_it_is_read_fails(copied) -> None:
    growing = Meddled(lambda tree: tree.put_file("run/a", BYTES + b"more") and None, at=4 * PIECE)
    growing.put_file("run/a", BYTES)
    with pytest.raises(CopyFailed, match="changed while it was read"):
        copied(growing)
    assert is_bare(copied.target)


def test_a_source_whose_name_leads_elsewhere_now_fails(copied) -> None:
    def swap(tree: MemoryStorage) -> None:
        tree.remove("run/a")
        tree.put_file("run/a", BYTES, mtime_ns=5)

    replaced = Meddled(swap, at=PIECE)
    replaced.put_file("run/a", BYTES, mtime_ns=5)
    with pytest.raises(CopyFailed):
        copied(replaced)
    assert copied.reasons == [("place 0", Reason.REOPENED)]
    assert is_bare(copied.target)


def test_what_arrived_before_a_stop_is_not_sent_again(copied) -> None:
    moved: list[int] = []
    stopped = CopySettings(threads=1, progress=moved.append, stop=lambda: len(moved) >= 3)
    assert copied(source(), settings=stopped) == []
    assert is_bare_but_pending(copied.target)
    (arrived,) = copied(source())
    assert (arrived.resumed_bytes, arrived.sent_bytes) == (3 * PIECE, len(BYTES) - 3 * PIECE)
    assert content_of(copied.target) == BYTES


def is_bare_but_pending(storage: MemoryStorage) -> bool:
    return len(storage.pending("")) == 1 and len(storage.list("staging")) == 1


def test_what_an_earlier_try_left_is_compared_before_it_counts(copied) -> None:
    moved: list[int] = []
    copied(source(), settings=replace(ONE, progress=moved.append, stop=lambda: len(moved) >= 3))
    (left,) = copied.target.pending("")
    copied.target.put_file(left.path, flipped(content_of(copied.target, left.path), PIECE + 5))
    (arrived,) = copied(source())
    assert arrived.resumed_bytes == 2 * PIECE
    assert content_of(copied.target) == BYTES


def test_a_file_that_stands_already_is_left_alone_and_not_vouched_for(copied) -> None:
    copied.target.put_file("staging/a", b"x" * len(BYTES))
    (arrived,) = copied(source())
    assert (arrived.place, arrived.proof, arrived.sent_bytes) == (None, ArrivalProof.NONE, 0)
    with pytest.raises(WrongArrival, match="other bytes came back"):
        read_back(copied.target, arrived)


def test_reading_back_right_bytes_gives_the_token_that_was_compared(copied) -> None:
    (arrived,) = copied(source())
    assert read_back(copied.target, arrived).stat.token == copied.target.stat("staging/a").token


def test_a_target_that_fails_is_no_fault_of_the_source(copied) -> None:
    copied.target.refuse("staging", StorageError("no space"))
    with pytest.raises(StorageError, match="no space"):
        copied(source(), source())
    assert copied.faults == []


class TestInChunks:
    """Shards of several chunks, moved by several threads where either side gains by it."""

    CHUNK = 2 * PIECE

    @pytest.fixture(autouse=True)
    def small_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ckptgov.manifest.digest.CHUNK_BYTES", self.CHUNK)
        monkeypatch.setattr("ckptgov.work.copy.CHUNK_BYTES", self.CHUNK)

    @pytest.fixture(params=[1, 3], ids=["in-order", "three-at-once"])
    def from_source(self, request: pytest.FixtureRequest) -> Callable[[bytes], MemoryStorage]:
        def make(content: bytes) -> MemoryStorage:
            class Parallel(MemoryStorage):
                @property
                def traits(self) -> Traits:
                    return Traits(parallel_pieces=request.param)

            storage = Parallel("source")
            storage.put_file("run/a", content)
            return storage

        return make

    def test_the_whole_arrives(self, copied, from_source) -> None:
        (arrived,) = copied(from_source(BYTES))
        assert (content_of(copied.target), arrived.sent_bytes) == (BYTES, len(BYTES))

    @pytest.mark.parametrize("chunk", [0, 1, 2])
    def test_a_wrong_chunk_is_named_and_nothing_published(
        self, copied, from_source, chunk: int
    ) -> None:
        with pytest.raises(CopyFailed, match=f"chunk {chunk + 1} of 3"):
            copied(from_source(flipped(BYTES, chunk * self.CHUNK + 1)))
        assert is_bare(copied.target)

    def test_a_wrong_chunk_is_taken_from_the_next_source(self, copied, from_source) -> None:
        (arrived,) = copied(from_source(flipped(BYTES, 9)), from_source(BYTES))
        assert (content_of(copied.target), arrived.place) == (BYTES, "place 1")
