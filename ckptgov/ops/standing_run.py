"""A run as the catalog knows it, without its checkpoints: places, journal, who can be reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlaceFacts, RecordFacts, RunFacts, RunRootFacts
from ckptgov.catalog.nodes import SILENCE_NS
from ckptgov.errors import CouldNotLook, UnknownRun
from ckptgov.manifest.forms.records import decode_record
from ckptgov.model.cluster import NodeFacts, NodeState
from ckptgov.model.facts import Note
from ckptgov.model.journal import (
    LineOpened,
    MarkBad,
    NumberedRecord,
    Outcome,
    Record,
    Rollback,
    Sealed,
    Stamp,
    UnmarkBad,
)
from ckptgov.model.settings import Settings
from ckptgov.ops.context import Context
from ckptgov.planning.lines import Lines, ordered, read_lines
from ckptgov.work import addresses

_RECORDS_REMEMBERED = 20_000
_ASKED_AGAIN_NS = 10**8
_JUDGING = Rollback | LineOpened | MarkBad | UnmarkBad | Outcome
_SAME_STEP = 1000
"""Attempts at one step that are looked through for the line a rollback went back to."""


class Site(Struct, frozen=True, kw_only=True):
    """A place of a run. ``why_not``: what keeps it out of reach; None: it can be reached.

    ``until_ns``: when that may be otherwise though nothing was committed, by this process's
    clock: a node that stays silent is out of reach then. None: not before something is committed.
    """

    place: PlaceFacts
    root: RunRootFacts
    why_not: str | None = None
    until_ns: int | None = None

    @property
    def address(self) -> str:
        """The absolute path or URL of the run root."""
        return addresses.join(self.place.root, self.root.path)


class StandingRun(Struct, frozen=True, kw_only=True):
    """A run's places, in the order their looks would have, and its judged journal.

    ``judging``: the records that say which checkpoints may be offered; the many others, decisions
    of restarts foremost, say nothing about that. ``is_plain``: no place has two roots of it, so
    that a copy's place tells where it lies.
    """

    name: str
    run_id: str
    sites: Mapping[str, Site]
    records: tuple[NumberedRecord, ...]
    judging: tuple[NumberedRecord, ...]
    lines: Lines
    is_plain: bool

    @property
    def home(self) -> Site | None:
        """The shared place that holds the run's journal; None where it has none."""
        return next((one for one in self.sites.values() if one.place.node is None), None)

    @property
    def unreachable(self) -> tuple[Note, ...]:
        """What could not be counted on, and why."""
        return tuple(
            Note("unreachable", one.place.root, one.why_not)
            for one in self.sites.values()
            if one.why_not is not None
        )

    @property
    def good_until_ns(self) -> int | None:
        """When what is said of it may change though nothing was committed."""
        return min((one.until_ns for one in self.sites.values() if one.until_ns), default=None)


def standing_run(context: Context, name: str, *, node: str | None) -> StandingRun:
    """Read a run from the catalog, its places ordered for an asker on ``node``.

    Raises:
        UnknownRun: no run has this name.
        CouldNotLook: none of its places can be reached, or not the one that holds its journal.
    """
    catalog = context.catalog
    run = catalog.run_by_name(name)
    if run is None:
        raise UnknownRun(
            f"no run {name!r} is registered",
            hint="'ckptgov run list' shows the runs; 'ckptgov scan DIR' registers one",
        )
    roots = catalog.roots_of(run.identity.run_id)
    sites = _sites(context, roots, node)
    found = _with_journal(catalog, run, sites, is_plain=len(sites) == len(roots))
    _require_home(found)
    return found


def _with_journal(
    catalog: Catalog, run: RunFacts, sites: Mapping[str, Site], *, is_plain: bool
) -> StandingRun:
    run_id = run.identity.run_id
    records = decoded(catalog.binding_records(run_id))
    judging = [one for one in records if isinstance(one.record, _JUDGING)]
    rollbacks = [one.record for one in judging if isinstance(one.record, Rollback)]
    judging += _sealed_before(catalog, run_id, rollbacks)
    return StandingRun(
        name=run.identity.name,
        run_id=run_id,
        sites=sites,
        records=records,
        judging=tuple(judging),
        lines=read_lines(judging),
        is_plain=is_plain,
    )


def decoded(facts: Iterable[RecordFacts]) -> tuple[NumberedRecord, ...]:
    """The records in the journal's order.

    Raises:
        Malformed: one does not decode; leaving it out could offer what must not be offered.
    """
    return tuple(ordered(NumberedRecord(one.number, _record(one.raw)) for one in facts))


@lru_cache(maxsize=_RECORDS_REMEMBERED)
def _record(raw: bytes) -> Record:
    return decode_record(raw, where="the catalog's copy of a record")


