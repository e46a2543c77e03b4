"""Reconcile: bring the catalog up to what lies at the tiers, and remove what movers left behind.

Nothing is sealed, and no checkpoint is touched: what a scan would find is left to the scan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.facts import PlacedCopy, RunRootFacts
from ckptgov.errors import CkptgovError, PartlyDone, StaleState, UsageError
from ckptgov.layouts.tree import join
from ckptgov.manifest.forms.records import decode_record
from ckptgov.model.checkpoint import digits_of
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Finding, Reason
from ckptgov.model.journal import NumberedRecord
from ckptgov.model.settings import Scope, TierSettings
from ckptgov.model.usage import CopyChange, Fate, Leftover, ReconcileAnswer, TierReconciled
from ckptgov.ops.attribution import run_here
from ckptgov.ops.context import Context
from ckptgov.ops.record import record_look, record_run
from ckptgov.ops.sweep import Sweep, sweep
from ckptgov.work.answer import share_journal
from ckptgov.work.look import RunLook
from ckptgov.work.runroots import run_roots_below
from ckptgov.work.tier import Place, read_identity

OLDER_THAN_S = 7 * 86400.0
"""How old a delivery must be before it counts as abandoned, where nothing else tells."""

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


class _Here(Struct, kw_only=True):
    """One run root at one tier, as it was found. ``manifests``: content ids' first digits."""

    root: RunRootFacts
    look: RunLook | None = None
    manifests: frozenset[str] = frozenset()
    unknown: str = ""


class _AtTier(Struct, kw_only=True):
    """One tier under reconciliation."""

    settings: TierSettings
    place: Place | None = None
    here: list[_Here] = []
    unknown: str = ""
    failures: list[tuple[str, CkptgovError]] = []
    error: CkptgovError | None = None


class _Undo(Exception):
    """Takes back what a dry run recorded; never leaves this module."""


def reconcile(
    context: Context,
    *,
    tiers: Sequence[str] | None = None,
    older_than_s: float = OLDER_THAN_S,
    dry_run: bool = False,
) -> ReconcileAnswer:
    """Look at every configured tier (or those named), record, and sweep.

    Left-overs go at once where their checkpoint is whole at the place, and otherwise when they
    are ``older_than_s`` old; what a mover of ours, or any living process, may be at work on never
    goes. A tier that another catalog governs is looked at and not swept.

    Raises:
        UsageError: a named tier is not configured.
    """
    known = {
        run.identity.run_id: context.catalog.copies(run.identity.run_id)
        for run in context.catalog.runs()
    }  # before any look: what is sealed meanwhile is not taken for lost
    met = [_meet(context, one) for one in _wanted(context, tiers)]
    changes = _record(context, met, known, dry_run=dry_run)
    told = tuple(
        _swept(context, one, changes, older_than_s=older_than_s, dry_run=dry_run) for one in met
    )
    return ReconcileAnswer(tiers=told, is_dry_run=dry_run, error=_error_of(told))


def _wanted(context: Context, names: Sequence[str] | None) -> list[TierSettings]:
    if names is None:
        return list(context.settings.tiers)
    configured = {one.name for one in context.settings.tiers}
    for name in names:
        if name not in configured:
            raise UsageError(
                f"no tier {name!r} is configured", hint="'ckptgov tier list' shows them"
            )
    return [one for one in context.settings.tiers if one.name in names]


def _error_of(told: Sequence[TierReconciled]) -> CkptgovError | None:
    failed = [one.error for one in told if one.error is not None]
    failed += [error for one in told for _what, error in one.failures]
    left = [each for one in told for each in one.leftovers if each.fate is Fate.STILL_THERE]
    if failed:
        return PartlyDone(
            f"{len(failed)} could not be looked at, the others are done; "
            f"first: {failed[0].message}",
            hint=failed[0].hint,
        )
    if left:
        return PartlyDone(f"{len(left)} did not go; first: {left[0].path}: {left[0].text}")
    return None


def _meet(context: Context, settings: TierSettings) -> _AtTier:
    met = _AtTier(settings=settings, here=[], failures=[])
    try:
        met.place = context.place(settings)
        identity = read_identity(met.place.storage)
        found = run_roots_below(met.place.storage, "")
    except CkptgovError as error:
        met.error = error
        return met
    if identity is not None and identity.catalog != context.catalog.identity().uuid:
        met.unknown = f"catalog {identity.catalog} governs this tier"
    registered = _roots_at(context, met.place)
    for path in sorted({*found, *registered}):
        root = registered.get(path)
        here = _look(context, met, path, root)
        if here is not None:
            met.here.append(here)
    return met


def _roots_at(context: Context, place: Place) -> dict[str, RunRootFacts]:
    return {
        root.path: root
        for run in context.catalog.runs()
        for root in context.catalog.roots_of(run.identity.run_id)
        if root.place == place.uuid
    }


