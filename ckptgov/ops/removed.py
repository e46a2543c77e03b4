"""What became of copies that a plan let go, for whoever asks why a step is not offered.

Told from the catalog alone: its removals, the plans it keeps, its events and its mirror of the
journal. After a rebuild the plan's reasons are forgotten; tombstones still tell the plan and when.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from ckptgov.catalog.facts import EventFacts, RunFacts
from ckptgov.model.copies import BEGUN, LEAVING, CopyState
from ckptgov.model.journal import KIND_OF, Sealed, Tombstone
from ckptgov.model.removed import RemovedCopy
from ckptgov.model.retention import Action, Removal, Why
from ckptgov.ops.context import Context
from ckptgov.ops.flush import run_named
from ckptgov.ops.retention_facts import run_named as run_facts
from ckptgov.ops.standing import pages
from ckptgov.ops.standing_run import decoded
from ckptgov.work.leaving import standing_tombstones
from ckptgov.work.locate import locate, normal_path

_Copy = tuple[str, str]
"""Content id and place."""


class _Named(Struct, frozen=True, kw_only=True):
    """A checkpoint; ``name`` "" where only the journal tells of it."""

    content_id: str
    name: str
    step: int | None


class _Past(Struct, frozen=True, kw_only=True):
    """What the catalog's events tell of a copy's last removal."""

    condemned_at_ns: int | None = None
    plan_id: str | None = None
    action: Action | None = None
    purged_at_ns: int | None = None


def removed(context: Context, target: str, *, step: int | None = None) -> tuple[RemovedCopy, ...]:
    """A run's copies on their way out, the highest step first; of one step those purged, too.

    Raises:
        UnknownRun: no such run is registered.
        StorageError: the catalog does not answer, or a plan it keeps cannot be read.
    """
    name = run_named(context, target)
    telling = _Telling(context, run_facts(context, name))
    found = list(telling.leaving(step))
    if step is not None:
        found += telling.purged(step)
    only = None if name == target else _only_name(context, target)
    return tuple(sorted((one for one in found if only in (None, one.name)), key=_order))


def _only_name(context: Context, path: str) -> str | None:
    """The checkpoint that a path names; None where it is a whole run's."""
    location = locate(normal_path(path))
    context.stack.callback(location.place.storage.close)
    return location.only_name


def _order(one: RemovedCopy) -> tuple[int, str, str, str, str]:
    return (
        -(one.step if one.step is not None else -1),
        one.name,
        one.content_id,
        one.tier,
        one.place,
    )


