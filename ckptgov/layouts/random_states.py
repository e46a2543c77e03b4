"""Random states, one file per rank: how many there must be is told by other checkpoints only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptgov.layouts.base import Tree
from ckptgov.layouts.beside import MAX_RANKS
from ckptgov.layouts.proof import Proof
from ckptgov.model.facts import Depth, Reason


def ranks_in(tree: Tree, directory: str, pattern: re.Pattern[str]) -> set[int]:
    """Ranks that have a file in a directory; ``pattern``'s first group is the rank."""
    names = tree.files(directory) if tree.is_dir(directory) else ()
    return {int(match[1]) for match in map(pattern.fullmatch, names) if match}


def prove_ranks(
    proof: Proof,
    pattern: re.Pattern[str],
    name_of: str,
    depth: Depth,
    *,
    world_size: int | None,
    beside: Sequence[str],
) -> int:
    """Demand a file per rank, from 0 on; return how many ranks that makes.

    With ``world_size`` known exactly that many. Otherwise the ranks seen must be contiguous, and
    where no checkpoint in ``beside`` has the same number and one has more, its number counts: a
    run that shrank is believed from its second checkpoint on. ``name_of`` is a format of the rank.
    """
    seen = ranks_in(proof.tree, proof.root, pattern)
    count, because = world_size or 0, f"{len(seen)} of {world_size} ranks are here"
    if not world_size:
        count = max(seen, default=-1) + 1
        because = f"{len(seen)} of at least {count} ranks are here"
        counts = {max(ranks_in(proof.tree, d, pattern), default=-1) + 1: d for d in beside}
        most = max(counts, default=0)
        if most > count and count not in counts:
            count, because = most, f"{counts[most]} has {most}"
    if count > MAX_RANKS:
        proof.refuse(Reason.TORN, "", f"{because}: not believable")
        return count
    for rank in range(count):
        path = name_of.format(rank)
        proof.need(path, because=because)
        proof.prove_zip(path, depth)
    return count
