from __future__ import annotations

import os
from typing import Any

import pytest
import xxhash

from ckptgov.errors import StorageError, TransientStorageError, UsageError
from ckptgov.manifest.build import build_manifest
from ckptgov.manifest.compare import ShardReport, ShardState, compare
from ckptgov.manifest.digest import digest_many
from ckptgov.model.checkpoint import Manifest, Purpose, Shard, StepKind, VerifyLevel

MIB = 2**20
LEVELS = pytest.mark.parametrize("level", [VerifyLevel.SIZE, VerifyLevel.DIGEST])


def manifest_of(*shards: Shard, name: str = "step_1") -> Manifest:
    return build_manifest(
        name=name,
        step=1,
        step_kind=StepKind.STEP,
        layout="dcp",
        world_size=None,
        purposes=[Purpose.RESUME],
        shards=shards,
    )


def shard_of(path: str, content: bytes) -> Shard:
    return Shard(path, len(content), f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}")


@pytest.fixture
def manifest(tree: Any) -> Manifest:
    """A checkpoint of three shards, as it lies below ``step_1``."""
    contents = {"a": b"one", "sub/b": b"two!", "sub/deep/c": b""}
    for path, content in contents.items():
        at = tree.root / "step_1" / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(content)
    return manifest_of(*(shard_of(path, content) for path, content in contents.items()))


def states(reports: tuple[ShardReport, ...]) -> dict[str, ShardState]:
    return {report.path: report.state for report in reports}


@pytest.mark.parametrize("level", list(VerifyLevel))
@pytest.mark.parametrize("threads", [1, 3])
def test_a_whole_checkpoint_matches_with_tokens_in_manifest_order(
    tree: Any, manifest: Manifest, level: VerifyLevel, threads: int
) -> None:
    reports = compare(manifest, tree, "step_1", level=level, threads=threads)
    assert [report.path for report in reports] == ["a", "sub/b", "sub/deep/c"]
    assert all(report.state is ShardState.MATCHES for report in reports)
    for report in reports:
        assert report.token == tree.stat(f"step_1/{report.path}").token
    read = {path for call, path in tree.log if call == "read"}
    assert read == ({"step_1/a", "step_1/sub/b"} if level is VerifyLevel.DIGEST else set())


@LEVELS
def test_a_single_file_checkpoint_is_its_base(tree: Any, level: VerifyLevel) -> None:
    (tree.root / "last.ckpt").write_bytes(b"abc")
    whole = manifest_of(shard_of("", b"abc"), name="last.ckpt")
    (report,) = compare(whole, tree, "last.ckpt", level=level)
    assert (report.path, report.state) == ("", ShardState.MATCHES)


@LEVELS
def test_other_sizes_are_short_and_long_without_reading(
    tree: Any, manifest: Manifest, level: VerifyLevel
) -> None:
    (tree.root / "step_1/a").write_bytes(b"on")
    (tree.root / "step_1/sub/b").write_bytes(b"two!!")
    short, long, _ = compare(manifest, tree, "step_1", level=level, threads=1)
    assert (short.state, short.found_bytes, short.expected_bytes) == (ShardState.SHORT, 2, 3)
    assert (long.state, long.found_bytes, long.detail) == (ShardState.LONG, 5, "5 of 4 bytes")
    assert ("read", "step_1/a") not in tree.log


@LEVELS
def test_an_absent_file_is_missing_when_a_listing_lacks_it(
    tree: Any, manifest: Manifest, level: VerifyLevel
) -> None:
    (tree.root / "step_1/a").unlink()
    (tree.root / "step_1/sub/deep/c").unlink()
    (tree.root / "step_1/sub/deep").rmdir()
    assert states(compare(manifest, tree, "step_1", level=level)) == {
        "a": ShardState.MISSING,
        "sub/b": ShardState.MATCHES,
        "sub/deep/c": ShardState.MISSING,
    }


@LEVELS
def test_an_absent_checkpoint_is_missing_up_to_the_root(
    tree: Any, manifest: Manifest, level: VerifyLevel
) -> None:
    reports = compare(manifest, tree, "elsewhere/step_1", level=level)
    assert set(states(reports).values()) == {ShardState.MISSING}


