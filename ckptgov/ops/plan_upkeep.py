"""Stored plans as a schedule goes on with them: the one to carry out next, and those to forget."""

from __future__ import annotations

from collections.abc import Iterable

from ckptgov.errors import ConfigError, RefusedBySafety
from ckptgov.model.retention import PlanState, StoredPlan
from ckptgov.ops.context import Context
from ckptgov.ops.fresh import require_same_policies
from ckptgov.ops.stored_plans import MOST_STANDING, run_of_scope

KEPT_S = 30 * 86400.0
"""How long a plan that is over is kept for whoever asks what became of it."""


def newest_to_apply(context: Context) -> str | None:
    """The id of the newest plan over all runs, if it needs nobody's approval and something goes.

    What a person planned of one run is left to that person. A plan that was made under other
    policies than those in force is passed over: the next one takes its place.
    """
    standing = context.catalog.plans.plans(states=[PlanState.PROPOSED], limit=MOST_STANDING)
    newest = newest_of_all(standing)
    if newest is None or not newest.plan.entries:
        return None
    try:
        require_same_policies(context, newest.plan)
    except (ConfigError, RefusedBySafety) as error:
        context.talk(f"not applied: {error.message}")
        return None
    return newest.plan.plan_id


def newest_of_all(found: Iterable[StoredPlan]) -> StoredPlan | None:
    """The first of some plans, newest first, that is about all runs."""
    return next((one for one in found if is_of_all(one)), None)


def is_of_all(stored: StoredPlan) -> bool:
    """Whether a plan is about all runs. One that was approved bears the reason of that instead of
    its scope, and then counts as one of all."""
    return run_of_scope(stored) is None


def forget_over(context: Context, *, kept_s: float = KEPT_S) -> int:
    """Drop plans that have been over for long; how many there were.

    What is condemned or in the trash still asks for the plan that it goes by: no plan that may be
    one of those goes.
    """
    catalog = context.catalog
    before_ns = catalog.now_ns() - int(kept_s * 1e9)
    begun = [one.condemned_at_ns for one in catalog.removals.removals()]
    return catalog.plans.forget(before_ns=min([before_ns, *begun]))
