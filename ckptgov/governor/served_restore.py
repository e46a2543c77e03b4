"""Bringing a checkpoint here that the service names, while the service holds it for us."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckptgov.client.address import is_run_name
from ckptgov.errors import CouldNotLook
from ckptgov.model.facts import CheckpointFacts, Query
from ckptgov.model.verbs import never
from ckptgov.wire.documents import text

if TYPE_CHECKING:
    from ckptgov.client.verbs import Client
    from ckptgov.governor.local import Governor, Talk
    from ckptgov.governor.placing import PlacesHere
    from ckptgov.model.answers import LatestAnswer
    from ckptgov.model.movement import RestoreAnswer


class ServedRestore:
    """Part of ``ServedGovernor``."""

    client: Client
    local: Governor
    here: PlacesHere
    talk: Talk
    told: dict[str, CheckpointFacts]
    """What ``latest`` answered, by content id: a restore of it asks no second time."""

    def latest(self, target: str, query: Query, *, node: str | None = None) -> LatestAnswer:
        """The service's answer."""
        raise NotImplementedError

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
        with self._held(target, chosen, to, stop, dry_run=dry_run) as may_stop:
            return self.local.restore_of(
                self.here.asked_of(target, chosen, node),
                to=to,
                query=wanted,
                content_id=chosen.content_id,
                from_tier=from_tier,
                match=match,
                node=node,
                hardlink=hardlink,
                dry_run=dry_run,
                stop=may_stop,
            )

    @contextmanager
    def _held(
        self,
        run: str,
        chosen: CheckpointFacts,
        to: str,
        stop: Callable[[], bool],
        *,
        dry_run: bool,
    ) -> Iterator[Callable[[], bool]]:
        """Have the service hold the checkpoint while it is read; ``stop`` renews the claim.

        It is claimed before any of its places is looked at.
        """
        if dry_run or chosen.content_id is None:
            yield stop
            return
        from ckptgov.client.claims import reading

        with reading(
            self.client.transport,
            run,
            chosen.content_id,
            reason=f"restore to {text(to)}",
            clock=self.local.author.clock,
            talk=self.talk,
        ) as claim:
            yield lambda: stop() or claim.keep()

    def _chosen(
        self, run: str, query: Query, content_id: str | None, node: str | None
    ) -> CheckpointFacts:
        """The checkpoint to bring, with the places that the service knows of."""
        if content_id in self.told:
            return self.told[content_id]
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
