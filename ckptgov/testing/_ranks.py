"""What the ranks of one node write of a save: Hugging Face's Trainer over DeepSpeed ZeRO."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from ckptgov.testing.builders import write_deepspeed, write_hf_trainer

_MARKER = "trainer_state.json"


def ranks_part(
    directory: Path, step: int, ranks: Sequence[int], world_size: int, partition: int
) -> None:
    """What these ranks hold, and what all of them hold alike."""
    write_deepspeed(directory, step, world_size=world_size, ranks=ranks, partition=partition)
    write_hf_trainer(directory, step, world_size=world_size, optimizer=False, rng_ranks=ranks)


def in_order(directory: Path) -> list[Path]:
    """The files as a trainer writes them: the marker last."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return sorted(files, key=lambda path: (path.name == _MARKER, path))


def move(path: Path, target: Path) -> None:
    """Let a file appear at its place, dated now."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.utime(path)
    path.rename(target)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests_of(directory: Path) -> dict[str, str]:
    """The SHA-256 of every file below, by its name there."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): digest_of(path) for path in files}
