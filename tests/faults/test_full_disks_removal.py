"""Removals where there is no room at all, or no quota left: space is what they are to give."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ckptgov.errors import OverCapacity, StorageError
from ckptgov.model.checkpoint import Manifest
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.removals import Stage, Trial, write_runs
from ckptgov.work.removal_case import is_full

MIB = 2**20
FILES = {f"shard_{number}.bin": bytes([number]) * MIB for number in range(6)}
SECOND = {path: raw[::-1] + b"2" for path, raw in FILES.items()}
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PATH": _PATH})
    if done.returncode != 0:
        pytest.skip(f"{words[0]}: {done.stderr.strip()}")


def _made(kind: str, directory: Path) -> Path:
    """A small file system of which nothing is kept back for root."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if shutil.which(f"mkfs.{kind}", path=_PATH) is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    image, root = directory / f"{kind}.image", directory / kind
    with image.open("wb") as file:
        file.truncate(160 * MIB if kind == "btrfs" else 32 * MIB)
    _run(f"mkfs.{kind}", "-q", *(("-m", "0") if kind == "ext4" else ()), image)
    root.mkdir()
    _run("mount", "-o", "loop", image, root)
    return root


@pytest.fixture(params=["ext4", "btrfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    root = _made(request.param, tmp_path)
    yield root
    subprocess.run(["umount", root], check=True)


@pytest.fixture
def quota(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Limits a directory on btrfs: to so much, or ``none``."""
    if shutil.which("btrfs", path=_PATH) is None:
        pytest.skip("btrfs is not installed")
    root = _made("btrfs", tmp_path)
    try:
        _run("btrfs", "quota", "enable", root)
        _run("btrfs", "subvolume", "create", root / "far")

        def limit(to: str) -> Path:
            _run("btrfs", "qgroup", "limit", to, root / "far")
            return root / "far"

        yield limit
    finally:
        subprocess.run(["umount", root], check=True)


def _fill(directory: Path) -> None:
    """To the last byte: large writes, then small ones, until none has room; on ext4 names too
    (btrfs keeps them apart, and when that has no room either no record of anything has)."""
    directory.mkdir()
    with suppress(OSError), (directory / "balloon").open("wb", buffering=0) as file:
        for size in (MIB, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
            os.fsync(file.fileno())
    with suppress(OSError), PosixStorage(directory) as storage:
        for number in range(200_000 if storage.filesystem().type == "ext4" else 0):
            (directory / f"{number:0200}").write_bytes(b"x" * 100)
    _run("sync", "-f", directory)


def _free_bytes(root: Path) -> int:
    _run("sync", "-f", root)
    found = os.statvfs(root)
    return found.f_bavail * found.f_frsize


def _write(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(bytes(MIB))
        os.fsync(file.fileno())


def _require_full(root: Path) -> None:
    with pytest.raises(OSError) as told:
        _write(root / "more")
    assert told.value.errno in (errno.ENOSPC, errno.EDQUOT)
    with suppress(OSError):
        (root / "more").unlink()


def _staged(storage: PosixStorage) -> tuple[Stage, Manifest]:
    stage = Stage(storage)
    manifest = stage.seal("step_1", FILES)
    stage.seal("step_2", SECOND, step=2)
    return stage, manifest


def _require_removed(stage: Stage, manifest: Manifest) -> None:
    moved = stage.move(manifest)
    assert moved.left == ()
    assert stage.purge(manifest, moved.trash).left == ()
    assert {path.partition("/")[0] for path in stage.files()} == {"step_2"}
    assert stage.names_offered() == ["step_2"]


@pytest.mark.timeout(600)
def test_a_removal_on_a_full_disk_frees_it(disk: Path) -> None:
    (disk / "tier").mkdir()
    with PosixStorage(disk / "tier") as storage:
        stage, manifest = _staged(storage)
        _fill(disk / "other")
        _require_full(disk)
        before = _free_bytes(disk)
        _require_removed(stage, manifest)
        assert _free_bytes(disk) - before > 5 * MIB


@pytest.mark.timeout(600)
def test_no_quota_for_the_record_is_want_of_room_and_no_fault_of_the_disk(
    quota: Callable[[str], Path], tmp_path: Path
) -> None:
    """Small files give no quota back on btrfs, so the record may have to wait for some."""
    files = write_runs(tmp_path / "runs")["directory"]
    with PosixStorage(quota("none")) as storage:
        trial = Trial("directory", files, storage)
        _run("sync", "-f", storage.root)
        root = quota("4M")
        _fill(root / "other")
        _require_full(root)
        with pytest.raises(OverCapacity) as told:
            trial.remove(storage)
        assert isinstance(told.value.__cause__, StorageError)
        assert told.value.hint
        assert trial.stage.files().items() >= files.items()
        quota("none")
        shutil.rmtree(root / "other")
        trial.scan()
        assert sorted(trial.stage.names_offered()) == sorted([trial.name, trial.kept])
        trial.remove(storage)
        trial.require_gone()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("tries", [1, 2, 99])
def test_a_record_that_has_no_room_gets_that_of_the_manifest(
    tmp_path: Path, code: int, tries: int
) -> None:
    """Or nothing but the manifest's own room was touched, and all is as it was."""
    with PosixStorage(tmp_path) as storage:
        stage, manifest = _staged(storage)
        real, asked = stage.tombstone(manifest), []

        def tombstone() -> None:
            asked.append(len(stage.store.manifests()))
            if len(asked) <= tries:
                raise OSError(code, os.strerror(code))
            real()

        stage.tombstone = lambda *_, **__: tombstone  # type: ignore[method-assign]
        if tries > 1:
            with pytest.raises(OverCapacity) as told:
                stage.move(manifest)
            assert is_full(told.value)
            assert told.value.hint
            assert sorted(stage.names_offered()) == ["step_1", "step_2"]
            return
        _require_removed(stage, manifest)
        assert asked == [2, 1]
