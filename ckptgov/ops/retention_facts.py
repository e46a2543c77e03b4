"""A registered run as retention sees it, read from the catalog one run at a time.

Storage is asked for two things only: whether a place is the one it is taken for, and, where a
policy wants it, which checkpoint the trainer's own state calls its best.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ckptgov.catalog.facts import PlacedCopy, PlaceFacts, RunFacts, SealedFacts
from ckptgov.errors import UnknownRun
from ckptgov.layouts.tree import join
from ckptgov.model.checkpoint import Purpose
from ckptgov.model.copies import REMOVED, CopyState
from ckptgov.model.journal import KIND_OF, Record, Restart
from ckptgov.model.policy import Policy
from ckptgov.model.retention import CheckpointToKeep, CopyToKeep, RunToKeep
from ckptgov.model.settings import Link
from ckptgov.ops.claims import LEASE
from ckptgov.ops.context import Context
from ckptgov.ops.lives import LifeFacts, life_facts
from ckptgov.ops.metrics_of import metrics_of
from ckptgov.ops.placed import held_of
from ckptgov.ops.recorded_best import recorded_best
from ckptgov.ops.retention_awaited import awaited_in, to_flush
from ckptgov.ops.retention_places import SeenPlaces
from ckptgov.ops.standing_facts import manifest_of
from ckptgov.ops.standing_run import Site, StandingRun, decoded, standing_run
from ckptgov.ops.start_points import start_points
from ckptgov.planning.choose import is_cleared, reported_unloadable
from ckptgov.planning.flushable import RunToFlush, standing_pins
from ckptgov.planning.lines import Lines, is_marked_bad

_NEVER_NS = -1
_NOT_THERE = REMOVED | {CopyState.LOST, CopyState.SIGHTED}
"""States of copies that count for nothing here."""
_TELLING = frozenset({"sealed", "metric"})
"""Kinds of records that carry metrics."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What a policy asks to know of a run; the rest is not read."""

    links: tuple[Link, ...] = ()
    metrics: bool = False
    recorded_best: bool = False


def wanted_by(policy: Policy | None, links: Sequence[Link]) -> Wanted:
    """What has to be read of a run; ``links`` are those that carry its checkpoints."""
    if policy is None:
        return Wanted(links=tuple(links))
    rules = [*policy.keep.values(), *policy.weights.values()]
    if policy.lifecycle.retired_keep is not None:
        rules.append(policy.lifecycle.retired_keep)
    return Wanted(
        links=tuple(links),
        metrics=any(one.best for one in rules),
        recorded_best=any(one.recorded_best for one in rules),
    )


class _Told(Struct, frozen=True, kw_only=True):
    """A record as far as it tells of life."""

    kind: str
    at_ns: int

    @classmethod
    def of(cls, record: Record) -> _Told:
        return cls(kind=KIND_OF[type(record)], at_ns=record.stamp.at_ns)


class RetentionFacts:
    """Facts of many runs for one plan; what runs share is read once."""

    def __init__(self, context: Context, *, now_ns: int) -> None:
        self._context = context
        self._now_ns = now_ns
        self._places = {one.place: one for one in context.catalog.places()}
        self._asked_at = context.catalog.signs.signs()
        self.seen = SeenPlaces(context)

    def of(self, run: RunFacts, wanted: Wanted) -> RunToKeep:
        """One run, as it stands in the catalog now.

        Raises:
            CkptgovError: it cannot be told what must stay of it; nothing may go.
        """
        standing = standing_run(self._context, run.identity.name, node=None)
        if standing.home is not None:
            self.seen.require(standing.home)
        return _OneRun(self._context, run, standing, wanted, self.seen, self._places).told(
            now_ns=self._now_ns, asked_at_ns=self._asked_at.get(standing.run_id)
        )


