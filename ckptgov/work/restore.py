"""What restoring needs beside the mover: from where first, which shards, what to clear away.

Nothing of ours stays in a directory that belongs to no run: what was staged there goes once the
checkpoint stands, and is left only where a later try goes on from it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ckptgov.errors import CkptgovError, StorageError, UsageError
from ckptgov.layouts.declared import path_pattern
from ckptgov.model.checkpoint import Manifest
from ckptgov.storage.contract import Storage
from ckptgov.storage.posix import PosixStorage
from ckptgov.work.copy import ShardSource
from ckptgov.work.owned import LINKED, STAGING, remove_below
from ckptgov.work.sources import CopyAt
from ckptgov.work.tier import Place


def nearest_first(copies: Sequence[CopyAt], *, node: str | None) -> list[CopyAt]:
    """The asking node's own places, then shared directories, other nodes', object stores."""

    def distance(one: CopyAt) -> int:
        if not one.place.storage.traits.has_directories:
            return 3
        if one.place.node is None:
            return 1
        return 0 if one.place.node == node else 2

    return sorted(copies, key=distance)


def matching(manifest: Manifest, globs: Sequence[str]) -> frozenset[str] | None:
    """The shards whose path some glob matches, None for all where no glob is given.

    A checkpoint that is one file is matched by its name.

    Raises:
        UsageError: a glob is none, or nothing matches.
    """
    if not globs:
        return None
    try:
        patterns = [path_pattern(one) for one in globs]
    except re.error as error:
        raise UsageError(f"--match: {error.pattern!r} is no glob: {error.msg}") from error
    own = manifest.name.rpartition("/")[2]
    found = frozenset(
        shard.path
        for shard in manifest.shards
        if any(pattern.fullmatch(shard.path or own) for pattern in patterns)
    )
    if not found:
        example = manifest.shards[0].path or own
        raise UsageError(
            f"no shard of {manifest.name} matches {', '.join(globs)}",
            hint=f"'*' does not cross '/', '**' does; a shard is called {example}",
        )
    return found


def link_staged(
    copies: Sequence[CopyAt],
    sources: Mapping[str, tuple[ShardSource, ...]],
    target: Place,
    staged: Mapping[str, str],
) -> dict[str, str]:
    """Stage hard links to the nearest copies where one file system holds both.

    ``staged`` is shard path to the path below the target's root. Returns shard path to place of
    those that were made; the bytes they lead to are still to be compared.
    """
    roots = {one.place.uuid or one.place.root: one.place.storage for one in copies}
    linked: dict[str, str] = {}
    for path, to in staged.items():
        for source in sources.get(path, ()):
            storage = roots[source.place]
            if not storage.traits.has_links or not os.path.isabs(storage.root):
                continue
            with suppress(FileExistsError, FileNotFoundError, StorageError):
                _link(storage.root, source.path, target.storage.root, to)
                linked[path] = source.place
                break
    return linked


def _link(source_root: str, source: str, target_root: str, target: str) -> None:
    one, other = os.path.realpath(source_root), os.path.realpath(target_root)
    common = os.path.commonpath([one, other])
    with PosixStorage(common) as storage:
        storage.link(
            os.path.relpath(os.path.join(one, source), common),
            os.path.relpath(os.path.join(other, target), common),
        )


def tidy(storage: Storage, sidecar: str) -> None:
    """Take our empty directories away again; what still holds anything stays."""
    for kind in (STAGING, LINKED):
        remove_below(storage, f"{sidecar}/{kind}", keeps=lambda _: True)
    with suppress(CkptgovError, OSError):
        storage.remove_dir(sidecar)
