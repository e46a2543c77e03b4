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
from ckptgov.errors import CkptgovError, CouldNotLook, UsageError
from ckptgov.governor.local import Governor, Talk, open_governor
from ckptgov.governor.placing import PlacesHere
from ckptgov.governor.served_keeping import ServedKeeping
from ckptgov.model.answers import ScanAnswer, VerifyAnswer
from ckptgov.model.checkpoint import Evidence, Manifest, VerifyLevel
from ckptgov.model.facts import CheckpointFacts, Query
from ckptgov.model.movement import FlushAnswer
from ckptgov.model.usage import ReconcileAnswer
from ckptgov.model.verbs import never
from ckptgov.wire import decode
from ckptgov.work.locate import normal_path

if TYPE_CHECKING:
    from ckptgov.model.answers import LatestAnswer, RunListing, SealedCheckpoint
    from ckptgov.model.checkpoint import Expect
    from ckptgov.model.journal import Record, RestoreOutcome
    from ckptgov.model.movement import RestoreAnswer
    from ckptgov.model.pacing import Budget, FlowFacts
    from ckptgov.model.settings import NodeSettings, TierSettings
    from ckptgov.model.usage import DuAnswer
    from ckptgov.model.verbs import RegisteredRun
    from ckptgov.wire.documents import Document

_ELSEWHERE = "run it where the service runs, with CKPTGOV_URL unset there"


class ServedGovernor(ServedKeeping):
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
        self._here = PlacesHere(client, local, environ=environ, stack=stack)
        self._talk = talk
        self._stack = stack
        self._told: dict[str, CheckpointFacts] = {}

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
            self._told[told.chosen.content_id] = told.chosen
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
            self._here.settings(),
            look=self.local.look,
            stack=self._stack,
            node=node,
            silent=silent,
        )
        self._talk(f"{silent.message}; answered from the tiers of this host")
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
        _only_without(dry_run=dry_run, node=node)
        begun = tasks.begin_scan(self.client.transport, run=run)
        answers = [decode.scan(one) for one in self._outcomes(begun, "runs")]
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
            tier, path = self._here.below_a_tier(normal_path(path), node)
        return self.client.commit(
            run, tier=tier, path=path, step=step, metrics=metrics, dry_run=dry_run
        )

    def verify(self, target: str, *, level: VerifyLevel, dry_run: bool = False) -> VerifyAnswer:
        """Compare a run where its copies lie, or a directory here."""
        if not is_run_name(target):
            return self.local.verify(target, level=level, dry_run=dry_run)
        _only_without(dry_run=dry_run)
        begun = tasks.begin_verify(self.client.transport, target, level=level.value)
        answers = [decode.verify(one) for one in self._outcomes(begun, "checkpoints")]
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
        _only_without(dry_run=dry_run, node=node)
        names = [target] if target is not None else [one.name for one in self.client.runs()]
        transport = self.client.transport
        begun = [tasks.begin_flush(transport, name, step=step, to=to) for name in names]
        answers = [
            flushed(each) for one in begun for each in self._outcomes(one, "checkpoints", stop)
        ]
        return FlushAnswer(
            checkpoints=tuple(each for one in answers for each in one.checkpoints),
            skips=tuple(each for one in answers for each in one.skips),
            error=_first_error(answers),
        )

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
        """Bring here what the service names, each shard from the nearest place seen from here."""
        if not is_run_name(target):
            return self.local.restore(
                target,
                to=to,
                step=step,
                query=query,
                content_id=content_id,
                from_tier=from_tier,
                match=match,
                node=node,
                hardlink=hardlink,
                dry_run=dry_run,
                stop=stop,
            )
        wanted = replace(query or Query(), step=step)
        chosen = self._chosen(target, wanted, content_id, node)
        return self.local.restore_of(
            self._here.asked_of(target, chosen, node),
            to=to,
            query=wanted,
            content_id=chosen.content_id,
            from_tier=from_tier,
            match=match,
            node=node,
            hardlink=hardlink,
            dry_run=dry_run,
            stop=stop,
        )

    def _chosen(
        self, run: str, query: Query, content_id: str | None, node: str | None
    ) -> CheckpointFacts:
        """The checkpoint to bring, with the places that the service knows of."""
        if content_id in self._told:
            return self._told[content_id]
        if content_id is None:
            told = self.latest(run, query, node=node)
            if told.chosen is None:
                assert told.error is not None
                raise told.error
            return told.chosen
        for verdict in self.client.listing(run, query, node=node).verdicts:
            if verdict.checkpoint.content_id == content_id:
                return verdict.checkpoint
        raise CouldNotLook(f"run {run}: the service does not know {content_id} any more")

    def reconcile(
        self, tiers: Sequence[str], *, older_than_s: float, dry_run: bool = False
    ) -> ReconcileAnswer:
        """The service's reconciliation of its tiers."""
        from ckptgov.wire.decode_movement import reconciled

        _only_without(dry_run=dry_run)
        transport = self.client.transport
        begun = tasks.begin_reconcile(transport, tuple(tiers), older_than_s=older_than_s)
        answers = [reconciled(one) for one in self._outcomes(begun, "tiers")]
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
            tier, path = self._here.below_a_tier(normal_path(root), None)
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

    def _outcomes(
        self, begun: Document, member: str, stop: Callable[[], bool] = never
    ) -> tuple[Document, ...]:
        transport = self.client.transport
        return tasks.outcomes(transport, begun, member, talk=self._talk, stop=stop)


def _first_error(
    answers: Sequence[ScanAnswer | VerifyAnswer | FlushAnswer | ReconcileAnswer],
) -> CkptgovError | None:
    return next((one.error for one in answers if one.error is not None), None)


def _only_without(*, dry_run: bool = False, node: str | None = None) -> None:
    """What cannot be asked of the service."""
    if dry_run:
        raise UsageError("the service makes no dry run of this", hint=_ELSEWHERE)
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
