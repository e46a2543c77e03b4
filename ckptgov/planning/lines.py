"""Lines: the branches of a run's history, read from its journal.

Line 1 is the first pass. A ``rollback`` record and a ``line`` record each open a line with a base
step: the new line includes its ancestors' checkpoints up to their base. The newest line is active;
higher steps of older lines are never offered, also when they arrive late.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from msgspec import Struct

from ckptgov.model.checkpoint import StepKind
from ckptgov.model.journal import (
    LineCause,
    LineOpened,
    MarkBad,
    NumberedRecord,
    Restart,
    Rollback,
    Sealed,
    UnmarkBad,
)


class Line(Struct, frozen=True, kw_only=True):
    """One branch; line 1 has neither parent nor base. ``opened_at_ns`` is its record's stamp."""

    number: int
    parent: int | None = None
    base_step: int | None = None
    cause: LineCause | None = None
    opened_at_ns: int = 0
    reason: str | None = None


class Lines(Struct, frozen=True):
    """All lines of a run by number; never empty."""

    by_number: dict[int, Line]

    @property
    def active(self) -> Line:
        """The newest line: the only one whose own checkpoints are offered without a bound."""
        return self.by_number[max(self.by_number)]

    def includes(self, line: int, step: int) -> bool:
        """Whether ``step`` of ``line`` belongs to the active line's history."""
        bound: int | None = None
        current: Line | None = self.active
        while current is not None:
            if current.number == line:
                return bound is None or step <= bound
            base = current.base_step
            if base is not None:
                bound = base if bound is None else min(bound, base)
            current = self.by_number.get(current.parent) if current.parent else None
        return False

    def line_of_unsealed(self, step: int, newest_mtime_ns: int) -> int:
        """The line of a checkpoint that no record names.

        Above a line's base it belongs to that line only if its bytes are younger than the record
        that opened it. Times never order checkpoints; here they can only refuse one.
        """
        current = self.active
        while current.parent is not None:
            if newest_mtime_ns > current.opened_at_ns:
                return current.number
            parent = self.by_number.get(current.parent)
            if parent is None:
                return current.number
            current = parent
        return current.number


def ordered(records: Iterable[NumberedRecord]) -> list[NumberedRecord]:
    """Journal order: by number, then id; a record merged from two places counts once."""
    unique: dict[str, NumberedRecord] = {}
    for item in sorted(records, key=lambda item: (item.number, item.record.stamp.id)):
        unique.setdefault(item.record.stamp.id, item)
    return list(unique.values())


def read_lines(records: Iterable[NumberedRecord]) -> Lines:
    """Read the lines off a journal.

    Two records that open one line number (a race of two operators) leave the lower base: neither
    wanted anything above it.
    """
    lines = {1: Line(number=1)}
    sealed: list[Sealed] = []
    for item in ordered(records):
        record = item.record
        if isinstance(record, Sealed):
            sealed.append(record)
        elif isinstance(record, Rollback):
            _open(lines, _line_of_rollback(record, lines, sealed))
        elif isinstance(record, LineOpened):
            _open(
                lines,
                Line(
                    number=record.line,
                    parent=record.parent,
                    base_step=record.base_step,
                    cause=record.cause,
                    opened_at_ns=record.stamp.at_ns,
                    reason=record.stamp.reason,
                ),
            )
    return Lines(lines)


def _line_of_rollback(record: Rollback, lines: dict[int, Line], sealed: Sequence[Sealed]) -> Line:
    holders = [one.line for one in sealed if one.step == record.to_step and one.line in lines]
    return Line(
        number=record.line,
        parent=max(holders, default=max(n for n in lines if n < record.line or n == 1)),
        base_step=record.to_step,
        cause=LineCause.ROLLBACK,
        opened_at_ns=record.stamp.at_ns,
        reason=record.stamp.reason,
    )


def _open(lines: dict[int, Line], line: Line) -> None:
    if line.parent is not None and line.parent >= line.number:
        line = Line(
            number=line.number,
            parent=max(n for n in lines if n < line.number),
            base_step=line.base_step,
            cause=line.cause,
            opened_at_ns=line.opened_at_ns,
            reason=line.reason,
        )
    held = lines.get(line.number)
    if held is not None and (held.base_step or 0) <= (line.base_step or 0):
        return
    lines[line.number] = line


