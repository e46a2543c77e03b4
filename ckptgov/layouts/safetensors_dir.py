"""Weights in safetensors files with nothing of a trainer beside them: for loading, not resuming.

A directory is one candidate when an index, a configuration or the step in its path says that its
files belong together; otherwise each file is a candidate of its own, with the last integer of its
name as an ordinal. Shards without an index are whole only by their own numbering
(``<n>-of-<count>``); several unnumbered files under one step name are unproven, and so are
weights beside torch files, which no index ties to them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptgov.layouts.base import Claim, Tree, join, split
from ckptgov.layouts.content import TORCH_SUFFIXES, prove_content
from ckptgov.layouts.dcp import found_dir, parts_beside
from ckptgov.layouts.hf_weights import (
    INDEX,
    NUMBERED,
    SINGLES,
    prove_configs,
    prove_weights,
    weight_files,
)
from ckptgov.layouts.names import is_staging, last_integer, step_of_path
from ckptgov.layouts.proof import Proof
from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.facts import Depth, Found, Pointer, Reason, Sighting

SUFFIX = ".safetensors"
_CONFIGURED = ("config.json", "adapter_config.json", "model_index.json")
_RANKED = re.compile(r"(?:\A|.*[-_.])(?:rank|shard|part)[-_]?[0-9]+", re.IGNORECASE)
_UNPROVEN = "nothing on disk tells its full set: declare a rule or commit it"


class SafetensorsLayout:
    """A directory of weights, or bare files of weights."""

    name = "safetensors"

    def find(self, tree: Tree, directory: str) -> Claim | None:
        """The directory where something ties its files together, else each file."""
        bare = _bare_files(tree, directory)
        indexed = weight_files(tree, directory)
        if not bare and not indexed:
            return None
        files = tree.files(directory)
        is_tied = any(INDEX.fullmatch(name) or NUMBERED.fullmatch(name) for name in indexed)
        is_tied |= any(name in files for name in _CONFIGURED)
        is_tied |= step_of_path(directory) is not None and not _are_counted(bare)
        if is_tied:
            return Claim((found_dir(directory, self.name),), whole=True)
        found = tuple(self._single(join(directory, name)) for name in bare)
        return Claim(found) if found else None

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        """Index, shards and the exact size of each file."""
        proof = Proof(tree, found)
        if found.is_file:
            proof.need("")
            prove_content(proof, "", depth)
            return proof.sighting(purposes=(Purpose.WEIGHTS,), reshardable=True)
        prove_weights(proof, "", depth)
        prove_configs(proof, "")
        loose = _loose(proof)
        torch = [name for name in _torch_files(tree, proof.root) if not proof.is_member(name)]
        if loose or torch:
            _prove_loose(proof, loose, torch, depth)
        others = parts_beside(found, siblings)
        if others:
            text = f"one of several parts under one step name (also {', '.join(others[:3])})"
            proof.refuse(Reason.UNPROVEN, "", text)
        resume = (Purpose.RESUME,) if torch else ()
        return proof.sighting(purposes=(*resume, Purpose.WEIGHTS), reshardable=True)

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        """There is none."""
        return ()

    def _single(self, path: str) -> Found:
        step, kind = last_integer(split(path)[1]) or (None, StepKind.NONE)
        return Found(name=path, layout=self.name, step=step, step_kind=kind, is_file=True)


def _bare_files(tree: Tree, directory: str) -> list[str]:
    names = tree.files(directory)
    return [name for name in names if name.endswith(SUFFIX) and not is_staging(name)]


def _torch_files(tree: Tree, directory: str) -> list[str]:
    names = tree.files(directory)
    return [name for name in names if name.endswith(TORCH_SUFFIXES) and not is_staging(name)]


def _loose(proof: Proof) -> list[str]:
    """Files that no index names; beside an index, numbered shards that it leaves out are stale."""
    names = proof.tree.files(proof.root)
    has_index = any(map(INDEX.fullmatch, names))
    return [
        name
        for name in _bare_files(proof.tree, proof.root)
        if not proof.is_member(name) and not (has_index and NUMBERED.fullmatch(name))
    ]


def _are_counted(names: Sequence[str]) -> bool:
    """Whether each file carries a step of its own (saves beside each other, not shards)."""
    stems = [name for name in names if not NUMBERED.fullmatch(name) and not _RANKED.match(name)]
    return len(names) > 1 and all(step_of_path(name) for name in stems) and stems == list(names)


def _prove_loose(proof: Proof, loose: Sequence[str], torch: Sequence[str], depth: Depth) -> None:
    """Files that no index names: one alone is its own full set, several are not proven."""
    for name in (*loose, *torch):
        proof.need(name)
        prove_content(proof, name, depth)
    is_alone = len(loose) == 1 and not torch and not _RANKED.match(loose[0])
    if not is_alone or any(name in SINGLES for name in proof.tree.files(proof.root)):
        proof.refuse(Reason.UNPROVEN, "", _UNPROVEN)


LAYOUT = SafetensorsLayout()
