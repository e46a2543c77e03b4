"""P2 once more, inside the transaction that condemns: what may never go, read off the rows.

Whoever plans has decided by its own code what may go; this is another one, on purpose, and it
looks at what stands now. Of the run's history it is told (``Guard``), because records are no
business of this room. It can only refuse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from msgspec import Struct
from sqlalchemy import Connection, bindparam, select
from sqlmodel import col

from ckptgov.catalog.removal_tables import ClaimRow
from ckptgov.catalog.tables import CheckpointRow, CopyLeaseRow, CopyRow, PlaceRow
from ckptgov.errors import RefusedBySafety
from ckptgov.model.checkpoint import Evidence, Purpose
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import Action

_VERIFIED = CopyState.VERIFIED.value
_CHECKPOINTS = select(
    col(CheckpointRow.content_id),
    col(CheckpointRow.name),
    col(CheckpointRow.step),
    col(CheckpointRow.line),
    col(CheckpointRow.attempt),
    col(CheckpointRow.purposes),
    col(CheckpointRow.shard_count),
).where(col(CheckpointRow.run_id) == bindparam("run_id"))
_COPIES = select(
    col(CopyRow.content_id),
    col(CopyRow.place),
    col(CopyRow.state),
    col(CopyRow.coverage),
    col(CopyRow.verified_at_ns),
).where(
    col(CopyRow.run_id) == bindparam("run_id"),
    col(CopyRow.state).in_((_VERIFIED, CopyState.CONDEMNED.value)),
    col(CopyRow.evidence) == Evidence.DIGEST.value,
)
_SHARED = select(col(PlaceRow.place)).where(col(PlaceRow.node).is_(None))
# One that ended is honoured for as long again: its holder may only be slow to renew it.
_CLAIMS = select(col(ClaimRow.content_id), col(ClaimRow.owner), col(ClaimRow.reason)).where(
    col(ClaimRow.run_id) == bindparam("run_id"),
    col(ClaimRow.ends_at_ns) + col(ClaimRow.ttl_ns) > bindparam("now_ns"),
)
_COPY_LEASES = select(col(CopyLeaseRow.content_id), col(CopyLeaseRow.holder)).where(
    col(CopyLeaseRow.expires_at_ns) > bindparam("now_ns"),
    col(CopyLeaseRow.content_id).in_(bindparam("content_ids", expanding=True)),
)
_MOST_AT_ONCE = 500  # how many values one statement is given
_MOST_TOLD = 5


class Doomed(Struct, frozen=True, kw_only=True):
    """One verified copy that is to go: after ``grace_s``, and for good ``trash_s`` later.

    ``bytes`` and ``files`` are what its going frees.
    """

    content_id: str
    place: str
    action: Action
    trash_s: float
    grace_s: float
    bytes: int
    files: int


class Guard(Struct, frozen=True, kw_only=True):
    """What the rows cannot tell of a run.

    ``path``: (line, highest step that still counts or None) of the lines that are offered.
    ``without``: content ids that do not count, being marked bad or reported unloadable.
    ``doubted``: (content id, when) of those reported corrupt of which a copy was compared since:
    only such copies count.
    ``protected``: (content id, why) of pins and start points: such a one may lose a copy that it
    does not need, no more. ``reachable``: places that can be reached now. ``compared_since_ns``:
    a copy compared before then is none to rely on. ``may_be_emptied`` lifts ``min_restorable``
    and what is said of the newest, nothing else.
    """

    path: tuple[tuple[int, int | None], ...]
    without: frozenset[str] = frozenset()
    doubted: tuple[tuple[str, int], ...] = ()
    protected: tuple[tuple[str, str], ...] = ()
    reachable: frozenset[str]
    min_restorable: int
    min_durable_copies: int
    compared_since_ns: int
    may_be_emptied: bool = False

    def counts(self, content_id: str, step: int | None, line: int) -> bool:
        """Whether ``latest`` may ever offer a checkpoint."""
        if step is None or content_id in self.without:
            return False
        return any(line == one and (end is None or step <= end) for one, end in self.path)

    def trusts(self, content_id: str, compared_at_ns: int | None) -> bool:
        """Whether a verified copy is one to rely on: nobody reported it corrupt since."""
        return all(
            (compared_at_ns or 0) > since_ns for one, since_ns in self.doubted if one == content_id
        )


class Going(NamedTuple):
    """Copies (content id, place) that go together, and how each content id is meant to."""

    copies: frozenset[tuple[str, str]]
    actions: tuple[tuple[str, Action], ...]


class _Row(NamedTuple):
    """As ``_CHECKPOINTS`` selects it."""

    content_id: str
    name: str
    step: int | None
    line: int
    attempt: int
    purposes: str
    shard_count: int


class _Copy(NamedTuple):
    place: str
    shards: int | None  # a bitmap; None: every one
    compared_at_ns: int


class _Checkpoint:
    """One checkpoint with its verified copies as they are, and as they would be."""

    def __init__(self, row: _Row, counts: bool) -> None:
        self.name, self.step = row.name, row.step
        # How ``latest`` orders them; no two are equal.
        self.order = (row.step or 0, row.line, row.attempt, row.content_id)
        self.every_shard = (1 << row.shard_count) - 1
        self.purposes = row.purposes.split() if counts else []
        self.before: list[_Copy] = []
        self.after: list[_Copy] = []

    def is_whole(self, copies: Iterable[_Copy]) -> bool:
        """Whether these hold every shard between them."""
        held = None
        for one in copies:
            if one.shards is None:
                return True
            held = (held or 0) | one.shards
        return held is not None and held & self.every_shard == self.every_shard


class _Places(NamedTuple):
    """Which places are looked at: those in each of ``only``."""

    kind: str
    reach: str
    only: tuple[frozenset[str], ...]

    def here(self, copies: Iterable[_Copy]) -> list[_Copy]:
        return [one for one in copies if all(one.place in some for some in self.only)]


def check(
    connection: Connection,
    run_id: str,
    going: Going,
    guard: Guard,
    *,
    now_ns: int,
) -> None:
    """Let these copies go, as far as P2 is concerned.

    Copies of theirs that are condemned count as if they still stood: so it is asked whether they
    would be missed.

    Raises:
        RefusedBySafety: naming whatever forbids it.
    """
    run = _read(connection, run_id, going, guard)
    shared = frozenset(connection.execute(_SHARED).scalars())
    reasons = [
        *_not_spared(run, going, guard),
        *_in_use(connection, run, run_id, going, now_ns),
        *_evicted(run, going, guard, shared),
    ]
    if not guard.may_be_emptied:
        reasons += _emptied(run.values(), guard, shared)
        if any(action is Action.PRUNE for _, action in going.actions):
            reasons += _not_compared(run.values(), guard)
    if reasons:
        more = len(reasons) - _MOST_TOLD
        told = "; ".join(reasons[:_MOST_TOLD]) + (f"; and {more} more reasons" if more > 0 else "")
        raise RefusedBySafety(told, hint="plan again: what may go is decided from what stands now")


def _read(
    connection: Connection, run_id: str, going: Going, guard: Guard
) -> dict[str, _Checkpoint]:
    """The run's checkpoints by content id, each with its verified copies."""
    wanted = {"run_id": run_id}
    rows = (_Row(*row) for row in connection.execute(_CHECKPOINTS, wanted).all())
    run = {
        row.content_id: _Checkpoint(row, guard.counts(row.content_id, row.step, row.line))
        for row in rows
    }
    for content_id, place, state, coverage, at_ns in connection.execute(_COPIES, wanted).all():
        goes = (content_id, place) in going.copies
        if (state != _VERIFIED and not goes) or not guard.trusts(content_id, at_ns):
            continue
        shards = None if coverage is None else int.from_bytes(coverage, "little")
        copy = _Copy(place, shards, at_ns or 0)
        run[content_id].before.append(copy)
        if not goes:
            run[content_id].after.append(copy)
    return run


