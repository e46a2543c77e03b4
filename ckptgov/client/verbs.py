"""Every verb that has a meaning over HTTP, for runs by name. Answers come back as the model's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckptgov.client.address import address_from
from ckptgov.client.records import record
from ckptgov.client.transport import Query as Asked
from ckptgov.client.transport import Transport, answered, path_of, whole
from ckptgov.errors import UsageError
from ckptgov.model.checkpoint import Evidence
from ckptgov.wire import decode

if TYPE_CHECKING:
    from ckptgov.client.dry_runs import DryRuns
    from ckptgov.client.keeping import KeepingVerbs
    from ckptgov.client.service import ServiceVerbs
    from ckptgov.model.answers import LatestAnswer, RunListing, SealedCheckpoint
    from ckptgov.model.checkpoint import Expect, Manifest
    from ckptgov.model.facts import Query
    from ckptgov.model.journal import Record, RestoreOutcome
    from ckptgov.model.pacing import Budget, FlowFacts
    from ckptgov.model.settings import NodeSettings, TierSettings
    from ckptgov.model.usage import DuAnswer
    from ckptgov.wire.decode_settings import ToldRun
    from ckptgov.wire.documents import Document

DU_S = 600.0
COMMIT_S = 600.0
"""How long the service may take where it looks at whole tiers, or reads a whole checkpoint."""


@contextmanager
def open_client(
    environ: Mapping[str, str], *, talk: Callable[[str], None] | None = None
) -> Iterator[Client]:
    """The client of the service that the environment names.

    Raises:
        ConfigError: it names none, or the token cannot be used.
    """
    transport = Transport(address_from(environ), talk=talk)
    try:
        yield Client(transport)
    finally:
        transport.close()


class Client:
    """The verbs of ``model.verbs`` that a service answers, over one transport.

    All raise Silent where the service gives no answer, and what it says where it refuses.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    @property
    def service(self) -> ServiceVerbs:
        """What is asked of the service about itself."""
        from ckptgov.client.service import ServiceVerbs

        return ServiceVerbs(self.transport)

    @property
    def keeping(self) -> KeepingVerbs:
        """What is asked about what stays and what goes."""
        from ckptgov.client.keeping import KeepingVerbs

        return KeepingVerbs(self.transport)

    @property
    def dry_runs(self) -> DryRuns:
        """What would be done by what the service otherwise does in its own time."""
        from ckptgov.client.dry_runs import DryRuns

        return DryRuns(self.transport)

    def latest(
        self,
        target: str,
        query: Query,
        *,
        restart_id: str | None = None,
        node: str | None = None,
        place: str | None = None,
        everything: bool = False,
        wait_s: float = 0.0,
    ) -> LatestAnswer:
        """The newest checkpoint that may be handed out, or one decision for a restart id.

        ``wait_s``: for so long, up to a minute, while nothing may be handed out yet.
        """
        if restart_id is not None:
            return self.restart(target, query, restart_id, node=node, place=place)
        told: Asked = {
            "purpose": query.purpose.value,
            "world_size": query.world_size,
            # Of a run only what was compared is offered, whatever else would do.
            "evidence": "digest" if query.min_evidence is Evidence.DIGEST else None,
            "step": query.step,
            "node": node,
            "place": place,
            "explain": everything,
            "wait": wait_s or None,
        }
        path = path_of("runs", target, "latest")
        return decode.latest(self.transport.ask("GET", path, query=told, wait_s=wait_s).document)

    def restart(
        self,
        run: str,
        query: Query,
        restart_id: str,
        *,
        node: str | None = None,
        place: str | None = None,
        allow_fresh: bool = False,
    ) -> LatestAnswer:
        """The decision of a restart, the same for everyone who gives its id.

        A fresh start, which ``allow_fresh`` lets be decided, is told as NeverAny with ``restart``
        set; NeverAny without it decided nothing.
        """
        body = {
            "restart_id": restart_id,
            "purpose": query.purpose.value,
            "world_size": query.world_size,
            "node": node,
            "place": place,
            "allow_fresh": allow_fresh,
        }
        path = path_of("runs", run, "restarts")
        return decode.latest(
            self.transport.ask("POST", path, body=body, is_repeatable=True).document
        )

    def listing(self, target: str, query: Query, *, node: str | None = None) -> RunListing:
        """Every checkpoint of a run with its verdict and reasons."""
        told: Asked = {
            "purpose": query.purpose.value,
            "world_size": query.world_size,
            "node": node,
        }
        return decode.listing(self.transport.get(path_of("runs", target, "checkpoints"), told))

    def manifest(self, target: str, *, step: int | None = None) -> Manifest:
        """The manifest of one sealed checkpoint; the newest where no step is given."""
        from ckptgov.manifest.forms.manifests import decode_manifest

        path = path_of("runs", target, "manifest")
        reply = self.transport.ask("GET", path, query={"step": step})
        answered(reply)
        return decode_manifest(reply.raw, where="the answer of the service")

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
        body = {
            "restart_id": restart_id,
            "outcome": outcome.value,
            "epoch": epoch,
            "reason": reason,
            "dry_run": dry_run,
        }
        # Without an epoch it is told of the newest, which may be another one the second time.
        path = path_of("runs", target, "outcomes")
        return record(self.transport, path, body, is_repeatable=epoch is not None)

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
        body = {
            "step": step,
            "from_step": from_step,
            "until_step": until_step,
            "reason": reason,
            "undo": undo,
            "dry_run": dry_run,
        }
        return record(self.transport, path_of("runs", target, "mark-bad"), body)

    def rollback(
        self, target: str, *, to_step: int, reason: str | None = None, dry_run: bool = False
    ) -> Record:
        """Open a new line at a step: nothing above it in older lines is offered any more."""
        body = {"to_step": to_step, "reason": reason, "dry_run": dry_run}
        return record(self.transport, path_of("runs", target, "rollback"), body)

    def commit(
        self,
        run: str,
        *,
        tier: str,
        path: str,
        step: int | None = None,
        metrics: tuple[tuple[str, str], ...] = (),
        dry_run: bool = False,
    ) -> SealedCheckpoint:
        """Seal what lies at ``path`` below the tier's root."""
        body = {
            "tier": tier,
            "path": path,
            "step": step,
            "metrics": dict(metrics),
            "dry_run": dry_run,
        }
        return decode.sealed(
            self.transport.send(
                "POST", path_of("runs", run, "commit"), body, is_repeatable=True, wait_s=COMMIT_S
            )
        )

    def create_run(
        self,
        name: str,
        *,
        tier: str | None,
        path: str | None,
        expect: Expect | None,
        dry_run: bool = False,
    ) -> ToldRun:
        """Register a run before its first checkpoint; ``path`` lies below the tier's root."""
        from ckptgov.wire.decode_settings import runs

        body: Document = {"name": name, "tier": tier, "path": path, "dry_run": dry_run}
        if expect is not None:
            body["expect"] = {
                "glob": expect.glob,
                "count": expect.count,
                "marker": expect.marker,
                "step": expect.step,
            }
        made = runs(self.transport.send("POST", path_of("runs"), body))
        if len(made) != 1:
            raise UsageError(f"run {name!r}: the service tells of {len(made)} runs")
        return made[0]

    def runs(self) -> tuple[ToldRun, ...]:
        """Every registered run, by name."""
        from ckptgov.wire.decode_settings import runs

        return runs(self.transport.get(path_of("runs")))

    def tiers(self) -> tuple[TierSettings, ...]:
        """The configured tiers."""
        from ckptgov.wire.decode_settings import tiers

        return tiers(self.transport.get(path_of("tiers")))

    def budgets(self) -> tuple[tuple[TierSettings, ...], tuple[NodeSettings, ...], int]:
        """Tiers and nodes with their budgets, and the percentage kept aside for lost flows."""
        from ckptgov.wire.decode_settings import budgets

        return budgets(self.transport.get(path_of("tiers", "budgets")))

    def change_budget(
        self,
        tier: str | None,
        node: str | None,
        change: Callable[[Budget], Budget],
        *,
        dry_run: bool = False,
    ) -> tuple[tuple[TierSettings, ...], tuple[NodeSettings, ...], int]:
        """Change what may be taken from a tier; the budgets as they are then."""
        from ckptgov.wire.decode_settings import budgets
        from ckptgov.wire.settings import budget

        if tier is None:
            raise UsageError(
                "a node's own budget is changed where the service runs",
                hint="'ckptgov tier budget --node N' there, with CKPTGOV_URL unset",
            )
        chosen = [one for one in self.tiers() if one.name == tier and node in (None, one.node)]
        if not chosen:
            raise UsageError(f"there is no tier {tier!r}", hint="see 'ckptgov tier list'")
        document: Document = {}
        for one in chosen:
            body = {**budget(change(one.budget)), "node": one.node, "dry_run": dry_run}
            document = self.transport.send(
                "PUT", path_of("tiers", tier, "budget"), body, is_repeatable=True
            )
        return budgets(document)

    def flows(self) -> tuple[FlowFacts, ...]:
        """Who moves what at what rate, and who waits for what."""
        from ckptgov.wire.decode_movement import flows

        return flows(self.transport.get(path_of("flows")))

    def du(self, *, run: str | None = None, tier: str | None = None) -> DuAnswer:
        """What takes room, by tier, run and state."""
        from ckptgov.wire.decode_movement import du

        query: Asked = {"run": run, "tier": tier}
        reply = self.transport.ask("GET", path_of("du"), query=query, wait_s=DU_S)
        return du(whole(reply, "tiers"))
