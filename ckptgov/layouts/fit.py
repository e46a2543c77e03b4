"""Whether a sealed checkpoint loads on another number of ranks, told from its manifest alone."""

from __future__ import annotations

from collections.abc import Sequence

_ANY_NUMBER = frozenset({"dcp", "dcp_hf", "megatron", "orbax", "safetensors", "lightning"})
_ONE_NUMBER = frozenset({"deepspeed"})


def reshardable_of(layout: str, paths: Sequence[str]) -> bool | None:
    """True: any number of ranks; False: only the number that saved it; None: not known.

    DeepSpeed's ZeRO partitions and files named after a world size load on that number only,
    wherever they lie (a Trainer's checkpoint may hold them).
    """
    if layout in _ONE_NUMBER or any(_is_partition(path) for path in paths):
        return False
    if layout in _ANY_NUMBER:
        return True
    if layout in ("hf_trainer", "accelerate"):
        return not any("_rank" in path.rpartition("/")[2] for path in paths)
    return None


def _is_partition(path: str) -> bool:
    name = path.rpartition("/")[2]
    return "zero_pp_rank_" in name or "_world_size_" in name
