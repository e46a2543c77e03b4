"""What every step of a removal works with: who runs what where, places seen once, records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.facts import PlaceFacts, RunFacts, RunRootFacts
from ckptgov.config.policies import policy_for
from ckptgov.errors import (
    CkptgovError,
    CouldNotLook,
    Interrupted,
    PartlyDone,
    StaleState,
    UnknownRun,
)
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.closing import Closing
from ckptgov.model.copies import CopyState
from ckptgov.model.journal import NumberedRecord, Tombstone, Undelete
from ckptgov.model.pacing import Budget, FlowClass
from ckptgov.model.policy import Policy
from ckptgov.model.removal import WENT_WRONG, RemovalStep, Went
from ckptgov.model.retention import Action, DropReason, Removal
from ckptgov.ops import restart_journal
from ckptgov.ops.context import Context
from ckptgov.ops.moving import moving
from ckptgov.ops.policies import policies_in_force, tags_of
from ckptgov.ops.removal_clock import require_same_time
from ckptgov.ops.removal_guard import Guarded
from ckptgov.ops.retention_places import SeenPlaces
from ckptgov.ops.standing_run import StandingRun, is_here, standing_run
from ckptgov.work.leaving import Leaving, standing_tombstones
from ckptgov.work.look import RunLook, look_settings
from ckptgov.work.runstore import RunStore
from ckptgov.work.tier import Place, check_identity

Stop = Callable[[], bool]
LOOK_S = 30.0


History = tuple[tuple[tuple[int, int | None], ...], frozenset[str], tuple[tuple[str, int], ...]]
"""What decides which checkpoints count: the lines' path, marks, reports of corruption."""


class Relied(Struct, frozen=True, kw_only=True):
    """Checkpoints of a run of which it was seen that they stand: the newest, and those of which a
    copy goes. Good until ``until_s``, by the monotonic clock, and while the run's history says the
    same of what counts (``history``)."""

    until_s: float
    history: History
    newest: frozenset[str]
    evicted: frozenset[str] = frozenset()


