"""The verbs answered by this process: settings, catalog, storage and operations put together.

Nothing is decided here. A directory is answered from looks alone, with no configuration and no
catalog; a run's name goes through the catalog to its places. Heavy rooms are imported where they
are first needed: a launcher's question must not pay for SQL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckptgov.client.address import is_run_name
from ckptgov.errors import CkptgovError, NoneRestorable, UnknownRun, UsageError
from ckptgov.governor.claiming import ClaimVerbs
from ckptgov.governor.planning import PlanVerbs
from ckptgov.governor.removing import RemovalVerbs
from ckptgov.model.answers import (
    LatestAnswer,
    RunListing,
    ScanAnswer,
    SealedCheckpoint,
    VerifyAnswer,
)
from ckptgov.model.checkpoint import Evidence, Manifest, VerifyLevel
from ckptgov.model.clock import Clock, SystemClock
from ckptgov.model.facts import Choice, Query
from ckptgov.model.settings import Settings
from ckptgov.work import ask
from ckptgov.work.addresses import is_url
from ckptgov.work.answer import share_journal
from ckptgov.work.author import Author
from ckptgov.work.locate import Location, endpoint_of, locate, normal_path
from ckptgov.work.look import RunLook, look_settings
from ckptgov.work.tier import Place

if TYPE_CHECKING:
    from ckptgov.model.checkpoint import Expect
    from ckptgov.model.movement import FlushAnswer, RestoreAnswer
    from ckptgov.model.pacing import Budget, FlowFacts
    from ckptgov.model.settings import NodeSettings, TierSettings
    from ckptgov.model.usage import DuAnswer, ReconcileAnswer
    from ckptgov.ops.context import Context
    from ckptgov.ops.runs import ListedRun

Talk = Callable[[str], None]
_HOME_NAMES = ("CKPTGOV_HOME", "XDG_STATE_HOME", "HOME")


def _silent(text: str) -> None:
    del text


@contextmanager
def open_governor(
    *,
    environ: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    talk: Talk = _silent,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Governor]:
    """The governor of this process; everything it opened is closed at the end."""
    with ExitStack() as stack:
        yield Governor(
            environ=dict(os.environ) if environ is None else environ,
            clock=clock or SystemClock(),
            talk=talk,
            progress=progress,
            stack=stack,
        )


class Governor(PlanVerbs, RemovalVerbs, ClaimVerbs):
    """Launcher verbs from looks alone; the others through ``context`` (catalog and settings)."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        clock: Clock,
        talk: Talk,
        progress: Callable[[int], None] | None,
        stack: ExitStack,
    ) -> None:
        self._progress = progress
        self._environ = environ
        self._clock = clock
        self.talk = talk
        self._stack = stack
        self._context: Context | None = None

    @property
    def context(self) -> Context:
        """Settings and catalog of this home, opened when first needed."""
        if self._context is None:
            from ckptgov.config.home import home_dir
            from ckptgov.config.load import load_settings
            from ckptgov.ops.context import Context

            settings = load_settings(home_dir(self._environ), self._environ)
            self._context = Context(
                settings=settings,
                author=self.author,
                talk=self.talk,
                progress=self._progress,
                stack=self._stack,
            )
        return self._context

    @property
    def author(self) -> Author:
        """Who writes the records of this process."""
        return Author(clock=self._clock, by=f"uid:{os.getuid()}@{os.uname().nodename}")

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
        """The newest checkpoint of a run or directory that may be handed out."""
        try:
            asked = self.asked(target, node=node, place=place, sealed_only=True)
        except CkptgovError as error:
            empty = Choice(chosen=None, verdicts=())
            return LatestAnswer(run=None, choice=empty, chosen=None, error=error)
        if asked.run is not None and self._context is not None:
            from ckptgov.ops.questions import note_question

            note_question(self._context, asked.run)
        if asked.run is not None and asked.sealed_only:
            query = replace(query, min_evidence=Evidence.DIGEST)
        return self.latest_of(asked, query, restart_id=restart_id, everything=everything)

    def latest_of(
        self, asked: ask.Asked, query: Query, *, restart_id: str | None, everything: bool
    ) -> LatestAnswer:
        """The same of a run whose places were looked up already."""
        restart = self._restart(asked, restart_id) if restart_id is not None else None
        told = ask.latest(asked, query, restart=restart, everything=everything)
        if everything and (told.choice.verdicts or told.chosen is not None):
            told = ask.with_pointer_notes(asked, told)
        return told

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
        stop: Callable[[], bool] = lambda: False,
    ) -> RestoreAnswer:
        """Bring what ``latest`` offers, or one step, or the very ``content_id``, to a directory."""
        return self.restore_of(
            self.asked(target, node=node, sealed_only=True),
            to=to,
            query=replace(query or Query(), step=step),
            content_id=content_id,
            from_tier=from_tier,
            match=match,
            node=node,
            hardlink=hardlink,
            dry_run=dry_run,
            stop=stop,
        )

    def restore_of(
        self,
        asked: ask.Asked,
        *,
        to: str,
        query: Query,
        content_id: str | None,
        from_tier: str | None,
        match: tuple[str, ...],
        node: str | None,
        hardlink: bool,
        dry_run: bool,
        stop: Callable[[], bool],
    ) -> RestoreAnswer:
        """The same of a run whose places were looked up already."""
        from ckptgov.ops.bringing import RestoreRequest
        from ckptgov.ops.restore import restore

        request = RestoreRequest(
            to=to,
            query=query,
            content_id=content_id,
            from_tier=from_tier,
            match=match,
            node=node,
            hardlink=hardlink,
            dry_run=dry_run,
        )
        if not self.has_catalog():  # no arbiter to ask, and none is made for a restore
            return restore(self.context, asked, request, stop=stop)
        from ckptgov.ops.moving import known_rate, restoring

        return restore(
            self.context,
            asked,
            request,
            stop=stop,
            moving=restoring(self.context),
            rate_of=lambda place: known_rate(self.context, place),
        )

    def asked(
        self,
        target: str,
        *,
        node: str | None = None,
        place: str | None = None,
        sealed_only: bool = False,
    ) -> ask.Asked:
        """The run or directory a person named, ready to be looked at."""
        if is_run_name(target) and self.has_catalog():
            by_name = self.context.asked(target, node=node, place=place, sealed_only=sealed_only)
            if by_name is not None:
                return by_name
        if is_run_name(target) and not os.path.lexists(target):
            raise UnknownRun(
                f"no run {target!r} is registered, and no such directory is here",
                hint="'ckptgov run list' shows the runs; 'ckptgov scan DIR' registers one",
            )
        address = normal_path(target)
        return self._asked_at(locate(address, endpoint=self._endpoint_of(address)), node=node)

    def _endpoint_of(self, address: str) -> str | None:
        """Where a URL's store is, if a configured tier tells; no configuration is needed."""
        if not is_url(address) or not any(self._environ.get(name) for name in _HOME_NAMES):
            return None
        from ckptgov.config.home import home_dir
        from ckptgov.config.load import load_settings

        return endpoint_of(address, load_settings(home_dir(self._environ), self._environ).tiers)

    def _asked_at(self, location: Location, *, node: str | None) -> ask.Asked:
        self._stack.callback(location.place.storage.close)
        look = self.look(location.place, location.one_run_root())
        return ask.Asked(
            run=look.identity.name if look.identity is not None else None,
            looks=(look,),
            only_name=location.only_name,
            node=node,
        )

    def look(self, place: Place, run_root: str, partial: bool = False) -> RunLook:
        """A look at a run root that ends with this governor."""
        return self._stack.enter_context(
            RunLook(
                place,
                run_root,
                look_settings(place, self._clock, clock_margin_s=Settings(home="").clock_margin_s),
                partial=partial,
            )
        )

    def listing(self, target: str, query: Query, *, node: str | None = None) -> RunListing:
        """Every checkpoint of a run or directory with its verdict and reasons."""
        asked = self.asked(target, node=node)
        if is_run_name(target) and self._context is not None and asked.run == target:
            query = replace(query, min_evidence=Evidence.DIGEST)
        return ask.listing(asked, query)

    def verify(self, target: str, *, level: VerifyLevel, dry_run: bool = False) -> VerifyAnswer:
        """Compare a run, a directory or one checkpoint again; what is found is written down."""
        if not self.has_catalog():  # nothing to record in, and SQL costs more than most reading
            return self._verify_uncatalogued(target, level=level, dry_run=dry_run)
        from ckptgov.ops.verify import verify

        return verify(self.context, self.asked(target), level=level, dry_run=dry_run)

    def _verify_uncatalogued(
        self, target: str, *, level: VerifyLevel, dry_run: bool
    ) -> VerifyAnswer:
        from ckptgov.config.home import home_dir
        from ckptgov.config.load import load_settings
        from ckptgov.work.seal import SealSettings

        threads = load_settings(home_dir(self._environ), self._environ).digest_threads
        return ask.verify(
            self.asked(target),
            level=level,
            clock=self._clock,
            settings=SealSettings(threads=threads, progress=self._progress),
            write=not dry_run,
        )

    def manifest(self, target: str, *, step: int | None = None) -> Manifest:
        """The manifest of one sealed checkpoint: named by its path, or the newest of a run.

        Raises:
            NoneRestorable: it is not sealed.
        """
        asked = self.asked(target)
        share_journal(asked.looks)
        found: list[Manifest] = []
        for look in asked.looks:
            for stored in look.stored:
                copy = look.sealed(stored)
                if copy is None or look.is_gone(copy):
                    continue
                manifest = copy.manifest
                if asked.only_name in (None, manifest.name) and step in (None, manifest.step):
                    found.append(manifest)
        if not found:
            raise NoneRestorable(
                f"{target}: no such checkpoint is sealed",
                hint="seal it first: 'ckptgov scan' or 'ckptgov commit'",
            )
        return max(found, key=lambda one: one.step if one.step is not None else -1)

    def scan(
        self,
        directories: Sequence[str],
        *,
        run: str | None = None,
        node: str | None = None,
        dry_run: bool = False,
    ) -> ScanAnswer:
        """Discover and seal; an unregistered directory becomes a tier."""
        from ckptgov.ops.runs import check_run_name
        from ckptgov.ops.scan import preview, scan

        if run is not None:
            check_run_name(run)
        if dry_run:
            return preview(self.context, directories, node=node)
        return scan(self.context, directories, run=run, node=node)

    def flush(
        self,
        target: str | None,
        *,
        step: int | None = None,
        to: str | None = None,
        node: str | None = None,
        dry_run: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> FlushAnswer:
        """Copy a run's checkpoints (None: every run's) to more durable tiers."""
        from ckptgov.ops.flush import FlushRequest, flush, run_named

        run = run_named(self.context, target) if target is not None else None
        request = FlushRequest(run=run, step=step, target=to, node=node, dry_run=dry_run)
        return flush(self.context, request, stop=stop)

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
        from ckptgov.ops.reconcile import reconcile

        return reconcile(
            self.context,
            tiers=tiers or None,
            older_than_s=older_than_s,
            staging_older_than_s=staging_older_than_s,
            dry_run=dry_run,
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
        """Seal one checkpoint that its writer declares complete.

        With ``tier``, ``path`` lies below that tier's root.
        """
        from ckptgov.ops.commit import commit

        if tier is not None:
            path = self._below_tier(tier, path, node)

        return commit(
            self.context, path, run=run, step=step, node=node, metrics=metrics, dry_run=dry_run
        )

    def _below_tier(self, name: str, path: str, node: str | None) -> str:
        tier = next(
            (
                one
                for one in self.tiers()
                if one.name == name and one.node in (None, node or one.node)
            ),
            None,
        )
        if tier is None:
            raise UsageError(f"there is no tier {name!r}", hint="see 'ckptgov tier list'")
        if path.startswith("/") or ".." in path.split("/"):
            raise UsageError(f"{path}: with --tier, name it below the tier's root")
        return f"{tier.root}/{path}"

    def create_run(
        self, name: str, *, root: str | None, expect: Expect | None, dry_run: bool = False
    ) -> ListedRun:
        """Register a run before its first checkpoint."""
        from ckptgov.ops.runs import create_run

        return create_run(self.context, name, root=root, expect=expect, dry_run=dry_run)

    def runs(self) -> tuple[ListedRun, ...]:
        """Every registered run, by name."""
        from ckptgov.ops.runs import list_runs

        return list_runs(self.context)

    def tiers(self) -> tuple[TierSettings, ...]:
        """The configured tiers."""
        return self.context.settings.tiers

    def budgets(self) -> tuple[tuple[TierSettings, ...], tuple[NodeSettings, ...], int]:
        """Tiers and nodes with their budgets, and the percentage kept aside for lost flows."""
        return _budgets(self.context.settings)

    def change_budget(
        self,
        tier: str | None,
        node: str | None,
        change: Callable[[Budget], Budget],
        *,
        dry_run: bool = False,
    ) -> tuple[tuple[TierSettings, ...], tuple[NodeSettings, ...], int]:
        """Change what may be taken from a tier, or by a node; the budgets as they are then."""
        from ckptgov.ops.budgets import change_budget

        return _budgets(change_budget(self.context, tier, node, change, dry_run=dry_run))

    def flows(self) -> tuple[FlowFacts, ...]:
        """Who moves what at what rate, and who waits for what."""
        return tuple(self.context.desk.facts())

    def du(self, *, run: str | None = None, tier: str | None = None) -> DuAnswer:
        """What takes room, by tier, run and state."""
        from ckptgov.ops.du import du

        return du(self.context, run=run, tier=tier)

    def has_catalog(self) -> bool:
        """Whether this home has a catalog: nothing is made for a question."""
        from ckptgov.config.home import config_path, home_dir

        home = home_dir(self._environ)
        if os.path.lexists(os.path.join(home, "catalog.sqlite")):
            return True
        is_told = self._environ.get("CKPTGOV_CATALOG") or os.path.lexists(config_path(home))
        return bool(is_told) and self.context.settings.catalog_url is not None

    def _restart(self, asked: ask.Asked, restart_id: str) -> ask.RestartRequest:
        from ckptgov.work.decide import check_restart_id
        from ckptgov.work.restart import request
        from ckptgov.work.seal import SealSettings

        check_restart_id(restart_id)
        return request(asked, restart_id, author=self.author, settings=SealSettings())


def _budgets(
    settings: Settings,
) -> tuple[tuple[TierSettings, ...], tuple[NodeSettings, ...], int]:
    return settings.tiers, settings.nodes, settings.fallback_percent
