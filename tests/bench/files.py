"""Checkpoints to measure on, and how their pages leave the page cache."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

MIB = 2**20


def write_shards(directory: Path, *, count: int, size_bytes: int) -> list[Path]:
    """Files of unlike bytes, on the disk when this returns."""
    directory.mkdir(parents=True)
    block = random.Random(7).randbytes(min(size_bytes, MIB))
    paths = []
    for number in range(count):
        path = directory / f"shard_{number:05d}.dat"
        with path.open("wb") as file:
            for offset in range(0, size_bytes, len(block)):
                head = f"{number:08d}{offset:016d}".encode()
                file.write((head + block[len(head) :])[: size_bytes - offset])
        paths.append(path)
    os.sync()
    return paths


def drop_cached(paths: Iterable[Path]) -> None:
    """Make the next reading cold: needs no root, but leaves names and inodes cached."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def warm(paths: Iterable[Path]) -> None:
    """Read everything once."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(4 * MIB):
                pass


def write_sums(target: Path, argv: Sequence[str], names: Sequence[str], directory: Path) -> None:
    """What a program that hashes says of files in a directory."""
    with target.open("wb") as file:
        subprocess.run(
            [*argv, *names], cwd=directory, check=True, stdout=file, stderr=subprocess.DEVNULL
        )
