"""What DeepSpeed and FSDP put inside a checkpoint of the Hugging Face Trainer or of accelerate.

Names as in accelerate/utils/fsdp_utils.py and accelerate/utils/constants.py. Sharded FSDP state
is a pair of DCP directories (``pytorch_model_fsdp_0``, ``optimizer_0``), or without DCP one file
per rank; full state is one file each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from ckptgov.layouts.base import Tree, join
from ckptgov.layouts.beside import MAX_RANKS
from ckptgov.layouts.dcp_set import is_dcp_dir, prove_dcp
from ckptgov.layouts.deepspeed import read_pointer, tag_named
from ckptgov.layouts.deepspeed_set import is_tag_dir, prove_tag
from ckptgov.layouts.proof import Proof
from ckptgov.model.facts import Depth, Reason

FULL_MODEL = "pytorch_model_fsdp.bin"
_LATEST = "latest"
_TAG = re.compile(r"global_step[0-9]{1,18}")
_FSDP_MODEL = re.compile(r"pytorch_model_fsdp_[0-9]{1,4}")
_FSDP_OPTIMIZER = re.compile(r"optimizer_[0-9]{1,4}")
_RANK_FILE = re.compile(
    r"(?P<stem>(?P<kind>pytorch_model_fsdp|optimizer)_[0-9]{1,4}_rank)(?P<rank>[0-9]{1,7})\.bin"
)


class Inside(Struct, frozen=True, kw_only=True):
    """What was found inside.

    ``world_size`` is exact where DeepSpeed says it; FSDP's is the number of ranks that wrote.
    """

    is_deepspeed: bool = False
    is_fsdp: bool = False
    holds_weights: bool = False
    holds_optimizer: bool = False
    reshardable: bool = True
    world_size: int | None = None


def tag_dirs(tree: Tree, directory: str) -> tuple[str, ...]:
    """Names of DeepSpeed's tag directories in a directory, oldest step first."""
    tags = [
        name
        for name in tree.dirs(directory)
        if _TAG.fullmatch(name) or is_tag_dir(tree, join(directory, name))
    ]
    return tuple(sorted(tags, key=lambda name: (len(name), name)))


def is_fsdp_dir(tree: Tree, directory: str) -> bool:
    """Whether a directory holds FSDP's sharded or full state."""
    return any(map(_FSDP_MODEL.fullmatch, tree.dirs(directory))) or any(
        name == FULL_MODEL or _RANK_FILE.fullmatch(name) for name in tree.files(directory)
    )


def prove_inside(proof: Proof, depth: Depth, *, beside: Sequence[str] = ()) -> Inside:
    """Prove DeepSpeed's or FSDP's part of a checkpoint; ``beside`` are the run's other ones."""
    tags = tag_dirs(proof.tree, proof.root)
    if tags or proof.has(_LATEST):
        return _prove_deepspeed(proof, tags, depth, beside)
    if is_fsdp_dir(proof.tree, proof.root):
        return _prove_fsdp(proof, depth)
    return Inside()


def _prove_deepspeed(
    proof: Proof, tags: Sequence[str], depth: Depth, beside: Sequence[str]
) -> Inside:
    """The tag that ``latest`` names, which is what the loader opens; other tags are extras."""
    named = None
    if proof.need(_LATEST, because="DeepSpeed finds its tag by it") is not None:
        named = tag_named(read_pointer(proof.tree, proof.at(_LATEST)))
        if named is not None and named not in tags:
            proof.refuse(Reason.MISSING_SHARD, _LATEST, f"names {named}, which is not here")
    world_size = None
    if tags:
        tag = named if named is not None and named in tags else tags[-1]
        others = [join(d, name) for d in beside for name in tag_dirs(proof.tree, d)]
        world_size = prove_tag(proof, tag, depth, beside=others).world_size
    return Inside(is_deepspeed=True, holds_optimizer=True, reshardable=False, world_size=world_size)


def _prove_fsdp(proof: Proof, depth: Depth) -> Inside:
    models = [d for d in proof.tree.dirs(proof.root) if _FSDP_MODEL.fullmatch(d)]
    optimizers = [
        name
        for name in proof.tree.dirs(proof.root)
        if _FSDP_OPTIMIZER.fullmatch(name) and is_dcp_dir(proof.tree, proof.at(name))
    ]
    sets = [prove_dcp(proof, name, depth) for name in (*models, *optimizers)]
    ranks = [proved.world_size for proved in sets if proved and proved.world_size]
    by_rank = _prove_rank_files(proof, depth)
    if proof.has(FULL_MODEL):
        proof.need(FULL_MODEL)
        proof.prove_zip(FULL_MODEL, depth)
    return Inside(
        is_fsdp=True,
        holds_weights=bool(models) or "pytorch_model_fsdp" in by_rank or proof.has(FULL_MODEL),
        holds_optimizer=bool(optimizers) or "optimizer" in by_rank,
        reshardable=not by_rank,
        world_size=max(by_rank.values(), default=0) or max(ranks, default=None),
    )


def _prove_rank_files(proof: Proof, depth: Depth) -> dict[str, int]:
    """One file per rank, all kinds with the same ranks from 0; kind -> number of ranks."""
    seen: dict[str, str] = {}
    ranks: dict[str, set[int]] = {}
    for match in map(_RANK_FILE.fullmatch, proof.tree.files(proof.root)):
        if match:
            seen[match["stem"]] = match["kind"]
            ranks.setdefault(match["stem"], set()).add(int(match["rank"]))
    count = max((max(of) for of in ranks.values()), default=-1) + 1
    for stem, of in ranks.items():
        because = f"{len(of)} of at least {count} ranks are here"
        if count > MAX_RANKS:
            proof.refuse(Reason.TORN, "", f"{because}: not believable")
            continue
        for rank in range(count):
            path = f"{stem}{rank}.bin"
            proof.need(path, because=because)
            proof.prove_zip(path, depth)
    return dict.fromkeys(seen.values(), count)
