"""Evacuate a node: what lies nowhere else is flushed first, as an emergency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ckptgov.catalog.facts import PlacedCopy, PlaceFacts, RunFacts, SealedFacts
from ckptgov.model.cluster import NewTask, TaskFacts, TaskKind
from ckptgov.model.copies import CopyState
from ckptgov.model.pacing import FlowClass
from ckptgov.ops.context import Context

FIRST_PRIORITY = 1_000_000
"""Of the newest checkpoint; older ones follow, and everything else after them."""

_WORTH = frozenset({CopyState.VERIFIED, CopyState.PARTIAL, CopyState.REOPENED})


def evacuate(context: Context, node: str) -> tuple[TaskFacts, ...]:
    """Ask the node's agent to flush every checkpoint of which it holds shards that no shared
    place has: the newest of every run, then the second newest. To be called when the node is
    cordoned or drained; again makes no second task of the same.
    """
    catalog = context.catalog
    places = {one.place: one for one in catalog.places()}
    wanted: list[tuple[int, RunFacts, SealedFacts]] = []
    for run in catalog.runs():
        run_id = run.identity.run_id
        if not any(places[one.place].node == node for one in catalog.roots_of(run_id)):
            continue
        only = _only_there(catalog.copies(run_id), places, node)
        own = [one for one in catalog.checkpoints(run_id) if one.content_id in only]
        own.sort(key=_newest_first)
        wanted += [(rank, run, one) for rank, one in enumerate(own)]
    with catalog.transaction():
        return tuple(
            catalog.tasks.add(_task(run, one, node, FIRST_PRIORITY - rank))
            for rank, run, one in sorted(wanted, key=lambda each: each[0])
        )


def _newest_first(one: SealedFacts) -> tuple[int, int, int]:
    return (-one.line, -(one.step if one.step is not None else -1), -one.attempt)


def _only_there(
    copies: Sequence[PlacedCopy], places: Mapping[str, PlaceFacts], node: str
) -> frozenset[str]:
    safe = {
        one.content_id
        for one in copies
        if places[one.place].node is None
        and one.state is CopyState.VERIFIED
        and one.coverage is None
    }
    there = {
        one.content_id
        for one in copies
        if places[one.place].node == node and places[one.place].is_current and one.state in _WORTH
    }
    return frozenset(there - safe)


def _task(run: RunFacts, one: SealedFacts, node: str, priority: int) -> NewTask:
    name = run.identity.name
    told = {"run": name, "step": one.step, "flow_class": FlowClass.EMERGENCY.value}
    return NewTask(
        kind=TaskKind.FLUSH,
        key=f"evacuate:{node}:{run.identity.run_id}:{one.content_id}",
        payload=msgspec.json.encode(told),
        node=node,
        for_run=name,
        priority=priority,
    )
