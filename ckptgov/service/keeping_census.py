"""Where retention stands, for metrics and alerts: plans, what is on its way out, room, dead runs.

Counted as the census counts: anew where something changed, and what is dear only after a rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.facts import EventFacts, EventKind, PlaceFacts
from ckptgov.catalog.samples import TierSample
from ckptgov.catalog.sums import LeavingSum
from ckptgov.config.policies import policy_for
from ckptgov.errors import ConfigError
from ckptgov.model.clock import Clock
from ckptgov.model.policy import DAY_S, Lifecycle
from ckptgov.model.retention import (
    Action,
    PlanRefusal,
    PlanState,
    RunLife,
    StoredPlan,
    TierOutlook,
)
from ckptgov.ops.capacity import TierFill, growth_at
from ckptgov.ops.context import Context
from ckptgov.ops.lives import LifeFacts, life_of
from ckptgov.ops.plan_upkeep import is_of_all, newest_of_all
from ckptgov.ops.policies import policies_in_force, tags_of
from ckptgov.ops.stored_plans import MOST_STANDING, STANDING
from ckptgov.service.serving import Serving

REST = 50
"""Something is counted again after so many times as long as counting it took."""
CAPS = ("max_count", "max_bytes", "max_fraction")
REASONS = ("emptied", *CAPS, "other")
"""Why a plan may not be applied as it is."""
_OVER = (PlanState.APPLIED, PlanState.REFUSED)
_DEAD = RunLife.DEAD


class RunAtRest(Struct, frozen=True, kw_only=True):
    """A run as the catalog's facts tell of its life; questions and readers are not among them."""

    run_id: str
    name: str
    life: LifeFacts
    bytes: int


class NewestPlan(Struct, frozen=True, kw_only=True):
    """The newest plan over all runs, summed. ``refusals`` by reason."""

    state: PlanState
    entries: Counter[Action]
    bytes: Counter[Action]
    refusals: Counter[str]
    outlooks: tuple[TierOutlook, ...]


class Room(Struct, frozen=True, kw_only=True):
    """One place as it was last measured. ``full_in_s`` None: unknown, or it does not fill."""

    sample: TierSample
    full_in_s: float | None


class Keeping(Struct, frozen=True, kw_only=True):
    """``plans``: those that still stand, by state; ``waiting_since_ns``: since when one over all
    runs, or the ones before it, waits for a person. ``resisting``: places where something does not
    go, and since when, as far as this process saw it. ``dead``: runs, and their bytes."""

    plans: Counter[PlanState] = Counter()
    waiting_since_ns: int | None = None
    newest: NewestPlan | None = None
    leaving: tuple[LeavingSum, ...] = ()
    resisting: tuple[tuple[str, int], ...] = ()
    rooms: tuple[Room, ...] = ()
    dead: tuple[int, int] = (0, 0)


