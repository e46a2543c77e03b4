"""What stays and what goes, decided by the service: plans, removals, policies, pins, ends of runs.

What is said of a directory's run (a pin, a metric, its end) is said here, as other records are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ckptgov.client import tasks
from ckptgov.client.address import is_run_name
from ckptgov.errors import UsageError
from ckptgov.model.verbs import never

if TYPE_CHECKING:
    from ckptgov.client.keeping import KeepingVerbs
    from ckptgov.client.verbs import Client
    from ckptgov.governor.local import Governor
    from ckptgov.model.journal import Record
    from ckptgov.model.policy import Policy
    from ckptgov.model.policy_check import PolicyCheck
    from ckptgov.model.removal import ApplyAnswer, UndeleteAnswer
    from ckptgov.model.removed import RemovedCopy
    from ckptgov.model.retention import PlanState, RunVerdict, StoredPlan
    from ckptgov.wire.documents import Document


class ServedKeeping:
    """Part of ``ServedGovernor``."""

    client: Client
    local: Governor

    def outcomes(
        self, begun: Document, member: str, stop: Callable[[], bool] = never
    ) -> tuple[Document, ...]:
        """What the tasks that were begun came to."""
        raise NotImplementedError

    @property
    def _keeping(self) -> KeepingVerbs:
        return self.client.keeping

    def plan(
        self, *, run: str | None = None, policy: str | None = None, dry_run: bool = False
    ) -> StoredPlan:
        """The service's plan; of a dry run, or by the text of a policy, it is only told."""
        if run is not None:
            run = _run_named(run)
        if dry_run or policy is not None:
            return self._keeping.looked_at(run=run, policy=policy, dry_run=dry_run)
        begun = tasks.begin_plan(self.client.transport, run=run)
        return self._keeping.made(self.outcomes(begun, "plan_id")[0])

    def plans(
        self, *, states: Sequence[PlanState] | None = None, limit: int = 20
    ) -> Sequence[StoredPlan]:
        """Stored plans, newest first; without entries of those that are over."""
        return self._keeping.plans(states=states, limit=limit)

    def stored_plan(self, plan_id: str) -> StoredPlan:
        """One stored plan by its id or an unambiguous beginning of it."""
        return self._keeping.stored_plan(plan_id)

    def approve(self, plan_id: str, *, reason: str, dry_run: bool = False) -> StoredPlan:
        """Let a plan that goes beyond a cap be applied."""
        return self._keeping.approve(plan_id, reason=reason, dry_run=dry_run)

    def apply(
        self,
        plan_id: str | None,
        *,
        strict: bool = False,
        dry_run: bool = False,
        stop: Callable[[], bool] = never,
    ) -> ApplyAnswer:
        """The service condemns what a plan lists, and goes on with what is due.

        Told to stop, only the waiting ends: the service goes on.
        """
        from ckptgov.wire.removal import applied_of

        if dry_run:
            return self._keeping.would_apply(plan_id, strict=strict)
        begun = tasks.begin_apply(self.client.transport, plan_id, strict=strict)
        return applied_of(self.outcomes(begun, "steps", stop)[0])

    def undelete(
        self, target: str, *, step: int | None = None, dry_run: bool = False
    ) -> UndeleteAnswer:
        """The service brings back what is condemned or in the trash."""
        from ckptgov.wire.removal import undeleted_of

        run = _run_named(target)
        if dry_run:
            return self._keeping.would_undelete(run, step=step)
        begun = tasks.begin_undelete(self.client.transport, run, step=step)
        return undeleted_of(self.outcomes(begun, "steps")[0])

    def removed(self, target: str, *, step: int | None = None) -> Sequence[RemovedCopy]:
        """A run's copies on their way out, with reasons; of one step also those that are gone."""
        asks = self._keeping if is_run_name(target) else self.local
        return asks.removed(target, step=step)

    def verdict(self, target: str, *, policy: str | None = None) -> RunVerdict:
        """Every checkpoint of a run with what becomes of it and every reason."""
        return self._keeping.verdict(_run_named(target), policy=policy)

    def policies(self) -> Sequence[Policy]:
        """Every policy in force where the service runs."""
        return self._keeping.policies()

    def policy_of(self, run: str) -> Policy | None:
        """The policy that selects a run of this name; None: a registered run without one."""
        return self._keeping.policy_of(run)

    def check_policies(self) -> PolicyCheck:
        """Everything wrong with the policies in force, and which of them each run is under."""
        return self._keeping.check_policies()

    def pin(
        self,
        target: str,
        *,
        step: int,
        name: str,
        reason: str | None,
        ttl_s: float | None,
        undo: bool = False,
        dry_run: bool = False,
    ) -> Record:
        """Keep a checkpoint under a name, for good or for so long (or no longer)."""
        from ckptgov.ops.claims import LEASE

        if not is_run_name(target):
            return self.local.pin(
                target,
                step=step,
                name=name,
                reason=reason,
                ttl_s=ttl_s,
                undo=undo,
                dry_run=dry_run,
            )
        keeping = self._keeping
        if name.startswith(LEASE) and undo:
            return keeping.end_lease(target, step=step, name=name, dry_run=dry_run)
        if name.startswith(LEASE) and ttl_s is not None:
            return keeping.lease(
                target, step=step, name=name, reason=reason, ttl_s=ttl_s, dry_run=dry_run
            )
        return keeping.pin(
            target, step=step, name=name, reason=reason, ttl_s=ttl_s, undo=undo, dry_run=dry_run
        )

    def end_run(
        self, target: str, *, retire: bool, reason: str | None = None, dry_run: bool = False
    ) -> Record:
        """Say that a run is finished, or retired: its last checkpoints may then go by rule."""
        if not is_run_name(target):
            return self.local.end_run(target, retire=retire, reason=reason, dry_run=dry_run)
        return self._keeping.end_run(target, retire=retire, reason=reason, dry_run=dry_run)

    def delete_run(self, target: str, *, confirm: str, dry_run: bool = False) -> StoredPlan:
        """Plan the removal of every checkpoint of a retired run; ``confirm`` repeats its name."""
        return self._keeping.delete_run(_run_named(target), confirm=confirm, dry_run=dry_run)

    def set_metric(
        self, target: str, *, step: int, name: str, value: str, dry_run: bool = False
    ) -> Record:
        """Tell a metric of a checkpoint after it was sealed."""
        if not is_run_name(target):
            return self.local.set_metric(target, step=step, name=name, value=value, dry_run=dry_run)
        return self._keeping.set_metric(target, step=step, name=name, value=value, dry_run=dry_run)


def _run_named(target: str) -> str:
    """Raises UsageError for what is no run's name: the service decides about runs it knows."""
    if not is_run_name(target):
        raise UsageError(
            f"{target}: a service is asked by a run's name", hint="'ckptgov run list' shows them"
        )
    return target
