"""Walking a tree: where runs begin, and every candidate, alias and left-over of one run.

Symlinks are told, never followed or counted. Temporary names are told as staging and never looked
into. Directories nobody claims are walked and otherwise ignored: unknown is not debris.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from ckptgov.errors import CouldNotLook
from ckptgov.layouts import accelerate
from ckptgov.layouts.base import LookSettings, Tree, join, split
from ckptgov.layouts.links import aliases, link_pointers, resolve_all
from ckptgov.layouts.names import is_debris, is_staging, step_of_name
from ckptgov.layouts.registry import find_all, pointers
from ckptgov.model.facts import Found, StagingDebris, Survey
from ckptgov.model.files import EntryKind, Reader

T = TypeVar("T")

MAX_DEPTH = 40
"""Directories deeper than this below the start end the look with an error."""

_TRIES = 3
_MOST_GONE = 1000
"""More that go one after the other than these are not waited for."""
_NO_SETTINGS = LookSettings(now_ns=0)


def _never(path: str) -> bool:
    del path
    return False


def find_run_roots(
    reader: Reader,
    top: str,
    settings: LookSettings = _NO_SETTINGS,
    *,
    is_run: Callable[[str], bool] = _never,
) -> tuple[str, ...]:
    """The run roots at or below ``top``, as paths of the reader, sorted; none, one or several.

    A run root is the nearest directory with a child directory whose own name carries a step, or
    which holds a checkpoint, or of which ``is_run`` says so (it was known as one before);
    everything beneath it is its run. Temporary names, symlinks and
    ``.ckptgov*`` do not count. Where ``top`` itself is one checkpoint, ask ``is_checkpoint``
    first: its run root is its parent.

    Raises:
        FileNotFoundError, NotADirectoryError: ``top`` is absent or no directory.
        CouldNotLook: a directory may not be read, or there are too many or too deep ones.
    """
    roots: list[str] = []
    with Tree(reader, top, settings) as tree:
        todo = [""]
        while todo:
            directory = todo.pop()
            known = is_run(join(top, directory))
            is_root = known or _unless_gone(tree, directory, _is_run_root)
            if is_root:
                roots.append(join(top, directory))
            elif is_root is not None:
                todo.extend(_walkable(tree, directory))
    return tuple(sorted(roots))


def is_checkpoint(reader: Reader, path: str, settings: LookSettings = _NO_SETTINGS) -> bool:
    """Whether the directory or file ``path`` itself is one checkpoint (whole or torn).

    Its run root then is its parent. Never so for the reader's own root and temporary names.

    Raises:
        FileNotFoundError: ``path`` is absent.
        CouldNotLook: it may not be read.
    """
    parent, name = split(path)
    if not name or is_staging(name):
        return False
    with Tree(reader, parent, settings) as tree:
        match tree.kind(name):
            case EntryKind.DIR:
                return find_all(tree, name).whole
            case EntryKind.FILE:
                found = find_all(tree, "").found
                return any(candidate.is_file and candidate.name == name for candidate in found)
            case None:
                raise FileNotFoundError(path)
            case _:
                return False


def is_trainers_own(reader: Reader, directory: str, name: str) -> bool:
    """Whether a trainer takes every entry of ``directory`` for one of its saves.

    Then nothing of ours may lie in it. ``name`` is the directory's own name.
    """
    with Tree(reader, directory, _NO_SETTINGS) as tree:
        return accelerate.owns_directory(tree, "", name)


def survey(tree: Tree) -> Survey:
    """Walk one run root completely; nothing is examined yet.

    Raises:
        CouldNotLook: a directory may not be read, or there are too many or too deep ones; a part
            of a run is never passed off as the whole.
    """
    found: list[Found] = []
    staging: list[StagingDebris] = []
    links: list[str] = []
    todo = [""]
    while todo:
        directory = todo.pop()
        claim = _unless_gone(tree, directory, find_all)
        if claim is None:
            continue
        found += claim.found
        if claim.whole:
            continue
        for entry in tree.list(directory):
            path = join(directory, entry.name)
            if entry.kind is EntryKind.SYMLINK:
                links.append(path)
            elif is_debris(entry.name):
                staging += _debris(tree, path)
        todo.extend(_walkable(tree, directory))
    resolved = resolve_all(tree, links)
    told = _unless_gone(tree, "", lambda tree, _: pointers(tree))
    return Survey(
        found=tuple(sorted(found, key=lambda f: (f.name.encode(*_RAW), f.variant))),
        aliases=aliases(tree, resolved, found),
        staging=tuple(sorted(staging, key=lambda debris: debris.path.encode(*_RAW))),
        pointers=(told or ()) + link_pointers(tree, resolved),
    )


_RAW = ("utf-8", "surrogateescape")


def _is_run_root(tree: Tree, directory: str) -> bool:
    names = [name for name in tree.dirs(directory) if not is_staging(name)]
    if any(step_of_name(name) is not None for name in names):
        return True
    claim = find_all(tree, directory)
    if claim.found and not claim.whole:
        return True
    return any(find_all(tree, join(directory, name)).whole for name in names)


def _walkable(tree: Tree, directory: str) -> list[str]:
    """The directories below that may hold checkpoints."""
    below = [join(directory, name) for name in tree.dirs(directory) if not is_staging(name)]
    if below and directory.count("/") + 1 >= MAX_DEPTH:
        raise CouldNotLook(
            f"{directory}: more than {MAX_DEPTH} directories deep",
            hint="name a directory nearer to the checkpoints",
        )
    return below


def _unless_gone(tree: Tree, directory: str, look: Callable[[Tree, str], T]) -> T | None:
    """What ``look`` says of a directory; None when its trainer removed it meanwhile.

    Directories below it or beside it that went meanwhile are not there for it.

    Raises:
        FileNotFoundError, NotADirectoryError: it is the run root, and that went.
        CouldNotLook: it stays and changes faster than it can be looked at.
    """
    tries = 0
    for _ in range(_MOST_GONE):
        try:
            return look(tree, directory)
        except (FileNotFoundError, NotADirectoryError):
            if tree.is_gone(directory):
                if not directory:
                    raise
                return None
        if tree.leave_out_gone():
            continue  # no reason to give up
        tree.forget(directory)
        tries += 1
        if tries == _TRIES:
            break
    raise CouldNotLook(f"{directory}: changed while it was looked at", hint="look again")


def _debris(tree: Tree, path: str) -> list[StagingDebris]:
    """The left-over at ``path``; none when it got its final name or was removed meanwhile."""
    try:
        paths = [path]
        if tree.is_dir(path):
            paths += [join(path, below) for below in tree.files_below(path)]
        stats = [tree.stat(each) for each in paths]
    except (FileNotFoundError, NotADirectoryError):
        return []
    debris = StagingDebris(
        path=path,
        layout=_staging_layout(split(path)[1]),
        bytes=sum(stat.bytes for stat in stats if stat.kind is EntryKind.FILE),
        newest_mtime_ns=max(stat.mtime_ns for stat in stats),
    )
    return [debris]


def _staging_layout(name: str) -> str:
    """Whose temporary name it is; empty where several use it."""
    if ".orbax-checkpoint-tmp" in name or name.endswith(".__lock"):
        return "orbax"
    if name.startswith(("tmp-", "tmp_")):
        return "hf-trainer"
    if re.fullmatch(r"\.tmp[A-Za-z0-9]{6}", name):
        return "safetensors"
    return "dcp" if name.endswith(".metadata.tmp") else ""
