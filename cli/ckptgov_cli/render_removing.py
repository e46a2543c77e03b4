"""Answers of apply and undelete, as text or JSON, and their exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from ckptgov.model.removal import ApplyAnswer, RemovalStep, UndeleteAnswer, Went
from ckptgov.wire import removal as documents
from ckptgov_cli import output
from ckptgov_cli.exits import code_of
from ckptgov_cli.output import size

_HEADER = ("STATE", "ACTION", "RUN", "STEP", "CHECKPOINT", "WHERE", "BYTES", "FILES", "WHY")
_NEXT = {
    Went.CONDEMNED: "moved to the trash after",
    Went.TRASHED: "purged after",
    Went.WAITING: "not before",
}


def applied(answer: ApplyAnswer, *, as_json: bool) -> int:
    """What became of every copy, and the sums."""
    if as_json:
        output.emit(documents.applied(answer))
        return code_of(answer.error)
    output.table(_HEADER, [_row(one, one.went.value, _why(one)) for one in answer.steps])
    for line in _sums(answer.steps):
        output.talk(line)
    if not answer.steps and answer.error is None:
        output.talk("nothing is condemned, in the trash or planned: there was nothing to do")
    if answer.error is not None:
        output.complain(answer.error)
    return code_of(answer.error)


def undeleted(answer: UndeleteAnswer, *, as_json: bool) -> int:
    """What came back, and what did not."""
    if as_json:
        output.emit(documents.undeleted(answer))
        return code_of(answer.error)
    back = {(one.content_id, one.place) for one in answer.restored}
    rows = []
    for one in answer.steps:
        came_back = (one.content_id, one.place) in back
        rows.append(_row(one, "restored" if came_back else one.went.value, one.text))
    output.table(_HEADER, rows)
    if answer.error is not None:
        output.complain(answer.error)
    return code_of(answer.error)


def _row(one: RemovalStep, state: str, why: str) -> list[str]:
    return [
        state,
        one.action.value,
        one.run,
        "-" if one.step is None else str(one.step),
        one.checkpoint,
        f"{one.tier}@{one.node}" if one.node else one.tier,
        size(one.bytes),
        str(one.files),
        why,
    ]


def _why(one: RemovalStep) -> str:
    """The reason, and what happens next and when."""
    if one.due_at_ns is None or one.went not in _NEXT:
        return one.text
    next_ = f"{_NEXT[one.went]} {moment(one.due_at_ns)}"
    return f"{one.text}; {next_}" if one.text else next_


def moment(at_ns: int) -> str:
    """A time to the minute, in UTC."""
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _sums(steps: Sequence[RemovalStep]) -> list[str]:
    lines = []
    for went in Went:
        those = [one for one in steps if one.went is went]
        if those:
            total = sum(one.bytes for one in those)
            copies = "copy" if len(those) == 1 else "copies"
            lines.append(f"{went.value}: {len(those)} {copies}, {size(total)}")
    return lines
