"""Apply: condemn what a stored plan lists, as far as it still holds, and go on with what is due.

A plan is only a proposal. Everything in it is decided anew from the facts of now, by the policy in
force; what would not go any more is skipped and named. What is left is condemned run by run, each
in one transaction in which the catalog's own guard has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ckptgov.catalog.guards import Doomed
from ckptgov.errors import CkptgovError, RefusedBySafety, StaleState
from ckptgov.model.policy import Safety
from ckptgov.model.removal import WENT_WRONG, ApplyAnswer, RemovalStep, Went
from ckptgov.model.retention import PlanEntry, PlanState, Removal, StoredPlan
from ckptgov.model.verbs import never
from ckptgov.ops.comeback import bring_back
from ckptgov.ops.context import Context
from ckptgov.ops.fresh import Fresh, decided_anew, require_same_policies
from ckptgov.ops.pressure import purge_under_pressure
from ckptgov.ops.prune import go_on, key_of
from ckptgov.ops.relied_on import guarded_by_sight, see_what_stays
from ckptgov.ops.removal_guard import catch_up, looked_around
from ckptgov.ops.removing import Removing, Stop
from ckptgov.ops.retention_places import SeenPlaces
from ckptgov.ops.stored_plans import stored_plan
from ckptgov.wire.plans import refusal_of, short_id

_APPLICABLE = frozenset({PlanState.PROPOSED, PlanState.APPROVED})


class Changed(RefusedBySafety):
    """Something is not as the plan saw it, and all of it was to be."""

    def __init__(self, message: str, *, steps: tuple[RemovalStep, ...]) -> None:
        hint = "nothing was condemned; 'ckptgov plan' makes a new plan"
        super().__init__(message, hint=hint)
        self.steps = steps


def apply(
    context: Context,
    plan_id: str | None,
    *,
    strict: bool = False,
    dry_run: bool = False,
    stop: Stop = never,
) -> ApplyAnswer:
    """Condemn what a plan lists, and go on with what was condemned or trashed before.

    Where a place is above its limit, of its trash goes before its time what has to, and before
    anything is condemned. None: only this and the going on. ``strict``: nothing is condemned where
    one entry has changed.

    Raises:
        UsageError: no such plan. ConfigError: a policy is wrong.
    """
    stored = stored_plan(context, plan_id) if plan_id is not None else None
    with Removing(context, dry_run=dry_run, stop=stop) as removing:
        steps: list[RemovalStep] = []
        try:
            if stored is not None:
                _require_applicable(context, stored)
            _require_time(removing, stored)
            steps += bring_back(removing)
            if stored is None:
                steps += purge_under_pressure(removing)
            else:
                _condemn(removing, stored, steps, strict=strict)
        except Changed as error:
            steps += error.steps
            return _answer(stored, steps, removing, error)
        except RefusedBySafety as error:
            return _answer(stored, steps, removing, error)
        now_ns = context.catalog.now_ns()
        told_of = {key_of(one) for one in steps if not _is_due(one, now_ns)}
        gone_on = list(go_on(removing, without=frozenset(told_of)))
        further = {key_of(one) for one in gone_on}
        steps = [one for one in steps if key_of(one) not in further] + gone_on
        return _answer(stored, steps, removing, removing.error_of(steps))


def _is_due(step: RemovalStep, now_ns: int) -> bool:
    """Whether it was condemned just now, without a grace."""
    is_over = step.due_at_ns is not None and step.due_at_ns <= now_ns
    return step.went is Went.CONDEMNED and is_over


def _answer(
    stored: StoredPlan | None,
    steps: Sequence[RemovalStep],
    removing: Removing,
    error: CkptgovError | None,
) -> ApplyAnswer:
    return ApplyAnswer(
        plan_id=stored.plan.plan_id if stored is not None else None,
        steps=tuple(steps),
        is_dry_run=removing.dry_run,
        error=error,
    )


def _require_applicable(context: Context, stored: StoredPlan) -> None:
    """Refuse a plan that is over, waits for a person, must not be applied, or is of another policy.

    Raises:
        RefusedBySafety: with what can be done about it.
    """
    plan = stored.plan
    if (refusal := refusal_of(stored)) is not None:
        raise refusal
    if stored.state not in _APPLICABLE:
        hint = "'ckptgov plan' makes a new one"
        if stored.state is PlanState.APPLIED:
            hint = "'ckptgov apply' alone goes on with what it condemned"
        raise RefusedBySafety(
            f"plan {short_id(plan.plan_id)} is {stored.state.value} already (by {stored.by})",
            hint=hint,
        )
    require_same_policies(context, plan)


def _require_time(removing: Removing, stored: StoredPlan | None) -> None:
    """Refuse while the clocks do not agree; a dry run only decides and writes nothing.

    Storage first: a catalog whose clock is wrong should not note the time.
    """
    if removing.dry_run:
        return
    catalog = removing.context.catalog
    due = catalog.removals.removals()
    concerned = [(one.run_id, one.place) for one in due]
    if stored is not None:
        concerned += [(one.run_id, one.place) for one in stored.plan.entries]
    removing.require_same_time(concerned)
    catalog.tick()


def _condemn(
    removing: Removing, stored: StoredPlan, steps: list[RemovalStep], *, strict: bool
) -> None:
    """Condemn what still holds; every entry has its step afterwards.

    Raises:
        RefusedBySafety: ``strict``, and one of them does not hold; nothing was condemned.
    """
    looked = _looked_around(removing, stored)
    fresh = decided_anew(removing, stored.plan)
    if strict:
        _refuse_changed(list(_stays(removing, stored, looked, fresh)))
    purged = purge_under_pressure(removing)
    if purged:
        steps += purged
        fresh = decided_anew(removing, stored.plan)
    mine = list(_stays(removing, stored, looked, fresh))
    settled = {key_of(one) for one in mine}
    going = [
        fresh.as_it_goes(one)
        for one in stored.plan.entries
        if (one.run, one.content_id, one.place) not in settled
    ]
    if strict and not removing.dry_run:
        _see_before(removing, stored, looked, going)
    with _all_or_nothing(removing, strict=strict):
        mine += _condemn_runs(removing, stored, looked, going)
        if strict:
            _refuse_changed(mine)
    steps += mine
    is_seen = all(one.went is not Went.RESISTED for one in mine)
    if is_seen and not removing.dry_run and not removing.stop():
        _mark_applied(removing.context, stored)


def _looked_around(removing: Removing, stored: StoredPlan) -> dict[str, SeenPlaces | CkptgovError]:
    """For every run of the plan its places, looked at just now, and its journal taken over."""
    looked: dict[str, SeenPlaces | CkptgovError] = {}
    for entry in stored.plan.entries:
        if entry.run_id in looked:
            continue
        try:
            catch_up(removing.context, entry.run)
            looked[entry.run_id] = looked_around(removing.context, entry.run)
        except CkptgovError as error:
            looked[entry.run_id] = error
    return looked


def _see_before(
    removing: Removing,
    stored: StoredPlan,
    looked: Mapping[str, SeenPlaces | CkptgovError],
    going: Sequence[PlanEntry],
) -> None:
    """Look at what stays of every run before the one transaction around them.

    What cannot be looked at is told with its entries, in their turn.
    """
    for run_id, entries in _by_run(going).items():
        seen = looked[run_id]
        with suppress(CkptgovError):
            assert isinstance(seen, SeenPlaces), "else all of it was out of reach"
            is_deletion = removing.is_deletion(stored.plan.plan_id)
            guarded = removing.guarded(run_id, is_deletion=is_deletion)
            see_what_stays(removing, guarded, seen, entries)


@contextmanager
def _all_or_nothing(removing: Removing, *, strict: bool) -> Iterator[None]:
    """One transaction around all runs where one refusal is to undo all of them."""
    if not strict:
        yield
        return
    with removing.context.catalog.transaction():
        yield


def _refuse_changed(steps: Sequence[RemovalStep]) -> None:
    wrong = tuple(one for one in steps if one.went in WENT_WRONG)
    if wrong:
        raise Changed(
            f"{len(wrong)} entries of the plan have changed, and --strict was given; first: "
            f"{wrong[0].run} {wrong[0].checkpoint} on {wrong[0].tier}: {wrong[0].text}",
            steps=wrong,
        )


def _stays(
    removing: Removing,
    stored: StoredPlan,
    looked: Mapping[str, SeenPlaces | CkptgovError],
    fresh: Fresh,
) -> Iterator[RemovalStep]:
    """The entries that are not condemned now, each with why."""
    for entry in stored.plan.entries:
        step = _already(removing, entry, stored.plan.plan_id) or _out_of_reach(
            removing, entry, looked[entry.run_id]
        )
        if step is None and (why := fresh.why_it_stays(entry)) is not None:
            step = told(entry, Went.CHANGED, why)
        if step is not None:
            yield step


def _already(removing: Removing, entry: PlanEntry, plan_id: str) -> RemovalStep | None:
    """Condemned before: by this plan, now or in an earlier call, or by another one."""
    book = removing.context.catalog.removals
    held = book.removal(entry.run_id, entry.content_id, entry.place)
    if held is None:
        return None
    by = "this plan" if held.plan_id == plan_id else f"plan {short_id(held.plan_id)}"
    return told(entry, Went.WAITING, f"{held.state.value} by {by} already", held.due_at_ns)


def _out_of_reach(
    removing: Removing, entry: PlanEntry, looked: SeenPlaces | CkptgovError
) -> RemovalStep | None:
    try:
        if isinstance(looked, CkptgovError):
            raise looked
        if removing.is_here(entry.place):
            removing.place(entry.place)
    except CkptgovError as error:
        removing.errors.append(error)
        return told(entry, Went.RESISTED, error.message)
    return None


def _condemn_runs(
    removing: Removing,
    stored: StoredPlan,
    looked: Mapping[str, SeenPlaces | CkptgovError],
    going: Sequence[PlanEntry],
) -> Iterator[RemovalStep]:
    for run_id, entries in _by_run(going).items():
        seen = looked[run_id]
        assert isinstance(seen, SeenPlaces), "else all of it was out of reach"
        if removing.stop():
            yield from (told(one, Went.WAITING, "told to stop") for one in entries)
        elif removing.dry_run:
            for one in entries:
                yield told(one, Went.WOULD, f"would be condemned: {_words(one)}")
        else:
            yield from _condemn_run(removing, stored, entries, seen)


def _by_run(going: Sequence[PlanEntry]) -> dict[str, list[PlanEntry]]:
    runs: dict[str, list[PlanEntry]] = {}
    for entry in going:
        runs.setdefault(entry.run_id, []).append(entry)
    return runs


def _condemn_run(
    removing: Removing, stored: StoredPlan, entries: Sequence[PlanEntry], seen: SeenPlaces
) -> Iterator[RemovalStep]:
    """All of a run's entries, or none where the guard forbids one of them."""
    try:
        removed = _condemned(removing, stored.plan.plan_id, entries, seen)
    except RefusedBySafety as error:
        yield from (told(one, Went.PROTECTED, error.message) for one in entries)
    except StaleState:
        words = "changed just now, by another process"
        yield from (told(one, Went.CHANGED, words) for one in entries)
    except CkptgovError as error:
        removing.errors += [error] * len(entries)
        yield from (told(one, Went.RESISTED, error.message) for one in entries)
    else:
        for one, removal in zip(entries, removed, strict=True):
            yield told(one, Went.CONDEMNED, _words(one), removal.due_at_ns)