class _OneRun:
    """Reads everything of one run, once."""

    def __init__(
        self,
        context: Context,
        run: RunFacts,
        standing: StandingRun,
        wanted: Wanted,
        seen: SeenPlaces,
        places: Mapping[str, PlaceFacts],
    ) -> None:
        catalog, run_id = context.catalog, standing.run_id
        self._context = context
        self._run = run
        self._standing = standing
        self._wanted = wanted
        self._seen = seen
        self._places = places
        self._sealed = catalog.checkpoints(run_id)
        self._copies: dict[str, list[PlacedCopy]] = {}
        for copy in catalog.copies(run_id):
            self._copies.setdefault(copy.content_id, []).append(copy)
        self._claims = catalog.claims.claims(run_id)
        self._unloadable = reported_unloadable(standing.judging)

    def told(self, *, now_ns: int, asked_at_ns: int | None) -> RunToKeep:
        """The run as planning wants it."""
        standing = self._standing
        unseen = self._seen.unseen(standing.sites.values())
        life = self._life(asked_at_ns)
        return RunToKeep(
            run_id=standing.run_id,
            name=standing.name,
            path=path_of(standing.lines),
            line_replaced_at_ns=replaced_at(standing.lines),
            met_at_ns=self._run.created_at_ns,
            alive_at_ns=life.alive_at_ns,
            finished_at_ns=life.finished_at_ns,
            retired_at_ns=life.retired_at_ns,
            recorded_best=self._recorded_best() if self._wanted.recorded_best else None,
            checkpoints=tuple(self._checkpoints(now_ns, unseen)),
            unseen=unseen,
        )

    def _life(self, asked_at_ns: int | None) -> LifeFacts:
        sightings = self._context.catalog.sightings(self._standing.run_id)
        return life_facts(
            (_Told.of(one.record) for one in self._standing.records),
            met_at_ns=self._run.created_at_ns,
            saved_at_ns=max((one.sealed_at_ns for one in self._sealed), default=None),
            sighted_at_ns=max((one.first_seen_at_ns for one in sightings), default=None),
            asked_at_ns=asked_at_ns,
            claims=self._claims,
        )

    def _checkpoints(self, now_ns: int, unseen: frozenset[str]) -> Iterable[CheckpointToKeep]:
        records = self._standing.records
        standing = standing_pins(records, now_ns=now_ns)
        ever = standing_pins(records, now_ns=_NEVER_NS)
        marks = {one.content_id: self._mark(one) for one in self._sealed}
        awaited = self._awaited(marks, standing, unseen) if self._wanted.links else {}
        started = self._start_points()
        metrics = self._metrics() if self._wanted.metrics else {}
        leases: dict[str, set[str]] = {}
        for claim in self._claims:
            leases.setdefault(claim.content_id, set()).add(f"{LEASE}{claim.owner}")
        for sealed in self._sealed:
            key = sealed.content_id
            copies = [one for one in self._copies.get(key, ()) if one.state not in _NOT_THERE]
            if not copies:
                continue
            names = standing.get(key, frozenset())
            held = frozenset(name for name in names if name.startswith(LEASE))
            yield CheckpointToKeep(
                content_id=key,
                name=sealed.name,
                step=sealed.step,
                step_kind=sealed.step_kind,
                line=sealed.line,
                attempt=sealed.attempt,
                purposes=sealed.purposes,
                bytes=sealed.bytes,
                shard_count=sealed.shard_count,
                saved_at_ns=sealed.sealed_at_ns,
                mark=marks[key],
                pins=names - held,
                tags=_without_leases(ever.get(key, frozenset())),
                leases=held | leases.get(key, set()),
                is_start_point=key in started,
                awaited_by=frozenset(awaited.get(key, ())),
                metrics=tuple(sorted(metrics.get(key, {}).items())),
                copies=tuple(self._placed(sealed, copies, marked=marks[key] is not None)),
            )

    def _mark(self, one: SealedFacts) -> str | None:
        """Why it must not be offered, as ``latest`` says it."""
        mark = is_marked_bad(
            self._standing.judging, content_id=one.content_id, step=one.step, line=one.line
        )
        report = self._unloadable.get(one.content_id)
        if mark is not None or report is None:
            return mark
        copies = self._copies.get(one.content_id, ())
        if any(_is_verified(copy) and is_cleared(report, copy.verified_at_ns) for copy in copies):
            return None
        return f"restart {report.restart_id} reported {report.outcome.value} ({report.stamp.by})"

    def _state(self, copy: PlacedCopy) -> CopyState:
        """Its state; one that was reported corrupt since it was compared is to be compared again.

        So it is where another copy of the checkpoint was: else the checkpoint is marked.
        """
        report = self._unloadable.get(copy.content_id)
        if report is None or not _is_verified(copy) or is_cleared(report, copy.verified_at_ns):
            return copy.state
        return CopyState.REOPENED

    def _start_points(self) -> frozenset[str]:
        given = (
            one.record.content_id
            for one in self._standing.records
            if isinstance(one.record, Restart)
        )
        if not any(given):
            return frozenset()
        found = start_points(self._context, self._standing.name)
        return frozenset(one.content_id for one in found)

    def _metrics(self) -> dict[str, dict[str, str]]:
        facts = self._context.catalog.records(self._standing.run_id)
        return metrics_of(decoded(one for one in facts if one.kind in _TELLING))

    def _awaited(
        self,
        marks: Mapping[str, str | None],
        pins: Mapping[str, frozenset[str]],
        unseen: frozenset[str],
    ) -> dict[str, set[str]]:
        checkpoints = (
            to_flush(
                one,
                self._copies.get(one.content_id, ()),
                self._places,
                mark=marks[one.content_id],
                pins=pins.get(one.content_id, frozenset()),
            )
            for one in self._sealed
        )
        run = RunToFlush(
            run_id=self._standing.run_id,
            name=self._standing.name,
            lines=self._standing.lines,
            checkpoints=tuple(checkpoints),
            unseen=unseen,
        )
        return awaited_in(run, self._wanted.links)

    def _placed(
        self, sealed: SealedFacts, copies: Sequence[PlacedCopy], *, marked: bool
    ) -> Iterable[CopyToKeep]:
        sizes: list[int] | None = None
        for copy in copies:
            place, site = self._places[copy.place], self._standing.sites.get(copy.place)
            size, files = sealed.bytes, sealed.shard_count
            if copy.coverage is not None:
                if sizes is None:
                    sizes = self._shard_sizes(sealed)
                size, files = held_of(sizes, copy.coverage)
            yield CopyToKeep(
                place=copy.place,
                tier=place.tier,
                node=place.node,
                state=copy.state if marked else self._state(copy),
                coverage=copy.coverage,
                bytes=size,
                files=files,
                verified_at_ns=copy.verified_at_ns,
                is_reachable=site is not None and self._seen.why_not(site) is None,
                is_governed=self._seen.is_governed(place),
            )

    def _shard_sizes(self, sealed: SealedFacts) -> list[int]:
        manifest = manifest_of(self._context.catalog, sealed.run_id, sealed.content_id)
        return [shard.bytes for shard in manifest.shards]

    def _recorded_best(self) -> str | None:
        """By the newest whole copy on a shared tier, and only from there."""
        for one in sorted(self._sealed, key=_order, reverse=True):
            found = self._restorable_at(one)
            if found is None:
                continue
            copy, site = found
            tier = self._context.tier_of(site.place.root, site.place.node)
            assert tier is not None, "its place was looked at"
            directory = join(site.root.path, copy.name)
            return recorded_best(self._context.place(tier).storage, directory)
        return None

    def _restorable_at(self, one: SealedFacts) -> tuple[PlacedCopy, Site] | None:
        if one.step is None or not self._standing.lines.includes(one.line, one.step):
            return None
        if Purpose.RESUME not in one.purposes or self._mark(one) is not None:
            return None
        for copy in self._copies.get(one.content_id, ()):
            site = self._standing.sites.get(copy.place)
            is_whole = copy.state is CopyState.VERIFIED and copy.coverage is None
            if site is None or site.place.node is not None or not is_whole:
                continue
            if self._seen.why_not(site) is None:
                return copy, site
        return None


