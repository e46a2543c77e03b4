from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import xxhash

from ckptgov.errors import StorageError
from ckptgov.manifest.digest import ChangedWhileRead, FileDigest, digest_file, digest_many

MIB = 2**20


def test_a_small_file_has_the_canonical_digest_and_no_chunks(fake_file: Callable[..., Any]) -> None:
    found = digest_file(fake_file(5))
    assert found.digest == f"xxh3_128:{xxhash.xxh3_128_hexdigest(bytes(range(5)))}"
    assert (found.bytes, found.chunks, found.token.bytes) == (5, (), 5)


def test_an_empty_file_is_digested_without_reading(fake_file: Callable[..., Any]) -> None:
    file = fake_file(0)
    assert digest_file(file).digest == f"xxh3_128:{xxhash.xxh3_128_hexdigest(b'')}"
    assert file.reads == []


def test_no_chunks_up_to_64_mib_and_two_one_byte_above(fake_file: Callable[..., Any]) -> None:
    assert digest_file(fake_file(64 * MIB)).chunks == ()
    file = fake_file(64 * MIB + 1)
    first, second = digest_file(file).chunks
    assert first == digest_file(fake_file(64 * MIB)).digest
    assert second == f"xxh3_128:{xxhash.xxh3_128_hexdigest(file.read_at(64 * MIB, 1))}"


def test_chunks_do_not_depend_on_the_buffer(fake_file: Callable[..., Any]) -> None:
    size = 64 * MIB + 5 * MIB
    assert digest_file(fake_file(size)) == digest_file(fake_file(size), buffer_bytes=3 * MIB // 2)


def test_each_byte_is_read_once_in_mebibytes(fake_file: Callable[..., Any]) -> None:
    file = fake_file(66 * MIB)
    digest_file(file)
    assert file.reads == [(n * MIB, MIB) for n in range(66)]


def test_the_buffer_is_kept_from_file_to_file(fake_file: Callable[..., Any]) -> None:
    seen = set()

    def remember(buffer: memoryview, offset: int) -> int:
        seen.add(id(buffer.obj))
        return len(buffer)

    for _ in range(3):
        file = fake_file(3 * MIB)
        file.read_into = remember
        digest_file(file)
    assert len(seen) == 1


@pytest.mark.parametrize("size", [5, 3 * MIB])
def test_a_file_whose_token_changed_meanwhile_has_no_digest(
    fake_file: Callable[..., Any], size: int
) -> None:
    file = fake_file(size)
    file.mtimes_ns = [7, 8]
    with pytest.raises(ChangedWhileRead, match="changed while it was read"):
        digest_file(file)


@pytest.mark.parametrize("size", [5, 3 * MIB])
def test_a_file_that_ends_early_has_no_digest(fake_file: Callable[..., Any], size: int) -> None:
    file = fake_file(size)
    file.real_bytes = size - 1
    with pytest.raises(ChangedWhileRead, match="ended 1 bytes early"):
        digest_file(file)


def test_a_change_while_reading_is_an_error_of_storage() -> None:
    assert issubclass(ChangedWhileRead, StorageError)


def test_progress_hears_of_every_read(fake_file: Callable[..., Any]) -> None:
    counts: list[int] = []
    digest_file(fake_file(2 * MIB + 3), progress=counts.append)
    assert counts == [MIB, MIB, 3]


def test_cache_is_dropped_behind_every_32_mib_and_at_the_end(
    fake_file: Callable[..., Any],
) -> None:
    file, small = fake_file(70 * MIB), fake_file(5)
    digest_file(file, drop_cache=True)
    digest_file(small, drop_cache=True)
    assert file.dropped == [(0, 32 * MIB), (32 * MIB, 32 * MIB), (64 * MIB, 6 * MIB)]
    assert small.dropped == [(0, 5)]


def test_cache_is_kept_unless_asked(fake_file: Callable[..., Any]) -> None:
    file = fake_file(70 * MIB)
    digest_file(file)
    assert file.dropped == []


@pytest.fixture
def twenty(tree: Any) -> Iterator[list[str]]:
    paths = [f"f{n:02d}" for n in range(20)]
    for n, path in enumerate(paths):
        (tree.root / path).write_bytes(b"x" * n)
    yield paths
    assert not open_descriptors(tree.root)


def open_descriptors(root: Any) -> list[str]:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(f"{root}/")]


