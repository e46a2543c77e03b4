"""What all runs come to, counted from the catalog: kept, and counted anew where it changed.

Cost is bounded whatever the catalog holds: a refresh ends when its time is used up and goes on
with the next; what is dear to count for one run is counted again only after many times as long
as it took. No storage is touched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from msgspec import Struct

from ckptgov.catalog.facts import EventKind, PlaceFacts, RunFacts
from ckptgov.errors import CkptgovError
from ckptgov.model.facts import CheckpointFacts, Query
from ckptgov.ops.context import Context
from ckptgov.ops.lives import LifeFacts, life_facts
from ckptgov.ops.standing import pages, walk_newest
from ckptgov.ops.standing_run import StandingRun, standing_run
from ckptgov.planning.choose import reported_unloadable
from ckptgov.service.keeping_census import REST, Keeping, KeepingCensus, RunAtRest
from ckptgov.service.serving import Serving
from ckptgov.service.sums import Sums, sums_of

_CHANGES = 10_000
_EVENTS = 1000


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


class _Kept(Struct, kw_only=True):
    """One run as it was last counted, and what of that is out of date."""

    run: RunFacts
    newest: Newest | None = None
    sums: Sums | None = None
    life: LifeFacts | None = None
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
        self._keeping = KeepingCensus(serving)

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
            is_done = self._tail_events(until) and is_done
            return self._keeping.refresh(list(self._at_rest()), self._places, until) and is_done

    def newest(self) -> list[Newest]:
        """Runs as they stand, by name."""
        with self._lock:
            found = [one.newest for one in self._kept.values() if one.newest is not None]
        return sorted(found, key=lambda one: one.run)

    def sums(self) -> list[Sums]:
        """What runs come to at places; runs not counted yet are left out."""
        with self._lock:
            return [one.sums for one in self._kept.values() if one.sums is not None]

    def keeping(self) -> Keeping:
        """Where retention stands, as it was last counted."""
        return self._keeping.told

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
            one.are_sums_stale = False
            self._count_run(one)
            ended = self._clock.monotonic()
            one.sums_from = ended + REST * (ended - began)
        return True

    def _count_run(self, one: _Kept) -> None:
        run_id = one.run.identity.run_id
        told = self._catalog.copy_sums(run_id)
        sums = sums_of(one.run.identity.name, told)
        sighted_at_ns: list[int] = []
        for sighting in self._catalog.sightings(run_id):
            sums.bytes[sighting.place] += sighting.bytes
            sums.unverified[sighting.place] += sighting.bytes
            sighted_at_ns.append(sighting.first_seen_at_ns)
        one.sums = sums
        one.life = life_facts(
            self._catalog.binding_records(run_id),
            met_at_ns=one.run.created_at_ns,
            saved_at_ns=told.saved_at_ns,
            sighted_at_ns=max(sighted_at_ns, default=None),
        )

    def _at_rest(self) -> Iterator[RunAtRest]:
        for run_id, one in self._kept.items():
            if one.sums is not None and one.life is not None:
                name, size = one.run.identity.name, one.sums.bytes.total()
                yield RunAtRest(run_id=run_id, name=name, life=one.life, bytes=size)

    def _tail_events(self, until: float) -> bool:
        while True:
            found = self._catalog.events(self._events_seq, limit=_EVENTS)
            for one in found:
                self._events_seq = one.seq
                self._keeping.note(one)
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
