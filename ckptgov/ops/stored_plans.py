"""Plans in the catalog: kept, found by their beginning, listed, approved."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ckptgov.errors import Ambiguous, RefusedBySafety, StaleState, UsageError
from ckptgov.model.retention import Plan, PlanState, StoredPlan, TierOutlook
from ckptgov.ops.context import Context

STANDING = (PlanState.PROPOSED, PlanState.WAITING, PlanState.APPROVED)
"""States in which a plan may yet be carried out."""
MOST_STANDING = 100
OF_ONE_RUN = ("of run ", "deletion of run ")
"""How the note of a plan of one run begins, while nobody has approved or replaced it."""
_PREFIX = "sha256:"


def keep(context: Context, made: Plan, *, state: PlanState, scope: str) -> StoredPlan:
    """Store a plan, or find the one that stands and decides the same."""
    book = context.catalog.plans
    standing = book.plans(states=STANDING, limit=MOST_STANDING)
    refused = book.plans(states=[PlanState.REFUSED], limit=1)
    whole = [book.plan(one.plan.plan_id) for one in refused]
    for known in (*standing, *whole):
        if known is None or _decision(known.plan) != _decision(made):
            continue
        if known.note == scope or known.state is PlanState.APPROVED:
            return known
    has_seen_nothing = made.failures and not made.runs
    replaced = [
        one.plan.plan_id
        for one in standing
        if one.note == scope and one.state is not PlanState.APPROVED and not has_seen_nothing
    ]
    return book.put(made, state=state, by=context.author.by, note=scope, replaces=replaced)


def run_of_scope(stored: StoredPlan) -> str | None:
    """The run that a plan was made of, as far as its note still tells; None: of all, or unknown."""
    begins = next((one for one in OF_ONE_RUN if stored.note.startswith(one)), None)
    return None if begins is None else stored.note.removeprefix(begins)


def _decision(made: Plan) -> tuple[object, ...]:
    """What makes two plans one: not when they were made, nor how full the tiers were then, save
    that nothing brought one below its limit."""
    entries = tuple(
        (one.run_id, one.content_id, one.place, one.action, tuple(why.reason for why in one.why))
        for one in made.entries
    )
    failed = tuple(name for name, _why in made.failures)
    over = tuple((one.tier, one.node, _is_over(one)) for one in made.tiers)
    return made.policies, entries, made.refusals, failed, over


def _is_over(one: TierOutlook) -> bool:
    return one.over_bytes > 0 or one.over_files > 0


def state_of(made: Plan) -> PlanState:
    """Where a plan begins: what nothing lifts refuses it, a cap makes it wait."""
    if any(not one.is_cap for one in made.refusals):
        return PlanState.REFUSED
    return PlanState.WAITING if made.refusals else PlanState.PROPOSED


def plans(
    context: Context, *, states: Sequence[PlanState] | None = None, limit: int = 20
) -> tuple[StoredPlan, ...]:
    """Stored plans, newest first; without entries of those that are over."""
    return context.catalog.plans.plans(states=states, limit=limit)


def stored_plan(context: Context, plan_id: str) -> StoredPlan:
    """One stored plan, whole, by its id or a beginning of it, with or without ``sha256:``.

    Raises:
        UsageError: no plan begins so.
        Ambiguous: several do.
    """
    wanted = plan_id.removeprefix(_PREFIX)
    found = context.catalog.plans.find(f"{_PREFIX}{wanted}") if wanted else ()
    if len(found) > 1:
        raise Ambiguous(f"{len(found)} plans begin with {plan_id!r}", hint="write more of its id")
    stored = context.catalog.plans.plan(found[0]) if found else None
    if stored is None:
        raise UsageError(
            f"no plan {plan_id!r} is stored", hint="'ckptgov plans' lists those there are"
        )
    return stored


def approve(context: Context, plan_id: str, *, reason: str, dry_run: bool = False) -> StoredPlan:
    """Let a plan that goes beyond a cap be applied; who and why is kept with it.

    Raises:
        UsageError: there is no such plan, it needs no approval, or no reason is given.
        RefusedBySafety: what speaks against it cannot be lifted.
        StaleState: it is over already, or was replaced.
    """
    if not reason.strip():
        raise UsageError("a plan is approved with a reason")
    stored = stored_plan(context, plan_id)
    lasting = [one.text for one in stored.plan.refusals if not one.is_cap]
    if stored.state is PlanState.REFUSED or lasting:
        said = lasting[0] if lasting else stored.note
        raise RefusedBySafety(
            f"the plan cannot be approved: {said}",
            hint="change the policy, or the runs it is about, and make a new plan",
        )
    if stored.state in (PlanState.PROPOSED, PlanState.APPROVED):
        raise UsageError(
            f"the plan is {stored.state.value}: it needs no approval",
            hint="'ckptgov apply PLAN' carries it out",
        )
    if stored.state is not PlanState.WAITING:
        raise StaleState(
            f"the plan is {stored.state.value} already", hint="'ckptgov plan' makes a new one"
        )
    by = context.author.by
    if dry_run:
        return replace(stored, state=PlanState.APPROVED, by=by, note=reason)
    return context.catalog.plans.set_state(
        stored.plan.plan_id,
        expected=PlanState.WAITING,
        to=PlanState.APPROVED,
        by=by,
        note=reason,
    )