class _Telling:
    """One answer's view of a run: everything is read once."""

    def __init__(self, context: Context, run: RunFacts) -> None:
        self._catalog = context.catalog
        self._run = run
        self._run_id = run.identity.run_id
        self._places = {one.place: one for one in self._catalog.places()}
        self._plans: dict[str, Mapping[_Copy, tuple[Why, ...]]] = {}
        self._tombstones = self._standing()

    def _standing(self) -> dict[str, dict[str, Tombstone]]:
        """By place, the tombstones that stand there."""
        records = decoded(self._catalog.binding_records(self._run_id))
        places = dict.fromkeys(one.place for one in self._catalog.roots_of(self._run_id))
        return {place: standing_tombstones(records, place) for place in places}

    def leaving(self, step: int | None) -> Iterator[RemovedCopy]:
        """What is condemned, being moved or in the trash."""
        going = [
            one
            for one in self._catalog.removals.removals(run_id=self._run_id)
            if one.state in LEAVING
        ]
        sealed = self._catalog.sealed_of(self._run_id, [one.content_id for one in going])
        steps = {content_id: one.step for content_id, one in sealed.items()}
        if step is not None:
            going = [one for one in going if steps.get(one.content_id) == step]
        pasts = self._pasts(one.content_id for one in going)
        for one in going:
            past = pasts.get((one.content_id, one.place), _Past())
            yield self._leaving(one, steps.get(one.content_id), past)

    def _leaving(self, one: Removal, step: int | None, past: _Past) -> RemovedCopy:
        next_ = _next(one)
        is_undone = not (one.state is CopyState.TRASHING and next_ is CopyState.PURGED)
        place = self._places[one.place]
        return RemovedCopy(
            content_id=one.content_id,
            name=one.name,
            step=step,
            place=one.place,
            tier=place.tier,
            node=place.node,
            state=one.state,
            action=one.action,
            plan_id=one.plan_id or None,
            why=self._why(one.plan_id, one.content_id, one.place),
            condemned_at_ns=past.condemned_at_ns,
            moved_at_ns=self._moved_at_ns(one.content_id, one.place)
            if one.state in BEGUN
            else None,
            next=next_,
            due_at_ns=None if one.state is CopyState.TRASHING else one.due_at_ns,
            undo=self._undo(step) if is_undone else "",
            error=one.error,
        )

    def _undo(self, step: int | None) -> str:
        run = shlex.quote(self._run.identity.name)
        return f"ckptgov undelete {run}" + ("" if step is None else f" --step {step}")

    def purged(self, step: int) -> Iterator[RemovedCopy]:
        """Copies of a step that are gone: as the catalog saw it, or as only the journal tells."""
        sealed = [one for page in pages(self._catalog, self._run_id, step=step) for one in page]
        named = {
            one.content_id: _Named(content_id=one.content_id, name=one.name, step=one.step)
            for one in sealed
        }
        placed = self._catalog.copies_of(self._run_id, list(named))
        pasts = self._pasts(named)
        for content_id, copies in placed.items():
            gone = [one.place for one in copies if one.state is CopyState.PURGED]
            gone += self._buried(content_id, known={one.place for one in copies})
            for place in gone:
                past = pasts.get((content_id, place), _Past())
                yield self._purged(named[content_id], place, past)
        for one in self._forgotten(step):
            for place in self._buried(one.content_id, known=()):
                yield self._purged(one, place, _Past())

    def _buried(self, content_id: str, *, known: Iterable[str]) -> list[str]:
        """Places where a checkpoint was removed, and of which the catalog knows no copy."""
        known = set(known)
        return [
            place
            for place, standing in self._tombstones.items()
            if content_id in standing and place not in known
        ]

    def _forgotten(self, step: int) -> list[_Named]:
        """Removed checkpoints of a step that the catalog has no manifest of any more."""
        buried = {each for standing in self._tombstones.values() for each in standing}
        buried -= self._catalog.sealed_of(self._run_id, sorted(buried)).keys()
        if not buried:
            return []
        told = self._catalog.records(self._run_id)
        records = decoded(one for one in told if one.kind == KIND_OF[Sealed])
        steps = {
            one.record.content_id: one.record.step
            for one in records
            if isinstance(one.record, Sealed) and one.record.content_id in buried
        }
        return [
            _Named(content_id=content_id, name="", step=step)
            for content_id, known in steps.items()
            if known == step
        ]

    def _purged(self, one: _Named, place: str, past: _Past) -> RemovedCopy:
        tombstone = self._tombstones.get(place, {}).get(one.content_id)
        plan_id = past.plan_id or (tombstone.plan_id if tombstone is not None else None)
        facts = self._places[place]
        return RemovedCopy(
            content_id=one.content_id,
            name=one.name,
            step=one.step,
            place=place,
            tier=facts.tier,
            node=facts.node,
            state=CopyState.PURGED,
            action=past.action,
            plan_id=plan_id,
            why=self._why(plan_id, one.content_id, place),
            condemned_at_ns=past.condemned_at_ns,
            moved_at_ns=self._moved_at_ns(one.content_id, place),
            purged_at_ns=past.purged_at_ns,
        )

    def _moved_at_ns(self, content_id: str, place: str) -> int | None:
        tombstone = self._tombstones.get(place, {}).get(content_id)
        return None if tombstone is None else tombstone.stamp.at_ns

    def _why(self, plan_id: str | None, content_id: str, place: str) -> tuple[Why, ...]:
        if not plan_id:
            return ()
        if plan_id not in self._plans:
            stored = self._catalog.plans.plan(plan_id)
            self._plans[plan_id] = {
                (one.content_id, one.place): one.why
                for one in (stored.plan.entries if stored is not None else ())
                if one.run_id == self._run_id
            }
        return self._plans[plan_id].get((content_id, place), ())

    def _pasts(self, content_ids: Iterable[str]) -> dict[_Copy, _Past]:
        found: dict[_Copy, _Past] = {}
        wanted = list(dict.fromkeys(content_ids))
        for event in self._catalog.copy_changes(self._run_id, wanted):
            assert event.content_id is not None  # of a copy
            assert event.place is not None
            key = (event.content_id, event.place)
            found[key] = _after(found.get(key, _Past()), event)
        return found


def _after(past: _Past, event: EventFacts) -> _Past:
    """What is known of a copy's last removal once one more change of its state was read."""
    detail = dict(event.detail)
    match detail.get("to"):
        case CopyState.CONDEMNED:
            action = detail.get("action")
            return _Past(
                condemned_at_ns=event.at_ns,
                plan_id=detail.get("plan"),
                action=Action(action) if action in tuple(Action) else None,
            )
        case CopyState.PURGED:
            return _Past(
                condemned_at_ns=past.condemned_at_ns,
                plan_id=past.plan_id,
                action=past.action,
                purged_at_ns=event.at_ns,
            )
        case _:
            return past


def _next(one: Removal) -> CopyState:
    """What follows; an eviction has no stop in the trash, unless files beside its own lie there."""
    is_for_good = one.trash_s <= 0 or one.action is Action.EVICT
    if one.state is CopyState.TRASHED or is_for_good:
        return CopyState.PURGED
    return CopyState.TRASHED
