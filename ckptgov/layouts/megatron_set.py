"""The set of files of one Megatron-core ``torch_dist`` directory, wherever it lies.

Write order (megatron-core 0.16): ``common.pt``, the DCP shards, ``.metadata`` by rename, and
``metadata.json`` in place as the marker. Later versions keep the common state inside the shards
(a key ``common_state*`` in ``.metadata``) and write no ``common.pt``.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ckptgov.errors import Malformed
from ckptgov.layouts.base import Tree, join
from ckptgov.layouts.content import json_object
from ckptgov.layouts.dcp_set import prove_dcp
from ckptgov.layouts.pickles import Scalar
from ckptgov.layouts.proof import Proof
from ckptgov.layouts.torch_zip import torch_facts
from ckptgov.model.facts import Depth, Reason

MARKER = "metadata.json"
COMMON = "common.pt"

_CAP_BYTES = 2**20
_KEYS = (
    "iteration",
    "global_step",
    "pytorch-lightning_version",
    "args.world_size",
    "args.no_save_optim",
)


class TorchDist(Struct, frozen=True):
    """What was proved: the ranks that wrote, and scalars of the common state where it is a file."""

    world_size: int | None = None
    reshardable: bool | None = None
    common: Mapping[str, Scalar] | None = None

    def integer(self, key: str) -> int | None:
        """A scalar of the common state that is a count."""
        value = (self.common or {}).get(key)
        return value if type(value) is int and value >= 0 else None


def has_marker(tree: Tree, directory: str) -> bool:
    """Whether ``metadata.json`` of a distributed checkpoint lies in the directory, whole or not."""
    path = join(directory, MARKER)
    if not tree.is_file(path) or tree.stat(path).bytes > _CAP_BYTES:
        return False
    text = tree.read_whole(path, _CAP_BYTES)
    return b"sharded_backend" in text or (not text and tree.is_file(join(directory, COMMON)))


def prove_torch_dist(proof: Proof, below: str, depth: Depth) -> TorchDist:
    """Prove the ``torch_dist`` directory ``below`` the checkpoint.

    A directory without any sign of megatron-core (no ``metadata.json``, no ``common.pt``, planned
    by torch itself) is Megatron-LM's ``torch_dcp``, whose only marker is ``.metadata``.
    """
    marker, common = join(below, MARKER), join(below, COMMON)
    backend = _backend(proof, marker)
    if backend not in (None, "torch_dist"):
        text = f"sharded_backend {backend!r}: which files belong to it is not known"
        proof.refuse(Reason.UNPROVEN, marker, text)
    proved = prove_dcp(proof, below, depth)
    is_core = proof.has(common) or (
        proved is not None and (proved.has_common_state or proved.is_planned_by_mcore)
    )
    if is_core and not proof.is_member(marker):
        proof.need(marker, is_marker=True, because=_MARKER_MISSING)
    if proved is None or not (is_core or proof.is_member(marker)):
        return TorchDist(
            world_size=proved.world_size if proved else None,
            reshardable=proved.reshardable if proved else None,
        )
    members = list(proved.members)
    facts: Mapping[str, Scalar] | None = None
    if not proved.has_common_state:
        proof.need(common, because="the state all ranks share lies in it")
        proof.prove_zip(common, depth)
        facts = _common_facts(proof, common)
        members.append(common)
    proof.written_after(marker, members)
    return TorchDist(_world_size(facts) or proved.world_size, proved.reshardable, facts)


_MARKER_MISSING = "is missing: still being written, or its writer died"


def _backend(proof: Proof, marker: str) -> str | None:
    if not proof.has(marker):
        return None
    proof.need(marker, is_marker=True)
    described = json_object(proof, marker)
    backend = (described or {}).get("sharded_backend")
    if described is not None and not isinstance(backend, str):
        proof.refuse(Reason.TORN, marker, "names no sharded_backend")
    return backend if isinstance(backend, str) else None


def _common_facts(proof: Proof, common: str) -> Mapping[str, Scalar] | None:
    if not proof.has(common) or proof.refused(common):
        return None
    try:
        return torch_facts(proof.tree, proof.at(common), _KEYS).scalars
    except Malformed as error:
        proof.refuse_malformed(common, error)
        return None


def _world_size(facts: Mapping[str, Scalar] | None) -> int | None:
    value = (facts or {}).get("args.world_size")
    return value if type(value) is int and value > 0 else None