class _Rests:
    """Counts that are made again only after ``REST`` times as long as they took."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def have(self, what: str, count: Callable[[], None]) -> None:
        """Count now, unless it rests."""
        began = self._clock.monotonic()
        if began < self._until.get(what, began):
            return
        count()
        ended = self._clock.monotonic()
        self._until[what] = ended + REST * (ended - began)


class KeepingCensus:
    """Part of a census; used by one thread at a time, ``told`` by any."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._catalog = serving.catalog
        self._rests = _Rests(serving.clock)
        self._waits: dict[str, int] = {}
        self._handed: tuple[int, int] | None = None
        self._are_plans_stale = True
        self._samples: tuple[TierSample, ...] = ()
        self._rooms: dict[str, Room] = {}
        self._told = Keeping()

    @property
    def told(self) -> Keeping:
        """As it was last counted."""
        return self._told

    def note(self, event: EventFacts) -> None:
        """Hear of everything that happens to plans, in its order."""
        detail = dict(event.detail)
        if event.kind is EventKind.PLAN_STORED:
            if detail.get("state") == PlanState.WAITING:
                self._begin_to_wait(detail["plan"], event.at_ns)
        elif event.kind is EventKind.PLAN_STATE:
            if detail.get("from") == PlanState.WAITING:
                self._handed = (event.at_ns, self._waits.pop(detail["plan"], event.at_ns))
        else:
            return
        self._are_plans_stale = True

    def _begin_to_wait(self, plan_id: str, at_ns: int) -> None:
        """One that takes another's place, in the same moment, waits since that one did."""
        replaces = self._handed is not None and self._handed[0] == at_ns
        self._waits[plan_id] = self._handed[1] if self._handed and replaces else at_ns

    def refresh(
        self, runs: Sequence[RunAtRest], places: Mapping[str, PlaceFacts], until: float
    ) -> bool:
        """Count what changed; whether nothing is left to count.

        Raises:
            CkptgovError: the catalog does not answer.
        """
        with self._serving.context("metrics") as context:
            if self._are_plans_stale:
                self._are_plans_stale = False
                self._count_plans()
            self._rests.have("leaving", self._count_leaving)
            self._rests.have("dead", lambda: self._count_dead(context, runs))
            return self._count_rooms(context, places, until)

    def _count_plans(self) -> None:
        book = self._catalog.plans
        standing = book.plans(states=STANDING, limit=MOST_STANDING)
        over = book.plans(states=_OVER, limit=MOST_STANDING)
        those = [newest_of_all(standing), newest_of_all(over)]
        newest = max(
            (one for one in those if one is not None),
            key=lambda one: one.stored_at_ns,
            default=None,
        )
        if newest is not None and newest.state in _OVER:
            newest = book.plan(newest.plan.plan_id)
        waits = [
            self._waits.get(one.plan.plan_id, one.stored_at_ns)
            for one in standing
            if one.state is PlanState.WAITING and is_of_all(one)
        ]
        self._tell(
            plans=Counter(one.state for one in standing),
            waiting_since_ns=min(waits, default=None),
            newest=None if newest is None else _summed(newest),
        )

    def _count_leaving(self) -> None:
        leaving, now_ns = self._catalog.leaving(), self._catalog.now_ns()
        known = dict(self._told.resisting)
        resisting = {one.place: known.get(one.place, now_ns) for one in leaving if one.resisting}
        self._tell(leaving=leaving, resisting=tuple(resisting.items()))

    def _count_dead(self, context: Context, runs: Sequence[RunAtRest]) -> None:
        """Few runs are quiet; only for those it matters whether somebody asks, or reads."""
        now_ns = self._catalog.now_ns()
        lifecycles = _lifecycles(context)
        quiet = [
            one for one in runs if life_of(one.life, lifecycles(one.name), now_ns=now_ns) is _DEAD
        ]
        if quiet:
            heard = self._heard()
            quiet = [
                one
                for one in quiet
                if life_of(
                    _alive_at(one.life, heard.get(one.run_id, 0)),
                    lifecycles(one.name),
                    now_ns=now_ns,
                )
                is _DEAD
            ]
        self._tell(dead=(len(quiet), sum(one.bytes for one in quiet)))

    def _heard(self) -> dict[str, int]:
        """When a run was last asked about, or will last be read, by its id."""
        heard = self._catalog.signs.signs()
        for one in self._catalog.claims.claims():
            heard[one.run_id] = max(one.ends_at_ns, heard.get(one.run_id, 0))
        return heard

    def _count_rooms(
        self, context: Context, places: Mapping[str, PlaceFacts], until: float
    ) -> bool:
        """Growth is dear: it is told anew of a place that was measured anew, as time allows."""
        self._rests.have("samples", self._read_samples)
        lasts_ns = int(context.settings.service.cadences["capacity"].slo_s * 1e9)
        now_ns = self._catalog.now_ns()
        is_done = True
        rooms: dict[str, Room] = {}
        for sample in self._samples:
            place = places.get(sample.place)
            if place is None or not place.is_current or sample.at_ns < now_ns - lasts_ns:
                continue
            known = self._rooms.get(sample.place)
            if known is None or known.sample != sample:
                if self._serving.clock.monotonic() > until:
                    is_done = False
                    if known is None:
                        continue
                else:
                    known = _room(context, place, sample)
            rooms[sample.place] = known
        self._rooms = rooms
        self._tell(rooms=tuple(rooms.values()))
        return is_done

    def _read_samples(self) -> None:
        self._samples = self._catalog.samples.newest()

    def _tell(self, **changes: object) -> None:
        self._told = replace(self._told, **changes)


def _room(context: Context, place: PlaceFacts, sample: TierSample) -> Room:
    fill = TierFill(
        tier=place.tier,
        node=place.node,
        place=place.place,
        used_bytes=sample.used_bytes,
        free_bytes=sample.free_bytes,
        total_bytes=sample.total_bytes,
        quota_bytes=sample.quota_bytes,
    )
    grows = growth_at(context, fill)
    days = None if grows is None else grows.full_in_days
    return Room(sample=sample, full_in_s=None if days is None else days * DAY_S)


def _alive_at(life: LifeFacts, at_ns: int) -> LifeFacts:
    return replace(life, alive_at_ns=max(at_ns, life.alive_at_ns))


def _lifecycles(context: Context) -> Callable[[str], Lifecycle]:
    """The lifecycle of a run by its name. While a policy is wrong, what holds without one."""
    try:
        policies = policies_in_force(context)
    except ConfigError:
        policies = ()

    def lifecycle(run: str) -> Lifecycle:
        try:
            policy = policy_for(policies, run, tags_of(context.settings, run))
        except ConfigError:
            policy = None
        return Lifecycle() if policy is None else policy.lifecycle

    return lifecycle


def _summed(one: StoredPlan) -> NewestPlan:
    entries: Counter[Action] = Counter()
    size: Counter[Action] = Counter()
    for entry in one.plan.entries:
        entries[entry.action] += 1
        size[entry.action] += entry.bytes
    return NewestPlan(
        state=one.state,
        entries=entries,
        bytes=size,
        refusals=Counter(_reason(each) for each in one.plan.refusals),
        outlooks=one.plan.tiers,
    )


def _reason(refusal: PlanRefusal) -> str:
    """The cap that its words name, or what no approval lifts: a closed set."""
    if not refusal.is_cap:
        return "emptied"
    return next((cap for cap in CAPS if f"({cap})" in refusal.text), "other")
