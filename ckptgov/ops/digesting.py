"""Have the agents of a cluster digest a large candidate on a shared tier, each some of its shards.

Promises: what they found is used only while the shards are what they read; a range whose agent
went away, or could not, is asked of another one; where no agent is left, the candidate is
digested by whoever seals it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import Struct

from ckptgov.errors import Malformed
from ckptgov.layouts.base import join, members_root
from ckptgov.model.checkpoint import Shard
from ckptgov.model.cluster import NewTask, NodeState, TaskFacts, TaskKind, TaskState
from ckptgov.model.facts import Sighting
from ckptgov.model.files import Token
from ckptgov.ops.context import Context
from ckptgov.wire.parts import DigestOutcome, DigestPayload, decode_digests, encode_payload
from ckptgov.work.copyproof import stat_shards
from ckptgov.work.look import RunLook
from ckptgov.work.scan import Elsewhere, NotYet
from ckptgov.work.seal import Digested

MIN_BYTES = 64 * 2**30
"""Smaller candidates are read by one process in a minute or two."""

RANGE_BYTES = 16 * 2**30
MAX_RANGES = 256
PRIORITY = 20
_OPEN = frozenset({TaskState.QUEUED, TaskState.CLAIMED})
_MOST_TASKS = 10_000


class _Range(Struct, frozen=True, kw_only=True):
    """Some members of a candidate, and the beginning of its tasks' keys; a node's name follows."""

    key: str
    members: tuple[tuple[str, int], ...]


def split_digests(
    context: Context, *, min_bytes: int = MIN_BYTES, range_bytes: int = RANGE_BYTES
) -> Elsewhere:
    """Asks the agents that are heard of now; to be given to a scan."""

    def elsewhere(look: RunLook, sighting: Sighting) -> Digested | None:
        if look.partial or look.place.uuid is None or sighting.bytes < min_bytes:
            return None
        nodes = _nodes(context)
        if not nodes:
            return None
        ranges = _ranges(look, sighting, range_bytes)
        outcomes = _outcomes(context, look, sighting, ranges, nodes)
        return None if outcomes is None else _joined(look, sighting, outcomes)

    return elsewhere


def _nodes(context: Context) -> tuple[str, ...]:
    """Nodes whose agents may be asked: heard of lately, and not on their way out."""
    now_ns = context.catalog.now_ns()  # the clock that beats are stamped with
    timeout_s = context.settings.service.node_timeout_s
    return tuple(
        one.node
        for one in context.catalog.nodes.nodes()
        if one.state is NodeState.ACTIVE and one.is_reachable(now_ns, timeout_s=timeout_s)
    )


def _ranges(look: RunLook, sighting: Sighting, range_bytes: int) -> list[_Range]:
    """The same ones at every scan, as long as nothing of the candidate changes."""
    members = [(shard.path, shard.bytes) for shard in sighting.shards]
    most = max(range_bytes, sighting.bytes // MAX_RANGES + 1)
    pieces: list[list[tuple[str, int]]] = [[]]
    held = 0
    for path, size in members:
        if pieces[-1] and held + size > most:
            pieces.append([])
            held = 0
        pieces[-1].append((path, size))
        held += size
    told = repr((look.place.uuid, look.run_root, sighting.name, sighting.newest_mtime_ns, members))
    digest = hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return [
        _Range(key=f"digest:{digest}:{index}:", members=tuple(piece))
        for index, piece in enumerate(pieces)
    ]


def _outcomes(
    context: Context,
    look: RunLook,
    sighting: Sighting,
    ranges: Sequence[_Range],
    nodes: Sequence[str],
) -> list[DigestOutcome] | None:
    """What came of every range; None where no agent is left that could do one.

    Raises:
        NotYet: some are under way.
    """
    run = look.identity.name if look.identity is not None else None
    known = context.catalog.tasks.tasks(for_run=run, limit=_MOST_TASKS)
    outcomes: list[DigestOutcome] = []
    under_way = 0
    for index, one in enumerate(ranges):
        own = [task for task in known if task.task.key.startswith(one.key)]
        done = next((task for task in own if task.state is TaskState.DONE), None)
        outcome = _decoded(done, one) if done is not None else None
        if outcome is not None:
            outcomes.append(outcome)
            continue
        if not any(task.state in _OPEN and task.task.node in nodes for task in own):
            asked = {task.task.node for task in own}
            left = [node for node in nodes if node not in asked]
            if not left:
                return None
            node = left[index % len(left)]
            context.catalog.tasks.add(_task(look, sighting, one, node, run))
        under_way += 1
    if under_way:
        raise NotYet(sighting.name, f"agents are digesting it: {under_way} of {len(ranges)} parts")
    return outcomes


def _decoded(task: TaskFacts, one: _Range) -> DigestOutcome | None:
    """The outcome, if it is of these very members."""
    try:
        outcome = decode_digests(task.outcome)
    except Malformed:
        return None
    told = [(shard.path, shard.bytes) for shard in outcome.shards]
    paths = [path for path, _token in outcome.tokens]
    is_whole = told == list(one.members) and paths == [path for path, _ in one.members]
    return outcome if is_whole else None


def _task(look: RunLook, sighting: Sighting, one: _Range, node: str, run: str | None) -> NewTask:
    payload = DigestPayload(
        tier=look.place.tier,
        place=look.place.uuid or "",
        run_root=look.run_root,
        base=join(look.run_root, members_root(sighting.found)),
        name=sighting.name,
        members=one.members,
    )
    return NewTask(
        kind=TaskKind.DIGEST,
        key=one.key + node,
        payload=encode_payload(payload),
        node=node,
        for_run=run,
        priority=PRIORITY,
    )


def _joined(
    look: RunLook, sighting: Sighting, outcomes: Sequence[DigestOutcome]
) -> Digested | None:
    """All ranges as one, if every shard is still what was read; else it is read anew, here."""
    shards: tuple[Shard, ...] = tuple(shard for one in outcomes for shard in one.shards)
    tokens: tuple[tuple[str, Token], ...] = tuple(pair for one in outcomes for pair in one.tokens)
    base = join(look.run_root, members_root(sighting.found))
    stats = stat_shards(look.place.storage, base, shards)
    mtimes_ns = []
    for path, token in tokens:
        stat = stats[path]
        if stat is None or not stat.token.same_content(token):
            return None
        mtimes_ns.append(stat.mtime_ns)
    return Digested(
        shards=shards,
        tokens=tokens,
        oldest_mtime_ns=min(mtimes_ns),
        newest_mtime_ns=max(mtimes_ns),
    )
