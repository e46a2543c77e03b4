"""Answers of apply and undelete, as text or JSON, and their exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from ckptgov.model.removal import ApplyAnswer, RemovalStep, UndeleteAnswer, Went
from ckptgov.model.retention import Action
from ckptgov.wire import removal as documents
from ckptgov_cli import output
from ckptgov_cli.exits import code_of
from ckptgov_cli.output import size

_HEADER = ("STATE", "ACTION", "RUN", "STEP", "CHECKPOINT", "WHERE", "BYTES", "FILES", "WHY")
APPLY = "the first 'ckptgov apply'"
_NEXT = {
    Action.PRUNE: f"moved to the trash by {APPLY} after",
    Action.EVICT: f"removed for good by {APPLY} after",
}


def applied(answer: ApplyAnswer, *, as_json: bool) -> int:
    """What became of every copy, and the sums."""
    if as_json:
        output.emit(documents.applied(answer))
        return code_of(answer.error)
    output.table(_HEADER, [_row(one, one.went.value, _why(one)) for one in answer.steps])
    for line in _sums(answer.steps):
        output.talk(line)
    if any(one.went is Went.CONDEMNED for one in answer.steps):
        output.talk("nothing of what is condemned was touched: 'ckptgov undelete' keeps it")
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
    if back:
        output.talk("a later plan may let it go again; 'ckptgov pin' keeps a checkpoint")
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
    if one.due_at_ns is None:
        return one.text
    match one.went:
        case Went.CONDEMNED:
            next_ = _NEXT[one.action]
        case Went.TRASHED:
            next_ = f"purged by {APPLY} after"
        case Went.WAITING:
            next_ = "not before"
        case _:
            return one.text
    told = f"{next_} {moment(one.due_at_ns)}"
    return f"{one.text}; {told}" if one.text else told


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
