"""What stays and what goes is decided where the catalog is: a service does not answer for it yet.

Pins, metrics, plans and removals are asked of the machine that holds the catalog; here they are
refused with that hint, never half done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from ckptgov.errors import UsageError
from ckptgov.model.verbs import never

if TYPE_CHECKING:
    from ckptgov.model.journal import Record
    from ckptgov.model.removal import ApplyAnswer, UndeleteAnswer
    from ckptgov.model.retention import PlanState, RunVerdict, StoredPlan


class ServedKeeping:
    """Part of ``ServedGovernor``."""

    def plan(
        self, *, run: str | None = None, policy: str | None = None, dry_run: bool = False
    ) -> StoredPlan:
        """Refused."""
        _elsewhere("plan")

    def plans(
        self, *, states: Sequence[PlanState] | None = None, limit: int = 20
    ) -> Sequence[StoredPlan]:
        """Refused."""
        _elsewhere("plans")

    def stored_plan(self, plan_id: str) -> StoredPlan:
        """Refused."""
        _elsewhere("plans show")

    def approve(self, plan_id: str, *, reason: str, dry_run: bool = False) -> StoredPlan:
        """Refused."""
        _elsewhere("plans approve")

    def apply(
        self,
        plan_id: str | None,
        *,
        strict: bool = False,
        dry_run: bool = False,
        stop: Callable[[], bool] = never,
    ) -> ApplyAnswer:
        """Refused."""
        _elsewhere("apply")

    def undelete(
        self, target: str, *, step: int | None = None, dry_run: bool = False
    ) -> UndeleteAnswer:
        """Refused."""
        _elsewhere("undelete")

    def verdict(self, target: str, *, policy: str | None = None) -> RunVerdict:
        """Refused."""
        _elsewhere("policy explain")

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
        """Refused."""
        _elsewhere("pin")

    def end_run(
        self, target: str, *, retire: bool, reason: str | None = None, dry_run: bool = False
    ) -> Record:
        """Refused."""
        _elsewhere("run finish, run retire")

    def delete_run(self, target: str, *, confirm: str, dry_run: bool = False) -> StoredPlan:
        """Refused."""
        _elsewhere("run delete")

    def set_metric(
        self, target: str, *, step: int, name: str, value: str, dry_run: bool = False
    ) -> Record:
        """Refused."""
        _elsewhere("metric")


def _elsewhere(what: str) -> NoReturn:
    raise UsageError(
        f"{what}: the service does not answer this",
        hint="run it where the catalog is, with CKPTGOV_URL unset there",
    )
