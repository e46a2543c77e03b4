"""Whether a sealed checkpoint loads on another number of ranks, told from its manifest alone.

It says what the layout's own examination says of the same checkpoint; a test holds them together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ANY_NUMBER = frozenset({"dcp-hf", "orbax", "safetensors", "lightning"})
_BY_RANK = re.compile(
    r"(^|/)(.*zero_pp_rank_|.*_world_size_\d|__\d+\.metadata$|mp_rank_\d+/|.*_rank\d+\.bin$)"
)
"""Files that only the rank that wrote them can use: ZeRO partitions, per-rank indexes and dumps."""


def reshardable_of(layout: str, paths: Sequence[str]) -> bool | None:
    """True: any number of ranks; False: only the number that saved it; None: not known."""
    if layout == "deepspeed" or any(_BY_RANK.search(path) for path in paths):
        return False
    if layout in _ANY_NUMBER or layout in ("dcp", "megatron", "hf-trainer", "accelerate"):
        return True
    return None