def _condemned(
    removing: Removing, plan_id: str, entries: Sequence[PlanEntry], seen: SeenPlaces
) -> tuple[Removal, ...]:
    context, run_id = removing.context, entries[0].run_id
    guarded = removing.guarded(run_id, is_deletion=removing.is_deletion(plan_id))
    safety = guarded.policy.safety if guarded.policy is not None else Safety()
    doomed = [
        Doomed(
            content_id=one.content_id,
            place=one.place,
            action=one.action,
            trash_s=safety.trash_s,
            grace_s=safety.grace_s,
            bytes=one.bytes,
            files=one.files,
        )
        for one in entries
    ]
    return guarded_by_sight(
        removing,
        guarded,
        seen,
        entries,
        lambda guard: context.catalog.removals.condemn(run_id, doomed, guard, plan_id=plan_id),
    )


def _mark_applied(context: Context, stored: StoredPlan) -> None:
    with suppress(StaleState):  # another applier did
        context.catalog.plans.set_state(
            stored.plan.plan_id,
            expected=stored.state,
            to=PlanState.APPLIED,
            by=context.author.by,
        )


def _words(entry: PlanEntry) -> str:
    return "; ".join(one.text for one in entry.why)


def told(entry: PlanEntry, went: Went, text: str, due_at_ns: int | None = None) -> RemovalStep:
    """What became of one entry of a plan."""
    is_going = went in (Went.CONDEMNED, Went.WOULD, Went.WAITING)
    return RemovalStep(
        run=entry.run,
        checkpoint=entry.checkpoint,
        content_id=entry.content_id,
        step=entry.step,
        tier=entry.tier,
        node=entry.node,
        place=entry.place,
        action=entry.action,
        went=went,
        bytes=entry.bytes if is_going else 0,
        files=entry.files if is_going else 0,
        text=text,
        due_at_ns=due_at_ns,
    )
