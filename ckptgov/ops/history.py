"""Verbs that write history: mark-bad, rollback, report, pins, metrics, the end of a run.

Journal first, catalog after.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import RecordFacts
from ckptgov.errors import CkptgovError, NoneRestorable, UsageError
from ckptgov.layouts.told_metrics import told
from ckptgov.manifest.forms.records import encode_record
from ckptgov.model.checkpoint import digits_of
from ckptgov.model.journal import (
    KIND_OF,
    Finish,
    MarkBad,
    Metric,
    NumberedRecord,
    Outcome,
    Pin,
    Record,
    RestoreOutcome,
    Retire,
    Rollback,
    Sealed,
    Stamp,
    UnmarkBad,
    Unpin,
)
from ckptgov.ops.claims import AtStep, check_name, ends_at_ns, follow, meant, pinned
from ckptgov.planning.lines import read_lines
from ckptgov.work.answer import share_journal
from ckptgov.work.ask import Asked
from ckptgov.work.author import Author
from ckptgov.work.decide import outcome_record
from ckptgov.work.look import RunLook
from ckptgov.work.restart import identity_of

UNWRITTEN_RUN = "00000000-0000-0000-0000-000000000000"
"""Stands in a dry run's record for a run to which nothing was ever written."""


class Marked(Struct, frozen=True, kw_only=True):
    """What a mark covers: one content id, or steps."""

    content_id: str | None
    from_step: int | None
    until_step: int | None


def append_everywhere(asked: Asked, record: Record, talk: Callable[[str], None]) -> int:
    """Append to the run's home, then copy to its other places; only the home must succeed."""
    number = asked.home.append(record)
    for look in asked.looks[1:]:
        try:
            look.store.append(record)
        except CkptgovError as error:
            talk(f"the record was not copied to {look.place.root}: {error.message}")
    return number


def mirror(catalog: Catalog, run_id: str, number: int, record: Record) -> None:
    """Keep the catalog's copy of a record, and what it claims, where the run is registered."""
    if catalog.run_by_id(run_id) is None:
        return
    catalog.put_records(
        [
            RecordFacts(
                run_id=run_id,
                record_id=record.stamp.id,
                number=number,
                kind=KIND_OF[type(record)],
                at_ns=record.stamp.at_ns,
                raw=encode_record(record),
            )
        ]
    )
    follow(catalog, record)


def run_id_for(asked: Asked, author: Author, *, dry_run: bool) -> str:
    """The run's id; ``run.json`` is written now if it must be, and never by a dry run."""
    identity = asked.looks[0].identity
    if identity is None and dry_run:
        return UNWRITTEN_RUN
    return identity_of(asked.looks[0], author).run_id


def mark_bad(
    asked: Asked,
    author: Author,
    *,
    run_id: str,
    step: int | None,
    from_step: int | None,
    until_step: int | None,
    reason: str,
    undo: bool,
) -> Record:
    """The record that marks (or unmarks) one checkpoint or a range of steps.

    Raises:
        UsageError: neither or both of a step and a range are given, or no checkpoint has the step.
    """
    share_journal(asked.looks)
    marked = _marked(asked, step, from_step, until_step)
    kind = UnmarkBad if undo else MarkBad
    return kind(
        stamp=author.stamp(run_id, reason=reason),
        content_id=marked.content_id,
        from_step=marked.from_step,
        until_step=marked.until_step,
    )


def _marked(
    asked: Asked, step: int | None, from_step: int | None, until_step: int | None
) -> Marked:
    if asked.only_name is not None and step is None and from_step is None:
        return _marked_by_name(asked, asked.only_name)
    if (step is None) == (from_step is None):
        raise UsageError("name either --step N or --from N (with --until N), not both")
    if until_step is not None and from_step is None:
        raise UsageError("--until N goes with --from N")
    if from_step is not None:
        if until_step is not None and until_step < from_step:
            raise UsageError(f"--until {until_step} lies below --from {from_step}")
        return Marked(content_id=None, from_step=from_step, until_step=until_step)
    assert step is not None
    content_ids = _content_ids_of(asked.looks[0], step)
    if len(content_ids) == 1:
        return Marked(content_id=content_ids[0], from_step=None, until_step=None)
    return Marked(content_id=None, from_step=step, until_step=step)


def _marked_by_name(asked: Asked, name: str) -> Marked:
    for look in asked.looks:
        for stored in look.stored:
            copy = look.sealed(stored)
            if copy is not None and copy.manifest.name == name and not look.is_gone(copy):
                return Marked(content_id=copy.manifest.content_id, from_step=None, until_step=None)
    found = asked.looks[0].found_named(name)
    step = found.step if found is not None else None
    if step is None:
        raise UsageError(
            f"{name} is not sealed and carries no step", hint="seal it first: 'ckptgov scan'"
        )
    return Marked(content_id=None, from_step=step, until_step=step)


def _content_ids_of(look: RunLook, step: int) -> list[str]:
    lines = look.lines
    return list(
        dict.fromkeys(
            item.record.content_id
            for item in look.records
            if isinstance(item.record, Sealed)
            and item.record.step == step
            and lines.includes(item.record.line, step)
        )
    )


