"""The verbs where a service is named: runs by name are asked of it, directories answered here.

Where the service is silent, ``latest`` is answered from what this host's tiers show, if they do.
Bytes never pass through the service: they are fetched from the places it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckptgov.client import tasks
from ckptgov.client.address import is_run_name
from ckptgov.client.transport import Silent
from ckptgov.client.verbs import Client, open_client
from ckptgov.errors import CkptgovError, UsageError
from ckptgov.governor.local import Governor, Talk, open_governor
from ckptgov.governor.placing import PlacesHere
from ckptgov.governor.served_keeping import ServedKeeping
from ckptgov.governor.served_restore import ServedRestore
from ckptgov.model.answers import ScanAnswer, VerifyAnswer
from ckptgov.model.checkpoint import Evidence, Manifest, VerifyLevel
from ckptgov.model.facts import Query
from ckptgov.model.movement import FlushAnswer
from ckptgov.model.usage import ReconcileAnswer
from ckptgov.model.verbs import never
from ckptgov.wire import decode
from ckptgov.work.locate import normal_path

if TYPE_CHECKING:
    from ckptgov.model.answers import LatestAnswer, RunListing, SealedCheckpoint
    from ckptgov.model.checkpoint import Expect
    from ckptgov.model.journal import Record, RestoreOutcome
    from ckptgov.model.pacing import Budget, FlowFacts
    from ckptgov.model.settings import NodeSettings, TierSettings
    from ckptgov.model.usage import DuAnswer
    from ckptgov.model.verbs import RegisteredRun
    from ckptgov.wire.documents import Document


class ServedGovernor(ServedKeeping, ServedRestore):
    """The service's verbs through ``client``; ``local`` for what lies at a path, and for bytes."""

    def __init__(
        self,
        client: Client,
        local: Governor,
        *,
        environ: Mapping[str, str],
        talk: Talk,
        stack: ExitStack,
    ) -> None:
        self.client = client
        self.local = local
        self.here = PlacesHere(client, local, environ=environ, stack=stack)
        self.talk = talk
        self._stack = stack
        self.told = {}

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
        """The service's answer; from this host's tiers where the service is silent."""
        asks = self.client if is_run_name(target) else self.local
        try:
            told = asks.latest(
                target, query, restart_id=restart_id, node=node, place=place, everything=everything
            )
        except Silent as silent:
            told = self.latest_without_service(
                silent, target, query, restart_id=restart_id, node=node, everything=everything
            )
        if told.chosen is not None and told.chosen.content_id is not None:
            self.told[told.chosen.content_id] = told.chosen
        return told

    def latest_without_service(
        self,
        silent: Silent,
        run: str,
        query: Query,
        *,
        restart_id: str | None,
        node: str | None,
        everything: bool,
    ) -> LatestAnswer:
        """What the journal and the tiers that this host has show of a run.

        Raises:
            CouldNotLook: they show nothing of it. Never "there never was one".
        """
        from ckptgov.governor.silent import asked_of_tiers, unknown_to_us

        asked = asked_of_tiers(
            run,
            self.here.settings(),
            look=self.local.look,
            stack=self._stack,
            node=node,
            silent=silent,
        )
        self.talk(f"{silent.message}; answered from the tiers of this host")
        told = self.local.latest_of(
            asked,
            replace(query, min_evidence=Evidence.DIGEST),
            restart_id=restart_id,
            everything=everything,
        )
        return unknown_to_us(told, silent)

    def listing(self, target: str, query: Query, *, node: str | None = None) -> RunListing:
        """Every checkpoint of a run or directory with its verdict and reasons."""
        asks = self.client if is_run_name(target) else self.local
        return asks.listing(target, query, node=node)

    def manifest(self, target: str, *, step: int | None = None) -> Manifest:
        """The manifest of one sealed checkpoint."""
        asks = self.client if is_run_name(target) else self.local
        return asks.manifest(target, step=step)

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
        asks = self.client if is_run_name(target) else self.local
        return asks.report(
            target,
            restart_id=restart_id,
            outcome=outcome,
            epoch=epoch,
            reason=reason,
            dry_run=dry_run,
        )

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
        asks = self.client if is_run_name(target) else self.local
        return asks.mark_bad(
            target,
            step=step,
            from_step=from_step,
            until_step=until_step,
            reason=reason,
            undo=undo,
            dry_run=dry_run,
        )

    def rollback(
        self, target: str, *, to_step: int, reason: str | None = None, dry_run: bool = False
    ) -> Record:
        """Open a new line at a step: nothing above it in older lines is offered any more."""
        asks = self.client if is_run_name(target) else self.local
        return asks.rollback(target, to_step=to_step, reason=reason, dry_run=dry_run)

    def scan(
        self,
        directories: Sequence[str],
        *,
        run: str | None = None,
        node: str | None = None,
        dry_run: bool = False,
    ) -> ScanAnswer:
        """Directories here; without any, the service's scan of a run or of every tier."""
        if directories:
            return self.local.scan(directories, run=run, node=node, dry_run=dry_run)
        _only_without(node)
        if dry_run:
            return self.client.dry_runs.scan(run)
        begun = tasks.begin_scan(self.client.transport, run=run)
        answers = [decode.scan(one) for one in self.outcomes(begun, "runs")]
        return ScanAnswer(
            runs=tuple(each for one in answers for each in one.runs), error=_first_error(answers)
        )

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
        """The service seals what lies below a tier; which, the path tells, or ``tier``."""
        if run is None:
            raise UsageError(
                "commit: say which run it is of: --run NAME",
                hint="or unset CKPTGOV_URL to seal what lies here without the service",
            )
        if tier is None:
            tier, path = self.here.below_a_tier(normal_path(path), node)
        return self.client.commit(
            run, tier=tier, path=path, step=step, metrics=metrics, dry_run=dry_run
        )

    def verify(self, target: str, *, level: VerifyLevel, dry_run: bool = False) -> VerifyAnswer:
        """Compare a run where its copies lie, or a directory here."""
        if not is_run_name(target):
            return self.local.verify(target, level=level, dry_run=dry_run)
        if dry_run:
            return self.client.dry_runs.verify(target, level=level.value)
        begun = tasks.begin_verify(self.client.transport, target, level=level.value)
        answers = [decode.verify(one) for one in self.outcomes(begun, "checkpoints")]
        return VerifyAnswer(
            checkpoints=tuple(each for one in answers for each in one.checkpoints),
            notes=tuple(dict.fromkeys(each for one in answers for each in one.notes)),
            error=_first_error(answers),
        )

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
        """The service's flush of a run, or (None) of every run after another."""
        from ckptgov.wire.decode_movement import flushed

        if target is not None and not is_run_name(target):
            return self.local.flush(target, step=step, to=to, node=node, dry_run=dry_run, stop=stop)
        _only_without(node)
        names = [target] if target is not None else [one.name for one in self.client.runs()]
        if dry_run:
            answers = [self.client.dry_runs.flush(name, step=step, to=to) for name in names]
        else:
            transport = self.client.transport
            begun = [tasks.begin_flush(transport, name, step=step, to=to) for name in names]
            answers = [
                flushed(each) for one in begun for each in self.outcomes(one, "checkpoints", stop)
            ]
        return FlushAnswer(
            checkpoints=tuple(each for one in answers for each in one.checkpoints),
            skips=tuple(each for one in answers for each in one.skips),
            error=_first_error(answers),
        )

    def reconcile(
        self,
        tiers: Sequence[str],
        *,
        older_than_s: float,
        staging_older_than_s: float | None = None,
        dry_run: bool = False,
    ) -> ReconcileAnswer:
        """The service's reconciliation of its tiers."""
        from ckptgov.wire.decode_movement import reconciled

        if dry_run:
            return self.client.dry_runs.reconcile(
                tuple(tiers), older_than_s=older_than_s, staging_older_than_s=staging_older_than_s
            )
        begun = tasks.begin_reconcile(
            self.client.transport,
            tuple(tiers),
            older_than_s=older_than_s,
            staging_older_than_s=staging_older_than_s,
        )
        answers = [reconciled(one) for one in self.outcomes(begun, "tiers")]
        return ReconcileAnswer(
            tiers=tuple(each for one in answers for each in one.tiers), error=_first_error(answers)
        )

    def create_run(
        self, name: str, *, root: str | None, expect: Expect | None, dry_run: bool = False
    ) -> RegisteredRun:
        """Register a run before its first checkpoint."""
        tier: str | None = None
        path: str | None = None
        if root is not None:
            tier, path = self.here.below_a_tier(normal_path(root), None)
        return self.client.create_run(name, tier=tier, path=path, expect=expect, dry_run=dry_run)

    def runs(self) -> Sequence[RegisteredRun]:
        """Every registered run, by name."""
        return self.client.runs()

    def tiers(self) -> Sequence[TierSettings]:
        """The configured tiers."""
        return self.client.tiers()

    def budgets(self) -> tuple[Sequence[TierSettings], Sequence[NodeSettings], int]:
        """Tiers and nodes with their budgets, and the percentage kept aside for lost flows."""
        return self.client.budgets()

    def change_budget(
        self,
        tier: str | None,
        node: str | None,
        change: Callable[[Budget], Budget],
        *,
        dry_run: bool = False,
    ) -> tuple[Sequence[TierSettings], Sequence[NodeSettings], int]:
        """Change what may be taken from a tier; the budgets as they are then."""
        return self.client.change_budget(tier, node, change, dry_run=dry_run)

    def flows(self) -> Sequence[FlowFacts]:
        """Who moves what at what rate, and who waits for what."""
        return self.client.flows()

    def du(self, *, run: str | None = None, tier: str | None = None) -> DuAnswer:
        """What takes room, by tier, run and state."""
        return self.client.du(run=run, tier=tier)

    def outcomes(
        self, begun: Document, member: str, stop: Callable[[], bool] = never
    ) -> tuple[Document, ...]:
        """What the tasks that were begun came to."""
        transport = self.client.transport
        return tasks.outcomes(transport, begun, member, talk=self.talk, stop=stop)


def _first_error(
    answers: Sequence[ScanAnswer | VerifyAnswer | FlushAnswer | ReconcileAnswer],
) -> CkptgovError | None:
    return next((one.error for one in answers if one.error is not None), None)


def _only_without(node: str | None) -> None:
    if node is not None:
        raise UsageError("the service knows which node does what", hint="leave --node out")


@contextmanager
def open_served(
    *,
    environ: Mapping[str, str],
    talk: Talk,
    progress: Callable[[int], None] | None = None,
) -> Iterator[ServedGovernor]:
    """The governor of a process whose environment names a service.

    Raises:
        ConfigError: the service's address or token cannot be used.
    """
    with ExitStack() as stack:
        client = stack.enter_context(open_client(environ, talk=talk))
        local = stack.enter_context(open_governor(environ=environ, talk=talk, progress=progress))
        yield ServedGovernor(client, local, environ=environ, talk=talk, stack=stack)
