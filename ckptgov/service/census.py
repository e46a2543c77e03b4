"""What all runs come to, counted from the catalog: kept, and counted anew where it changed.

Cost is bounded whatever the catalog holds: a refresh ends when its time is used up and goes on
with the next; what is dear to count for one run is counted again only after many times as long
as it took. No storage is touched.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from ckptgov.catalog.facts import EventKind, PlacedCopy, PlaceFacts, RunFacts, SealedFacts
from ckptgov.errors import CkptgovError
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import CheckpointFacts, Query
from ckptgov.ops.context import Context
from ckptgov.ops.standing import pages, walk_newest
from ckptgov.ops.standing_run import StandingRun, standing_run
from ckptgov.planning.choose import reported_unloadable
from ckptgov.service.serving import Serving

REST = 50
"""A run's copies are counted again after so many times as long as counting them took."""
_CHANGES = 10_000
_EVENTS = 1000
_UNVERIFIED = frozenset({CopyState.SIGHTED, CopyState.REOPENED, CopyState.UNREADABLE})
_TAKES_NOTHING = frozenset({CopyState.LOST, CopyState.PURGED})

Spread = tuple[int, tuple[tuple[str, bytes | None], ...]]
"""How one checkpoint lies on nodes' disks: its shards, and per place which of them (None: all)."""


class Newest(Struct, frozen=True, kw_only=True):
    """The newest restorable checkpoint of a run; ``sealed_at_ns`` None: it has none."""

    run: str
    created_at_ns: int
    step: int | None = None
    sealed_at_ns: int | None = None
    load_failures: int = 0
    is_known: bool = True  # False: the run could not be judged just now
    good_until_ns: int | None = None

    def age_s(self, now_ns: int) -> float:
        """Seconds of work that would be lost: since it was sealed, or since the run was made."""
        since_ns = self.created_at_ns if self.sealed_at_ns is None else self.sealed_at_ns
        return max(0.0, (now_ns - since_ns) / 1e9)


class Sums(Struct, frozen=True, kw_only=True):
    """Bytes and copies of one run by place. ``undrained``: sound on nodes' disks only."""

    run: str
    bytes: Counter[str]
    unverified: Counter[str]
    undrained: Counter[str]
    corrupt: Counter[str]
    spreads: dict[Spread, tuple[int, int]]  # to (checkpoints, bytes)


class _Kept(Struct, kw_only=True):
    """One run as it was last counted, and what of that is out of date."""

    run: RunFacts
    newest: Newest | None = None
    sums: Sums | None = None
    is_newest_stale: bool = True
    are_sums_stale: bool = True
    sums_from: float = 0.0  # monotonic: not counted again before


