"""Sets of ``torch.save`` files told apart only by their names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ckptgov.testing.builders.damage import WRITTEN_AT_NS
from ckptgov.testing.builders.pickles import Tensor
from ckptgov.testing.builders.torch_zip import write_torch_file


def write_torch_shards(
    directory: Path,
    stem: str,
    shards: Iterable[int],
    *,
    suffix: str = ".pt",
    at_ns: int | None = WRITTEN_AT_NS,
) -> list[Path]:
    """Write ``<stem>-shard<N><suffix>`` for each number, as fairseq's sharded runs do."""
    return [
        write_torch_file(directory / f"{stem}-shard{shard}{suffix}", at_ns=at_ns)
        for shard in shards
    ]


def write_world_size_set(
    directory: Path,
    prefix: str,
    world_size: int,
    *,
    ranks: Iterable[int] | None = None,
    at_ns: int | None = WRITTEN_AT_NS,
) -> list[Path]:
    """Write ``<prefix>_world_size_<W>_rank_<R>.pt`` for the ranks (default: all), as verl does."""
    return [
        write_torch_file(
            directory / f"{prefix}_world_size_{world_size}_rank_{rank}.pt",
            {"weight": Tensor()},
            at_ns=at_ns,
        )
        for rank in (range(world_size) if ranks is None else ranks)
    ]
