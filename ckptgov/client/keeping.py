"""What stays and what goes, asked of a service: plans, policies, pins, the ends of runs.

What the service carries out in its own time is begun by ``tasks``; here is what it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckptgov.client.dry_runs import LOOK_S, ask
from ckptgov.client.records import record
from ckptgov.client.transport import Transport, path_of, whole
from ckptgov.wire import decode_plans, decode_policies
from ckptgov.wire.members import Members

if TYPE_CHECKING:
    from ckptgov.model.journal import Record
    from ckptgov.model.policy import Policy
    from ckptgov.model.policy_check import PolicyCheck
    from ckptgov.model.removal import ApplyAnswer, UndeleteAnswer
    from ckptgov.model.removed import RemovedCopy
    from ckptgov.model.retention import PlanState, RunVerdict, StoredPlan
    from ckptgov.wire.documents import Document

_ONLY_WHEN_MADE = ("is_stored", "kept", "quiet_runs", "notes")


class KeepingVerbs:
    """All raise Silent where the service gives no answer, and what it says where it refuses."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def looked_at(self, *, run: str | None, policy: str | None, dry_run: bool) -> StoredPlan:
        """A plan that is not stored: of a dry run, or by the text of a policy."""
        body = {"run": run, "policy": policy, "dry_run": dry_run}
        return decode_plans.plan(ask(self._transport, path_of("plans"), body, "plan_id"))

    def made(self, outcome: Document) -> StoredPlan:
        """The plan that a task has made and stored: the task itself tells not all that goes."""
        told = {name: outcome[name] for name in _ONLY_WHEN_MADE if name in outcome}
        return decode_plans.plan({**self._plan(Members(outcome).text("plan_id")), **told})

    def plans(self, *, states: Sequence[PlanState] | None, limit: int) -> tuple[StoredPlan, ...]:
        """Stored plans, newest first; without entries of those that are over."""
        if states is None:
            return decode_plans.plans(self._transport.get(path_of("plans"), {"limit": limit}))
        found: list[StoredPlan] = []
        for state in states:
            query = {"state": state.value, "limit": limit}
            found += decode_plans.plans(self._transport.get(path_of("plans"), query))
        found.sort(key=lambda one: one.stored_at_ns, reverse=True)
        return tuple(found[:limit])

    def stored_plan(self, plan_id: str) -> StoredPlan:
        """One stored plan by its id or an unambiguous beginning of it."""
        return decode_plans.plan(self._plan(plan_id))

    def _plan(self, plan_id: str) -> Document:
        return self._transport.get(path_of("plans", plan_id), wait_s=LOOK_S)

    def approve(self, plan_id: str, *, reason: str, dry_run: bool) -> StoredPlan:
        """Let a plan that goes beyond a cap be applied."""
        body = {"reason": reason, "dry_run": dry_run}
        return decode_plans.plan(
            self._transport.send("POST", path_of("plans", plan_id, "approve"), body)
        )

    def would_apply(self, plan_id: str | None, *, strict: bool) -> ApplyAnswer:
        """What carrying a plan out, or (None) going on, would do."""
        from ckptgov.wire.removal import applied_of

        path, body = path_of("removals", "apply"), {"dry_run": True}
        if plan_id is not None:
            path, body = path_of("plans", plan_id, "apply"), {"dry_run": True, "strict": strict}
        return applied_of(ask(self._transport, path, body, "steps"))

    def would_undelete(self, run: str, *, step: int | None) -> UndeleteAnswer:
        """What would come back."""
        from ckptgov.wire.removal import undeleted_of

        path = path_of("runs", run, "undelete")
        return undeleted_of(ask(self._transport, path, {"step": step, "dry_run": True}, "steps"))

    def removed(self, run: str, *, step: int | None) -> tuple[RemovedCopy, ...]:
        """A run's copies on their way out, with reasons; of one step also those that are gone."""
        from ckptgov.wire.removed import removed_of

        path = path_of("runs", run, "removals")
        return removed_of(self._transport.get(path, {"step": step}, wait_s=LOOK_S))

    def verdict(self, run: str, *, policy: str | None) -> RunVerdict:
        """Every checkpoint of a run with what becomes of it and every reason."""
        path = path_of("runs", run, "verdict")
        if policy is None:
            return decode_plans.verdict(self._transport.get(path, wait_s=LOOK_S))
        return decode_plans.verdict(ask(self._transport, path, {"policy": policy}, "checkpoints"))

    def policies(self) -> tuple[Policy, ...]:
        """Every policy in force."""
        return decode_policies.policies(self._transport.get(path_of("policies")))

    def policy_of(self, run: str) -> Policy | None:
        """The policy that selects a run of this name; None: a registered run without one."""
        document = self._transport.get(path_of("runs", run, "policy"))
        return decode_policies.policy_of_run(document)

    def check_policies(self) -> PolicyCheck:
        """Everything wrong with the policies in force, and which of them each run is under."""
        path = path_of("policies", "check")
        reply = self._transport.ask("POST", path, body={}, is_repeatable=True)
        return decode_policies.check(whole(reply, "policies"))

    def pin(
        self,
        run: str,
        *,
        step: int,
        name: str,
        reason: str | None,
        ttl_s: float | None,
        undo: bool,
        dry_run: bool,
    ) -> Record:
        """Keep a checkpoint under a name, for good or for so long (or no longer)."""
        body = {
            "step": step,
            "name": name,
            "reason": reason,
            "ttl_s": ttl_s,
            "undo": undo,
            "dry_run": dry_run,
        }
        return record(self._transport, path_of("runs", run, "pins"), body)

    def lease(
        self, run: str, *, step: int, name: str, reason: str | None, ttl_s: float, dry_run: bool
    ) -> Record:
        """Claim a checkpoint for whoever runs; for as long again where it is claimed already."""
        body = {
            "step": step,
            "name": name,
            "reason": reason,
            "ttl_s": ttl_s,
            "dry_run": dry_run,
        }
        path = path_of("runs", run, "leases")
        return record(self._transport, path, body, is_repeatable=True)

    def end_lease(self, run: str, *, step: int, name: str, dry_run: bool) -> Record:
        """Claim it no longer."""
        body = {"step": step, "name": name, "release": True, "dry_run": dry_run}
        return record(self._transport, path_of("runs", run, "leases"), body)

    def end_run(self, run: str, *, retire: bool, reason: str | None, dry_run: bool) -> Record:
        """Say that a run is finished, or retired."""
        path = path_of("runs", run, "retire" if retire else "finish")
        return record(self._transport, path, {"reason": reason, "dry_run": dry_run})

    def delete_run(self, run: str, *, confirm: str, dry_run: bool) -> StoredPlan:
        """Plan the removal of every checkpoint of a retired run; ``confirm`` repeats its name."""
        body = {"confirm": confirm, "dry_run": dry_run}
        return decode_plans.plan(
            ask(self._transport, path_of("runs", run, "delete"), body, "plan_id")
        )

    def set_metric(self, run: str, *, step: int, name: str, value: str, dry_run: bool) -> Record:
        """Tell a metric of a checkpoint after it was sealed."""
        body = {"step": step, "name": name, "value": value, "dry_run": dry_run}
        return record(self._transport, path_of("runs", run, "metrics"), body, is_repeatable=True)
