"""A second look at what is about to go: would it leave a run with nothing to restore?

Written apart from what decides, and from the facts alone, so that a mistake there shows here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from ckptgov.model.checkpoint import StepKind
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import CheckpointToKeep, PlanEntry, RunToKeep

Gone = set[tuple[str, str]]
"""(content id, place) of copies that go."""


def gone_of(entries: Iterable[PlanEntry]) -> Gone:
    """Which copies these are."""
    return {(one.content_id, one.place) for one in entries}


def offered(run: RunToKeep) -> Iterator[CheckpointToKeep]:
    """Checkpoints that may ever be handed out, wherever they lie."""
    for one in run.checkpoints:
        if one.step is None or one.step_kind is StepKind.NONE:
            continue
        if one.mark is not None or not one.purposes:
            continue
        if any(line == one.line and (top is None or one.step <= top) for line, top in run.path):
            yield one


def restores(
    one: CheckpointToKeep, gone: Set[tuple[str, str]], unseen: Set[str], *, reachable: bool
) -> bool:
    """Whether the verified copies that remain of a checkpoint hold all its shards."""
    parts: list[bytes] = []
    for copy in one.copies:
        if copy.state is not CopyState.VERIFIED or (one.content_id, copy.place) in gone:
            continue
        if reachable and (not copy.is_reachable or copy.tier in unseen):
            continue
        if copy.coverage is None:
            return True
        parts.append(copy.coverage)
    return bool(parts) and all(
        any(_has(part, shard) for part in parts) for shard in range(one.shard_count)
    )


def _has(part: bytes, shard: int) -> bool:
    return shard // 8 < len(part) and bool(part[shard // 8] >> shard % 8 & 1)


def restorable(run: RunToKeep, gone: Set[tuple[str, str]], *, reachable: bool) -> int:
    """How many checkpoints could be handed out once these copies are gone."""
    return sum(restores(one, gone, run.unseen, reachable=reachable) for one in offered(run))
