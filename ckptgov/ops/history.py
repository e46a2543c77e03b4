"""Verbs that write history: mark-bad, rollback, report. Journal first, catalog after."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import RecordFacts
from ckptgov.errors import CkptgovError, NoneRestorable, UsageError
from ckptgov.manifest.forms.records import encode_record
from ckptgov.model.journal import (
    KIND_OF,
    MarkBad,
    NumberedRecord,
    Outcome,
    Record,
    RestoreOutcome,
    Rollback,
    Sealed,
    UnmarkBad,
)
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
    """Keep the catalog's copy of a record, where the run is registered."""
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
