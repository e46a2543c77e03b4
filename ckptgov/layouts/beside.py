"""Which other checkpoints one is compared with, and how many ranks are believable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ckptgov.layouts.base import split
from ckptgov.model.facts import Found

MAX_RANKS: Final = 2**18
"""More ranks than any save has; a larger number in a name or file is not believed."""

_NEIGHBOURS: Final = 8  # the nearest few tell as much as all, and a run may have thousands


def neighbours(found: Found, siblings: Sequence[Found]) -> list[Found]:
    """Other checkpoints of the same layout in the same directory, those of the nearest steps."""
    parent = split(found.name)[0]
    others = [
        other
        for other in siblings
        if other.layout == found.layout
        and other.name != found.name
        and split(other.name)[0] == parent
    ]
    own = found.step or 0
    others.sort(key=lambda other: (abs((other.step or 0) - own), other.name))
    return others[:_NEIGHBOURS]