def _look(
    context: Context, met: _AtTier, path: str, registered: RunRootFacts | None
) -> _Here | None:
    """One run root; None for a directory that is no run of anybody's catalog."""
    assert met.place is not None
    is_partial = met.settings.scope is Scope.NODE
    try:
        look = context.look(met.place, path, partial=is_partial, run=None)
        for stored in look.stored:  # whatever has to be read, before a transaction begins
            look.sealed(stored)
    except CkptgovError as error:
        met.failures.append((path or ".", error))
        where = registered or _root_facts(met.place, path, run_id="", sidecar=None)
        return _Here(root=where, unknown=f"could not look at its run: {error.message}")
    manifests = frozenset(one.content_prefix for one in look.stored)
    if look.identity is None:
        if registered is None:
            return None
        return _Here(root=registered, manifests=manifests, unknown=_why_none(met.place, path))
    run_id = look.identity.run_id
    root = registered or _root_facts(met.place, path, run_id=run_id, sidecar=look.store.sidecar)
    if context.catalog.run_by_id(run_id) is None:
        return _Here(root=root, unknown=f"run {look.identity.name!r} is not in the catalog")
    return _Here(root=root, look=look, manifests=manifests)


def _why_none(place: Place, path: str) -> str:
    """A run root that is away was removed; one that stands without its identity may be a mount
    point with nothing mounted on it."""
    try:
        place.storage.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return f"{path or '.'}: no run.json in it any more; is something not mounted there?"


def _root_facts(place: Place, path: str, *, run_id: str, sidecar: str | None) -> RunRootFacts:
    assert place.uuid is not None
    beside = join(path, ".ckptgov") if sidecar is None else sidecar
    return RunRootFacts(run_id=run_id, place=place.uuid, path=path, sidecar=beside)


def _record(
    context: Context,
    met: Sequence[_AtTier],
    known: dict[str, tuple[PlacedCopy, ...]],
    *,
    dry_run: bool,
) -> list[tuple[str, CopyChange]]:
    """What changed, with its place. A dry run records all of it and takes it back."""
    changes: list[tuple[str, CopyChange]] = []
    for run_id, name in _runs(context):
        mine = [(one, here) for one in met for here in one.here if here.root.run_id == run_id]
        _judge_by_all_records(context, run_id, [here for _one, here in mine])
        try:
            with context.catalog.transaction():
                for _one, here in mine:
                    _record_look(context, run_id, here)
                _record_lost(context, [here for _one, here in mine], known.get(run_id, ()))
                after = context.catalog.copies(run_id)
                if dry_run:
                    raise _Undo
        except _Undo:
            pass
        except CkptgovError as error:
            for one, _here in mine:
                one.failures.append((name, error))
            continue
        changes += _differences(name, known.get(run_id, ()), after)
    return changes


def _runs(context: Context) -> list[tuple[str, str]]:
    return [(run.identity.run_id, run.identity.name) for run in context.catalog.runs()]


def _judge_by_all_records(context: Context, run_id: str, here: Sequence[_Here]) -> None:
    """The journal's home may not be among the tiers looked at: the catalog mirrors its records."""
    looks = [one.look for one in here if one.look is not None]
    records = list(share_journal(looks))
    for mirrored in context.catalog.records(run_id):
        record = decode_record(mirrored.raw, where=f"the catalog's record {mirrored.record_id}")
        records.append(NumberedRecord(mirrored.number, record))
    for look in looks:
        look.use_records(records)


def _record_look(context: Context, run_id: str, here: _Here) -> None:
    run = context.catalog.run_by_id(run_id)
    if here.look is None or run is None:
        return
    at_ns = context.author.clock.now_ns()
    record_run(context.catalog, here.look, run.identity, at_ns)
    record_look(context.catalog, here.look, run_id, at_ns=at_ns, sightings=None)


def _record_lost(context: Context, here: Sequence[_Here], known: Sequence[PlacedCopy]) -> None:
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
    run: str, before: Sequence[PlacedCopy], after: Sequence[PlacedCopy]
) -> Iterator[tuple[str, CopyChange]]:
    known = {(one.content_id, one.place): one.state for one in before}
    for one in after:
        state = known.get((one.content_id, one.place))
        if state is not one.state:
            change = CopyChange(
                run=run,
                checkpoint=one.name,
                content_id=one.content_id,
                before=state,
                after=one.state,
            )
            yield one.place, change


def _swept(
    context: Context,
    met: _AtTier,
    changes: Sequence[tuple[str, CopyChange]],
    *,
    older_than_s: float,
    dry_run: bool,
) -> TierReconciled:
    settings, place = met.settings, met.place
    told = TierReconciled(
        tier=settings.name, node=settings.node, root=settings.root, error=met.error
    )
    if place is None or met.error is not None:
        return told
    names = dict(_runs(context))
    runs = [
        run_here(
            context,
            names.get(one.root.run_id, one.root.path),
            one.root,
            one.look,
            unknown=one.unknown,
        )
        for one in met.here
    ]
    runs.sort(key=lambda one: -len(one.root))  # the run at the tier's own root has the rest
    wanted = Sweep(
        place=place,
        runs=tuple(runs),
        older_than_s=older_than_s,
        is_flowing=_flowing(context, settings.name),
        unknown=met.unknown,
    )
    leftovers: tuple[Leftover, ...] = ()
    failures = list(met.failures)
    try:
        leftovers = sweep(context, wanted, dry_run=dry_run)
    except CkptgovError as error:
        failures.append(("left-overs", error))
    return replace(
        told,
        runs=len(met.here),
        changes=tuple(one for where, one in changes if where == place.uuid),
        leftovers=leftovers,
        failures=tuple(failures),
    )


def _flowing(context: Context, tier: str) -> Callable[[str, Collection[str]], bool]:
    """Whether a flow to the tier brings a checkpoint of a run, by the words it is told with."""
    whats = {one.request.what for one in context.desk.facts() if one.request.target == tier}
    return lambda run, names: any(f"{run} {name}" in whats for name in names)
