"""Plan: what may go of every run, by its policy and the limits of the tiers. Removes nothing.

Runs are read one at a time, and planned by a pure function of what was read. What is to go is then
measured where it lies; where that finds another thing than the catalog knew, it is planned again
from what was found. Nothing goes of a run that could not be looked at.
"""

from __future__ import annotations

from msgspec.structs import replace

from ckptgov.errors import CouldNotLook
from ckptgov.model.planned import Kept, PlanAnswer
from ckptgov.model.retention import (
    CheckpointVerdict,
    CopyVerdict,
    Plan,
    PlanEntry,
    RunVerdict,
    StoredPlan,
)
from ckptgov.model.usage import RunUsage
from ckptgov.ops.context import Context
from ckptgov.ops.plan_deletion import deletion_of
from ckptgov.ops.plan_making import LIMITS_LEFT_OUT, Making, is_forced
from ckptgov.ops.retention_facts import run_named
from ckptgov.ops.stored_plans import MOST_STANDING, STANDING, keep, state_of
from ckptgov.planning.retention import decide


def plan(
    context: Context,
    *,
    run: str | None = None,
    policy_text: str | None = None,
    dry_run: bool = False,
) -> PlanAnswer:
    """Decide what may go of every run, or of one, and store the plan.

    It is not stored by a dry run, nor where it is judged by ``policy_text``, a policy that is not
    in force. One that decides the same as a plan that still stands is that plan; others of the
    same scope, proposed or waiting, become stale. The limits of the tiers are for all runs
    together: the plan of one run leaves them out.

    Raises:
        ConfigError: a policy is wrong.
        UnknownRun: there is no such run.
        CouldNotLook: ``run`` was named, and could not be looked at.
        RefusedBySafety: the catalog's clock went back.
    """
    making = Making(context, only=run, policy_text=policy_text)
    made = making.made()
    if run is not None and made.failures:
        raise making.errors.get(run) or CouldNotLook(made.failures[0][1])
    is_stored = not dry_run and policy_text is None
    return _answer(
        _stored(context, made, scope="" if run is None else f"of run {run}", is_kept=is_stored),
        is_stored=is_stored,
        kept=making.kept(made),
        quiet=making.quiet(),
        notes=making.notes(),
    )


def verdict(context: Context, run: str, *, policy_text: str | None = None) -> RunVerdict:
    """What becomes of every checkpoint of a run, with every reason.

    What the limits of the tiers make go is taken from the newest plan that stands.

    Raises:
        ConfigError: a policy is wrong.
        UnknownRun, CouldNotLook: the run cannot be judged.
    """
    making = Making(context, only=run, policy_text=policy_text)
    facts = run_named(context, run)
    policy = making.policy_of(run)
    told = decide(
        making.read(facts, policy),
        policy,
        now_ns=making.now_ns,
        verify_max_age_s=context.settings.verify_max_age_s,
    )
    full = making.whole_policy_of(run)
    if full is None or not full.capacity:
        return told
    if policy_text is None:
        return _with_limits(context, told)
    return replace(told, notes=(*told.notes, LIMITS_LEFT_OUT))


def plan_of_deletion(
    context: Context, run: str, *, confirm: str, dry_run: bool = False
) -> PlanAnswer:
    """Plan that every verified copy of a retired run goes, and store the plan.

    What is pinned, in use, or cannot be counted on stays, and is told in the notes.

    Raises:
        UsageError: ``confirm`` is not the run's name.
        RefusedBySafety: the run is not retired.
        UnknownRun, CouldNotLook: nothing can be told of it.
    """
    deletion = deletion_of(context, run, confirm=confirm)
    notes = tuple((f"{run}: {name}", why) for name, why in deletion.stays)
    scope = f"deletion of run {run}"
    return _answer(
        _stored(context, deletion.plan, scope=scope, is_kept=not dry_run),
        is_stored=not dry_run,
        notes=notes,
    )


def _stored(context: Context, made: Plan, *, scope: str, is_kept: bool) -> StoredPlan:
    state = state_of(made)
    if is_kept:
        return keep(context, made, state=state, scope=scope)
    by, at_ns = context.author.by, made.now_ns
    return StoredPlan(
        plan=made, state=state, stored_at_ns=at_ns, changed_at_ns=at_ns, by=by, note=scope
    )


def _answer(
    stored: StoredPlan,
    *,
    is_stored: bool,
    kept: tuple[Kept, ...] = (),
    quiet: tuple[RunUsage, ...] = (),
    notes: tuple[tuple[str, str], ...] = (),
) -> PlanAnswer:
    return PlanAnswer(
        plan=stored.plan,
        state=stored.state,
        stored_at_ns=stored.stored_at_ns,
        changed_at_ns=stored.changed_at_ns,
        by=stored.by,
        note=stored.note,
        is_stored=is_stored,
        kept=kept,
        quiet=quiet,
        notes=notes,
    )


def _with_limits(context: Context, told: RunVerdict) -> RunVerdict:
    """The verdict with what the newest standing plan makes go for a tier's limit."""
    standing = context.catalog.plans.plans(states=STANDING, limit=MOST_STANDING)
    newest = next((one for one in standing if one.plan.tiers and not one.note), None)
    if newest is None:
        return replace(told, notes=(*told.notes, LIMITS_LEFT_OUT))
    forced = {
        (one.content_id, one.place): one
        for one in newest.plan.entries
        if one.run_id == told.run_id and is_forced(one)
    }
    checkpoints = tuple(_checkpoint_with_limits(one, forced) for one in told.checkpoints)
    return replace(told, checkpoints=checkpoints)


def _checkpoint_with_limits(
    one: CheckpointVerdict, forced: dict[tuple[str, str], PlanEntry]
) -> CheckpointVerdict:
    def limited(at: CopyVerdict) -> CopyVerdict:
        found = [forced.get((one.content_id, place)) for place in at.places]
        entry = next((each for each in found if each is not None), None)
        if at.action is not None or entry is None:
            return at
        return replace(at, action=entry.action, why=(*entry.why, *at.why))

    return replace(one, tiers=tuple(limited(at) for at in one.tiers))