@pytest.mark.parametrize("threads", [1, 4])
def test_many_files_are_digested_each_once(tree: Any, twenty: list[str], threads: int) -> None:
    found = dict(digest_many(twenty, tree, threads=threads))
    assert sorted(found) == twenty
    for n, path in enumerate(twenty):
        result = found[path]
        assert isinstance(result, FileDigest)
        assert result.digest == f"xxh3_128:{xxhash.xxh3_128_hexdigest(b'x' * n)}"
    assert len(tree.threads) <= threads


def test_one_thread_keeps_the_order(tree: Any, twenty: list[str]) -> None:
    assert [path for path, _ in digest_many(twenty[::-1], tree, threads=1)] == twenty[::-1]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_that_cannot_be_read_comes_with_its_error_and_the_others_go_on(
    tree: Any, twenty: list[str], threads: int
) -> None:
    tree.fail["open", "f03"] = StorageError("input/output error")
    found = dict(digest_many([*twenty, "absent"], tree, threads=threads))
    assert isinstance(found.pop("f03"), StorageError)
    assert isinstance(found.pop("absent"), FileNotFoundError)
    assert all(isinstance(result, FileDigest) for result in found.values())
    assert len(found) == 19


@pytest.mark.parametrize("threads", [1, 3])
def test_a_mistake_in_the_program_is_not_taken_for_a_bad_file(
    tree: Any, twenty: list[str], threads: int
) -> None:
    tree.fail["open", "f03"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        list(digest_many(twenty, tree, threads=threads))


@pytest.mark.parametrize("threads", [1, 3])
def test_stop_ends_the_iterator_between_reads(tree: Any, twenty: list[str], threads: int) -> None:
    done: list[str] = []
    for path, _ in digest_many(twenty, tree, threads=threads, stop=lambda: len(done) >= 3):
        done.append(path)
    assert 3 <= len(done) <= 3 + 20
    assert list(digest_many(twenty, tree, threads=threads, stop=lambda: True)) == []


def test_stop_is_asked_within_a_file_too(tree: Any) -> None:
    (tree.root / "large").write_bytes(b"x" * 4 * MIB)
    heard: list[int] = []
    results = digest_many(
        ["large"], tree, threads=1, progress=heard.append, stop=lambda: len(heard) >= 2
    )
    assert list(results) == []
    assert heard == [MIB, MIB]


def test_who_stops_listening_leaves_no_thread_behind(tree: Any, twenty: list[str]) -> None:
    before = threading.active_count()
    results = digest_many(itertools.cycle(twenty), tree, threads=3)  # would never end by itself
    next(iter(results))
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_sync_makes_each_file_durable_before_it_is_read(tree: Any) -> None:
    (tree.root / "a").write_bytes(b"x")
    list(digest_many(["a"], tree, threads=1, sync=True, drop_cache=True))
    assert tree.log == [("open", "a"), ("sync", "a"), ("read", "a"), ("drop", "a")]


def test_a_failed_sync_gives_no_digest_and_is_not_tried_again(tree: Any) -> None:
    (tree.root / "a").write_bytes(b"x")
    really_open = tree.open
    calls = []

    def failing(path: str) -> Any:
        file = really_open(path)

        def sync() -> None:
            calls.append(path)
            raise StorageError("fsync: input/output error")

        file.sync = sync
        return file

    tree.open = failing
    ((_, result),) = digest_many(["a"], tree, threads=1, sync=True)
    assert isinstance(result, StorageError)
    assert calls == ["a"]
