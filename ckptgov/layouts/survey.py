"""Walking a tree: where runs begin, and every candidate, alias and left-over of one run.

Symlinks are told, never followed or counted. Temporary names are told as staging and never looked
into. Directories nobody claims are walked and otherwise ignored: unknown is not debris.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ckptgov.errors import CouldNotLook
from ckptgov.layouts.base import LookSettings, Tree, join, split
from ckptgov.layouts.names import is_debris, is_staging, step_of_name
from ckptgov.layouts.registry import find_all, pointers
from ckptgov.model.facts import Found, Note, Pointer, StagingDebris, Survey
from ckptgov.model.files import EntryKind, Reader

MAX_DEPTH = 40
"""Directories deeper than this below the start end the look with an error."""

_MAX_LINKS = 40
_LATEST = re.compile(r"latest|last", re.IGNORECASE)
_NO_SETTINGS = LookSettings(now_ns=0)


def find_run_roots(
    reader: Reader, top: str, settings: LookSettings = _NO_SETTINGS
) -> tuple[str, ...]:
    """The run roots at or below ``top``, as paths of the reader, sorted; none, one or several.

    A run root is the nearest directory with a child directory whose own name carries a step, or
    which holds a checkpoint; everything beneath it is its run. Temporary names, symlinks and
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
            if _is_run_root(tree, directory):
                roots.append(join(top, directory))
            else:
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
        claim = find_all(tree, directory)
        found += claim.found
        if claim.whole:
            continue
        for entry in tree.list(directory):
            path = join(directory, entry.name)
            if entry.kind is EntryKind.SYMLINK:
                links.append(path)
            elif is_debris(entry.name):
                staging.append(_debris(tree, path))
        todo.extend(_walkable(tree, directory))
    resolved = {link: _resolve(tree, link) for link in sorted(links)}
    return Survey(
        found=tuple(sorted(found, key=lambda f: (f.name.encode(*_RAW), f.variant))),
        aliases=_aliases(tree, resolved, found),
        staging=tuple(sorted(staging, key=lambda debris: debris.path.encode(*_RAW))),
        pointers=pointers(tree) + _link_pointers(tree, resolved),
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


def _debris(tree: Tree, path: str) -> StagingDebris:
    paths = [path]
    if tree.is_dir(path):
        paths = [path, *(join(path, below) for below in tree.files_below(path))]
    stats = [tree.stat(each) for each in paths]
    sizes = [stat.bytes for stat in stats if stat.kind is EntryKind.FILE]
    return StagingDebris(
        path=path,
        layout=_staging_layout(split(path)[1]),
        bytes=sum(sizes),
        newest_mtime_ns=max(stat.mtime_ns for stat in stats),
    )


def _staging_layout(name: str) -> str:
    """Whose temporary name it is; empty where several use it."""
    if ".orbax-checkpoint-tmp" in name or name.endswith(".__lock"):
        return "orbax"
    if name.startswith(("tmp-", "tmp_")):
        return "hf-trainer"
    if re.fullmatch(r"\.tmp[A-Za-z0-9]{6}", name):
        return "safetensors"
    return "dcp" if name.endswith(".metadata.tmp") else ""


class _LinkEnd(StrEnum):
    INSIDE = "inside"
    OUTSIDE = "outside"
    ABSENT = "absent"
    LOOP = "loop"


@dataclass(frozen=True, slots=True)
class _Link:
    """Where a symlink ends; ``path`` only where that is inside the run root."""

    text: str
    end: _LinkEnd
    path: str = ""


def _resolve(tree: Tree, link: str) -> _Link:
    """Follow a symlink by name only, within the run root."""
    text = tree.read_link(link)
    at = split(link)[0]
    todo = text.split("/")
    if text.startswith("/"):
        return _Link(text, _LinkEnd.OUTSIDE)
    for _ in range(_MAX_LINKS):
        end, at, rest = _walk(tree, at, todo)
        if end is not None:
            return _Link(text, end, at if end is _LinkEnd.INSIDE else "")
        more = tree.read_link(at)
        if more.startswith("/"):
            return _Link(text, _LinkEnd.OUTSIDE)
        at, todo = split(at)[0], more.split("/") + rest
    return _Link(text, _LinkEnd.LOOP)


def _walk(tree: Tree, at: str, parts: list[str]) -> tuple[_LinkEnd | None, str, list[str]]:
    """Step along ``parts`` to the end, or to the next symlink (end None, with what is left)."""
    for index, part in enumerate(parts):
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                return _LinkEnd.OUTSIDE, at, []
            at = split(at)[0]
            continue
        at = join(at, part)
        kind = tree.kind(at)
        if kind is None:
            return _LinkEnd.ABSENT, at, []
        if kind is EntryKind.SYMLINK:
            return None, at, parts[index + 1 :]
    return _LinkEnd.INSIDE, at, []


def _aliases(tree: Tree, links: Mapping[str, _Link], found: Iterable[Found]) -> tuple[Note, ...]:
    """What is worth telling of the symlinks; those to other things than checkpoints are not."""
    names = {candidate.name for candidate in found}
    notes: list[Note] = []
    for path, link in links.items():
        match link.end:
            case _LinkEnd.LOOP:
                notes.append(Note("link-loop", path, f"-> {link.text}: leads back to itself"))
            case _LinkEnd.ABSENT:
                notes.append(Note("dangling-link", path, f"-> {link.text}: is not there"))
            case _LinkEnd.OUTSIDE:
                text = f"-> {link.text}: leads out of the run root, not followed"
                notes.append(Note("alias", path, text))
            case _LinkEnd.INSIDE if link.path in names or _holds(tree, link.path, names):
                notes.append(Note("alias", path, f"-> {link.path}"))
            case _LinkEnd.INSIDE:
                pass
    return tuple(notes)


def _holds(tree: Tree, path: str, names: Iterable[str]) -> bool:
    return tree.is_dir(path) and any(name.startswith(path + "/") for name in names)


def _link_pointers(tree: Tree, links: Mapping[str, _Link]) -> tuple[Pointer, ...]:
    """Symlinks in the run root by which a trainer says what is newest (``latest``, ``last.ckpt``).

    A link out of the run root names what has the same last component here, if anything has: run
    directories get moved with their absolute links.
    """
    told: list[Pointer] = []
    for path, link in links.items():
        if "/" in path or not _LATEST.search(path) or link.end is _LinkEnd.LOOP:
            continue
        names = link.path or None
        if link.end is _LinkEnd.OUTSIDE:
            last = link.text.rstrip("/").rpartition("/")[2]
            is_here = last not in ("", ".", "..") and last != path and tree.exists(last)
            names = last if is_here else None
        told.append(Pointer(path, link.text, names))
    return tuple(told)