def is_marked_bad(
    records: Sequence[NumberedRecord], *, content_id: str | None, step: int | None, line: int
) -> str | None:
    """The standing mark on a checkpoint, in words, or None.

    A mark by step covers the lines that existed when it was made: the steps a later line writes
    again are new checkpoints. Later records outweigh earlier ones.
    """
    mark: str | None = None
    newest_line = 1
    for item in records:
        record = item.record
        if isinstance(record, Rollback | LineOpened):
            newest_line = max(newest_line, record.line)
        elif isinstance(record, MarkBad) and _covers(record, content_id, step):
            if record.content_id is not None or line <= newest_line:
                mark = f"marked bad by {record.stamp.by}: {record.stamp.reason or 'no reason'}"
        elif isinstance(record, UnmarkBad) and _covers(record, content_id, step):
            mark = None
    return mark


def _covers(record: MarkBad | UnmarkBad, content_id: str | None, step: int | None) -> bool:
    if record.content_id is not None:
        return record.content_id == content_id
    if step is None or record.from_step is None:
        return False
    return step >= record.from_step and (record.until_step is None or step <= record.until_step)


def attempt_of(records: Sequence[NumberedRecord], *, content_id: str, step: int, line: int) -> int:
    """Which attempt at (line, step) this content is: 0 for the first."""
    seen: list[str] = []
    for item in records:
        record = item.record
        if isinstance(record, Sealed) and (record.step, record.line) == (step, line):
            if record.content_id == content_id:
                return record.attempt
            if record.content_id not in seen:
                seen.append(record.content_id)
    return len(seen)


class NewSave(Struct, frozen=True, kw_only=True):
    """What is known of a checkpoint about to be sealed."""

    content_id: str
    step: int
    step_kind: StepKind
    oldest_mtime_ns: int
    newest_mtime_ns: int
    is_carried: bool


class OpeningLine(Struct, frozen=True, kw_only=True):
    """A line that must be opened before the save is recorded."""

    line: int
    parent: int
    base_step: int
    cause: LineCause


def line_for_save(
    save: NewSave,
    records: Sequence[NumberedRecord],
    *,
    earlier: Container[str],
    first_seen_at_ns: int,
    margin_ns: int,
) -> tuple[int, OpeningLine | None]:
    """The line a newly seen save belongs to, and the line to open for it if any.

    A save below what the active line already holds opens one when a restart decision for a lower
    step stands before it, or when it was first sighted (``first_seen_at_ns``, by the observer's
    clock) in a later pass than a higher one was sealed, and its own times say that a trainer wrote
    it here in between (``margin_ns`` allows for clocks that differ). ``earlier`` holds the ids of
    the records that stood before this pass. A copy of a known content id, carried times and times
    in the future prove nothing and open nothing.
    """
    lines = read_lines(records)
    active = lines.active
    own = _sealed_in(records, lines)
    if any(one.content_id == save.content_id for one in own):
        return next(one.line for one in own if one.content_id == save.content_id), None
    line = lines.line_of_unsealed(save.step, save.newest_mtime_ns)
    if line != active.number:
        return line, None
    higher = [one for one in own if one.step is not None and one.step >= save.step]
    if not higher or save.is_carried:
        return line, None
    before = [
        one
        for one in higher
        if one.step is not None
        and one.step > save.step
        and one.stamp.id in earlier
        and one.stamp.at_ns < first_seen_at_ns
    ]
    is_fresh = save.newest_mtime_ns <= first_seen_at_ns + margin_ns
    cause = _cause_of_lower(save, higher, before if is_fresh else [], records, active, margin_ns)
    if cause is None:
        return line, None
    lower = [one.step for one in own if one.step is not None and one.step < save.step]
    base = max(lower, default=0)
    number = max(lines.by_number) + 1
    return number, OpeningLine(line=number, parent=active.number, base_step=base, cause=cause)


def _sealed_in(records: Sequence[NumberedRecord], lines: Lines) -> list[Sealed]:
    return [
        item.record
        for item in records
        if isinstance(item.record, Sealed)
        and item.record.step is not None
        and lines.includes(item.record.line, item.record.step)
    ]


def _cause_of_lower(
    save: NewSave,
    higher: Sequence[Sealed],
    before: Sequence[Sealed],
    records: Sequence[NumberedRecord],
    active: Line,
    margin_ns: int,
) -> LineCause | None:
    top = max(one.step for one in higher if one.step is not None)
    steps = {
        item.record.content_id: item.record.step
        for item in records
        if isinstance(item.record, Sealed)
    }
    for item in records:
        record = item.record
        if not isinstance(record, Restart) or record.content_id is None:
            continue
        decided = steps.get(record.content_id)
        if decided is None or decided >= min(top, save.step):
            continue
        if save.newest_mtime_ns > record.stamp.at_ns > active.opened_at_ns:
            return LineCause.DECISION
    if any(save.oldest_mtime_ns > one.stamp.at_ns + margin_ns for one in before):
        return LineCause.LOWER_STEP
    return None