def _not_spared(run: dict[str, _Checkpoint], going: Going, guard: Guard) -> Iterator[str]:
    pruned = {content_id for content_id, action in going.actions if action is Action.PRUNE}
    for content_id, why in guard.protected:
        if content_id in pruned:
            yield f"{_name(run, content_id)} is kept: {why}"


def _in_use(
    connection: Connection,
    run: dict[str, _Checkpoint],
    run_id: str,
    going: Going,
    now_ns: int,
) -> Iterator[str]:
    touched = sorted({content_id for content_id, _ in going.copies})
    wanted: dict[str, object] = {"run_id": run_id, "now_ns": now_ns}
    for content_id, owner, reason in connection.execute(_CLAIMS, wanted):
        if content_id in touched:
            yield f"{_name(run, content_id)} is in use by {owner}: {reason}"
    for start in range(0, len(touched), _MOST_AT_ONCE):
        some = {"now_ns": now_ns, "content_ids": touched[start : start + _MOST_AT_ONCE]}
        for content_id, holder in connection.execute(_COPY_LEASES, some):
            yield f"{_name(run, content_id)} is being copied by {holder}"


def _evicted(
    run: dict[str, _Checkpoint], going: Going, guard: Guard, shared: Collection[str]
) -> Iterator[str]:
    """What a checkpoint that stays would lack."""
    evicted = sorted({one for one, action in going.actions if action is Action.EVICT})
    for content_id in evicted:
        one = run[content_id]
        remain = [each for each in one.after if each.place in guard.reachable]
        durable = [each for each in remain if each.place in shared]
        is_shared_one = any(each.place in shared for each in one.before if each not in one.after)
        least = max(1, guard.min_durable_copies if is_shared_one else 1)
        if not one.is_whole(remain):
            yield f"{one.name} would be left without a whole verified copy"
        elif _times(one, durable) < least:
            yield f"{one.name} would be left with fewer than {least} verified on shared tiers"
        elif not one.is_whole(
            each for each in durable if each.compared_at_ns >= guard.compared_since_ns
        ):
            yield f"what would be left of {one.name} was not compared lately"


