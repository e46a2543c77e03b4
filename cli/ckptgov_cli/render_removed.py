"""What 'explain' says of copies that a plan let go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptgov.model.copies import CopyState
from ckptgov.model.facts import CheckpointFacts
from ckptgov.model.removed import RemovedCopy
from ckptgov.wire.plans import short_id
from ckptgov_cli import output
from ckptgov_cli.render_removing import APPLY, moment

_WHERE = {
    CopyState.CONDEMNED: "condemned",
    CopyState.TRASHING: "being moved aside",
    CopyState.TRASHED: "in the trash",
    CopyState.PURGED: "purged",
}


def beneath(one: CheckpointFacts, removed: Sequence[RemovedCopy]) -> None:
    """Lines of the copies of a checkpoint that was told of already."""
    if one.content_id is None:
        return
    for each in removed:
        if each.content_id == one.content_id:
            _tell(each)


def alone(told: Sequence[CheckpointFacts], removed: Sequence[RemovedCopy]) -> None:
    """Those of which nothing stands any more, each checkpoint under its own name."""
    known = {one.content_id for one in told}
    last = None
    for each in removed:
        if each.content_id in known:
            continue
        if each.content_id != last:
            step = "-" if each.step is None else str(each.step)
            output.line(f"{step}\t{each.name or each.content_id}")
        last = each.content_id
        _tell(each)


def _tell(one: RemovedCopy) -> None:
    where = f"{one.tier}@{one.node}" if one.node else one.tier
    output.line(f"  {where}: {_state(one)}")
    for why in one.why:
        output.line(f"    {why.text}")
    for said in _after(one):
        output.line(f"    {said}")


def _state(one: RemovedCopy) -> str:
    """How far it got, by which plan, and when."""
    plan = (
        f"by plan {short_id(one.plan_id)}"
        if one.plan_id
        else "by a plan that is not known any more"
    )
    times = (
        ("condemned", one.condemned_at_ns),
        ("moved", one.moved_at_ns),
        ("purged", one.purged_at_ns),
    )
    said = "; ".join(f"{word} {moment(at_ns)}" for word, at_ns in times if at_ns is not None)
    return f"{_WHERE[one.state]} {plan}" + (f"; {said}" if said else "")


def _after(one: RemovedCopy) -> Iterator[str]:
    """What comes next, and what can be done about it."""
    if one.error:
        yield f"storage did not let it go: {one.error}"
    due = "" if one.due_at_ns is None else f" after {moment(one.due_at_ns)}"
    match one.state, one.next:
        case CopyState.CONDEMNED, CopyState.TRASHED:
            yield f"moved to the trash by {APPLY}{due}; '{one.undo}' brings it back until purged"
        case ((CopyState.CONDEMNED | CopyState.TRASHED), _):
            yield f"purged by {APPLY}{due}; until then '{one.undo}' brings it back"
        case CopyState.TRASHING, _:
            yield f"{APPLY} goes on with it"
            if one.undo:
                yield f"'{one.undo}' brings it back until it is purged"
        case _:
            yield "it cannot be brought back"
