"""Everything at one place that is no checkpoint and no delivery of ours, judged and told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from ckptgov.errors import CkptgovError, RunRootGone
from ckptgov.model.checkpoint import digits_of
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import Removal
from ckptgov.model.usage import Orphan, StagingLeft, TrashLeft, TrashReason
from ckptgov.ops.context import Context
from ckptgov.ops.lying import SeenBook
from ckptgov.ops.orphans import Strays, strays
from ckptgov.ops.removal_clock import require_same_time
from ckptgov.ops.staging import StagedRun, StagingSweep, sweep_staging
from ckptgov.work.look import RunLook
from ckptgov.work.owned import TRASH, below, names_in
from ckptgov.work.tier import Place


class RunAtPlace(Struct, frozen=True, kw_only=True):
    """A run at the place; ``look`` None, or ``unknown`` in words: nothing of it may be judged."""

    run_id: str
    run: str
    root: str
    sidecar: str
    look: RunLook | None
    unknown: str = ""


class AtPlace(Struct, frozen=True, kw_only=True):
    """A place and what is known there. ``roots`` are those of every run, of any catalog;
    ``unknown`` in words: nothing at all may be removed."""

    place: Place
    roots: tuple[str, ...]
    runs: tuple[RunAtPlace, ...]
    unknown: str = ""


class StraysTold(Struct, frozen=True, kw_only=True):
    """What was found, and done about it. ``failures``: parts that could not be looked at."""

    staging: tuple[StagingLeft, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    orphans_not_told: int = 0
    trash: tuple[TrashLeft, ...] = ()
    failures: tuple[tuple[str, CkptgovError], ...] = ()


def tell_strays(
    context: Context, at: AtPlace, *, older_than_s: float | None, dry_run: bool
) -> StraysTold:
    """Tell them all; of frameworks' left-overs also remove what ``older_than_s`` lets go."""
    now_ns = context.catalog.now_ns()
    book = SeenBook(context.settings.home, at.place.uuid or "", now_ns=now_ns)
    failures: list[tuple[str, CkptgovError]] = []
    found = Strays(orphans=(), more=0, foreign=(), failures=())
    staging: tuple[StagingLeft, ...] = ()
    trash: tuple[TrashLeft, ...] = ()
    try:
        runs, failed = _staged(context, at)
        failures += failed
        found = strays(
            at.place.storage,
            roots={*at.roots, *(one.root for one in runs)},
            book=book,
            now_ns=now_ns,
        )
        failures += found.failures
        staging = _swept(context, at, runs, found, book, older_than_s, dry_run=dry_run)
    except CkptgovError as error:
        failures.append(("left-overs of frameworks", error))
    try:
        trash = tuple(_trash(context, at, now_ns))
    except CkptgovError as error:
        failures.append(("trash", error))
    if not dry_run:
        book.keep()
    return StraysTold(
        staging=staging,
        orphans=found.orphans,
        orphans_not_told=found.more,
        trash=trash,
        failures=tuple(failures),
    )


def _swept(
    context: Context,
    at: AtPlace,
    runs: list[StagedRun],
    found: Strays,
    book: SeenBook,
    older_than_s: float | None,
    *,
    dry_run: bool,
) -> tuple[StagingLeft, ...]:
    wanted = StagingSweep(
        place=at.place,
        roots=at.roots,
        runs=runs,
        foreign=found.foreign,
        book=book,
        now_ns=context.catalog.now_ns(),
        older_than_s=older_than_s,
        unknown=at.unknown,
    )
    if older_than_s is not None and not dry_run and not at.unknown:
        _require_same_time(context, at)
    return sweep_staging(context, wanted, dry_run=dry_run)


def _require_same_time(context: Context, at: AtPlace) -> None:
    """Left-overs are dated by storage's clock, and judged by the catalog's."""
    sidecars = [one.sidecar for one in at.runs if one.look is not None]
    if sidecars:
        require_same_time(
            at.place.storage,
            sidecars[0],
            now_ns=context.catalog.now_ns,
            new_id=context.author.new_id,
            what=f"tier {at.place.tier}",
        )


