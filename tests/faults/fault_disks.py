"""Disks to fill, to write-protect and to cut the power of. All of it needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fault_defects import cut_power


@contextmanager
def memory_disk(directory: Path, options: str) -> Iterator[Path]:
    """A tmpfs of its own."""
    _require_root()
    directory.mkdir()
    _mount("-t", "tmpfs", "-o", options, "ckptgov-test", directory)
    try:
        yield directory
    finally:
        _unmount(directory)


@contextmanager
def filled(directory: Path, pages: int) -> Iterator[None]:
    """Fill the file system of ``directory`` up to this many free pages."""
    balloon = directory / "balloon"
    with balloon.open("wb") as file:
        seen = os.statvfs(directory)
        os.posix_fallocate(file.fileno(), 0, (seen.f_bavail - pages) * seen.f_frsize)
    try:
        yield
    finally:
        balloon.unlink()


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Nothing can be written beneath this mount point."""
    _mount("-o", "remount,ro", directory)
    try:
        yield
    finally:
        _mount("-o", "remount,rw", directory)


class LoopDisk:
    """A file system in a file, whose power can be cut and that comes back as a disk does."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._image = directory / f"{kind}.image"
        self.root = directory / kind

    @staticmethod
    def made(kind: str, directory: Path) -> LoopDisk:
        """Make and mount one, or skip the test."""
        _require_root()
        disk = LoopDisk(kind, directory)
        disk.root.mkdir()
        with disk._image.open("wb") as file:
            file.truncate(_BYTES[kind])
        maker = shutil.which(f"mkfs.{kind}", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if maker is None:
            pytest.skip(f"mkfs.{kind} is not installed")
        subprocess.run([maker, "-q", str(disk._image)], check=True, capture_output=True)
        disk._mount_again()
        return disk

    def lose_power(self) -> None:
        """Cut it, unless somebody did, and bring the disk back."""
        with suppress(OSError):
            cut_power(self.root)
        _unmount(self.root)
        self._mount_again()

    def _mount_again(self) -> None:
        _mount("-o", "loop", self._image, self.root)

    def destroy(self) -> None:
        """Unmount it and free its space."""
        _unmount(self.root)
        self._image.unlink()


_BYTES = {"ext4": 64 * 2**20, "xfs": 320 * 2**20}
"""mkfs.xfs refuses less than 300 MiB."""


def _require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")


def _mount(*words: str | Path) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


def _unmount(directory: Path) -> None:
    subprocess.run(["umount", directory], check=True)
