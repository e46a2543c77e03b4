"""Megatron-LM: ``iter_<N, at least 7 digits>/`` or ``release/``, and a tracker beside them.

The format inside is megatron-core's ``torch_dist`` (``megatron_set``), Megatron-LM's ``torch_dcp``,
or the legacy ``mp_rank_*/model_optim_rng.pt``, which has no marker of its own; there the set of
ranks follows from the arguments pickled in every file (megatron/training/checkpointing.py).
``release`` carries no step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product

from ckptgov.errors import Malformed
from ckptgov.layouts.base import Claim, Tree, join, split
from ckptgov.layouts.dcp import found_dir
from ckptgov.layouts.dcp_set import is_dcp_dir
from ckptgov.layouts.megatron_set import COMMON, has_marker, prove_torch_dist
from ckptgov.layouts.pickles import Scalar
from ckptgov.layouts.proof import Proof
from ckptgov.layouts.torch_zip import torch_facts
from ckptgov.model.checkpoint import Purpose
from ckptgov.model.facts import Depth, Found, Pointer, Reason, Sighting

NAME = "megatron"
TRACKER = "latest_checkpointed_iteration.txt"

_TRACKER_CAP_BYTES = 4096
_ITERATION = re.compile(r"iter_[0-9]{7,18}")
_RANK_DIR = re.compile(r"mp_rank_[0-9]{2}(?:_[0-9]{3}){0,2}")
_MODEL = "model_optim_rng.pt"
_OPTIMIZER = "distrib_optim.pt"
_MAX_RANKS = 1_000_000
_SIZES = (
    "args.tensor_model_parallel_size",
    "args.pipeline_model_parallel_size",
    "args.expert_model_parallel_size",
)
_KEYS = (
    *_SIZES,
    "args.world_size",
    "args.use_distributed_optimizer",
    "args.no_save_optim",
    "iteration",
)


class Megatron:
    """A directory that Megatron-LM or a user of megatron-core wrote."""

    name = NAME

    def find(self, tree: Tree, directory: str) -> Claim | None:
        is_core = has_marker(tree, directory) or (
            tree.is_file(join(directory, COMMON)) and is_dcp_dir(tree, directory)
        )
        is_iteration = _ITERATION.fullmatch(split(directory)[1]) is not None
        if (
            is_core
            or (is_iteration and is_dcp_dir(tree, directory))
            or _legacy_dirs(tree, directory)
        ):
            return Claim((found_dir(directory, NAME),), whole=True)
        return None

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        proof = Proof(tree, found)
        legacy = _legacy_dirs(tree, found.name)
        if legacy:
            return _examine_legacy(proof, legacy, depth)
        proved = prove_torch_dist(proof, "", depth)
        _check_iteration(proof, COMMON, proved.common or {})
        return proof.sighting(
            purposes=_purposes(proved.common or {}),
            world_size=proved.world_size,
            reshardable=proved.reshardable,
        )

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        """The tracker: an iteration or ``release``, empty when its writer was killed in it."""
        if not tree.is_file(TRACKER):
            return ()
        try:
            raw = tree.read_whole(TRACKER, _TRACKER_CAP_BYTES)
        except Malformed:
            return (Pointer(TRACKER, "", None),)
        text = raw.decode("utf-8", "replace").strip()
        name = f"iter_{int(text):07d}" if re.fullmatch(r"[0-9]{1,18}", text) else text
        is_there = name and "/" not in name and tree.is_dir(name)
        return (Pointer(TRACKER, text, name if is_there else None),)


def _legacy_dirs(tree: Tree, directory: str) -> tuple[str, ...]:
    """Names of the rank directories of the legacy format."""
    return tuple(
        name
        for name in tree.dirs(directory)
        if _RANK_DIR.fullmatch(name)
        and {_MODEL, _OPTIMIZER} & set(tree.files(join(directory, name)))
    )


def _examine_legacy(proof: Proof, dirs: Sequence[str], depth: Depth) -> Sighting:
    for path in (join(name, file) for name in dirs for file in (_MODEL, _OPTIMIZER)):
        if proof.has(path):
            proof.need(path)
            proof.prove_zip(path, depth)
    facts = _first_facts(proof, dirs)
    expected = _legacy_set(facts)
    if expected is None:
        text = (
            "its files do not tell the tensor and pipeline sizes, so not how many there should be"
        )
        proof.refuse(Reason.UNPROVEN, "", text)
    for path in expected or ():
        if not proof.is_member(path):
            proof.need(path, because="the arguments saved beside it demand this rank")
    _check_iteration(proof, join(dirs[0], _MODEL), facts)
    size = facts.get("args.world_size")
    return proof.sighting(
        purposes=_purposes(facts),
        world_size=size if type(size) is int and size > 0 else None,
        reshardable=False,
    )


def _first_facts(proof: Proof, dirs: Sequence[str]) -> Mapping[str, Scalar]:
    """The arguments as the first readable model file has them."""
    for path in (join(name, _MODEL) for name in dirs):
        if not proof.has(path) or proof.refused(path):
            continue
        try:
            return torch_facts(proof.tree, proof.at(path), _KEYS).scalars
        except Malformed as error:
            proof.refuse_malformed(path, error)
    return {}


def _legacy_set(facts: Mapping[str, Scalar]) -> tuple[str, ...] | None:
    """Every rank's files; None where the arguments do not tell."""
    sizes = [facts.get(key) for key in _SIZES]
    tensor, pipeline, expert = (size if type(size) is int else 0 for size in sizes)
    expert = expert or 1  # older arguments know no experts
    if tensor < 1 or pipeline < 1 or expert < 1 or tensor * pipeline * expert > _MAX_RANKS:
        return None
    files = [_MODEL]
    if facts.get("args.use_distributed_optimizer") is True and not _is_weights_only(facts):
        files.append(_OPTIMIZER)
    dirs = (
        f"mp_rank_{t:02d}"
        + (f"_{p:03d}" if pipeline > 1 else "")
        + (f"_{e:03d}" if expert > 1 else "")
        for t, p, e in product(range(tensor), range(pipeline), range(expert))
    )
    return tuple(join(name, file) for name in dirs for file in files)


def _check_iteration(proof: Proof, path: str, facts: Mapping[str, Scalar]) -> None:
    """The iteration saved inside must be the one in the name, where both are there."""
    saved, named = facts.get("iteration"), proof.found.step
    if type(saved) is int and named is not None and saved != named:
        text = f"says iteration {saved}, the directory's name says {named}"
        proof.refuse(Reason.TORN, path, text)


def _is_weights_only(facts: Mapping[str, Scalar]) -> bool:
    return facts.get("args.no_save_optim") is True


def _purposes(facts: Mapping[str, Scalar]) -> tuple[Purpose, ...]:
    if _is_weights_only(facts):
        return (Purpose.WEIGHTS,)
    return (Purpose.RESUME, Purpose.WEIGHTS)


LAYOUT = Megatron()