@LEVELS
@pytest.mark.parametrize("listed", ["step_1", "step_1/sub"])
def test_an_absent_file_is_unreadable_when_the_listing_fails(
    tree: Any, manifest: Manifest, level: VerifyLevel, listed: str
) -> None:
    (tree.root / "step_1/a").unlink()
    (tree.root / "step_1/sub/b").unlink()
    tree.fail["list", listed] = StorageError("input/output error")
    path = {"step_1": "a", "step_1/sub": "sub/b"}[listed]
    reports = {report.path: report for report in compare(manifest, tree, "step_1", level=level)}
    assert reports[path].state is ShardState.UNREADABLE
    assert "input/output error" in reports[path].detail


@LEVELS
def test_an_absent_root_is_unreadable_not_missing(
    tree: Any, manifest: Manifest, level: VerifyLevel
) -> None:
    tree.root = tree.root / "unmounted"
    reports = compare(manifest, tree, "step_1", level=level)
    assert set(states(reports).values()) == {ShardState.UNREADABLE}


@LEVELS
def test_a_directory_that_is_listed_but_lists_nothing_proves_nothing(
    tree: Any, manifest: Manifest, level: VerifyLevel
) -> None:
    (tree.root / "step_1/sub/b").unlink()
    tree.fail["list", "step_1/sub"] = FileNotFoundError("stale")
    reports = compare(manifest, tree, "step_1", level=level)
    assert states(reports)["sub/b"] is ShardState.UNREADABLE


@LEVELS
def test_a_file_that_shows_up_when_its_directory_is_listed_is_looked_at_again(
    tree: Any, manifest: Manifest, level: VerifyLevel
) -> None:
    call = "open" if level is VerifyLevel.DIGEST else "stat"
    tree.fail[call, "step_1/a"] = FileNotFoundError("stale entry")
    really_list = tree.list

    def refreshing(path: str) -> Any:
        tree.fail.clear()
        return really_list(path)

    tree.list = refreshing
    reports = compare(manifest, tree, "step_1", level=level, threads=1)
    assert states(reports)["a"] is ShardState.MATCHES


@LEVELS
@pytest.mark.parametrize("error", [StorageError, TransientStorageError])
def test_an_error_is_unreadable_with_its_text(
    tree: Any, manifest: Manifest, level: VerifyLevel, error: type[StorageError]
) -> None:
    call = "open" if level is VerifyLevel.DIGEST else "stat"
    tree.fail[call, "step_1/a"] = error("permission denied")
    report = compare(manifest, tree, "step_1", level=level)[0]
    assert (report.state, report.detail) == (ShardState.UNREADABLE, "permission denied")
    assert report.token is None


@LEVELS
def test_a_directory_in_place_of_a_shard_is_missing_and_a_dangling_link_proves_nothing(
    tree: Any, manifest: Manifest, level: VerifyLevel
) -> None:
    (tree.root / "step_1/a").unlink()
    (tree.root / "step_1/a").mkdir()
    (tree.root / "step_1/sub/b").unlink()
    os.symlink("nowhere", tree.root / "step_1/sub/b")
    missing, dangling, _ = compare(manifest, tree, "step_1", level=level)
    assert (missing.state, missing.detail) == (ShardState.MISSING, "not a file but 'dir'")
    assert dangling.state is ShardState.UNREADABLE


@LEVELS
def test_a_link_to_a_file_is_compared_by_what_it_leads_to(
    tree: Any, manifest: Manifest, level: VerifyLevel
) -> None:
    (tree.root / "step_1/a").rename(tree.root / "blob")
    os.symlink("../blob", tree.root / "step_1/a")
    report = compare(manifest, tree, "step_1", level=level)[0]
    assert (report.state, report.found_bytes) == (ShardState.MATCHES, 3)
    assert report.token == tree.stat("blob").token


def test_other_bytes_differ_only_after_a_second_reading_past_the_cache(
    tree: Any, manifest: Manifest
) -> None:
    (tree.root / "step_1/a").write_bytes(b"0ne")
    report = compare(manifest, tree, "step_1", level=VerifyLevel.DIGEST, paths=["a"])[0]
    assert report.state is ShardState.DIFFERS
    assert report.found_digest == shard_of("a", b"0ne").digest
    calls = [call for call, path in tree.log if path == "step_1/a"]
    assert calls == ["open", "read", "open", "drop", "read"]


