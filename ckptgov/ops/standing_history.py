"""Verbs that write history, judged by the catalog: mark-bad, rollback, claims on checkpoints.

As ``history``, for whoever cannot look at every place of a run. The record goes to the run's home
first, then to the catalog; of a run without a shared place the catalog keeps it, and the agents of
its nodes take it over.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ckptgov.errors import NoneRestorable, UsageError
from ckptgov.model.journal import MarkBad, Pin, Record, Rollback, UnmarkBad, Unpin
from ckptgov.ops import restart_journal
from ckptgov.ops.context import Context
from ckptgov.ops.standing import pages
from ckptgov.ops.standing_run import StandingRun, standing_run

Making = Callable[[StandingRun], Record]


class Steps(Struct, frozen=True, kw_only=True):
    """One step, or a range of them from ``from_step`` (to ``until_step``, inclusive)."""

    step: int | None = None
    from_step: int | None = None
    until_step: int | None = None


class Claim(Struct, frozen=True, kw_only=True):
    """A name under which one checkpoint is kept for ``ttl_s`` seconds; None: no longer.

    One of ``step`` and ``content_id`` says which.
    """

    name: str
    step: int | None = None
    content_id: str | None = None
    ttl_s: float | None


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
    """Keep a checkpoint under a name until a time, or keep it no longer.

    Raises:
        UsageError: neither or both of a step and a content id are given.
        NoneRestorable: no such checkpoint is sealed, or several at this step.
        UnknownRun, CouldNotLook: nothing was written.
    """
    if (wanted.step is None) is (wanted.content_id is None):
        raise UsageError("name either a step or a content id")

    def make(run: StandingRun) -> Record:
        content_id = _claimed(context, run, wanted)
        stamp = context.author.stamp(run.run_id, reason=reason)
        if wanted.ttl_s is None:
            return Unpin(stamp=stamp, content_id=content_id, pin_name=wanted.name)
        until_ns = stamp.at_ns + int(wanted.ttl_s * 1e9)
        return Pin(stamp=stamp, content_id=content_id, pin_name=wanted.name, until_ns=until_ns)

    return _written(context, run_name, make, dry_run=dry_run)


def _claimed(context: Context, run: StandingRun, wanted: Claim) -> str:
    if wanted.step is not None:
        found = _content_ids_of(context, run, wanted.step)
        if len(found) == 1:
            return found[0]
        how = "no checkpoint" if not found else f"{len(found)} checkpoints"
        raise NoneRestorable(f"{run.name}: {how} of step {wanted.step} is sealed")
    assert wanted.content_id is not None
    try:
        context.catalog.manifest_bytes(run.run_id, wanted.content_id)
    except FileNotFoundError as error:
        raise NoneRestorable(f"{run.name}: no such checkpoint is sealed") from error
    return wanted.content_id


def _written(context: Context, run_name: str, make: Making, *, dry_run: bool) -> Record:
    """Judge by all that the home holds, then write."""
    run = standing_run(context, run_name, node=None)
    store = restart_journal.home_store(context, run)
    if store is not None and restart_journal.catch_up(context, run, store, "-"):
        run = standing_run(context, run_name, node=None)
    record = make(run)
    if not dry_run:
        restart_journal.append(context, run, store, record)
    return record