def rollback(
    asked: Asked, author: Author, *, run_id: str, to_step: int, reason: str | None
) -> Rollback:
    """The record that opens a new line at a step.

    Raises:
        NoneRestorable: no checkpoint of that step is known; a line must start from something.
    """
    records = share_journal(asked.looks)
    if not _is_known(asked, records, to_step):
        raise NoneRestorable(
            f"no checkpoint of step {to_step} is known in this run",
            hint="'ckptgov list' shows the steps there are",
        )
    number = max(read_lines(records).by_number) + 1
    return Rollback(stamp=author.stamp(run_id, reason=reason), to_step=to_step, line=number)


def _is_known(asked: Asked, records: tuple[NumberedRecord, ...], step: int) -> bool:
    if any(isinstance(item.record, Sealed) and item.record.step == step for item in records):
        return True
    if any(one.step == step for one in asked.more):
        return True
    for look in asked.looks:
        if any(one.step == step for one in look.survey.found):
            return True
        for stored in look.stored:
            copy = look.sealed(stored)
            if copy is not None and copy.manifest.step == step:
                return True
    return False


def report(
    asked: Asked,
    author: Author,
    *,
    run_id: str,
    restart_id: str,
    outcome: RestoreOutcome,
    epoch: int | None,
    reason: str | None,
) -> Outcome:
    """The record of what became of a start."""
    records = share_journal(asked.looks)
    return outcome_record(
        records,
        restart_id=restart_id,
        outcome=outcome,
        epoch=epoch,
        run_id=run_id,
        author=author,
        reason=reason,
    )


def pin(
    asked: Asked,
    author: Author,
    *,
    run_id: str,
    step: int,
    name: str,
    reason: str | None,
    ttl_s: float | None,
    undo: bool,
) -> Record:
    """The record that keeps a checkpoint under a name (``ttl_s`` None: for good), or no longer.

    Raises:
        UsageError: no name for a pin; ``undo`` of one that is not there.
        NoneRestorable: no checkpoint of the step stands; nothing would be kept.
    """
    records = share_journal(asked.looks)
    found = _at_step(asked, step)
    stamp = author.stamp(run_id, reason=reason)
    if undo:
        known = {one.content_id for one in found}
        content_id = pinned(_word_for(asked), step, name, records, known)
        return Unpin(stamp=stamp, content_id=content_id, pin_name=name)
    return Pin(
        stamp=stamp,
        content_id=meant(_word_for(asked), step, found, asked.looks[0].lines),
        pin_name=check_name(name),
        until_ns=ends_at_ns(stamp.at_ns, ttl_s),
    )


def set_metric(
    asked: Asked, author: Author, *, run_id: str, step: int, name: str, value: str
) -> Metric:
    """The record that tells a metric of a checkpoint after it was sealed.

    Raises:
        UsageError: the value is no decimal number, nan or inf; or the name cannot be kept.
        NoneRestorable: no checkpoint of the step stands.
    """
    check_metric(name, value)
    share_journal(asked.looks)
    content_id = meant(_word_for(asked), step, _at_step(asked, step), asked.looks[0].lines)
    return Metric(stamp=author.stamp(run_id), content_id=content_id, name=name, value=value)


def check_metric(name: str, value: str) -> None:
    """Raises UsageError for what a record cannot hold as a metric."""
    if not told([(name, value)]):
        raise UsageError(
            f"{name!r}={value!r} is no metric",
            hint="write NAME=NUMBER; nan and inf are numbers here",
        )


def end_run(
    asked: Asked, author: Author, *, run_id: str, retire: bool, reason: str | None
) -> Record:
    """The record that says a run is finished, or retired. A save sealed later lifts it."""
    records = share_journal(asked.looks)
    saves = [item.record.stamp.at_ns for item in records if isinstance(item.record, Sealed)]
    kind = Retire if retire else Finish
    return kind(stamp=after(author.stamp(run_id, reason=reason), max(saves, default=0)))


def after(stamp: Stamp, newest_save_ns: int) -> Stamp:
    """The stamp, later than every save that is known: a clock that is behind lifts nothing."""
    return replace(stamp, at_ns=max(stamp.at_ns, newest_save_ns + 1))


def _word_for(asked: Asked) -> str:
    return asked.run or asked.looks[0].place.root


def _at_step(asked: Asked, step: int) -> list[AtStep]:
    """What was sealed at a step, on any line, and whether some of it may still lie somewhere."""
    sealed = {
        one.content_id: one for one in asked.looks[0].sealed_records.values() if one.step == step
    }
    here = {
        copy.manifest.content_id
        for look in asked.looks
        for stored in look.stored
        if any(digits_of(one).startswith(stored.content_prefix) for one in sealed)
        and (copy := look.sealed(stored)) is not None
        and not look.is_gone(copy)
    }
    return [
        AtStep(
            content_id=key,
            line=one.line,
            attempt=one.attempt,
            stands=key in here or bool(asked.unreachable),
        )
        for key, one in sealed.items()
    ]
