"""Symlinks in a run: aliases, pointers, dangling and looping ones; read by name, never followed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from ckptgov.layouts.base import Tree, join, split
from ckptgov.model.facts import Found, Note, Pointer
from ckptgov.model.files import EntryKind

_MAX_LINKS = 40
_LATEST = re.compile(r"latest|last", re.IGNORECASE)


class LinkEnd(StrEnum):
    """Where following a symlink by name ends."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    ABSENT = "absent"
    LOOP = "loop"


class Link(Struct, frozen=True):
    """Where a symlink ends; ``path`` only where that is inside the run root."""

    text: str
    end: LinkEnd
    path: str = ""


def resolve_all(tree: Tree, links: Iterable[str]) -> dict[str, Link]:
    """Where each symlink ends, by path in order; one that was removed meanwhile is left out.

    Trainers replace their ``last`` link by removing it first.
    """
    ends: dict[str, Link] = {}
    for link in sorted(links):
        try:
            ends[link] = resolve(tree, link)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return ends


def resolve(tree: Tree, link: str) -> Link:
    """Follow a symlink by name only, within the run root."""
    text = tree.read_link(link)
    at = split(link)[0]
    todo = text.split("/")
    if text.startswith("/"):
        return Link(text, LinkEnd.OUTSIDE)
    for _ in range(_MAX_LINKS):
        end, at, rest = _walk(tree, at, todo)
        if end is not None:
            return Link(text, end, at if end is LinkEnd.INSIDE else "")
        more = tree.read_link(at)
        if more.startswith("/"):
            return Link(text, LinkEnd.OUTSIDE)
        at, todo = split(at)[0], more.split("/") + rest
    return Link(text, LinkEnd.LOOP)


def _walk(tree: Tree, at: str, parts: list[str]) -> tuple[LinkEnd | None, str, list[str]]:
    """Step along ``parts`` to the end, or to the next symlink (end None, with what is left)."""
    for index, part in enumerate(parts):
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                return LinkEnd.OUTSIDE, at, []
            at = split(at)[0]
            continue
        at = join(at, part)
        kind = tree.kind(at)
        if kind is None:
            return LinkEnd.ABSENT, at, []
        if kind is EntryKind.SYMLINK:
            return None, at, parts[index + 1 :]
    return LinkEnd.INSIDE, at, []


def aliases(tree: Tree, links: Mapping[str, Link], found: Iterable[Found]) -> tuple[Note, ...]:
    """What is worth telling of the symlinks; those to other things than checkpoints are not."""
    names = {candidate.name for candidate in found}
    notes: list[Note] = []
    for path, link in links.items():
        match link.end:
            case LinkEnd.LOOP:
                notes.append(Note("link-loop", path, f"-> {link.text}: leads back to itself"))
            case LinkEnd.ABSENT:
                notes.append(Note("dangling-link", path, f"-> {link.text}: is not there"))
            case LinkEnd.OUTSIDE:
                text = f"-> {link.text}: leads out of the run root, not followed"
                notes.append(Note("alias", path, text))
            case LinkEnd.INSIDE if link.path in names or _holds(tree, link.path, names):
                notes.append(Note("alias", path, f"-> {link.path}"))
            case LinkEnd.INSIDE:
                pass
    return tuple(notes)


def _holds(tree: Tree, path: str, names: Iterable[str]) -> bool:
    return tree.is_dir(path) and any(name.startswith(path + "/") for name in names)


def link_pointers(tree: Tree, links: Mapping[str, Link]) -> tuple[Pointer, ...]:
    """Symlinks in the run root by which a trainer says what is newest (``latest``, ``last.ckpt``).

    A link out of the run root names what has the same last component here, if anything has: run
    directories get moved with their absolute links.
    """
    told: list[Pointer] = []
    for path, link in links.items():
        if "/" in path or not _LATEST.search(path) or link.end is LinkEnd.LOOP:
            continue
        names = link.path or None
        if link.end is LinkEnd.OUTSIDE:
            last = link.text.rstrip("/").rpartition("/")[2]
            is_here = last not in ("", ".", "..") and last != path and tree.exists(last)
            names = last if is_here else None
        told.append(Pointer(path, link.text, names))
    return tuple(told)