class Census:
    """Counts kept for one process; threads may share it."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._catalog = serving.catalog
        self._clock = serving.clock
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._seen_seq: int | None = None
        self._events_seq = 0
        self._is_caught_up = False
        self._decisions = 0
        self._step_overs = 0
        self._places: dict[str, PlaceFacts] = {}

    def refresh(self, *, limit_s: float = 1.0) -> bool:
        """Count what changed, for about ``limit_s``; whether nothing is left to count.

        Raises:
            CkptgovError: the catalog does not answer.
        """
        with self._lock:
            until = self._clock.monotonic() + limit_s
            self._note_changes()
            is_done = self._count_newest(until)
            is_done = self._count_sums(until) and is_done
            return self._tail_events(until) and is_done

    def newest(self) -> list[Newest]:
        """Runs as they stand, by name."""
        with self._lock:
            found = [one.newest for one in self._kept.values() if one.newest is not None]
        return sorted(found, key=lambda one: one.run)

    def sums(self) -> list[Sums]:
        """What runs come to at places; runs not counted yet are left out."""
        with self._lock:
            return [one.sums for one in self._kept.values() if one.sums is not None]

    def places(self) -> dict[str, PlaceFacts]:
        """Every place ever met, by its UUID."""
        with self._lock:
            return dict(self._places)

    def decided(self) -> tuple[int, int] | None:
        """Restart decisions, and those that stepped over one; None until all were counted."""
        with self._lock:
            return (self._decisions, self._step_overs) if self._is_caught_up else None

    def _note_changes(self) -> None:
        """The number is read first: what is committed meanwhile counts as changed next time."""
        if self._seen_seq is None:
            self._seen_seq = self._catalog.change_seq()
            self._take_runs()
            return
        while True:
            changes = self._catalog.changes(self._seen_seq)
            for change in changes:
                self._seen_seq = change.seq
                self._mark(change.run_id)
            if len(changes) < _CHANGES:
                break

    def _mark(self, run_id: str | None) -> None:
        if run_id is None:
            self._take_runs()
        elif run_id in self._kept:
            self._kept[run_id].is_newest_stale = self._kept[run_id].are_sums_stale = True
        else:
            found = self._catalog.run_by_id(run_id)
            if found is not None:
                self._kept[run_id] = _Kept(run=found)
                self._places = {one.place: one for one in self._catalog.places()}

    def _take_runs(self) -> None:
        """Something about places, nodes or all runs: every run is judged anew."""
        self._places = {one.place: one for one in self._catalog.places()}
        runs = {one.identity.run_id: one for one in self._catalog.runs()}
        self._kept = {
            run_id: self._kept.get(run_id) or _Kept(run=run) for run_id, run in runs.items()
        }
        for one in self._kept.values():
            one.is_newest_stale = one.are_sums_stale = True

    def _count_newest(self, until: float) -> bool:
        now_ns = self._clock.now_ns()
        with self._serving.context("metrics") as context:
            for one in self._kept.values():
                if not one.is_newest_stale and not _has_run_out(one.newest, now_ns):
                    continue
                if self._clock.monotonic() > until:
                    return False
                one.newest = newest_of(context, one.run)
                one.is_newest_stale = False
        return True

    def _count_sums(self, until: float) -> bool:
        for one in self._kept.values():
            began = self._clock.monotonic()
            if not one.are_sums_stale or began < one.sums_from:
                continue
            if began > until:
                return False
            run_id = one.run.identity.run_id
            one.are_sums_stale = False
            one.sums = sums_of(
                one.run.identity.name,
                self._catalog.checkpoints(run_id),
                self._catalog.copies(run_id),
                self._places,
            )
            for sighting in self._catalog.sightings(run_id):
                one.sums.bytes[sighting.place] += sighting.bytes
                one.sums.unverified[sighting.place] += sighting.bytes
            ended = self._clock.monotonic()
            one.sums_from = ended + REST * (ended - began)
        return True

    def _tail_events(self, until: float) -> bool:
        while True:
            found = self._catalog.events(self._events_seq, limit=_EVENTS)
            for one in found:
                self._events_seq = one.seq
                if one.kind is EventKind.DECIDED:
                    self._decisions += 1
                    self._step_overs += dict(one.detail).get("epoch", "0") != "0"
            if len(found) < _EVENTS:
                self._is_caught_up = True
                return True
            if self._clock.monotonic() > until:
                return False


def _has_run_out(newest: Newest | None, now_ns: int) -> bool:
    return newest is not None and newest.good_until_ns is not None and now_ns > newest.good_until_ns


def newest_of(context: Context, run: RunFacts) -> Newest:
    """The newest checkpoint of a run that restores, by the catalog alone."""
    name, run_id = run.identity.name, run.identity.run_id
    unknown = Newest(run=name, created_at_ns=run.created_at_ns, is_known=False)
    try:
        standing = standing_run(context, name, node=None)
        chosen = walk_newest(context, standing, Query(may_gather=True)).choice.chosen
    except CkptgovError:
        return unknown
    return Newest(
        run=name,
        created_at_ns=run.created_at_ns,
        step=None if chosen is None else chosen.step,
        sealed_at_ns=None if chosen is None else _sealed_at(context, run_id, chosen),
        load_failures=_load_failures(standing),
        good_until_ns=standing.good_until_ns,
    )


def _sealed_at(context: Context, run_id: str, chosen: CheckpointFacts) -> int | None:
    for page in pages(context.catalog, run_id, step=chosen.step):
        for one in page:
            if one.content_id == chosen.content_id:
                return one.sealed_at_ns
    return None


def _load_failures(run: StandingRun) -> int:
    """Checkpoints whose newest report says that they could not be loaded."""
    return len(reported_unloadable(run.records))


def sums_of(
    run: str,
    sealed: Sequence[SealedFacts],
    copies: Iterable[PlacedCopy],
    places: dict[str, PlaceFacts],
) -> Sums:
    """One run's sealed checkpoints by place. A part counts by its number of shards."""
    sums = Sums(
        run=run,
        bytes=Counter(),
        unverified=Counter(),
        undrained=Counter(),
        corrupt=Counter(),
        spreads={},
    )
    known = {one.content_id: one for one in sealed}
    sound: dict[str, list[PlacedCopy]] = {}
    for copy in copies:
        one = known.get(copy.content_id)
        if one is None or copy.state in _TAKES_NOTHING:
            continue
        size = _part_bytes(one, copy)
        sums.bytes[copy.place] += size
        if copy.state in _UNVERIFIED:
            sums.unverified[copy.place] += size
        elif copy.state is CopyState.CORRUPT:
            sums.corrupt[copy.place] += 1
        elif copy.state is CopyState.VERIFIED:
            sound.setdefault(copy.content_id, []).append(copy)
    for content_id, those in sound.items():
        if not any(_is_shared(places, copy) and copy.coverage is None for copy in those):
            _add_undrained(sums, known[content_id], those)
    return sums


