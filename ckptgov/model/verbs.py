"""What each kind of user can ask for: one Protocol per kind.

The governor answers from catalog and storage, a client by asking the service. A caller cannot
tell which of them it holds: answers, errors and exit codes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ckptgov.errors import Interrupted

if TYPE_CHECKING:
    from ckptgov.model.answers import (
        LatestAnswer,
        RunListing,
        ScanAnswer,
        SealedCheckpoint,
        VerifyAnswer,
    )
    from ckptgov.model.checkpoint import Expect, Manifest, VerifyLevel
    from ckptgov.model.facts import Query
    from ckptgov.model.journal import Record, RestoreOutcome
    from ckptgov.model.movement import FlushAnswer, RestoreAnswer
    from ckptgov.model.pacing import Budget, FlowFacts
    from ckptgov.model.policy import Policy
    from ckptgov.model.policy_check import PolicyCheck
    from ckptgov.model.removal import ApplyAnswer, UndeleteAnswer
    from ckptgov.model.removed import RemovedCopy
    from ckptgov.model.retention import PlanState, RunVerdict, StoredPlan
    from ckptgov.model.settings import NodeSettings, TierSettings
    from ckptgov.model.usage import DuAnswer, ReconcileAnswer

LONGEST_LOOK_S = 120.0
"""How long a service may look at its tiers for an answer that somebody waits for."""


def never() -> bool:
    """Nobody asks to stop."""
    return False


def end_if(stop: Callable[[], bool]) -> None:
    """Let what is under way end where somebody asked for it.

    Raises:
        Interrupted: they did; what was done stays done.
    """
    if stop():
        raise Interrupted("told to stop; what was done stays done")


class RegisteredRun(Protocol):
    """A registered run and where it lies; ``run_id`` is "" for one that only would be made."""

    @property
    def name(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def roots(self) -> tuple[str, ...]: ...
    @property
    def checkpoints(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class Launcher(Protocol):
    """Whoever starts training: which checkpoint, and what became of the start."""

    def latest(
        self,
        target: str,
        query: Query,
        *,
        restart_id: str | None = None,
        node: str | None = None,
        place: str | None = None,
        everything: bool = False,
    ) -> LatestAnswer:
        """The newest checkpoint that may be handed out; the error in the answer says why none.

        ``everything``: reasons of all that was passed over are wanted, too.
        """
        ...

    def listing(self, target: str, query: Query, *, node: str | None = None) -> RunListing:
        """Every checkpoint of a run or directory with its verdict and reasons."""
        ...

    def manifest(self, target: str, *, step: int | None = None) -> Manifest:
        """The manifest of one sealed checkpoint; of a run the newest."""
        ...

    def report(
        self,
        target: str,
        *,
        restart_id: str,
        outcome: RestoreOutcome,
        epoch: int | None = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Record:
        """Tell what became of the start that a restart id was given."""
        ...


class Mover(Protocol):
    """Whoever seals, proves and moves."""

    def scan(
        self,
        directories: Sequence[str],
        *,
        run: str | None = None,
        node: str | None = None,
        dry_run: bool = False,
    ) -> ScanAnswer:
        """Discover and seal; an unregistered directory becomes a tier."""
        ...

    def commit(
        self,
        path: str,
        *,
        run: str | None = None,
        step: int | None = None,
        node: str | None = None,
        metrics: tuple[tuple[str, str], ...] = (),
        dry_run: bool = False,
        tier: str | None = None,
    ) -> SealedCheckpoint:
        """Seal one checkpoint that its writer declares complete.

        With ``tier``, ``path`` lies below that tier's root.
        """
        ...

    def verify(self, target: str, *, level: VerifyLevel, dry_run: bool = False) -> VerifyAnswer:
        """Compare a run, a directory or one checkpoint again; what is found is written down."""
        ...

    def flush(
        self,
        target: str | None,
        *,
        step: int | None = None,
        to: str | None = None,
        node: str | None = None,
        dry_run: bool = False,
        stop: Callable[[], bool] = never,
    ) -> FlushAnswer:
        """Copy a run's checkpoints (None: every run's) to more durable tiers."""
        ...

    def restore(
        self,
        target: str,
        *,
        to: str,
        step: int | None = None,
        query: Query | None = None,
        content_id: str | None = None,
        from_tier: str | None = None,
        match: tuple[str, ...] = (),
        node: str | None = None,
        hardlink: bool = False,
        dry_run: bool = False,
        stop: Callable[[], bool] = never,
    ) -> RestoreAnswer:
        """Bring what ``latest`` offers, or one step, or the very ``content_id``, to a directory."""
        ...

    def reconcile(
        self,
        tiers: Sequence[str],
        *,
        older_than_s: float,
        staging_older_than_s: float | None = None,
        dry_run: bool = False,
    ) -> ReconcileAnswer:
        """Record what changed at the tiers behind our back; clear what dead movers left.

        With ``staging_older_than_s`` also what trainers left under temporary names.
        """
        ...

    def flows(self) -> Sequence[FlowFacts]:
        """Who moves what at what rate, and who waits for what."""
        ...


class Admin(Protocol):
    """Whoever answers for runs and room."""

    def create_run(
        self, name: str, *, root: str | None, expect: Expect | None, dry_run: bool = False
    ) -> RegisteredRun:
        """Register a run before its first checkpoint."""
        ...

    def runs(self) -> Sequence[RegisteredRun]:
        """Every registered run, by name."""
        ...

    def mark_bad(
        self,
        target: str,
        *,
        step: int | None,
        from_step: int | None,
        until_step: int | None,
        reason: str,
        undo: bool = False,
        dry_run: bool = False,
    ) -> Record:
        """Say that a checkpoint or a range of steps must not be offered (or may be again)."""
        ...

    def rollback(
        self, target: str, *, to_step: int, reason: str | None = None, dry_run: bool = False
    ) -> Record:
        """Open a new line at a step: nothing above it in older lines is offered any more."""
        ...

    def tiers(self) -> Sequence[TierSettings]:
        """The configured tiers."""
        ...

    def budgets(self) -> tuple[Sequence[TierSettings], Sequence[NodeSettings], int]:
        """Tiers and nodes with their budgets, and the percentage kept aside for lost flows."""
        ...

    def change_budget(
        self,
        tier: str | None,
        node: str | None,
        change: Callable[[Budget], Budget],
        *,
        dry_run: bool = False,
    ) -> tuple[Sequence[TierSettings], Sequence[NodeSettings], int]:
        """Change what may be taken from a tier, or by a node; the budgets as they are then."""
        ...

    def du(self, *, run: str | None = None, tier: str | None = None) -> DuAnswer:
        """What takes room, by tier, run and state."""
        ...


class Keeper(Protocol):
    """Whoever decides what stays, and answers for what goes."""

    def plan(
        self, *, run: str | None = None, policy: str | None = None, dry_run: bool = False
    ) -> StoredPlan:
        """Decide what may go, of every run or one, and store the plan (a dry run: only tell it).

        ``policy`` is the text of a policy file to judge by, in the place of those in force; such
        a plan can be looked at, never applied.
        """
        ...

    def plans(
        self, *, states: Sequence[PlanState] | None = None, limit: int = 20
    ) -> Sequence[StoredPlan]:
        """Stored plans, newest first; without entries of those that are over."""
        ...

    def stored_plan(self, plan_id: str) -> StoredPlan:
        """One stored plan by its id or an unambiguous beginning of it."""
        ...

    def approve(self, plan_id: str, *, reason: str, dry_run: bool = False) -> StoredPlan:
        """Let a plan that goes beyond a cap be applied."""
        ...

    def apply(
        self,
        plan_id: str | None,
        *,
        strict: bool = False,
        dry_run: bool = False,
        stop: Callable[[], bool] = never,
    ) -> ApplyAnswer:
        """Condemn what a plan lists, and go on with what was condemned or trashed before.

        None: only the going on. ``strict``: nothing at all where one entry has changed.
        """
        ...

    def undelete(
        self, target: str, *, step: int | None = None, dry_run: bool = False
    ) -> UndeleteAnswer:
        """Bring back what is condemned or in the trash, of a run or one of its checkpoints."""
        ...

    def removed(self, target: str, *, step: int | None = None) -> Sequence[RemovedCopy]:
        """A run's copies on their way out, with reasons; of one step also those that are gone.

        Nothing of a directory that is no registered run's.
        """
        ...

    def verdict(self, target: str, *, policy: str | None = None) -> RunVerdict:
        """Every checkpoint of a run with what becomes of it and every reason."""
        ...

    def policies(self) -> Sequence[Policy]:
        """Every policy in force."""
        ...

    def policy_of(self, run: str) -> Policy | None:
        """The policy that selects a run of this name; None: a registered run without one."""
        ...

    def check_policies(self) -> PolicyCheck:
        """Everything wrong with the policies in force, and which of them each run is under."""
        ...

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
        ...

    def end_run(
        self, target: str, *, retire: bool, reason: str | None = None, dry_run: bool = False
    ) -> Record:
        """Say that a run is finished, or retired: its last checkpoints may then go by rule."""
        ...

    def delete_run(self, target: str, *, confirm: str, dry_run: bool = False) -> StoredPlan:
        """Plan the removal of every checkpoint of a retired run; ``confirm`` repeats its name."""
        ...

    def set_metric(
        self, target: str, *, step: int, name: str, value: str, dry_run: bool = False
    ) -> Record:
        """Tell a metric of a checkpoint after it was sealed."""
        ...
