"""What every verb works with: settings, catalog, open places, the author of records."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from ckptgov.catalog.facts import PlaceFacts, RunFacts, RunRootFacts, SightingFacts
from ckptgov.catalog.peek import Peek
from ckptgov.errors import ConfigError, CouldNotLook, RunRootGone, StorageError
from ckptgov.model.checkpoint import Expect
from ckptgov.model.clock import Clock
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import CheckpointFacts, Note
from ckptgov.model.settings import Scope, Settings, TierSettings
from ckptgov.ops.sighted import facts_of_sighting
from ckptgov.ops.withheld import WithholdingLook
from ckptgov.storage.mounts import filesystem_of
from ckptgov.work.addresses import join
from ckptgov.work.ask import Asked
from ckptgov.work.author import Author
from ckptgov.work.locate import open_place
from ckptgov.work.look import RunLook, look_settings
from ckptgov.work.seal import SealSettings
from ckptgov.work.tier import Place, check_identity

if TYPE_CHECKING:
    from ckptgov.catalog.catalog import Catalog
    from ckptgov.ops.flows import FlowDesk
    from ckptgov.work.abilities import Abilities

CATALOG_FILE = "catalog.sqlite"

_Address = tuple[str, str | None, str | None]
"""Root, endpoint and node of a tier: two stores may have one and the same URL, and two nodes a
disk at the same path."""


class Whereabouts(Protocol):
    """The reads that ``Catalog`` and ``Peek`` share."""

    def run_by_name(self, name: str) -> RunFacts | None: ...

    def places(self) -> tuple[PlaceFacts, ...]: ...

    def place_by_root(self, root: str, *, node: str | None = None) -> PlaceFacts | None: ...

    def roots_of(self, run_id: str) -> tuple[RunRootFacts, ...]: ...

    def sightings(self, run_id: str) -> tuple[SightingFacts, ...]: ...


@dataclass(slots=True, kw_only=True)
class Context:
    """Everything is opened when first needed and closed with ``stack``.

    ``shared`` and ``shared_desk`` are a service's: one catalog and one desk for all its requests,
    which outlive this context. ``here`` are the nodes whose own disks this process sees as paths;
    None where all of them are (one machine).
    """

    settings: Settings
    author: Author
    talk: Callable[[str], None]
    stack: ExitStack
    progress: Callable[[int], None] | None = None
    shared: Catalog | None = None
    shared_desk: FlowDesk | None = None
    here: frozenset[str] | None = None
    _catalog: Catalog | None = field(default=None, init=False)
    _peek: Peek | None = field(default=None, init=False)
    _desk: FlowDesk | None = field(default=None, init=False)
    _seen: tuple[int, int, int] | None = field(default=None, init=False)
    _places: dict[tuple[str, str | None, str | None], Place] = field(
        default_factory=dict, init=False
    )

    @property
    def desk(self) -> FlowDesk:
        """Where this process's flows are registered and paced."""
        if self.shared_desk is not None:
            return self.shared_desk
        if self._desk is None:
            from ckptgov.ops.flows import FlowDesk

            self._desk = FlowDesk(
                self.catalog,
                self.settings,
                self.author.clock,
                reload=self._newest_settings,
                talk=self.talk,
            )
            self.stack.callback(self._desk.close)
        return self._desk

    def _newest_settings(self) -> Settings:
        """The settings as the file says now, so that a changed budget reaches what moves."""
        from ckptgov.config.home import config_path
        from ckptgov.config.load import load_settings

        try:
            found = os.stat(config_path(self.settings.home))
            seen = (found.st_mtime_ns, found.st_ino, found.st_size)
            if seen != self._seen:
                self.settings, self._seen = load_settings(self.settings.home), seen
        except (OSError, ConfigError):
            pass  # being edited, or wrong for now: what was known goes on
        return self.settings

    def abilities(self, place: Place) -> Abilities | None:
        """What ``tier check`` last found a place able to do; None where it never ran."""
        from ckptgov.work.abilities import from_json

        text = self.catalog.abilities(place.uuid) if place.uuid is not None else None
        return from_json(text) if text is not None else None

    def rely_on_abilities(self, place: Place) -> None:
        """Let the place's storage know what its store was seen to do, before bytes go there."""
        from ckptgov.work.abilities import rely_on

        found = self.abilities(place)
        if found is not None:
            rely_on(place.storage, found)

    def may_hold_journal(self, place: Place) -> bool:
        """Whether create-once can be relied on there; where it lies, copies may lie, no journal."""
        from ckptgov.work.abilities import may_hold_journal

        found = self.abilities(place)
        return found is None or may_hold_journal(found)

    def checks_arrivals(self, place: Place) -> bool:
        """Whether the store there was seen to refuse a wrong checksum, of a part too."""
        found = self.abilities(place)
        return found is not None and bool(found.checksums_on_put and found.checksums_on_parts)

    @property
    def catalog(self) -> Catalog:
        """The catalog of this home, or of the cluster; a new one where there is none."""
        if self._catalog is None:
            self._catalog = self.shared or self.stack.enter_context(
                open_catalog(self.settings, self.author.clock)
            )
        return self._catalog

    @property
    def whereabouts(self) -> Whereabouts:
        """Where runs lie, for questions only: without SQLModel while nothing needs it."""
        is_file = self.shared is None and self.settings.catalog_url is None
        if is_file and self._catalog is None and self._peek is None:
            self._peek = Peek.open(os.path.join(self.settings.home, CATALOG_FILE))
            if self._peek is not None:
                self.stack.callback(self._peek.close)
        return self.catalog if self._peek is None or self._catalog is not None else self._peek

    def seal_settings_at(self, place: Place) -> SealSettings:
        """How bytes are read there; where several nodes stamp times, their clocks may differ."""
        is_network = place.storage.filesystem().is_network
        return SealSettings(
            threads=self.settings.digest_threads,
            drop_cache=False,
            margin_ns=int(self.settings.clock_margin_s * 1e9) if is_network else 0,
            progress=self.progress,
        )

    def place(self, tier: TierSettings) -> Place:
        """A registered tier's root, opened and of the right identity.

        Raises:
            CouldNotLook: missing, unmounted, foreign or unreadable.
        """
        key = (tier.root, tier.endpoint, tier.node)
        if key not in self._places:
            opened = self._opened(tier)
            self.stack.callback(opened.storage.close)
            known = self.whereabouts.place_by_root(tier.root, node=tier.node)
            identity = check_identity(
                opened.storage, tier, known_place=known.place if known is not None else None
            )
            if known is None:
                self.catalog.put_place(
                    PlaceFacts(
                        place=identity.place,
                        tier=tier.name,
                        node=tier.node,
                        root=tier.root,
                        fs_type=identity.fs_type,
                        source=identity.source,
                        first_seen_at_ns=self.author.clock.now_ns(),
                    )
                )
            self._places[key] = opened
        return self._places[key]

    def is_here(self, tier: TierSettings) -> bool:
        """Whether a tier's root is to be reached from here; else through its node's agent."""
        return tier.node is None or self.here is None or tier.node in self.here

    def _opened(self, tier: TierSettings) -> Place:
        if not self.is_here(tier):
            from ckptgov.ops.peers import place_at_peer  # http: dear to import

            node = self.catalog.nodes.node(tier.node or "")
            now_ns = self.catalog.now_ns()
            return place_at_peer(tier, node, self.settings, self.author.clock, now_ns=now_ns)
        return open_place(
            tier.root,
            tier=tier.name,
            node=tier.node,
            endpoint=tier.endpoint,
            stall_s=self.settings.stall_s,
        )

    def forget_places(self) -> None:
        """Meet every place anew: the catalog was emptied, or another pass begins."""
        self._places.clear()

    def look(
        self,
        place: Place,
        run_root: str,
        *,
        partial: bool,
        run: str | None,
        withheld: Collection[str] = (),
    ) -> RunLook:
        """A look at one run root, judged by the rules of its run; ``withheld`` content ids are
        not offered from it."""
        judged = look_settings(
            place, self.author.clock, clock_margin_s=self.settings.clock_margin_s
        )
        judged = replace(judged, rules=tuple(self.rules_for(run or "")))
        look = (
            WithholdingLook(place, run_root, judged, partial=partial, withheld=withheld)
            if withheld
            else RunLook(place, run_root, judged, partial=partial)
        )
        return self.stack.enter_context(look)

    def _withheld(self, run_id: str) -> dict[str, set[str]]:
        """By place, the content ids whose copies there are to go."""
        known = self.whereabouts
        if isinstance(known, Peek):
            condemned: Iterable[tuple[str, str]] = known.condemned(run_id)
        else:
            going = (CopyState.CONDEMNED, CopyState.TRASHING)
            found = self.catalog.removals.removals(run_id=run_id, states=going)
            condemned = ((one.content_id, one.place) for one in found)
        by_place: dict[str, set[str]] = {}
        for content_id, place in condemned:
            by_place.setdefault(place, set()).add(content_id)
        return by_place

    def rules_for(self, run: str) -> Iterable[Expect]:
        """The declared rules whose pattern matches a run's name."""
        for rule in self.settings.rules:
            if rule.expect is not None and fnmatchcase(run, rule.run):
                yield rule.expect

    def tier_of(self, root: str, node: str | None) -> TierSettings | None:
        """The configured tier at a root."""
        return next(
            (one for one in self.settings.tiers if (one.root, one.node) == (root, node)), None
        )

    def asked(
        self,
        name: str,
        *,
        node: str | None = None,
        place: str | None = None,
        sealed_only: bool = True,
    ) -> Asked | None:
        """A registered run as it can be looked at from here; None when no run has this name.

        Raises:
            CouldNotLook: none of its places answers, or the one that holds its journal does not.
        """
        run = self.whereabouts.run_by_name(name)
        if run is None:
            return None
        run_id = run.identity.run_id
        places = {one.place: one for one in self.whereabouts.places()}
        if place is not None and place in places:
            node = places[place].node
        looks: list[RunLook] = []
        unreachable: list[tuple[Note, CouldNotLook]] = []
        withheld = self._withheld(run_id)
        roots = sorted(
            self.whereabouts.roots_of(run_id), key=lambda root: _order(places[root.place], node)
        )
        for root in roots:
            going = withheld.get(root.place, ())
            self._look_at(root, places[root.place], name, going, looks, unreachable)
        self._require_home(name, roots, looks, places, unreachable)
        return Asked(
            run=name,
            looks=tuple(looks),
            unreachable=tuple(note for note, _ in unreachable),
            more=tuple(self._last_sighted(run_id, places)) if sealed_only else (),
            node=node,
            sealed_only=sealed_only,
            step_over_limit=self.settings.step_over_limit,
        )

    def _look_at(
        self,
        root: RunRootFacts,
        place: PlaceFacts,
        run: str,
        withheld: Collection[str],
        looks: list[RunLook],
        unreachable: list[tuple[Note, CouldNotLook]],
    ) -> None:
        tier = self.tier_of(place.root, place.node)
        if tier is None:
            gone = CouldNotLook(f"tier {place.tier} at {place.root} is not configured any more")
            unreachable.append((Note("unreachable", place.root, gone.message), gone))
            return
        try:
            opened = self.place(tier)
            is_partial = tier.scope is Scope.NODE
            look = self.look(opened, root.path, partial=is_partial, run=run, withheld=withheld)
            _require_its_own(look, run, root.run_id)
            looks.append(look)
        except CouldNotLook as error:
            if error.kind == "malformed":
                raise
            unreachable.append((Note("unreachable", place.root, error.message), error))

    def _require_home(
        self,
        name: str,
        roots: list[RunRootFacts],
        looks: list[RunLook],
        places: dict[str, PlaceFacts],
        unreachable: list[tuple[Note, CouldNotLook]],
    ) -> None:
        """Without the journal's home nobody can tell what must not be offered."""
        shared = [root for root in roots if places[root.place].node is None]
        if looks and (not shared or looks[0].place.uuid == shared[0].place):
            return
        if unreachable:
            raise unreachable[0][1]
        raise CouldNotLook(f"run {name} has no place", hint="'ckptgov scan DIR' gives it one")

    def _last_sighted(
        self, run_id: str, places: dict[str, PlaceFacts]
    ) -> Iterable[CheckpointFacts]:
        """Unsealed checkpoints as the last scan saw them: they give reasons, never an answer."""
        for one in self.whereabouts.sightings(run_id):
            yield facts_of_sighting(one, places[one.place], root=places[one.place].root)


