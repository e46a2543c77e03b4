"""Which runs a policy is for, and whether two policies are for one run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from itertools import product

from ckptgov.model.policy import Selector

_PIECE = re.compile(r"\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_ANY = "x"
"""What stands for a wildcard in the name of a run that serves as a proof."""


def selects(selector: Selector, run: str, tags: Collection[str]) -> bool:
    """Whether a policy is for the run of this name and these tags.

    A glob or tag that begins with ``!`` leaves out whatever it matches.
    """
    team, slash, _ = run.partition("/")
    if selector.teams and (not slash or team not in selector.teams):
        return False
    if not all(_has(tags, tag) for tag in selector.tags):
        return False
    wanted = [glob for glob in selector.runs if not glob.startswith("!")]
    unwanted = [glob[1:] for glob in selector.runs if glob.startswith("!")]
    is_wanted = any(fnmatchcase(run, glob) for glob in wanted)
    return is_wanted and not any(fnmatchcase(run, glob) for glob in unwanted)


def _has(tags: Collection[str], tag: str) -> bool:
    return tag[1:] not in tags if tag.startswith("!") else tag in tags


def common_run(one: Selector, other: Selector) -> str | None:
    """The name of a run that both surely select, or None where none was found.

    Sure is what one of them says of itself: of two policies that ask for different tags, nobody
    knows before there is a run that carries both.
    """
    mine, yours = _asked(one), _asked(other)
    if not (mine <= yours or yours <= mine):
        return None
    tags = mine | yours
    teams = tuple(dict.fromkeys((*one.teams, *other.teams)))
    for glob in (*one.runs, *other.runs):
        if glob.startswith("!"):
            continue
        for run in _named_by(glob, teams):
            if selects(one, run, tags) and selects(other, run, tags):
                return run
    return None


def _asked(selector: Selector) -> frozenset[str]:
    return frozenset(tag for tag in selector.tags if not tag.startswith("!"))


def _named_by(glob: str, teams: tuple[str, ...]) -> Iterator[str]:
    """Names that a glob matches: a few of many."""
    pieces = _PIECE.findall(glob)
    fillings = [_ANY, *(f"{team}/{_ANY}" for team in teams), f"{_ANY}/{_ANY}", *teams, ""]
    for first, rest in product(fillings, (_ANY, "")):
        name, is_first = "", True
        for piece in pieces:
            if piece == "*":
                name += first if is_first else rest
                is_first = False
            else:
                name += _one_of(piece)
        parts = name.split("/")
        if len(parts) <= 2 and all(parts) and fnmatchcase(name, glob):
            yield name


def _one_of(piece: str) -> str:
    if piece == "?":
        return _ANY
    if len(piece) > 2 and piece[0] == "[":
        return _ANY if piece[1] == "!" else piece[1]
    return piece