def _add_undrained(sums: Sums, one: SealedFacts, those: Sequence[PlacedCopy]) -> None:
    for copy in those:
        sums.undrained[copy.place] += _part_bytes(one, copy)
    has_parts = any(copy.coverage is not None for copy in those)
    spread = tuple(sorted(((copy.place, copy.coverage) for copy in those), key=lambda at: at[0]))
    key = (one.shard_count if has_parts else 0, spread)
    count, size = sums.spreads.get(key, (0, 0))
    sums.spreads[key] = (count + 1, size + one.bytes)


def _is_shared(places: dict[str, PlaceFacts], copy: PlacedCopy) -> bool:
    place = places.get(copy.place)
    return place is not None and place.node is None


def _part_bytes(one: SealedFacts, copy: PlacedCopy) -> int:
    if copy.coverage is None or not one.shard_count:
        return one.bytes
    return one.bytes * int.from_bytes(copy.coverage, "little").bit_count() // one.shard_count


def out_of_reach(all_sums: Iterable[Sums], unreachable: frozenset[str]) -> tuple[int, int]:
    """Checkpoints, and their bytes, of which something lies only at unreachable places."""
    count = size = 0
    for sums in all_sums:
        for spread, (those, bytes_) in sums.spreads.items():
            if not _is_whole_without(spread, unreachable):
                count, size = count + those, size + bytes_
    return count, size


def _is_whole_without(spread: Spread, unreachable: frozenset[str]) -> bool:
    """Never whole, wherever one looks: then nothing was lost with a node."""
    shards, at = spread
    everywhere = list(_held(shards, at))
    here = list(_held(shards, [one for one in at if one[0] not in unreachable]))
    return _covers(shards, here) or not _covers(shards, everywhere)


def _held(shards: int, at: Iterable[tuple[str, bytes | None]]) -> Iterator[int]:
    for _place, coverage in at:
        yield (1 << shards) - 1 if coverage is None else int.from_bytes(coverage, "little")


def _covers(shards: int, held: Sequence[int]) -> bool:
    together = 0
    for one in held:
        together |= one
    wanted = (1 << shards) - 1
    return bool(held) and together & wanted == wanted
