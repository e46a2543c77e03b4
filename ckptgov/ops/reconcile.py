"""Reconcile: bring the catalog up to what lies at the tiers, and remove what movers left behind.

Nothing is sealed, and no checkpoint is touched: what a scan would find is left to the scan. What
frameworks left behind goes only when that is asked for; what belongs to nobody is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from ckptgov.errors import CkptgovError, PartlyDone, UsageError
from ckptgov.model.settings import TierSettings
from ckptgov.model.usage import (
    CopyChange,
    Fate,
    Leftover,
    ReconcileAnswer,
    TierReconciled,
)
from ckptgov.ops import staging
from ckptgov.ops.attribution import run_here
from ckptgov.ops.context import Context
from ckptgov.ops.reconcile_look import AtTier, meet
from ckptgov.ops.reconcile_record import record, runs_known
from ckptgov.ops.strays_told import AtPlace, RunAtPlace, tell_strays
from ckptgov.ops.sweep import Sweep, sweep

OLDER_THAN_S = 7 * 86400.0
"""How old a delivery must be before it counts as abandoned, where nothing else tells."""


def reconcile(
    context: Context,
    *,
    tiers: Sequence[str] | None = None,
    older_than_s: float = OLDER_THAN_S,
    staging_older_than_s: float | None = None,
    dry_run: bool = False,
) -> ReconcileAnswer:
    """Look at every configured tier (or those named), record, and sweep.

    Left-overs go at once where their checkpoint is whole at the place, and otherwise when they
    are ``older_than_s`` old and two looks so long apart (three days at most) found them unchanged;
    what a mover of ours, or any living process, may be at work on never goes. Where a tier's clock
    and the catalog's differ, or the catalog's went back, nothing of ours is removed at that tier
    where anything was to go by age: a failure of that tier tells it, and the others are done. What
    frameworks left behind is told, and goes only with ``staging_older_than_s``
    (:mod:`ckptgov.ops.staging` says when). A tier that another catalog governs is looked at and
    not swept.

    Raises:
        UsageError: a named tier is not configured, or ``staging_older_than_s`` is too short.
        RefusedBySafety: with ``staging_older_than_s``, the catalog's clock went back; nothing was
            removed.
    """
    _check_staging(context, staging_older_than_s)
    known = {
        run.identity.run_id: context.catalog.copies(run.identity.run_id)
        for run in context.catalog.runs()
    }  # before any look: what is sealed meanwhile is not taken for lost
    met = [meet(context, one) for one in _wanted(context, tiers)]
    changes = record(context, met, known, dry_run=dry_run)
    told = tuple(
        _with_strays(
            context,
            one,
            _swept(context, one, changes, older_than_s=older_than_s, dry_run=dry_run),
            staging_older_than_s=staging_older_than_s,
            dry_run=dry_run,
        )
        for one in met
    )
    return ReconcileAnswer(tiers=told, is_dry_run=dry_run, error=_error_of(told))


def _check_staging(context: Context, older_than_s: float | None) -> None:
    if older_than_s is None:
        return
    if older_than_s < staging.LEAST_S:
        raise UsageError(
            f"left-overs of frameworks younger than {staging.LEAST_S / 3600:g} h never go",
            hint="a trainer may be at work on them; give it time",
        )
    context.catalog.tick()


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
    left = [
        (each.path, each.text)
        for one in told
        for each in one.leftovers
        if each.fate is Fate.STILL_THERE
    ]
    left += [
        (each.path, each.text)
        for one in told
        for each in one.staging
        if each.fate is Fate.STILL_THERE
    ]
    if failed:
        return PartlyDone(
            f"{len(failed)} could not be looked at, the others are done; "
            f"first: {failed[0].message}",
            hint=failed[0].hint,
        )
    if left:
        return PartlyDone(f"{len(left)} did not go; first: {left[0][0]}: {left[0][1]}")
    return None


def _swept(
    context: Context,
    met: AtTier,
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
    names = dict(runs_known(context))
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


def _with_strays(
    context: Context,
    met: AtTier,
    told: TierReconciled,
    *,
    staging_older_than_s: float | None,
    dry_run: bool,
) -> TierReconciled:
    """The same with what frameworks left behind, what belongs to nobody, and trash."""
    if met.place is None or met.error is not None:
        return told
    names = dict(runs_known(context))
    at = AtPlace(
        place=met.place,
        roots=met.roots,
        runs=tuple(
            RunAtPlace(
                run_id=one.root.run_id,
                run=names.get(one.root.run_id, one.root.path),
                root=one.root.path,
                sidecar=one.root.sidecar,
                look=one.look,
                unknown=one.unknown,
            )
            for one in met.here
        ),
        unknown=met.unknown,
    )
    found = tell_strays(context, at, older_than_s=staging_older_than_s, dry_run=dry_run)
    return replace(
        told,
        staging=found.staging,
        orphans=found.orphans,
        orphans_not_told=found.orphans_not_told,
        trash=found.trash,
        failures=(*told.failures, *found.failures),
    )