def _sealed_before(
    catalog: Catalog, run_id: str, rollbacks: Sequence[Rollback]
) -> Iterable[NumberedRecord]:
    """What was sealed at the steps that rollbacks went back to: it tells their parent lines.

    The catalog's binding records leave the many ``sealed`` ones out. Number 0 puts these before
    every rollback; those sealed after it are left out by its own stamp.
    """
    for rollback in rollbacks:
        step = rollback.to_step
        for one in catalog.newest(run_id, before=(step + 1, 0, 0), limit=_SAME_STEP):
            if one.step != step:
                break
            if one.sealed_at_ns > rollback.stamp.at_ns or one.line >= rollback.line:
                continue
            stamp = Stamp(
                id=f"{one.content_id}/{one.line}", run_id=run_id, at_ns=one.sealed_at_ns, by=""
            )
            sealed = Sealed(
                stamp=stamp,
                content_id=one.content_id,
                step=one.step,
                step_kind=one.step_kind,
                line=one.line,
                attempt=one.attempt,
            )
            yield NumberedRecord(0, sealed)


def _sites(context: Context, roots: Sequence[RunRootFacts], node: str | None) -> dict[str, Site]:
    places = {one.place: one for one in context.catalog.places()}
    beats = _Beats()
    if any(places[root.place].node is not None for root in roots):
        beats = _beats(context)
    found = [_site(context, places[root.place], root, beats) for root in roots]
    found.sort(key=lambda site: _nearness(site.place, node))
    sites: dict[str, Site] = {}
    for site in found:
        sites.setdefault(site.place.place, site)
    return sites


class _Beats(Struct, frozen=True, kw_only=True):
    """Nodes, and the time by the clock that their beats are stamped with (the catalog's).

    ``behind_ns``: how far that clock is behind this process's.
    """

    nodes: Mapping[str, NodeFacts] = {}
    now_ns: int = 0
    behind_ns: int = 0


def _beats(context: Context) -> _Beats:
    now_ns = context.catalog.now_ns()
    return _Beats(
        nodes={one.node: one for one in context.catalog.nodes.nodes()},
        now_ns=now_ns,
        behind_ns=context.author.clock.now_ns() - now_ns,
    )


def _nearness(place: PlaceFacts, node: str | None) -> tuple[int, int, int]:
    """Shared places first, the first of them is the journal's home; then the asking node's."""
    return (
        0 if place.node is None else 1,
        0 if place.node == node else 1,
        place.first_seen_at_ns,
    )


def _site(context: Context, place: PlaceFacts, root: RunRootFacts, beats: _Beats) -> Site:
    if not place.is_current:
        why_not = f"another place was met at {place.root} of tier {place.tier} since"
        return Site(place=place, root=root, why_not=why_not)
    facts = beats.nodes.get(place.node) if place.node is not None else None
    if facts is not None and facts.state is NodeState.DEAD:
        why_not = f"node {facts.node} was declared dead: {facts.reason or 'no reason'}"
        return Site(place=place, root=root, why_not=why_not)
    if is_here(context, place.node):
        if context.tier_of(place.root, place.node) is None:
            why_not = f"tier {place.tier} at {place.root} is not configured any more"
            return Site(place=place, root=root, why_not=why_not)
        return Site(place=place, root=root)
    return _remote_site(context.settings, place, root, facts, beats)


def is_here(context: Context, node: str | None) -> bool:
    """Whether this process reaches the place itself: a shared one, or a disk it sees as a path."""
    return node is None or context.here is None or node in context.here


def _remote_site(
    settings: Settings,
    place: PlaceFacts,
    root: RunRootFacts,
    facts: NodeFacts | None,
    beats: _Beats,
) -> Site:
    """A disk of another node: what its beat says. The agent alone has its tier configured."""
    if facts is None:
        why_not = f"node {place.node} was never heard of"
        return Site(place=place, root=root, why_not=why_not)
    timeout_s = settings.service.node_timeout_s
    if not facts.is_reachable(beats.now_ns, timeout_s=timeout_s):
        silent_s = (beats.now_ns - facts.beat_at_ns) / 1e9
        why_not = f"node {facts.node} was last heard of {silent_s:.0f} s ago"
        # Its next beat is told as a change, unless it comes sooner than that takes.
        until_ns = None
        if timeout_s * 1e9 <= SILENCE_NS:
            until_ns = beats.now_ns + beats.behind_ns + _ASKED_AGAIN_NS
        return Site(place=place, root=root, why_not=why_not, until_ns=until_ns)
    until_ns = facts.beat_at_ns + int(timeout_s * 1e9) + beats.behind_ns
    return Site(place=place, root=root, until_ns=until_ns)


def _require_home(run: StandingRun) -> None:
    """Without the journal's home nobody can tell what must not be offered."""
    home = run.home
    gone = run.unreachable
    if not run.sites:
        raise CouldNotLook(f"run {run.name} has no place", hint="'ckptgov scan DIR' gives it one")
    if home is not None and home.why_not is not None:
        raise CouldNotLook(home.why_not, hint="the run's journal lies there")
    if len(gone) == len(run.sites):
        raise CouldNotLook(gone[0].text)