class Removing(Closing):
    """One call's view of runs, places and policies; each is read once. To be closed."""

    def __init__(self, context: Context, *, dry_run: bool, stop: Stop) -> None:
        self.context = context
        self.dry_run = dry_run
        self.stop = stop
        self.seen = SeenPlaces(context)
        self.errors: list[CkptgovError] = []
        self.relied: dict[str, Relied] = {}
        self._places = {one.place: one for one in context.catalog.places()}
        self._runs: dict[str, RunFacts] = {}
        self._deletions: dict[str, bool] = {}
        self._policies: tuple[Policy, ...] | None = None
        self._look: tuple[RunRootFacts, float, RunLook] | None = None

    def run(self, run_id: str) -> RunFacts:
        """A registered run.

        Raises:
            UnknownRun: it is not registered.
        """
        if run_id not in self._runs:
            found = self.context.catalog.run_by_id(run_id)
            if found is None:
                raise UnknownRun(f"run {run_id} is not in the catalog")
            self._runs[run_id] = found
        return self._runs[run_id]

    def guarded(self, run_id: str, *, is_deletion: bool) -> Guarded:
        """A run under the policy in force.

        Raises:
            ConfigError: a policy is wrong; nothing is removed before it is mended.
        """
        run = self.run(run_id)
        if self._policies is None:
            self._policies = policies_in_force(self.context)
        name = run.identity.name
        policy = policy_for(self._policies, name, tags_of(self.context.settings, name))
        return Guarded(run=run, policy=policy, is_deletion=is_deletion)

    def place_facts(self, place: str) -> PlaceFacts:
        """A place that the catalog met."""
        return self._places[place]

    def is_here(self, place: str) -> bool:
        """Whether this process reaches the place itself."""
        return is_here(self.context, self._places[place].node)

    def place(self, place: str) -> Place:
        """A place, opened, that is the one it is taken for and that this catalog governs.

        Its identity is read now: what was mounted a moment ago may be gone.

        Raises:
            CouldNotLook: missing, unmounted, another place, or another catalog's.
        """
        facts = self._places[place]
        tier = self.context.tier_of(facts.root, facts.node)
        if tier is None:
            raise CouldNotLook(f"tier {facts.tier} at {facts.root} is not configured any more")
        opened = self.context.place(tier)
        identity = check_identity(opened.storage, tier, known_place=place)
        own = self.context.catalog.identity()
        if identity.catalog != own.uuid or identity.epoch > own.epoch:
            raise CouldNotLook(
                f"tier {facts.tier} at {facts.root}: another catalog ({identity.catalog}, epoch "
                f"{identity.epoch}) governs what is removed there",
                hint="'ckptgov tier check' tells more",
            )
        return opened

    def roots(self, run_id: str, place: str) -> tuple[RunRootFacts, ...]:
        """Where a run lies at a place."""
        found = self.context.catalog.roots_of(run_id)
        return tuple(one for one in found if one.place == place)

    def store(self, root: RunRootFacts, place: Place) -> RunStore:
        """What is kept of a run at a place.

        Raises:
            CouldNotLook: another run is there, or none.
        """
        store = RunStore(place.storage, root.path, sidecar=root.sidecar)
        self._require_run(root, place, store.identity())
        return store

    def look(self, root: RunRootFacts, place: Place) -> RunLook:
        """A look at a run root, not older than ``LOOK_S``: it reads the whole journal, which is
        not done for each of many checkpoints.

        Raises:
            CouldNotLook: another run is there, or none.
        """
        now_s = self.context.author.clock.monotonic()
        if self._look is not None and self._look[0] == root and now_s < self._look[1]:
            return self._look[2]
        self.close()
        look = self.new_look(root, place)
        self._look = (root, now_s + LOOK_S, look)
        return look

    def new_look(self, root: RunRootFacts, place: Place) -> RunLook:
        """A look of now, which whoever asked closes.

        Raises:
            CouldNotLook: another run is there, or none.
        """
        context, run = self.context, self.run(root.run_id)
        judged = look_settings(
            place, context.author.clock, clock_margin_s=context.settings.clock_margin_s
        )
        judged = replace(judged, rules=tuple(context.rules_for(run.identity.name)))
        look = RunLook(place, root.path, judged, partial=place.node is not None)
        try:
            self._require_run(root, place, look.identity)
        except CouldNotLook:
            look.close()
            raise
        return look

    def _require_run(self, root: RunRootFacts, place: Place, identity: RunIdentity | None) -> None:
        if identity is None or identity.run_id != root.run_id:
            raise CouldNotLook(
                f"{place.root}/{root.path}: run {self.run(root.run_id).identity.name!r} is not "
                "there",
                hint="is it mounted? 'ckptgov scan' tells what lies there",
            )

    def close(self) -> None:
        """End the look that may be open."""
        if self._look is not None:
            self._look[2].close()
            self._look = None

    def require_same_time(self, removals: Iterable[tuple[str, str]]) -> None:
        """Compare clocks at every place of these (run id, place) that is reached from here.

        Raises:
            RefusedBySafety: one of them is too far off; nothing may be removed.
        """
        done: set[str] = set()
        for run_id, place in removals:
            roots = self.roots(run_id, place)
            if place in done or not roots or not self.is_here(place):
                continue
            try:
                opened = self.place(place)
                require_same_time(
                    opened.storage,
                    roots[0].sidecar,
                    now_ns=self.context.catalog.now_ns,
                    new_id=self.context.author.new_id,
                    what=f"tier {opened.tier}",
                )
            except CouldNotLook:
                continue  # every removal there meets the same, and says so
            done.add(place)

    @contextmanager
    def paced(self, place: Place, what: str) -> Iterator[Place]:
        """The place within its tier's budgets, freed when it hangs; a local disk as it is."""
        tier = self.context.tier_of(place.root, place.node)
        is_free = tier is None or tier.budget == Budget()
        if is_free and not place.storage.filesystem().is_network:
            yield place
            return
        with moving(
            self.context, what=what, flow_class=FlowClass.BACKGROUND, bytes_=0, target=place
        ) as movement:
            yield replace(place, storage=movement.writing(place))

    def is_deletion(self, plan_id: str) -> bool:
        """Whether a plan is a person's wish that a whole run goes."""
        if plan_id not in self._deletions:
            stored = self.context.catalog.plans.plan(plan_id)
            entries = stored.plan.entries if stored is not None else ()
            self._deletions[plan_id] = any(
                why.reason == DropReason.RUN_DELETED for entry in entries for why in entry.why
            )
        return self._deletions[plan_id]

    def step_of(
        self,
        removal: Removal,
        went: Went,
        text: str,
        *,
        bytes_: int | None = None,
        files: int | None = None,
        due_at_ns: int | None = None,
    ) -> RemovalStep:
        """What is told of one removal."""
        place = self._places[removal.place]
        sealed = self.context.catalog.sealed_of(removal.run_id, [removal.content_id])
        known = sealed.get(removal.content_id)
        return RemovalStep(
            run=self.run(removal.run_id).identity.name,
            checkpoint=removal.name,
            content_id=removal.content_id,
            step=known.step if known is not None else None,
            tier=place.tier,
            node=place.node,
            place=removal.place,
            action=removal.action,
            went=went,
            bytes=removal.bytes if bytes_ is None else bytes_,
            files=removal.files if files is None else files,
            text=text,
            due_at_ns=due_at_ns,
        )

    def error_of(self, steps: Iterable[RemovalStep]) -> CkptgovError | None:
        """What a call ends with: nothing, what could not be looked at, or how much did not go."""
        told = list(steps)
        wrong = [one for one in told if one.went in WENT_WRONG]
        if not wrong:
            is_cut = self.stop() and any(one.went is Went.WAITING for one in told)
            return (
                Interrupted("told to stop; the rest is left for the next apply") if is_cut else None
            )
        unseen = [one for one in self.errors if isinstance(one, CouldNotLook)]
        if len(wrong) == len(told) == len(unseen):
            return unseen[0]
        return PartlyDone(
            f"{len(wrong)} of {len(told)} did not go; first: {wrong[0].checkpoint} on "
            f"{wrong[0].tier}: {wrong[0].text}",
            hint="'ckptgov apply' tries again what resisted; what changed is for the next plan",
        )