def test_a_mismatch_that_the_second_reading_does_not_find_is_a_match_that_says_so(
    tree: Any, manifest: Manifest
) -> None:
    really_open = tree.open

    def opened_badly_once(path: str) -> Any:
        file = really_open(path)
        read_into = file.read_into

        def flipped(buffer: memoryview, offset: int) -> int:
            count: int = read_into(buffer, offset)
            buffer[0] ^= 1
            return count

        file.read_into = flipped
        tree.open = really_open
        return file

    tree.open = opened_badly_once
    (report,) = compare(manifest, tree, "step_1", level=VerifyLevel.DIGEST, paths=["a"])
    assert report.state is ShardState.MATCHES
    assert "the first reading differed" in report.detail


def test_a_file_changed_while_it_is_read_is_changed(tree: Any, manifest: Manifest) -> None:
    def touch(count: int) -> None:
        os.utime(tree.root / "step_1/a", ns=(1, 1))

    (report,) = compare(
        manifest, tree, "step_1", level=VerifyLevel.DIGEST, paths=["a"], progress=touch
    )
    assert (report.state, report.token) == (ShardState.CHANGED, None)


def test_a_file_replaced_between_two_readings_is_changed(tree: Any, manifest: Manifest) -> None:
    (tree.root / "step_1/a").write_bytes(b"0ne")

    def replace(path: str) -> None:
        if ("open", path) in tree.log:
            (tree.root / "new").write_bytes(b"0ne")
            (tree.root / "new").rename(tree.root / path)

    tree.opened = replace
    (report,) = compare(manifest, tree, "step_1", level=VerifyLevel.DIGEST, paths=["a"])
    assert (report.state, report.detail) == (
        ShardState.CHANGED,
        "changed between two readings",
    )


def test_the_chunks_that_differ_are_named(tree: Any) -> None:
    at = tree.root / "large"
    with at.open("wb") as file:
        file.truncate(64 * MIB * 2 + 1)
    ((_, found),) = digest_many(["large"], tree, threads=1)
    whole = manifest_of(found.shard(""), name="large")  # type: ignore[union-attr]
    with at.open("r+b") as file:
        file.seek(100 * MIB)
        file.write(b"x")
    (report,) = compare(whole, tree, "large", level=VerifyLevel.DIGEST)
    assert (report.state, report.detail) == (ShardState.DIFFERS, "chunk 2 of 3 differs")
    with at.open("r+b") as file:
        file.seek(128 * MIB)
        file.write(b"x")
    (report,) = compare(whole, tree, "large", level=VerifyLevel.DIGEST)
    assert report.detail == "chunks 2, 3 of 3 differ"


def test_paths_pick_shards_and_must_be_shards(tree: Any, manifest: Manifest) -> None:
    reports = compare(manifest, tree, "step_1", level=VerifyLevel.SIZE, paths={"sub/b"})
    assert [report.path for report in reports] == ["sub/b"]
    assert compare(manifest, tree, "step_1", level=VerifyLevel.SIZE, paths=()) == ()
    with pytest.raises(UsageError, match=r"'x' is no shard of 'step_1'"):
        compare(manifest, tree, "step_1", level=VerifyLevel.SIZE, paths={"a", "x"})


def test_after_stop_the_rest_has_no_report(tree: Any, manifest: Manifest) -> None:
    reports = compare(
        manifest,
        tree,
        "step_1",
        level=VerifyLevel.DIGEST,
        threads=1,
        stop=lambda: ("open", "step_1/sub/b") in tree.log,
    )
    assert [report.path for report in reports] == ["a"]


def test_a_directory_is_listed_once_for_all_that_is_missing(tree: Any) -> None:
    (tree.root / "step_1").mkdir()
    whole = manifest_of(*(shard_of(f"f{n}", b"x") for n in range(50)))
    reports = compare(whole, tree, "step_1", level=VerifyLevel.SIZE, threads=1)
    assert set(states(reports).values()) == {ShardState.MISSING}
    assert tree.log.count(("list", "step_1")) == 1