def _times(one: _Checkpoint, copies: Sequence[_Copy]) -> int:
    """How often these hold every shard; parts that do so together count once."""
    whole = sum(each.shards is None for each in copies)
    return whole or int(one.is_whole(copies))


def _emptied(run: Collection[_Checkpoint], guard: Guard, shared: frozenset[str]) -> Iterator[str]:
    """What the run would lack: its newest ones, or as many as it has to keep."""
    newest_first = sorted((one for one in run if one.purposes), key=_order, reverse=True)
    reaches: tuple[tuple[str, tuple[frozenset[str], ...]], ...] = (
        ("", ()),
        (" within reach", (guard.reachable,)),
    )
    for reach, only in reaches:
        anywhere = _Places("restorable", reach, only)
        durable = _Places("durable", reach, (*only, shared))
        for purpose, places in product(Purpose, (anywhere, durable)):
            whole = (one for one in newest_first if one.is_whole(places.here(one.before)))
            newest = next((one for one in whole if purpose.value in one.purposes), None)
            if newest is not None and not newest.is_whole(places.here(newest.after)):
                kind = f"{places.kind} checkpoint for {purpose.value}{reach}"
                yield f"{newest.name} is the newest {kind}"
        yield from _too_few(newest_first, guard, anywhere)


def _too_few(newest_first: Sequence[_Checkpoint], guard: Guard, places: _Places) -> Iterator[str]:
    resume = Purpose.RESUME.value
    resumed = [one for one in newest_first if resume in one.purposes]
    after: set[int | None] = set()
    for one in resumed:
        if len(after) >= guard.min_restorable:
            return
        if one.is_whole(places.here(one.after)):
            after.add(one.step)
    before = {one.step for one in resumed if one.is_whole(places.here(one.before))}
    if len(after) < min(guard.min_restorable, len(before)):
        yield (
            f"{len(after)} restorable{places.reach} would remain of {len(before)}, and at least "
            f"{guard.min_restorable} have to"
        )


def _not_compared(run: Collection[_Checkpoint], guard: Guard) -> Iterator[str]:
    """What the run is left with within reach, and was compared too long ago to be relied on: the
    newest for each purpose, and those that ``min_restorable`` counts."""
    wanted, steps = {one.value for one in Purpose}, set[int | None]()
    for one in sorted((each for each in run if each.purposes), key=_order, reverse=True):
        left = [each for each in one.after if each.place in guard.reachable]
        if not one.is_whole(left):
            continue
        is_counted = Purpose.RESUME.value in one.purposes and one.step not in steps
        is_relied_on = is_counted and len(steps) < guard.min_restorable
        if is_relied_on:
            steps.add(one.step)
        lately = [each for each in left if each.compared_at_ns >= guard.compared_since_ns]
        if (is_relied_on or wanted & {*one.purposes}) and not one.is_whole(lately):
            yield f"{one.name}, which would be relied on, was not compared lately"
        wanted -= {*one.purposes}


def _order(one: _Checkpoint) -> tuple[int, int, int, str]:
    return one.order


def _name(run: dict[str, _Checkpoint], content_id: str) -> str:
    return run[content_id].name if content_id in run else content_id