def require_same(context: Context, removal: Removal) -> None:
    """See that nobody else went on with a removal meanwhile.

    Raises:
        StaleState: somebody did, or it is another removal of the same copy by now.
        RefusedBySafety: another ckptgov has migrated the catalog meanwhile.
    """
    context.catalog.require_current()
    now = context.catalog.removals.removal(removal.run_id, removal.content_id, removal.place)
    if now is None or (now.state, now.condemned_at_ns) != (removal.state, removal.condemned_at_ns):
        raise StaleState(f"{removal.name}: another process went on with its removal")


def moved_by_now(context: Context, removal: Removal) -> Removal:
    """A removal as it is once its copy was moved aside.

    Raises:
        StaleState: it is no longer in the trash: somebody else went on.
    """
    now = context.catalog.removals.removal(removal.run_id, removal.content_id, removal.place)
    if now is None or now.state is not CopyState.TRASHED:
        raise StaleState(f"{removal.name}: another process went on with its removal")
    return now


def bury(removing: Removing, removal: Removal, look: RunLook) -> None:
    """Write the tombstone of a copy to the run's home and to its place, unless it stands.

    The last moment before anything is touched: what was read of the copy until now is of the
    removal that still stands, however long this process was stopped in between.

    Raises:
        StaleState: somebody else went on, or what lies there was brought there anew since.
        StorageError: the home does not take it.
    """
    context, name = removing.context, removing.run(removal.run_id).identity.name
    require_same(context, removal)
    run = standing_run(context, name, node=None)
    records = [*run.records, *look.records]
    standing = standing_tombstones(records, removal.place).get(removal.content_id)
    if standing is not None and standing.plan_id == removal.plan_id:
        _require_old(look, removal, records)
        return
    what = "the checkpoint goes" if removal.action is Action.PRUNE else "other copies stay"
    record = Tombstone(
        stamp=context.author.stamp(removal.run_id, reason=f"removed by plan; {what}"),
        content_id=removal.content_id,
        place=removal.place,
        plan_id=removal.plan_id,
    )
    write_record(context, run, record, look.store)


def _require_old(look: RunLook, removal: Removal, records: list[NumberedRecord]) -> None:
    """See that the manifest that stands is the one whose removal was begun before."""
    leaving = Leaving(look.store, removal.place, records)
    for stored in look.store.manifests_of(removal.content_id):
        if leaving.counts(stored, look.store.manifest(stored)):
            raise StaleState(f"{removal.name}: was brought there anew since")


def write_record(
    context: Context, run: StandingRun, record: Tombstone | Undelete, store: RunStore
) -> None:
    """Append to the run's home, copy to its other places, mirror in the catalog.

    A run without a shared place has no home but the place of ``store`` itself.

    Raises:
        StorageError: neither takes it.
    """
    home = restart_journal.home_store(context, run)
    if home is None:
        store.append(record)
    restart_journal.append(context, run, home, record)
