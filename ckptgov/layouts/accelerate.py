"""accelerate's ``save_state``: ``checkpoint_<k>``, where k counts saves and not steps.

Nothing marks the end of a save and no file lists the set (accelerate/accelerator.py,
accelerate/checkpointing.py). Model, optimizer, scheduler, sampler and scaler have fixed names;
each rank adds its ``random_states_<r>.pkl`` (a torch zip, whatever its suffix says), and no file
tells how many. Whatever else lies there was put there by the trainer's own save hooks and is read
back by its load hooks, so it belongs to the set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptgov.layouts.base import Claim, Tree, join, split
from ckptgov.layouts.beside import MAX_RANKS, neighbours
from ckptgov.layouts.content import prove_content
from ckptgov.layouts.dcp import found_dir
from ckptgov.layouts.deepspeed_set import is_tag_dir, prove_tag
from ckptgov.layouts.hf_inside import Inside, is_fsdp_dir, prove_inside
from ckptgov.layouts.hf_state import STATE
from ckptgov.layouts.hf_weights import prove_weights, weight_files
from ckptgov.layouts.names import is_staging
from ckptgov.layouts.proof import Proof
from ckptgov.layouts.random_states import prove_ranks
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import Depth, Found, Pointer, Reason, Sighting

_COUNTED = re.compile(r"checkpoint_([0-9]{1,18})")
_RANDOM = re.compile(r"random_states_([0-9]{1,7})\.pkl")
_OPTIMIZER = re.compile(r"optimizer(?:_[0-9]{1,4})?\.bin")
_CUSTOM = re.compile(r"custom_checkpoint_([0-9]{1,7})\.pkl")
_DEEPSPEED = re.compile(r"pytorch_model(?:_[0-9]{1,4})?")
_SCHEDULER = re.compile(r"(?:scheduler|sampler|dl_state_dict)(?:_[0-9]{1,4})?\.bin|scaler\.pt")
_WEIGHTS = (".safetensors", ".bin")
_ZIPS = (".bin", ".pt", ".pth", ".pkl")


class AccelerateLayout:
    """A directory that ``Accelerator.save_state`` wrote."""

    name = "accelerate"

    def find(self, tree: Tree, directory: str) -> Claim | None:
        """A directory with a rank's random states, or one named and filled as accelerate does."""
        if not _is_checkpoint(tree, directory):
            return None
        found = found_dir(directory, self.name)
        counted = _COUNTED.fullmatch(split(directory)[1])
        if counted:
            ordinal = StepKind.ORDINAL
            found = Found(name=directory, layout=self.name, step=int(counted[1]), step_kind=ordinal)
        return Claim((found,), whole=True)

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        """Fixed names, a random state per rank, and every other file by its suffix."""
        proof = Proof(tree, found)
        inside = _prove_engine(proof, depth)
        _prove_model(proof, inside, depth)
        _prove_optimizer(proof, inside, depth)
        beside = [other.name for other in neighbours(found, siblings)]
        exact = inside.world_size if inside.is_deepspeed else None
        name_of = "random_states_{}.pkl"
        ranks = prove_ranks(proof, _RANDOM, name_of, depth, world_size=exact, beside=beside)
        if not ranks:
            proof.need(name_of.format(0), because="no rank's random states are here")
        _prove_custom(proof)
        _prove_rest(proof, depth)
        return proof.sighting(
            world_size=inside.world_size or ranks or None, reshardable=inside.reshardable
        )

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        """None: accelerate takes the highest counter."""
        return ()


def owns_directory(tree: Tree, directory: str, name: str) -> bool:
    """Whether nothing but saves may lie in ``directory``, whose own name is ``name``.

    With automatic naming accelerate reads a number out of every name it finds in ``checkpoints``,
    fails where there is none, and deletes the lowest (accelerate/accelerator.py, save_state and
    load_state).
    """
    return name == "checkpoints" and any(
        _COUNTED.fullmatch(below) and _is_checkpoint(tree, join(directory, below))
        for below in tree.dirs(directory)
    )


def is_owned_by(layout: str, directory: str) -> bool:
    """The same before anything lies in ``directory``: by the layout of what is to come."""
    return layout == "accelerate" and split(directory)[1] == "checkpoints"


def _is_checkpoint(tree: Tree, directory: str) -> bool:
    files = tree.files(directory)
    if STATE in files:
        return False
    if any(map(_RANDOM.fullmatch, files)):
        return True
    parent, name = split(directory)
    if not _COUNTED.fullmatch(name):
        return False
    if is_fsdp_dir(tree, directory) or any(map(_OPTIMIZER.fullmatch, files)):
        return True
    # Killed after the weights, before anything that only accelerate names so.
    beside = (join(parent, other) for other in tree.dirs(parent) if _COUNTED.fullmatch(other))
    return bool(weight_files(tree, directory)) and any(
        any(map(_RANDOM.fullmatch, tree.files(other))) for other in beside
    )


def _prove_engine(proof: Proof, depth: Depth) -> Inside:
    """DeepSpeed's tag is called after the model; FSDP's parts as in the Trainer."""
    for name in proof.tree.dirs(proof.root):
        if _DEEPSPEED.fullmatch(name) and is_tag_dir(proof.tree, proof.at(name)):
            tag = prove_tag(proof, name, depth)
            return Inside(
                is_deepspeed=True,
                holds_weights=True,
                holds_optimizer=True,
                reshardable=False,
                world_size=tag.world_size,
            )
    return prove_inside(proof, depth)


def _prove_model(proof: Proof, inside: Inside, depth: Depth) -> None:
    """At the top, in DeepSpeed's or FSDP's parts, or wherever a save hook put weights."""
    if prove_weights(proof, "", depth) or inside.holds_weights:
        return
    files = proof.tree.files_below(proof.root)
    if not any(f.endswith(_WEIGHTS) and not _is_fixed(f) for f in files):
        proof.refuse(Reason.MISSING_SHARD, "", "no model weights are here (model.safetensors, ...)")


def _is_fixed(path: str) -> bool:
    return any(pattern.fullmatch(path) for pattern in (_OPTIMIZER, _SCHEDULER))


def _prove_optimizer(proof: Proof, inside: Inside, depth: Depth) -> None:
    if inside.holds_optimizer:
        return
    numbers = [name for name in proof.tree.files(proof.root) if _OPTIMIZER.fullmatch(name)]
    # With several optimizers the first one has no number and the others count from 1.
    for number in range(max(len(numbers), 1)):
        name = f"optimizer_{number}.bin" if number else "optimizer.bin"
        proof.need(name, because="resuming needs it")
        proof.prove_zip(name, depth)


def _prove_custom(proof: Proof) -> None:
    """Registered objects are counted from 0; a gap is a lost one."""
    seen = [int(m[1]) for m in map(_CUSTOM.fullmatch, proof.tree.files(proof.root)) if m]
    for number in sorted(set(range(min(max(seen, default=-1) + 1, MAX_RANKS))).union(seen)):
        proof.need(f"custom_checkpoint_{number}.pkl", because="a gap in their numbers")


def _prove_rest(proof: Proof, depth: Depth) -> None:
    for path in proof.tree.files_below(proof.root):
        if proof.is_member(path) and not _CUSTOM.fullmatch(path):
            continue
        if any(is_staging(name) for name in path.split("/")):
            continue
        proof.need(path)
        if path.endswith(_ZIPS):
            proof.prove_zip(path, depth)
        else:
            prove_content(proof, path, depth)


LAYOUT = AccelerateLayout()
