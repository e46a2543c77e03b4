"""What reconciling finds of runs, recorded: copies as they are, and those that are gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from ckptgov.catalog.facts import PlacedCopy, RunRootFacts
from ckptgov.errors import CkptgovError, StaleState
from ckptgov.manifest.forms.records import decode_record
from ckptgov.model.checkpoint import digits_of
from ckptgov.model.copies import GONE, CopyState
from ckptgov.model.facts import Finding, Reason
from ckptgov.model.journal import NumberedRecord
from ckptgov.model.usage import CopyChange
from ckptgov.ops.context import Context
from ckptgov.ops.placed import size_of
from ckptgov.ops.reconcile_look import AtTier, Here
from ckptgov.ops.record import record_look, record_run
from ckptgov.work.addresses import join
from ckptgov.work.answer import share_journal

_UNDER_A_MANIFEST = frozenset(
    {
        CopyState.SIGHTED,
        CopyState.VERIFIED,
        CopyState.REOPENED,
        CopyState.CORRUPT,
        CopyState.UNREADABLE,
    }
)
"""States of copies whose manifest lies beside them; a part may be on its way without one."""


class _Undo(Exception):
    """Takes back what a dry run recorded; never leaves this module."""


def record(
    context: Context,
    met: Sequence[AtTier],
    known: dict[str, tuple[PlacedCopy, ...]],
    *,
    dry_run: bool,
) -> list[tuple[str, CopyChange]]:
    """What changed, with its place. A dry run records all of it and takes it back."""
    changes: list[tuple[str, CopyChange]] = []
    for run_id, name in runs_known(context):
        mine = [(one, here) for one in met for here in one.here if here.root.run_id == run_id]
        found, before = [here for _one, here in mine], known.get(run_id, ())
        _judge_by_all_records(context, run_id, found)
        try:
            with context.catalog.transaction():
                for here in found:
                    _record_look(context, run_id, here)
                _record_lost(context, found, before)
                dropped = _drop_gone(context, run_id, found, before)
                after = context.catalog.copies(run_id)
                if dry_run:
                    raise _Undo
        except _Undo:
            pass
        except CkptgovError as error:
            for one, _here in mine:
                one.failures.append((name, error))
            continue
        _tell_dropped(context, name, dropped, dry_run=dry_run)
        changes += _differences(context, (run_id, name), before, after)
    return changes


def _tell_dropped(
    context: Context, run: str, dropped: Sequence[RunRootFacts], *, dry_run: bool
) -> None:
    places = {one.place: one for one in context.catalog.places()}
    for root in dropped:
        where = join(places[root.place].root, root.path)
        words = "would no longer be" if dry_run else "is no longer"
        context.talk(f"run {run}: {words} looked for at {where}: its directory is gone for good")


def runs_known(context: Context) -> list[tuple[str, str]]:
    """Id and name of every run."""
    return [(run.identity.run_id, run.identity.name) for run in context.catalog.runs()]


def _judge_by_all_records(context: Context, run_id: str, here: Sequence[Here]) -> None:
    """The journal's home may not be among the tiers looked at: the catalog mirrors its records."""
    looks = [one.look for one in here if one.look is not None]
    records = list(share_journal(looks))
    for mirrored in context.catalog.records(run_id):
        record = decode_record(mirrored.raw, where=f"the catalog's record {mirrored.record_id}")
        records.append(NumberedRecord(mirrored.number, record))
    for look in looks:
        look.use_records(records)


def _record_look(context: Context, run_id: str, here: Here) -> None:
    run = context.catalog.run_by_id(run_id)
    if here.look is None or run is None:
        return
    at_ns = context.author.clock.now_ns()
    record_run(context.catalog, here.look, run.identity, at_ns)
    record_look(context.catalog, here.look, run_id, at_ns=at_ns, sightings=None)


def _record_lost(context: Context, here: Sequence[Here], known: Sequence[PlacedCopy]) -> None:
    """Copies without a manifest at their place any more, where every root there was looked at."""
    for place in sorted({one.root.place for one in here}):
        there = [one for one in here if one.root.place == place]
        if any(one.unknown for one in there):
            continue
        manifests = {digits for one in there for digits in one.manifests}
        for copy in known:
            digits = digits_of(copy.content_id)[:16]
            if copy.place == place and copy.state in _UNDER_A_MANIFEST and digits not in manifests:
                _lose(context, copy)


def _drop_gone(
    context: Context, run_id: str, here: Sequence[Here], known: Sequence[PlacedCopy]
) -> list[RunRootFacts]:
    """Forget run roots whose directory is gone, where the run lies on shared storage elsewhere:
    what is there of its journal binds then.

    Not at the look that finds it: what was ``known`` to be there was recorded as lost by an
    earlier one. And never the only one, or nobody could tell where the run was.
    """
    catalog = context.catalog
    shared = {one.place for one in catalog.places() if one.node is None}
    away = [one.root for one in here if one.is_gone or one.unknown]
    held = {one.place for one in known if one.state not in GONE}
    dropped = []
    for root in (one.root for one in here if one.is_gone and one.root.place not in held):
        others = [one for one in catalog.roots_of(run_id) if one.place in shared]
        if any(one not in away for one in others):
            catalog.drop_run_root(root)
            dropped.append(root)
    return dropped


def _lose(context: Context, copy: PlacedCopy) -> None:
    gone = Finding(Reason.MISSING_SHARD, copy.name, "its manifest is gone from this place")
    with suppress(StaleState):  # changed meanwhile: whoever did it knows better
        context.catalog.transition(
            copy.run_id,
            copy.content_id,
            copy.place,
            expected=copy.state,
            to=CopyState.LOST,
            at_ns=context.author.clock.now_ns(),
            findings=(gone,),
        )


def _differences(
    context: Context,
    run: tuple[str, str],
    before: Sequence[PlacedCopy],
    after: Sequence[PlacedCopy],
) -> Iterator[tuple[str, CopyChange]]:
    known = {(one.content_id, one.place): one for one in before}
    changed = [
        one
        for one in after
        if (was := known.get((one.content_id, one.place))) is None or was.state is not one.state
    ]
    run_id, name = run
    sealed = context.catalog.sealed_of(run_id, sorted({one.content_id for one in changed}))
    for one in changed:
        was, facts = known.get((one.content_id, one.place)), sealed.get(one.content_id)
        change = CopyChange(
            run=name,
            checkpoint=one.name,
            content_id=one.content_id,
            before=None if was is None else was.state,
            after=one.state,
            bytes=0 if facts is None else size_of(context, facts, (was or one).coverage)[0],
            copies_left=_copies_left(after, one) if one.state is CopyState.LOST else None,
        )
        yield one.place, change


def _copies_left(after: Sequence[PlacedCopy], lost: PlacedCopy) -> int:
    """Whole verified ones, wherever they lie."""
    return sum(
        one.content_id == lost.content_id
        and one.state is CopyState.VERIFIED
        and one.coverage is None
        for one in after
    )
