"""Verbs that write history, judged by the catalog: mark-bad, rollback, claims on checkpoints,
metrics, the end of a run.

As ``history``, for whoever cannot look at every place of a run. The record goes to the run's home
first, then to the catalog; of a run without a shared place the catalog keeps it, and the agents of
its nodes take it over.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ckptgov.errors import NoneRestorable, UsageError
from ckptgov.model.copies import GONE
from ckptgov.model.journal import (
    Finish,
    MarkBad,
    Metric,
    Pin,
    Record,
    Retire,
    Rollback,
    UnmarkBad,
    Unpin,
)
from ckptgov.ops import restart_journal
from ckptgov.ops.claims import AtStep, check_name, ends_at_ns, follow, meant, pinned
from ckptgov.ops.context import Context
from ckptgov.ops.history import after, check_metric
from ckptgov.ops.standing import pages
from ckptgov.ops.standing_run import StandingRun, standing_run

Making = Callable[[StandingRun], Record]


class Steps(Struct, frozen=True, kw_only=True):
    """One step, or a range of them from ``from_step`` (to ``until_step``, inclusive)."""

    step: int | None = None
    from_step: int | None = None
    until_step: int | None = None


class Claim(Struct, frozen=True, kw_only=True):
    """A name under which one checkpoint is kept for ``ttl_s`` seconds, or for good.

    Neither: it is kept no longer. One of ``step`` and ``content_id`` says which checkpoint.
    """

    name: str
    step: int | None = None
    content_id: str | None = None
    ttl_s: float | None
    for_good: bool = False


def mark_bad(
    context: Context,
    run_name: str,
    steps: Steps,
    *,
    reason: str,
    undo: bool,
    dry_run: bool = False,
) -> Record:
    """Say that a checkpoint or a range of steps must not be offered (or may be again).

    Raises:
        UsageError: neither or both of a step and a range are given, or no reason.
        UnknownRun, CouldNotLook: nothing was written.
    """
    _check_steps(steps)
    if not reason and not undo:
        raise UsageError("mark-bad: say why")
    kind = UnmarkBad if undo else MarkBad

    def make(run: StandingRun) -> Record:
        stamp = context.author.stamp(run.run_id, reason=reason)
        if steps.step is None:
            return kind(stamp=stamp, from_step=steps.from_step, until_step=steps.until_step)
        found = _content_ids_of(context, run, steps.step)
        if len(found) == 1:
            return kind(stamp=stamp, content_id=found[0])
        return kind(stamp=stamp, from_step=steps.step, until_step=steps.step)

    return _written(context, run_name, make, dry_run=dry_run)


def _check_steps(steps: Steps) -> None:
    if (steps.step is None) == (steps.from_step is None):
        raise UsageError("name either one step or where a range begins, not both")
    if steps.until_step is not None:
        if steps.from_step is None:
            raise UsageError("a range that ends begins somewhere, too")
        if steps.until_step < steps.from_step:
            raise UsageError(f"{steps.until_step} lies below {steps.from_step}")


def _content_ids_of(context: Context, run: StandingRun, step: int) -> list[str]:
    """What was sealed at a step of the active line."""
    found = [
        one.content_id
        for page in pages(context.catalog, run.run_id, step=step)
        for one in page
        if run.lines.includes(one.line, step)
    ]
    return list(dict.fromkeys(found))


def rollback(
    context: Context,
    run_name: str,
    *,
    to_step: int,
    reason: str | None,
    dry_run: bool = False,
) -> Record:
    """Open a new line at a step: nothing above it in older lines is offered any more.

    Raises:
        NoneRestorable: no checkpoint of that step is known; a line must start from something.
        UnknownRun, CouldNotLook: nothing was written.
    """

    def make(run: StandingRun) -> Record:
        if not _is_known(context, run, to_step):
            raise NoneRestorable(
                f"no checkpoint of step {to_step} is known in this run",
                hint="'ckptgov list' shows the steps there are",
            )
        stamp = context.author.stamp(run.run_id, reason=reason)
        return Rollback(stamp=stamp, to_step=to_step, line=max(run.lines.by_number) + 1)

    return _written(context, run_name, make, dry_run=dry_run)


def _is_known(context: Context, run: StandingRun, step: int) -> bool:
    if any(page for page in pages(context.catalog, run.run_id, step=step)):
        return True
    return any(one.step == step for one in context.catalog.sightings(run.run_id))


def claim(
    context: Context, run_name: str, wanted: Claim, *, reason: str | None, dry_run: bool = False
) -> Record:
    """Keep a checkpoint under a name until a time or for good, or keep it no longer.

    Raises:
        UsageError: neither or both of a step and a content id are given; no name for a pin; one
            that is to be kept no longer is not pinned under the name.
        NoneRestorable: no such checkpoint is sealed, or all of it is gone.
        UnknownRun, CouldNotLook: nothing was written.
    """
    if (wanted.step is None) is (wanted.content_id is None):
        raise UsageError("name either a step or a content id")
    if wanted.for_good and wanted.ttl_s is not None:
        raise UsageError("a claim is for good or for a time, not both")
    check_name(wanted.name)

    def make(run: StandingRun) -> Record:
        stamp = context.author.stamp(run.run_id, reason=reason)
        if wanted.ttl_s is None and not wanted.for_good:
            content_id = _unclaimed(context, run, wanted)
            return Unpin(stamp=stamp, content_id=content_id, pin_name=wanted.name)
        content_id = _claimed(context, run, wanted)
        until_ns = ends_at_ns(stamp.at_ns, wanted.ttl_s)
        return Pin(stamp=stamp, content_id=content_id, pin_name=wanted.name, until_ns=until_ns)

    return _written(context, run_name, make, dry_run=dry_run)


def _claimed(context: Context, run: StandingRun, wanted: Claim) -> str:
    if wanted.step is not None:
        return meant(run.name, wanted.step, _at_step(context, run, wanted.step), run.lines)
    assert wanted.content_id is not None
    if not context.catalog.sealed_of(run.run_id, [wanted.content_id]):
        raise NoneRestorable(f"{run.name}: no such checkpoint is sealed")
    if not _stand(context, run, [wanted.content_id]):
        raise NoneRestorable(f"{run.name}: all copies of it are gone")
    return wanted.content_id


def _unclaimed(context: Context, run: StandingRun, wanted: Claim) -> str:
    if wanted.content_id is not None:
        return wanted.content_id
    assert wanted.step is not None
    known = {one.content_id for one in _at_step(context, run, wanted.step)}
    return pinned(run.name, wanted.step, wanted.name, run.records, known)


def _at_step(context: Context, run: StandingRun, step: int) -> list[AtStep]:
    """What was sealed at a step, on any line, and whether some of it still stands."""
    sealed = [one for page in pages(context.catalog, run.run_id, step=step) for one in page]
    standing = _stand(context, run, [one.content_id for one in sealed])
    return [
        AtStep(
            content_id=one.content_id,
            line=one.line,
            attempt=one.attempt,
            stands=one.content_id in standing,
        )
        for one in sealed
    ]


def _stand(context: Context, run: StandingRun, content_ids: list[str]) -> set[str]:
    placed = context.catalog.copies_of(run.run_id, content_ids)
    return {key for key, copies in placed.items() if any(one.state not in GONE for one in copies)}


def set_metric(
    context: Context,
    run_name: str,
    *,
    step: int,
    name: str,
    value: str,
    dry_run: bool = False,
) -> Record:
    """Tell a metric of a checkpoint after it was sealed.

    Raises:
        UsageError: the value is no decimal number, nan or inf; or the name cannot be kept.
        NoneRestorable: no checkpoint of the step stands.
        UnknownRun, CouldNotLook: nothing was written.
    """
    check_metric(name, value)

    def make(run: StandingRun) -> Record:
        content_id = meant(run.name, step, _at_step(context, run, step), run.lines)
        stamp = context.author.stamp(run.run_id)
        return Metric(stamp=stamp, content_id=content_id, name=name, value=value)

    return _written(context, run_name, make, dry_run=dry_run)


def end_run(
    context: Context, run_name: str, *, retire: bool, reason: str | None, dry_run: bool = False
) -> Record:
    """Say that a run is finished, or retired. A save sealed later lifts it.

    Raises:
        UnknownRun, CouldNotLook: nothing was written.
    """
    kind = Retire if retire else Finish

    def make(run: StandingRun) -> Record:
        saves = [one.sealed_at_ns for one in context.catalog.checkpoints(run.run_id)]
        stamp = context.author.stamp(run.run_id, reason=reason)
        return kind(stamp=after(stamp, max(saves, default=0)))

    return _written(context, run_name, make, dry_run=dry_run)


def _written(context: Context, run_name: str, make: Making, *, dry_run: bool) -> Record:
    """Judge by all that the home holds, then write."""
    run = standing_run(context, run_name, node=None)
    store = restart_journal.home_store(context, run)
    if store is not None and restart_journal.catch_up(context, run, store, "-"):
        run = standing_run(context, run_name, node=None)
    record = make(run)
    if not dry_run:
        restart_journal.append(context, run, store, record)
        follow(context.catalog, record)
    return record
