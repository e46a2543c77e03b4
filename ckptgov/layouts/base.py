"""The contract every layout fulfils: find candidates, examine one, read the pointers.

A layout is an object without state. The survey asks each one, in the registry's order, about each
directory of a run root; whoever claims first owns the files. Nothing is read to claim a candidate
but names and, where names cannot decide, a few bytes of a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from ckptgov.layouts.tree import LookSettings, Tree, join, sort_paths, split
from ckptgov.model.facts import Depth, Found, Pointer, ResumeArgs, Sighting

__all__ = [
    "Claim",
    "Layout",
    "LookSettings",
    "Tree",
    "join",
    "members_root",
    "resume_args",
    "sort_paths",
    "split",
]


class Claim(Struct, frozen=True):
    """What a layout claims of one directory.

    ``whole`` means the directory itself is the (only) checkpoint in ``found`` and nobody looks
    below it. Otherwise each of ``found`` is a single file in it (``is_file``) or a group of files
    (``files``), and the other layouts and the directories below are still asked.
    """

    found: tuple[Found, ...]
    whole: bool = False


class Layout(Protocol):
    """How one framework lays a checkpoint out. Implementations hold no state."""

    @property
    def name(self) -> str:
        """The word in manifests and answers (``dcp``, ``deepspeed``...)."""
        ...

    def find(self, tree: Tree, directory: str) -> Claim | None:
        """Which checkpoints of this layout ``directory`` is, or holds as files; None: none.

        ``directory`` is a path below the run root. Torn and half-written candidates are claimed
        too, so that they are told and not overlooked. Names of staging never reach here.
        """
        ...

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        """Prove one candidate as far as this layout can.

        ``siblings`` are all candidates of the run (this one included). Raises ``Malformed``
        naming the file for bytes that do not decode, ``FileNotFoundError`` for a file that went
        away meanwhile and ``StorageError`` for one that may not be read:
        ``registry.examine`` turns each into a finding.
        """
        ...

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        """What the framework's own "latest" in the run root says; empty where it has none."""
        ...


def members_root(found: Found) -> str:
    """The path below the run root that shard paths of ``found`` hang from.

    The directory itself for a directory; the file itself (shard path ``""``) for a single file;
    for a group of files the directory ``found.name`` where all of them lie beneath it, otherwise
    the directory that holds them.
    """
    if not found.files or all(path.startswith(found.name + "/") for path in found.files):
        return found.name
    return split(found.name)[0]


def resume_args(found: Found, *, path: str | None = None, step: int | None, tag: str) -> ResumeArgs:
    """What the loader wants: ``path`` (by default the checkpoint's own) and its parent."""
    where = found.name if path is None else path
    return ResumeArgs(path=where, parent=split(where)[0], step=step, tag=tag)
