"""Real disks that are full and real quotas that are used up: refused in time, or clean after."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptgov.testing.builders import write_dcp

MIB = 2**20
ROWS = 40_000
"""Two shards of 2.6 MB: larger than what is written without making room for it first."""


def _run(*words: str | Path) -> None:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PATH": path})
    if done.returncode != 0:
        pytest.skip(f"{words[0]}: {done.stderr.strip()}")


@pytest.fixture(autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")


@contextmanager
def _mounted(directory: Path, *words: str | Path) -> Iterator[Path]:
    directory.mkdir()
    _run("mount", *words, directory)
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)


@pytest.fixture
def run(cli, tier: Path) -> Path:
    """A run of two sealed checkpoints."""
    for step in (1, 2):
        write_dcp(tier / f"run/step_{step}", rows=ROWS)
    cli.done("tier", "add", "near", tier, "--ingest")
    cli.done("scan")
    return tier / "run"


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _require_refused(cli, far: Path, run: Path, answer) -> None:
    """Told with tier and way out; nothing half is left there, and here nothing changed."""
    assert answer.code == 10, answer
    assert "tier far" in answer.json["error"]["message"], answer
    assert answer.json["error"]["hint"], answer
    if (far / "run/step_2").exists():  # its bytes had room, and what we say of it had none
        assert _files(far / "run/step_2") == _files(run / "step_2")
    left = [path for path in far.rglob("*") if path.is_file() and path.stat().st_size > 100_000]
    assert [path for path in left if path.parent.name != "step_2"] == []
    assert cli.json("latest", far / "run", "--evidence", "digest").code in (4, 5, 9)
    assert cli.json("latest", "run").json["path"] == str(run / "step_2")


def _require_made_good(cli, far: Path, run: Path) -> None:
    cli.done("flush", "run", "--step", "2", "--to", "far")
    assert _files(far / "run/step_2") == _files(run / "step_2")
    assert cli.json("latest", far / "run", "--evidence", "digest").code == 0
    assert not list((far / "run/.ckptgov/staging").iterdir())


def test_what_visibly_does_not_fit_is_refused_before_the_first_byte(
    cli, run: Path, tmp_path: Path
) -> None:
    with _mounted(tmp_path / "far", "-t", "tmpfs", "-o", "size=4m", "ckptgov-test") as far:
        cli.done("tier", "add", "far", far)
        before = os.statvfs(far).f_bfree
        answer = cli.json("flush", "run", "--step", "2", "--to", "far")
        assert before - os.statvfs(far).f_bfree < 10
        _require_refused(cli, far, run, answer)
        _run("mount", "-o", "remount,size=32m", far)
        _require_made_good(cli, far, run)


def test_the_newest_is_flushed_where_only_one_fits(cli, run: Path, tmp_path: Path) -> None:
    with _mounted(tmp_path / "far", "-t", "tmpfs", "-o", "size=8m", "ckptgov-test") as far:
        cli.done("tier", "add", "far", far)
        answer = cli.json("flush", "run", "--to", "far")
        assert answer.code == 3, answer
        assert [(one["name"], one["state"]) for one in answer.json["checkpoints"]] == [
            ("step_2", "flushed"),
            ("step_1", "failed"),
        ]
        assert answer.json["checkpoints"][1]["error"]["exit_code"] == 10
        assert cli.json("latest", far / "run", "--evidence", "digest").json["name"] == "step_2"
        assert not (far / "run/step_1").exists()


def test_a_disk_without_inodes_is_left_clean(cli, run: Path, tmp_path: Path) -> None:
    options = "size=64m,nr_inodes=12"
    with _mounted(tmp_path / "far", "-t", "tmpfs", "-o", options, "ckptgov-test") as far:
        cli.done("tier", "add", "far", far)
        _require_refused(cli, far, run, cli.json("flush", "run", "--step", "2", "--to", "far"))
        _run("mount", "-o", "remount,nr_inodes=200", far)
        _require_made_good(cli, far, run)


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Path]:
    """A small file system, empty."""
    if shutil.which("mkfs.ext4", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
        pytest.skip("mkfs.ext4 is not installed")
    image = tmp_path / "ext4.image"
    with image.open("wb") as file:
        file.truncate(16 * MIB)
    _run("mkfs.ext4", "-q", "-O", "^has_journal", image)
    with _mounted(tmp_path / "far", "-o", "loop", image) as far:
        yield far


def test_a_disk_that_somebody_else_fills_meanwhile_is_left_clean(
    cli, run: Path, ext4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.done("tier", "add", "far", ext4)
    room = os.statvfs(ext4)
    with (ext4 / "balloon").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - 4 * MIB)
    with monkeypatch.context() as patch:
        # What is free is asked before the balloon is there.
        patch.setattr("ckptgov.ops.flush._check_room", lambda *_: None)
        answer = cli.json("flush", "run", "--step", "2", "--to", "far")
    (ext4 / "balloon").unlink()
    _require_refused(cli, ext4, run, answer)
    _require_made_good(cli, ext4, run)


@pytest.fixture
def quota(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Limits a directory on btrfs: to so much, or ``none``."""
    for name in ("mkfs.btrfs", "btrfs"):
        if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            pytest.skip(f"{name} is not installed")
    image = tmp_path / "btrfs.image"
    with image.open("wb") as file:
        file.truncate(160 * MIB)
    _run("mkfs.btrfs", "-q", image)
    with _mounted(tmp_path / "btrfs", "-o", "loop", image) as root:
        _run("btrfs", "quota", "enable", root)
        _run("btrfs", "subvolume", "create", root / "far")

        def limit(to: str) -> Path:
            _run("btrfs", "qgroup", "limit", to, root / "far")
            return root / "far"

        yield limit


def test_a_quota_that_nobody_shows_is_told_and_left_clean(
    cli, run: Path, quota: Callable[[str], Path]
) -> None:
    far = quota("4M")
    cli.done("tier", "add", "far", far)
    assert os.statvfs(far).f_bavail * os.statvfs(far).f_frsize > 20 * MIB
    answer = cli.json("flush", "run", "--step", "2", "--to", "far")
    _require_refused(cli, far, run, answer)
    assert "quota" in answer.json["error"]["hint"], answer
    quota("none")
    _require_made_good(cli, far, run)
