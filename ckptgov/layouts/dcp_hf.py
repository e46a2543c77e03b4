"""DCP's HuggingFaceStorageWriter (torchtitan's export): safetensors shards, perhaps consolidated.

Consolidated: ``sharded/shard-*`` first, then the ``model-*`` files at the top, then the index, in
place: the index marks the end. Not consolidated: shards only, and nothing marks anything. Each
shard says which part of which tensor it holds (``DCP_SHARDING_INFO`` in its header), but no file
says how large a tensor is, so a missing last shard cannot be seen
(torch/distributed/checkpoint/hf_storage.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptgov.layouts.base import Claim, Tree, join
from ckptgov.layouts.content import prove_safetensors
from ckptgov.layouts.dcp import found_dir
from ckptgov.layouts.hf_weights import INDEX, NUMBERED, prove_configs, prove_weights
from ckptgov.layouts.proof import Proof
from ckptgov.model.checkpoint import Purpose
from ckptgov.model.facts import Depth, Found, Pointer, Reason, Sighting

_SHARD = re.compile(r"shard-([0-9]{5})-model-([0-9]{5})-of-([0-9]{5})\.safetensors")
_SHARDED = "sharded"
_INDEX = "model.safetensors.index.json"


class DcpHfLayout:
    """A directory of DCP's safetensors shards, with or without the consolidated files."""

    name = "dcp-hf"

    def find(self, tree: Tree, directory: str) -> Claim | None:
        """A directory with shards in it, or in its ``sharded``."""
        if not _shards(tree, directory) and not _shards(tree, join(directory, _SHARDED)):
            return None
        return Claim((found_dir(directory, self.name),), whole=True)

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        """The consolidated files by their index; bare shards are never proven."""
        proof = Proof(tree, found)
        inner: tuple[str, ...] = ()
        shards = _shards(tree, proof.root)
        if shards:
            _prove_shards(proof, shards)
        else:
            inner = tuple(join(_SHARDED, name) for name in _shards(tree, proof.at(_SHARDED)))
            _prove_consolidated(proof, depth)
        prove_configs(proof, "")
        return proof.sighting(purposes=(Purpose.WEIGHTS,), reshardable=True, optional=inner)

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        """There is none."""
        return ()


def _shards(tree: Tree, directory: str) -> tuple[str, ...]:
    names = tree.files(directory) if tree.is_dir(directory) else ()
    return tuple(name for name in names if _SHARD.fullmatch(name))


def _prove_consolidated(proof: Proof, depth: Depth) -> None:
    names = proof.tree.files(proof.root)
    if not any(map(INDEX.fullmatch, names)):
        proof.need(_INDEX, is_marker=True)
        for name in filter(NUMBERED.fullmatch, names):
            proof.need(name)
            prove_safetensors(proof, name)
        return
    prove_weights(proof, "", depth)
    for index in filter(INDEX.fullmatch, names):
        proof.take(index, is_marker=True)
        proof.written_after(index, [name for name in names if proof.is_member(name)])


def _prove_shards(proof: Proof, names: Sequence[str]) -> None:
    """Each shard's size, ranks and model files without any shard, and that nothing proves the rest.

    A rank writes no shard of a model file of which it holds no tensor.
    """
    matches = [match for match in map(_SHARD.fullmatch, names) if match]
    for name in names:
        proof.need(name)
        prove_safetensors(proof, name)
    ranks = {int(match[1]) for match in matches}
    numbers = {int(match[2]) for match in matches}
    count = max(int(match[3]) for match in matches)
    for rank in sorted(set(range(1, max(ranks) + 1)) - ranks):
        text = f"no shard-{rank:05d}-* is here, and {max(ranks):05d} is"
        proof.refuse(Reason.MISSING_SHARD, "", text)
    for number in sorted(set(range(1, count + 1)) - numbers):
        text = f"no shard of model-{number:05d}-of-{count:05d} is here"
        proof.refuse(Reason.MISSING_SHARD, "", text)
    text = "nothing on disk tells its full set: declare a rule or commit it"
    proof.refuse(Reason.UNPROVEN, "", text)


LAYOUT = DcpHfLayout()
