"""What a removal relies on is looked at first: that what stays is what the catalog takes it for.

The catalog's guard judges rows. A trainer that has written over its newest checkpoint since the
last scan has changed none; so before anything is condemned or moved aside, the copies that have
to make up for it are compared with their receipts. One that changed is recorded, and the guard
then sees what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from ckptgov.catalog.facts import PlacedCopy, SealedFacts
from ckptgov.catalog.guards import Guard
from ckptgov.errors import CouldNotLook
from ckptgov.model.checkpoint import Evidence, Purpose, digits_of
from ckptgov.model.closing import Closing
from ckptgov.model.copies import CopyState, cover
from ckptgov.model.retention import Action, PlanEntry, Removal
from ckptgov.ops.record import record_look
from ckptgov.ops.removal_guard import Guarded, guard_of
from ckptgov.ops.removing import LOOK_S, History, Relied, Removing
from ckptgov.ops.retention_places import SeenPlaces
from ckptgov.work.look import RunLook

T = TypeVar("T")
_LOOKS = 3
Goes = PlanEntry | Removal
"""A copy that is to go: its content id, its place, and how."""


def see_what_stays(
    removing: Removing, guarded: Guarded, seen: SeenPlaces, goes: Sequence[Goes]
) -> None:
    """Compare with their receipts the copies that P2 will rely on once these are gone.

    Of a run that is done once in ``LOOK_S``, as long as nothing of that is itself to go. Disks of
    other nodes are left to their agents, which watch them. Touches storage: to be called before
    the transaction.

    Raises:
        CkptgovError: one of them could not be looked at; nothing may go by it.
    """
    run_id, now_s = guarded.run.identity.run_id, removing.context.author.clock.monotonic()
    known = removing.relied.get(run_id)
    if known is None or now_s >= known.until_s or known.newest & {one.content_id for one in goes}:
        known = None
    evicted = {one.content_id for one in goes if one.action is Action.EVICT}
    evicted -= known.evicted if known is not None else frozenset()
    if known is not None and not evicted:
        return
    guard = guard_of(removing.context, guarded, seen)
    with _Stays(removing, run_id, guard, goes) as stays:
        for content_id in sorted(evicted):
            stays.durably(content_id)
        if known is None:
            newest = frozenset[str]() if guard.may_be_emptied else stays.newest()
            until_s = now_s + LOOK_S
            known = Relied(until_s=until_s, history=_history_of(guard), newest=newest)
    removing.relied[run_id] = replace(known, evicted=known.evicted | evicted)


def guarded_by_sight(
    removing: Removing,
    guarded: Guarded,
    seen: SeenPlaces,
    goes: Sequence[Goes],
    act: Callable[[Guard], T],
) -> T:
    """Do what is to be guarded by the facts of now, once all that the guard counts on was seen.

    ``act`` runs in the transaction that the guard was made in. Somebody may mark the newest bad, or
    roll back, between the look and that: what counts then was not looked at, and is, first.

    Raises:
        CouldNotLook: what must stay is not known, or changes faster than it is looked at.
        CkptgovError: as ``act`` does.
    """
    for _ in range(_LOOKS):
        see_what_stays(removing, guarded, seen, goes)
        with removing.context.catalog.transaction():
            guard = guard_of(removing.context, guarded, seen)
            if _has_seen(removing, guarded.run.identity.run_id, guard):
                return act(guard)
    name = guarded.run.identity.name
    raise CouldNotLook(f"{name}: what counts of it changes faster than it is looked at")


def _has_seen(removing: Removing, run_id: str, guard: Guard) -> bool:
    known = removing.relied.get(run_id)
    if guard.may_be_emptied or (known is not None and known.history == _history_of(guard)):
        return True
    removing.relied.pop(run_id, None)
    return False


def _history_of(guard: Guard) -> History:
    return guard.path, guard.without, guard.doubted


class _Stays(Closing):
    """The copies of one run that stay, looked at when they are asked for."""

    def __init__(self, removing: Removing, run_id: str, guard: Guard, goes: Sequence[Goes]) -> None:
        self._removing, self._run_id, self._guard = removing, run_id, guard
        self._gone = {(one.content_id, one.place) for one in goes}
        self._looks: dict[str, list[RunLook]] = {}
        self._nodes = {one.place: one.node for one in removing.context.catalog.places()}
        self._recorded: set[str] = set()

    def close(self) -> None:
        """End the looks."""
        for looks in self._looks.values():
            for look in looks:
                look.close()

    def durably(self, content_id: str) -> None:
        """Look at the shared copies of a checkpoint of which another one goes."""
        for one in self._left(content_id):
            if self._nodes[one.place] is None:
                self._stands(one)

    def newest(self) -> frozenset[str]:
        """Look from the newest on until the run has all that it must keep; what was relied on."""
        relied: set[str] = set()
        wanted = {(purpose, durably) for purpose in Purpose for durably in (False, True)}
        steps: set[int | None] = set()
        for one in self._newest_first():
            if not wanted and len(steps) >= self._guard.min_restorable:
                break
            standing = [copy for copy in self._left(one.content_id) if self._stands(copy)]
            durable = [copy for copy in standing if self._nodes[copy.place] is None]
            for durably, copies in ((False, standing), (True, durable)):
                if cover((copy.coverage for copy in copies), one.shard_count):
                    relied.add(one.content_id)
                    wanted -= {(purpose, durably) for purpose in one.purposes}
                    if Purpose.RESUME in one.purposes:
                        steps.add(one.step)
        return frozenset(relied)

    def _newest_first(self) -> list[SealedFacts]:
        found = [
            one
            for one in self._removing.context.catalog.checkpoints(self._run_id)
            if self._guard.counts(one.content_id, one.step, one.line)
        ]
        found.sort(key=lambda one: (one.step, one.line, one.attempt, one.content_id), reverse=True)
        return found

    def _left(self, content_id: str) -> Iterator[PlacedCopy]:
        """Verified copies of a checkpoint, within reach, that do not go."""
        catalog = self._removing.context.catalog
        for one in catalog.copies_of(self._run_id, [content_id])[content_id]:
            goes = (content_id, one.place) in self._gone
            is_near = one.place in self._guard.reachable
            is_good = one.state is CopyState.VERIFIED and self._guard.trusts(
                content_id, one.verified_at_ns
            )
            if is_good and is_near and not goes:
                yield one

    def _stands(self, copy: PlacedCopy) -> bool:
        """Whether its files are what its receipt says; if not, the catalog knows it from here."""
        if not self._removing.is_here(copy.place):
            return True
        looks = self._looks_at(copy.place)
        if any(_vouches(look, copy.content_id) for look in looks):
            return True
        self._record(copy, looks)
        return False

    def _looks_at(self, place: str) -> list[RunLook]:
        if place not in self._looks:
            opened = self._removing.place(place)
            self._looks[place] = [
                self._removing.new_look(root, opened)
                for root in self._removing.roots(self._run_id, place)
            ]
        return self._looks[place]

    def _record(self, copy: PlacedCopy, looks: Iterable[RunLook]) -> None:
        context = self._removing.context
        context.talk(f"{copy.name}: is not what was verified any more, so nothing relies on it")
        if copy.place in self._recorded:  # all that lies there was, with the first one that changed
            return
        self._recorded.add(copy.place)
        at_ns = context.author.clock.now_ns()
        for look in looks:
            record_look(context.catalog, look, self._run_id, at_ns=at_ns, sightings=None)


def _vouches(look: RunLook, content_id: str) -> bool:
    digits = digits_of(content_id)[:16]
    return any(
        copy.manifest.content_id == content_id and copy.proof.evidence is Evidence.DIGEST
        for one in look.stored
        if one.content_prefix == digits and (copy := look.sealed(one)) is not None
    )
