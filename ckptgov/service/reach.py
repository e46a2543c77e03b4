"""Who reaches what lies where: this process, or the agents of nodes."""

from __future__ import annotations

from ckptgov.catalog.facts import RunFacts
from ckptgov.ops.context import Context
from ckptgov.ops.standing_run import is_here


def nodes_of(context: Context, run: RunFacts) -> list[str | None]:
    """Who reaches the places of a run: this process (None), the agents of nodes."""
    places = {one.place: one for one in context.catalog.places()}
    found: set[str | None] = set()
    for root in context.catalog.roots_of(run.identity.run_id):
        node = places[root.place].node
        found.add(None if is_here(context, node) else node)
    return sorted(found or {None}, key=lambda node: node or "")
