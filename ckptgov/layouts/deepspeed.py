"""DeepSpeed: a tag directory of model states and, with ZeRO, one optimizer part per rank.

Nothing marks a save as done: ``latest`` is written by rank 0 as soon as rank 0 is done, so it can
name a tag whose other parts are empty or absent. But each model states file says how many ranks
wrote (``dp_world_size``, ``mp_world_size``, ``checkpoint_parallel_dimensions``), which gives the
exact set of names (deepspeed/runtime/engine.py). Where no such file is left, the set is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.layouts.base import Claim, Tree, split
from ckptgov.layouts.beside import neighbours
from ckptgov.layouts.dcp import found_dir
from ckptgov.layouts.deepspeed_set import is_tag_dir, prove_tag
from ckptgov.layouts.names import step_of_name
from ckptgov.layouts.proof import Proof
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import Depth, Found, Pointer, Sighting

_POINTER = "latest"
_POINTER_CAP_BYTES = 4096


class DeepSpeedLayout:
    """A tag directory as ``DeepSpeedEngine.save_checkpoint`` writes it."""

    name = "deepspeed"

    def find(self, tree: Tree, directory: str) -> Claim | None:
        """A directory with a file that only DeepSpeed names so."""
        if not is_tag_dir(tree, directory):
            return None
        return Claim((found_dir(directory, self.name),), whole=True)

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        """The exact set, each part's zip, and ``global_steps`` before the tag's name."""
        proof = Proof(tree, found)
        beside = [other.name for other in neighbours(found, siblings)]
        tag = prove_tag(proof, "", depth, beside=beside)
        step, kind = found.step, found.step_kind
        if tag.step is not None:
            named = step_of_name(split(found.name)[1])
            if named is not None and named[0] != tag.step:
                said = f"its model states say global_steps {tag.step}"
                text = f"the tag's name says {named[0]}, {said}"
                proof.note("step", "", text)
            step, kind = tag.step, StepKind.STEP
        return proof.sighting(
            step=step,
            step_kind=kind,
            world_size=tag.world_size,
            reshardable=False,
            common_file=tag.common_file,
        )

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        """``latest`` in the run root; the tag it names may be half written, or not be there."""
        if not tree.is_file(_POINTER):
            return ()
        text = read_pointer(tree, _POINTER)
        tag = tag_named(text)
        is_there = tag is not None and tree.is_dir(tag)
        return (Pointer(_POINTER, text.strip(), tag if is_there else None),)


def read_pointer(tree: Tree, path: str) -> str:
    """The text of a small pointer file, bytes that are no UTF-8 replaced."""
    with tree.open(path) as file:
        return file.read_at(0, _POINTER_CAP_BYTES).decode("utf-8", "replace")


def tag_named(text: str) -> str | None:
    """The one name a pointer's text consists of; None for an empty or unusable text."""
    tag = text.strip()
    return tag if tag and "/" not in tag else None


LAYOUT = DeepSpeedLayout()