def path_of(lines: Lines) -> tuple[tuple[int, int | None], ...]:
    """The active line and its ancestors, each with the highest step of it that still counts."""
    path: list[tuple[int, int | None]] = []
    bound: int | None = None
    number: int | None = lines.active.number
    while number is not None and (line := lines.by_number.get(number)) is not None:
        path.append((number, bound))
        if line.base_step is not None:
            bound = line.base_step if bound is None else min(bound, line.base_step)
        number = line.parent
    return tuple(path)


def replaced_at(lines: Lines) -> tuple[tuple[int, int], ...]:
    """(line, since when what it holds beyond the path is replaced), by line.

    Where lines opened one after the other cut off more and more of it, since the last of them.
    """
    since: dict[int, int] = {}
    before: dict[int, int | None] = {}
    numbers = sorted(lines.by_number)
    for index, number in enumerate(numbers):
        known = Lines({each: lines.by_number[each] for each in numbers[: index + 1]})
        bounds = dict(path_of(known))
        for each in numbers[:index]:
            now = bounds.get(each, -1)  # off the path: nothing of it counts
            if before.get(each) != now:
                since[each] = lines.by_number[number].opened_at_ns
                before[each] = now
        before[number] = None
    return tuple(sorted(since.items()))


def run_named(context: Context, name: str) -> RunFacts:
    """The registered run of this name.

    Raises:
        UnknownRun: there is none.
    """
    run = context.catalog.run_by_name(name)
    if run is None:
        raise UnknownRun(
            f"no run {name!r} is registered",
            hint="'ckptgov run list' shows the runs; 'ckptgov scan DIR' registers one",
        )
    return run


def _without_leases(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names if not name.startswith(LEASE))


def _order(one: SealedFacts) -> tuple[int, int, int]:
    return (one.step if one.step is not None else -1, one.line, one.attempt)


def _is_verified(copy: PlacedCopy) -> bool:
    return copy.state is CopyState.VERIFIED
