"""PyTorch DCP: a directory with ``.metadata`` and ``__<rank>_<n>.distcp``.

torchtitan needs no file of its own: its ``<folder>/step-N/`` is a DCP directory whose name carries
the step, it has no pointer, and its model-only final save is a directory of safetensors.

The step stands in the directory's name or in that of a directory above it. Two DCP directories
under one such name (``step_100/model``, ``step_100/optim``) are parts of one save that nothing
here ties together, so neither is offered alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.layouts.base import Claim, Tree, split
from ckptgov.layouts.dcp_set import is_dcp_dir, prove_dcp
from ckptgov.layouts.names import step_of_name, step_of_path
from ckptgov.layouts.proof import Proof
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import Depth, Found, Pointer, Reason, Sighting

NAME = "dcp"


class Dcp:
    """A directory that torch.distributed.checkpoint wrote."""

    name = NAME

    def find(self, tree: Tree, directory: str) -> Claim | None:
        if not is_dcp_dir(tree, directory):
            return None
        return Claim((found_dir(directory, NAME),), whole=True)

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        proof = Proof(tree, found)
        proved = prove_dcp(proof, "", depth)
        others = parts_beside(found, siblings)
        if others:
            text = f"one of several parts under one step name (also {', '.join(others[:3])})"
            proof.refuse(Reason.UNPROVEN, "", text)
        return proof.sighting(
            world_size=proved.world_size if proved else None,
            reshardable=proved.reshardable if proved else None,
        )

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        return ()


def found_dir(directory: str, layout: str) -> Found:
    """A candidate that is a whole directory, with the step its path carries."""
    step, kind = step_of_path(directory) or (None, StepKind.NONE)
    return Found(name=directory, layout=layout, step=step, step_kind=kind)


def parts_beside(found: Found, siblings: Sequence[Found]) -> tuple[str, ...]:
    """Other candidates beneath the directory that lends ``found`` its step; none if it has its own.

    What lies together under one step name may be one save in parts.
    """
    if found.step is None or step_of_name(split(found.name)[1]) is not None:
        return ()
    above = split(found.name)[0]
    while above and step_of_name(split(above)[1]) is None:
        above = split(above)[0]
    others = {s.name for s in siblings if s.name.startswith(above + "/")} - {found.name}
    return tuple(sorted(others)) if above else ()


LAYOUT = Dcp()
