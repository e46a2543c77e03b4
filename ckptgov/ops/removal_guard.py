"""What must stand after a removal, from the facts of now: the catalog's guard is given this.

It is worked out apart from the plan, from the journal and the settings, and judged by the catalog
against its own rows within the transaction that condemns or begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from ckptgov.catalog.facts import RunFacts, SealedFacts
from ckptgov.catalog.guards import Guard
from ckptgov.manifest.names import parse_record_file_name, parse_restart_file_name
from ckptgov.model.copies import CopyState
from ckptgov.model.journal import KIND_OF, Outcome, Restart
from ckptgov.model.policy import Floors, Lifecycle, Policy
from ckptgov.ops import restart_journal
from ckptgov.ops.context import Context
from ckptgov.ops.lives import read_life, retired_since_ns
from ckptgov.ops.retention_facts import path_of
from ckptgov.ops.retention_places import SeenPlaces
from ckptgov.ops.standing_run import StandingRun, standing_run
from ckptgov.ops.start_points import start_points
from ckptgov.planning.choose import is_cleared, reported_unloadable
from ckptgov.planning.flushable import standing_pins
from ckptgov.planning.lines import is_marked_bad

_STANDING = frozenset({CopyState.VERIFIED, CopyState.CONDEMNED})
"""A condemned copy still counts for what would be missed."""


class Guarded(Struct, frozen=True, kw_only=True):
    """A run under its policy. ``is_deletion``: a person asked for all of it to go."""

    run: RunFacts
    policy: Policy | None
    is_deletion: bool = False


def catch_up(context: Context, name: str) -> None:
    """Take over what the journal at the run's home says and the catalog does not know yet.

    Pins, marks and restart decisions may have been written there without this catalog. Touches
    storage: to be called before the transaction that relies on it.

    Raises:
        CouldNotLook: the home does not answer; nothing of the run may be removed.
    """
    run = standing_run(context, name, node=None)
    store = restart_journal.home_store(context, run)
    if store is None:
        return
    known = {(one.number, KIND_OF[type(one.record)]) for one in run.records}
    decided = sum(isinstance(one.record, Restart) for one in run.records)
    try:
        names = [entry.name for entry in store.storage.list(f"{store.sidecar}/journal")]
    except FileNotFoundError:
        return
    numbered = {parsed for one in names if (parsed := parse_record_file_name(one)) is not None}
    restarts = sum(parse_restart_file_name(one) is not None for one in names)
    is_new = any(kind not in ("sealed", "metric") for _, kind in numbered - known)
    if is_new or restarts > decided:
        restart_journal.put(context, run.run_id, store.journal().records)


def looked_around(context: Context, name: str) -> SeenPlaces:
    """Every place of a run looked at just now, so that no transaction has to.

    Raises:
        CouldNotLook: the one that holds its journal does not answer.
    """
    seen = SeenPlaces(context)
    run = standing_run(context, name, node=None)
    if run.home is not None:
        seen.require(run.home)
    for site in run.sites.values():
        seen.why_not(site)
    return seen


def guard_of(context: Context, guarded: Guarded, seen: SeenPlaces) -> Guard:
    """The guard of one run now. Reads the catalog; places that ``seen`` knows are not looked at.

    Raises:
        CouldNotLook: what must stay is not known.
    """
    run = standing_run(context, guarded.run.identity.name, node=None)
    now_ns = context.catalog.now_ns()
    policy = guarded.policy
    floors = policy.floors if policy is not None else Floors()
    max_age_s = context.settings.verify_max_age_s
    if policy is not None and policy.verify_max_age_s is not None:
        max_age_s = policy.verify_max_age_s
    doubts = _doubts(context, run)
    return Guard(
        path=path_of(run.lines),
        without=doubts.without,
        doubted=doubts.doubted,
        protected=tuple(_protected(context, run, now_ns)),
        reachable=frozenset(
            place for place, site in run.sites.items() if seen.why_not(site) is None
        ),
        min_restorable=floors.min_restorable,
        min_durable_copies=floors.min_durable_copies,
        compared_since_ns=now_ns - int(max_age_s * 1e9),
        may_be_emptied=_may_be_emptied(context, guarded, now_ns),
    )


class _Doubts(NamedTuple):
    """As the guard is told it: what does not count, and what counts only where it was compared."""

    without: frozenset[str]
    doubted: tuple[tuple[str, int], ...]


def _doubts(context: Context, run: StandingRun) -> _Doubts:
    unloadable = reported_unloadable(run.judging)
    without, doubted = set[str](), list[tuple[str, int]]()
    for one in context.catalog.checkpoints(run.run_id):
        report = unloadable.get(one.content_id)
        mark = is_marked_bad(run.judging, content_id=one.content_id, step=one.step, line=one.line)
        if mark is not None:
            without.add(one.content_id)
        elif report is not None and _is_cleared_somewhere(context, one, report):
            doubted.append((one.content_id, report.stamp.at_ns))
        elif report is not None:
            without.add(one.content_id)
    return _Doubts(frozenset(without), tuple(doubted))


def _is_cleared_somewhere(context: Context, one: SealedFacts, report: Outcome) -> bool:
    placed = context.catalog.copies_of(one.run_id, [one.content_id])[one.content_id]
    standing = (copy for copy in placed if copy.state in _STANDING)
    return any(is_cleared(report, copy.verified_at_ns) for copy in standing)


def _protected(context: Context, run: StandingRun, now_ns: int) -> Iterable[tuple[str, str]]:
    for content_id, names in standing_pins(run.records, now_ns=now_ns).items():
        yield content_id, f"pinned as {', '.join(sorted(names))}"
    for one in start_points(context, run.name):
        yield (
            one.content_id,
            f"restart {one.restart_id} began from it, and nothing newer is durable",
        )


def _may_be_emptied(context: Context, guarded: Guarded, now_ns: int) -> bool:
    """Whether the run's last checkpoints may go: it is retired, and a rule or a person says so."""
    lifecycle = guarded.policy.lifecycle if guarded.policy is not None else Lifecycle()
    run_id = guarded.run.identity.run_id
    asked_at_ns = context.catalog.signs.signs().get(run_id)
    life = read_life(context.catalog, guarded.run, asked_at_ns=asked_at_ns)
    if guarded.is_deletion:
        return life.retired_at_ns is not None
    since_ns = retired_since_ns(life, lifecycle, now_ns=now_ns)
    if since_ns is None or not lifecycle.retired_may_be_emptied:
        return False
    return now_ns >= since_ns + int(lifecycle.retired_after_s * 1e9)