def _require_its_own(look: RunLook, run: str, run_id: str) -> None:
    """Refuse a registered directory without a record of the run: another took its place, or it is
    a mount point with nothing mounted on it, and says nothing of the run.

    Raises:
        RunRootGone
    """
    where = join(look.place.root, look.run_root)
    if look.identity is not None:
        if look.identity.run_id == run_id:
            return
        why = f"is run {look.identity.name!r} now"
        hint = f"where {run!r} lies now, 'ckptgov scan DIR' finds it again"
    elif look.records or look.stored:
        return
    elif look.is_away():
        why = "is gone"
        hint = (
            "is it mounted? Where it was moved to, 'ckptgov scan DIR' finds it; where it was "
            "removed and another place has the run, 'ckptgov reconcile' lets go of it at its "
            "second look"
        )
    else:
        why = "holds no record of it any more"
        hint = f"is it mounted? 'ckptgov scan DIR --run {run}' takes what lies there for the run"
    raise RunRootGone(f"run {run}: {where} {why}", hint=hint)


def open_catalog(settings: Settings, clock: Clock) -> Catalog:
    """The catalog that the settings name: SQLite in their home, or a cluster's PostgreSQL.

    Raises:
        ConfigError: on a network file system, an unusable URL, or written by a newer ckptgov.
        StorageError: damaged, or it does not answer.
    """
    from ckptgov.catalog.catalog import Catalog  # SQLModel: dear to import

    if settings.catalog_url is not None:
        return Catalog.connect(settings.catalog_url, clock=clock)
    make_directory(settings.home, mode=0o700)
    filesystem = filesystem_of(settings.home)
    return Catalog.open(
        os.path.join(settings.home, CATALOG_FILE),
        fs_type=filesystem.type,
        is_network=filesystem.is_network,
        clock=clock,
    )


def make_directory(path: str, *, mode: int = 0o777) -> None:
    """Make a directory and its parents; one that stands already is left as it is.

    Raises:
        StorageError: it cannot be made.
    """
    try:
        os.makedirs(path, mode=mode, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be made: {error.strerror}",
            hint="name a directory that can be written (CKPTGOV_HOME, or --root)",
        ) from error


def _order(place: PlaceFacts, node: str | None) -> tuple[int, int, int]:
    """Shared places first (the first of them is the journal's home), then the asking node's."""
    shared = 0 if place.node is None else 1
    own = 0 if place.node == node else 1
    return (shared, own, place.first_seen_at_ns)
