"""Policies, plans and what they say of a run: the verbs of whoever decides what stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptgov.model.policy import Policy
    from ckptgov.model.policy_check import PolicyCheck
    from ckptgov.model.retention import PlanState, RunVerdict, StoredPlan
    from ckptgov.ops.context import Context


class PlanVerbs:
    """Part of ``Governor``."""

    @property
    def context(self) -> Context:
        """Settings and catalog of this home."""
        raise NotImplementedError

    def plan(
        self, *, run: str | None = None, policy: str | None = None, dry_run: bool = False
    ) -> StoredPlan:
        """Decide what may go, of every run or one, and store the plan (a dry run: only tell it).

        ``policy`` is the text of a policy file to judge by, in the place of those in force; such
        a plan can be looked at, never applied.
        """
        from ckptgov.ops.plan import plan

        return plan(self.context, run=self._named(run), policy_text=policy, dry_run=dry_run)

    def plans(
        self, *, states: Sequence[PlanState] | None = None, limit: int = 20
    ) -> tuple[StoredPlan, ...]:
        """Stored plans, newest first; without entries of those that are over."""
        from ckptgov.ops.stored_plans import plans

        return plans(self.context, states=states, limit=limit)

    def stored_plan(self, plan_id: str) -> StoredPlan:
        """One stored plan by its id or an unambiguous beginning of it."""
        from ckptgov.ops.stored_plans import stored_plan

        return stored_plan(self.context, plan_id)

    def approve(self, plan_id: str, *, reason: str, dry_run: bool = False) -> StoredPlan:
        """Let a plan that goes beyond a cap be applied."""
        from ckptgov.ops.stored_plans import approve

        return approve(self.context, plan_id, reason=reason, dry_run=dry_run)

    def verdict(self, target: str, *, policy: str | None = None) -> RunVerdict:
        """Every checkpoint of a run with what becomes of it and every reason."""
        from ckptgov.ops.flush import run_named
        from ckptgov.ops.plan import verdict

        return verdict(self.context, run_named(self.context, target), policy_text=policy)

    def policies(self) -> tuple[Policy, ...]:
        """Every policy in force."""
        from ckptgov.ops.policies import policies_in_force

        return policies_in_force(self.context)

    def policy_of(self, run: str) -> Policy | None:
        """The policy that selects a run of this name; None: a registered run without one.

        Raises:
            UnknownRun: no policy selects the name, and no run has it.
        """
        from ckptgov.ops.policies import policy_for_name

        return policy_for_name(self.context, run)

    def check_policies(self) -> PolicyCheck:
        """Everything wrong with the policies in force, and which of them each run is under."""
        from ckptgov.ops.policies import check_policies

        return check_policies(self.context)

    def _named(self, target: str | None) -> str | None:
        """The registered run that a person named, by its name or a directory of it."""
        if target is None:
            return None
        from ckptgov.ops.flush import run_named

        return run_named(self.context, target)