def _staged(
    context: Context, at: AtPlace
) -> tuple[list[StagedRun], list[tuple[str, CkptgovError]]]:
    """Runs whose layouts can be surveyed here, and where the surveying failed.

    On a node's own disk a run lies where it lies on the other nodes, also where no checkpoint of
    it is left: a rank that died before its rename leaves nothing else.
    """
    found: list[StagedRun] = []
    failed: list[tuple[str, CkptgovError]] = []
    looks = [(one, one.look) for one in at.runs if one.look is not None]
    looks += [(one, _look(context, at, one)) for one in _on_other_nodes(context, at)]
    for one, look in looks:
        try:
            survey = look.survey
        except RunRootGone:
            continue  # nothing of the run lies here
        except CkptgovError as error:
            failed.append((one.root or ".", error))
            continue
        found.append(
            StagedRun(
                run_id=one.run_id, run=one.run, root=one.root, survey=survey, unknown=one.unknown
            )
        )
    return found, failed


def _look(context: Context, at: AtPlace, one: RunAtPlace) -> RunLook:
    return context.look(at.place, one.root, partial=True, run=one.run)


def _on_other_nodes(context: Context, at: AtPlace) -> Iterator[RunAtPlace]:
    if at.place.node is None:
        return
    others = {
        one.place
        for one in context.catalog.places()
        if one.tier == at.place.tier and one.place != at.place.uuid
    }
    names = {run.identity.run_id: run.identity.name for run in context.catalog.runs()}
    told = set(at.roots)
    for root in context.catalog.roots():
        if root.place not in others or root.path in told:
            continue
        told.add(root.path)
        yield RunAtPlace(
            run_id=root.run_id,
            run=names.get(root.run_id, root.path),
            root=root.path,
            sidecar=root.sidecar,
            look=None,
        )


def _trash(context: Context, at: AtPlace, now_ns: int) -> Iterator[TrashLeft]:
    """Removals that are due or resisted, and what lies in a trash without one."""
    removals = context.catalog.removals.removals(place=at.place.uuid)
    runs = {one.run_id: one for one in at.runs}
    for one in removals:
        told = _removal(one, now_ns, run=runs[one.run_id].run if one.run_id in runs else one.name)
        if told is not None:
            yield told
    for run in at.runs:
        those = [one for one in removals if one.run_id == run.run_id]
        yield from _unknown(at.place, run, those)


def _removal(one: Removal, now_ns: int, *, run: str) -> TrashLeft | None:
    is_due = one.state is CopyState.TRASHED and one.due_at_ns <= now_ns
    if not (is_due or one.error) or one.state is CopyState.CONDEMNED:
        return None
    return TrashLeft(
        run=run,
        path=one.trash or one.name,
        content_id=one.content_id,
        bytes=one.bytes,
        due_s=max(0.0, (now_ns - one.due_at_ns) / 1e9),
        reason=TrashReason.RESISTED if one.error else TrashReason.DUE,
        text=one.error or "'ckptgov apply' purges it",
    )


def _unknown(place: Place, run: RunAtPlace, removals: Iterable[Removal]) -> Iterator[TrashLeft]:
    known = {one.trash for one in removals if one.trash}
    moving = tuple(digits_of(one.content_id)[:16] for one in removals if not one.trash)
    top = f"{run.sidecar}/{TRASH}"
    for date in names_in(place.storage, top):
        for name in names_in(place.storage, f"{top}/{date}"):
            path = f"{top}/{date}/{name}"
            if path in known or (moving and name.startswith(moving)):
                continue
            yield TrashLeft(
                run=run.run,
                path=path,
                content_id=None,
                bytes=below(place.storage, path).bytes,
                due_s=0.0,
                reason=TrashReason.UNKNOWN,
                text="no removal stands for it; 'ckptgov catalog rebuild' takes it up",
            )
