"""Plans and verdicts as text or JSON, for readers who have never seen one, and their exit codes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckptgov.errors import CkptgovError
from ckptgov.model.planned import Kept, PlanAnswer
from ckptgov.model.retention import (
    Action,
    DropReason,
    KeepReason,
    Plan,
    PlanEntry,
    PlanState,
    RunLife,
    RunVerdict,
    StoredPlan,
    TierOutlook,
)
from ckptgov.wire import plans as documents
from ckptgov.wire.documents import Document
from ckptgov.wire.plans import error_of_plan, moment, short_id
from ckptgov_cli import output
from ckptgov_cli.exits import code_of
from ckptgov_cli.output import size
from ckptgov_cli.reasons import KEPT_WORDS

if TYPE_CHECKING:
    from ckptgov.model.removal import ApplyAnswer
    from ckptgov.model.usage import RunUsage

CHANGES_PENDING = 20
_GOES = ("ACTION", "RUN", "STEP", "CHECKPOINT", "WHERE", "FREES", "WHY")
_STAYS = ("STAYS", "RUN", "STEP", "CHECKPOINT", "WHERE", "SIZE", "WHY")
_FOR_ROOM = frozenset(
    {
        DropReason.QUOTA_BYTES,
        DropReason.QUOTA_FILES,
        DropReason.WATERMARK,
        DropReason.ROOM_FOR_SAVE,
    }
)
_PLANS = ("PLAN", "STATE", "MADE", "COPIES", "FREES", "BY", "NOTE")


def plan(
    stored: StoredPlan,
    *,
    as_json: bool,
    dry_run: bool = False,
    detailed: bool = False,
    stays: Sequence[RunVerdict] | None = None,
) -> int:
    """What goes, what stays and why; ``stays`` lists each that stays instead of counting them."""
    error = error_of_plan(stored)
    if as_json:
        document = documents.plan(stored, error=error, dry_run=dry_run)
        output.emit(document if stays is None else _with_stays(document, stays))
        return _code(stored, error, detailed)
    _whole_plan(stored, stays)
    if error is not None:
        output.complain(error)
    return _code(stored, error, detailed)


def _with_stays(document: Document, stays: Sequence[RunVerdict]) -> Document:
    return {**document, "verdicts": [documents.verdict(one) for one in stays]}


def _code(stored: StoredPlan, error: CkptgovError | None, detailed: bool) -> int:
    if error is None and detailed and stored.plan.entries:
        return CHANGES_PENDING
    return code_of(error)


def planned_and_applied(stored: StoredPlan, answer: ApplyAnswer, *, as_json: bool) -> int:
    """A plan and, at once, what carrying it out did."""
    from ckptgov.wire import removal
    from ckptgov_cli import render_removing

    error = answer.error or error_of_plan(stored)
    if as_json:
        told = {**documents.plan(stored, error=error), "applied": removal.applied(answer)}
        output.emit(told)
        return code_of(error)
    _whole_plan(stored, None)
    output.line("")
    code = render_removing.applied(answer, as_json=False)
    if answer.error is None and error is not None:
        output.complain(error)
        return code_of(error)
    return code


def _whole_plan(stored: StoredPlan, stays: Sequence[RunVerdict] | None) -> None:
    told = stored.plan
    for text in _heading(stored):
        output.line(text)
    if told.entries:
        output.line("")
        output.table(_GOES, [_goes(one) for one in told.entries])
        output.line("")
        for text in _legend(told):
            output.line(text)
    sections = [_tiers(told.tiers)]
    if stays is not None:
        _each_that_stays(stays)
    elif isinstance(stored, PlanAnswer):
        sections.append(_kept(stored.kept))
    if isinstance(stored, PlanAnswer):
        sections += [_quiet(stored.quiet), _notes(stored.notes)]
    sections += [_refusals(told), _failures(told)]
    for lines in sections:
        if lines:
            output.line("")
        for each in lines:
            output.line(each)


def _legend(told: Plan) -> Iterator[str]:
    """What the words in the list mean, as far as they are there, and what can be undone."""
    actions = {one.action for one in told.entries}
    if Action.PRUNE in actions:
        yield "prune: no copy of the checkpoint would be left anywhere."
    if Action.EVICT in actions:
        yield "evict: this copy would go; the checkpoint stays on another tier."
    reasons = {why.reason for one in told.entries for why in one.why}
    if reasons & _FOR_ROOM:
        yield "For room goes what the policy's 'yields' names, the oldest first, down to the limit."
    yield (
        "Applying condemns them: they are not offered any more, and their files stay where they "
        "are for the policy's grace. The first apply after it moves a prune's files to the trash "
        "and removes an evict's for good; one after the trash time purges the trash. Until then "
        "'ckptgov undelete' brings them back. ('ckptgov policy show' tells both times.)"
    )


def _heading(stored: StoredPlan) -> Iterator[str]:
    told = stored.plan
    named = ", ".join(name for name, _digest in told.policies) or "no policy"
    yield (
        f"plan {short_id(told.plan_id)}: {_state(stored)}; made {moment(told.now_ns)} "
        f"over {_many(told.runs, 'run')}, {_many(told.checkpoints, 'checkpoint')}; "
        f"policies: {named}"
    )
    if stored.note:
        yield f"note by {stored.by}: {stored.note}"
    if not told.entries:
        yield "nothing goes"
        return
    gone = len({(one.run_id, one.content_id) for one in told.entries if one.action is Action.PRUNE})
    freed = sum(one.bytes for one in told.entries)
    runs = len({one.run_id for one in told.entries})
    word = "lists" if stored.state is PlanState.APPLIED else "would remove"
    yield (
        f"{word} {_many(len(told.entries), 'copy', 'copies')} in {_many(runs, 'run')}, "
        f"{size(freed)} in all; {_many(gone, 'checkpoint')} would be gone altogether"
    )


_STATES = {
    PlanState.PROPOSED: "proposed, nothing was done",
    PlanState.WAITING: "waits to be approved by a person",
    PlanState.APPROVED: "approved, may be applied",
    PlanState.APPLIED: "was applied",
    PlanState.STALE: "replaced by a later plan",
    PlanState.REFUSED: "refused, must not be applied",
}


def _state(stored: StoredPlan) -> str:
    words = _STATES[stored.state]
    if isinstance(stored, PlanAnswer) and not stored.is_stored:
        return f"{words}; only looked at, not stored"
    return words


def _goes(one: PlanEntry) -> list[str]:
    frees = f"frees {size(one.bytes)}"
    if one.bytes != one.size_bytes:
        frees += f" of {size(one.size_bytes)}"
    return [
        one.action.value,
        one.run,
        _step(one.step),
        one.checkpoint,
        _where(one.tier, one.node),
        frees,
        "; ".join(each.text for each in one.why),
    ]


def _step(step: int | None) -> str:
    return "no step" if step is None else f"step {step}"


def _where(tier: str, node: str | None) -> str:
    return tier if node is None else f"{tier}@{node}"


def _tiers(found: Sequence[TierOutlook]) -> list[str]:
    lines = []
    for one in found:
        line = f"tier {_where(one.tier, one.node)}: {size(one.used_bytes)} used now"
        if one.freed_bytes:
            line += f", {size(one.freed_bytes)} less once it is purged"
        if one.limit_bytes is not None:
            line += f"; may hold {size(one.limit_bytes)}"
        if one.over_bytes or one.over_files:
            over = [size(one.over_bytes)] if one.over_bytes else []
            over += [_many(one.over_files, "file")] if one.over_files else []
            line += (
                f"; still {' and '.join(over)} over it: nothing more may go, and nothing is "
                "flushed there until there is room"
            )
        lines.append(line)
    return lines


def _kept(found: Sequence[Kept]) -> list[str]:
    if not found:
        return []
    lines = ["stays, by its strongest reason ('--all' lists each):"]
    for one in found:
        words = KEPT_WORDS[KeepReason(one.reason)]
        lines.append(
            f"  {one.tier}: {_many(one.checkpoints, 'checkpoint')}, {size(one.bytes)}: "
            f"{one.reason}: {words}"
        )
    return lines


def _each_that_stays(stays: Iterable[RunVerdict]) -> None:
    rows = [
        [
            "stays",
            run.run,
            _step(one.step),
            one.name,
            at.tier,
            size(at.bytes),
            "; ".join(each.text for each in at.why),
        ]
        for run in stays
        for one in run.checkpoints
        for at in one.tiers
        if at.action is None
    ]
    output.line("")
    output.table(_STAYS, rows)


def _quiet(found: Sequence[RunUsage]) -> list[str]:
    if not found:
        return []
    lines = ["runs that nothing was heard of for long ('ckptgov run retire RUN' lets them go):"]
    for one in found:
        last = f"last step {one.last_step}" if one.last_step is not None else "no step"
        how = "retired by rule" if one.life is RunLife.RETIRED else one.life.value
        lines.append(
            f"  {one.run}: {how}, last heard of {moment(one.alive_at_ns)}; owner "
            f"{one.owner or 'unknown'}; {_many(one.checkpoints, 'checkpoint')}, "
            f"{size(one.bytes)}, {last}"
        )
    return lines


def _notes(notes: Sequence[tuple[str, str]]) -> list[str]:
    return [f"note: {run}: {words}" for run, words in notes]


def _refusals(told: Plan) -> list[str]:
    return [
        f"refused: {one.text}" + ("" if one.is_cap else " (nothing lifts this)")
        for one in told.refusals
    ]


def _failures(told: Plan) -> list[str]:
    return [f"not looked at: {run}: {why}; nothing of it goes" for run, why in told.failures]


def shown(stored: StoredPlan, *, as_json: bool) -> int:
    """A stored plan as it was made; that it is refused or waits is what was asked to be seen."""
    if as_json:
        output.emit(documents.plan(stored))
        return 0
    _whole_plan(stored, None)
    return 0


def approved(stored: StoredPlan, *, as_json: bool, dry_run: bool) -> int:
    """A plan that may be applied now."""
    if as_json:
        output.emit(documents.plan(stored, dry_run=dry_run))
        return 0
    short = short_id(stored.plan.plan_id)
    if dry_run:
        output.talk("would approve:")
    output.line(f"plan {short}: {stored.state.value}; carry it out with 'ckptgov apply {short}'")
    return 0


def plans(found: Sequence[StoredPlan], *, as_json: bool) -> int:
    """Stored plans, newest first."""
    if as_json:
        output.emit(documents.plans(found))
        return 0
    if not found:
        output.talk("no plan is stored; 'ckptgov plan' makes one")
    output.table(_PLANS, [_listed(one) for one in found])
    return 0


def _listed(one: StoredPlan) -> list[str]:
    is_whole = one.state not in (PlanState.APPLIED, PlanState.STALE, PlanState.REFUSED)
    freed = sum(each.bytes for each in one.plan.entries)
    return [
        short_id(one.plan.plan_id),
        one.state.value,
        moment(one.stored_at_ns),
        str(len(one.plan.entries)) if is_whole else "-",
        size(freed) if is_whole else "-",
        one.by,
        one.note or "-",
    ]


def _many(count: int, one: str, several: str | None = None) -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"
