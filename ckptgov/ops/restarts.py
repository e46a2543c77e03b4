"""Restart decisions of a service: one answer per (run, restart id, epoch) for any number of ranks.

Where the run has a shared place, the create-once record in its journal there decides, as it does
for a command line without a service; the catalog's row and its copy of the record are an index.
Where it has none, the catalog's row decides, written in the transaction in which the choice was
evaluated. Whatever is handed out was seen to lie there, once, by whoever decided.

A decision is a lease on its checkpoint: ``start_points`` tells which still hold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import CkptgovError, CouldNotLook, NeverAny, NoneRestorable
from ckptgov.manifest.forms.manifests import decode_manifest_header
from ckptgov.model.answers import LatestAnswer, RestartAnswer
from ckptgov.model.facts import CheckpointFacts, Choice, Query, Verdict
from ckptgov.model.journal import NumberedRecord, Outcome, Record, Restart, RestoreOutcome
from ckptgov.ops import restart_journal
from ckptgov.ops.context import Context
from ckptgov.ops.standing import (
    Walk,
    answer_with,
    checkpoint_named,
    is_untouched,
    node_asking,
    walk_newest,
    why_none,
)
from ckptgov.ops.standing_check import is_there
from ckptgov.ops.standing_run import StandingRun, standing_run
from ckptgov.work.decide import check_restart_id, outcome_record, standing_epoch
from ckptgov.work.runstore import RunStore

_MOST_TRIES = 100
"""Each try that fails has seen another's decision, a changed copy or a new record."""

T = TypeVar("T")
Opened = Callable[[str | None], AbstractContextManager[Context]]


class AskedRestart(Struct, frozen=True, kw_only=True):
    """What one rank asks. ``allow_fresh``: a run that never had a checkpoint may begin at zero."""

    run: str
    restart_id: str
    query: Query = Query()
    node: str | None = None
    place: str | None = None
    allow_fresh: bool = False


class Decided(Struct, frozen=True, kw_only=True):
    """A decision as it stands. ``chosen`` None: a fresh start."""

    run: StandingRun
    restart: Restart
    chosen: CheckpointFacts | None
    choice: Choice
    decided_here: bool


class Restarts:
    """The decisions of one process. Ranks that ask at once are served by one look."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._shared: _Shared[Decided] = _Shared()

    def decide(self, asked: AskedRestart, *, by: str | None = None) -> LatestAnswer:
        """The checkpoint of this restart, the same for everyone who gives its id.

        A fresh start is told as NeverAny with ``restart`` set; every other error comes without:
        nothing was decided.
        """
        key = (asked.run, asked.restart_id, asked.query, asked.allow_fresh)
        try:
            check_restart_id(asked.restart_id)

            def work() -> Decided:
                with self._opened(by) as context:
                    return decide(context, asked)

            decided, is_mine = self._shared.run(key, work)
            with self._opened(by) as context:
                node = node_asking(context.catalog, asked.node, asked.place)
        except CkptgovError as error:
            return LatestAnswer(
                run=asked.run,
                choice=Choice(chosen=None, verdicts=()),
                chosen=None,
                error=error,
            )
        return _answer(decided, node=node, decided_here=decided.decided_here and is_mine)


def _answer(decided: Decided, *, node: str | None, decided_here: bool) -> LatestAnswer:
    restart = RestartAnswer(
        restart_id=decided.restart.restart_id,
        epoch=decided.restart.epoch,
        decided_here=decided_here,
    )
    if decided.chosen is None:
        return LatestAnswer(
            run=decided.run.name,
            choice=decided.choice,
            chosen=None,
            restart=restart,
            error=NeverAny(f"restart {restart.restart_id} was decided as a fresh start"),
        )
    return answer_with(decided.run, decided.choice, decided.chosen, node=node, restart=restart)


def decide(context: Context, asked: AskedRestart) -> Decided:
    """Read the decision of this restart, or make it.

    Raises:
        UnknownRun, NoneRestorable: as ``latest``; nothing was decided.
        NeverAny: there is nothing to start from, and a fresh start was not allowed.
        CouldNotLook: the journal or what was decided cannot be reached.
    """
    for _ in range(_MOST_TRIES):
        run = standing_run(context, asked.run, node=None)
        store = restart_journal.home_store(context, run)
        if store is not None and restart_journal.catch_up(context, run, store, asked.restart_id):
            continue
        standing, epoch, without = standing_epoch(run.records, asked.restart_id)
        if standing is not None:
            return _read(context, run, standing)
        query = replace(asked.query, without=asked.query.without | without)
        made = _make(context, run, store, replace(asked, query=query), epoch)
        if made is not None:
            return made
    raise CouldNotLook(
        f"restart {asked.restart_id}: what could be chosen changed {_MOST_TRIES} times meanwhile",
        hint="ask again",
    )


def _make(
    context: Context,
    run: StandingRun,
    store: RunStore | None,
    asked: AskedRestart,
    epoch: int,
) -> Decided | None:
    """Decide this epoch; None where something changed meanwhile."""
    walk = walk_newest(context, run, asked.query)
    chosen = walk.choice.chosen
    if chosen is None:
        return _begin_fresh(context, walk, store, asked, epoch)
    assert chosen.content_id is not None
    if not is_there(context, run, chosen):
        return None
    own = Restart(
        stamp=context.author.stamp(run.run_id),
        restart_id=asked.restart_id,
        epoch=epoch,
        content_id=chosen.content_id,
    )
    with context.catalog.transaction():
        if not _still_stands(context, asked, epoch, chosen.content_id):
            return None
        if store is None:
            own = _decided_by_row(context, run, own)
    return _published(context, run, store, own, walk.choice, chosen)


def _still_stands(context: Context, asked: AskedRestart, epoch: int, content_id: str) -> bool:
    """Whether nobody has decided, and what was chosen may still be handed out."""
    run = standing_run(context, asked.run, node=None)
    standing, now, _without = standing_epoch(run.records, asked.restart_id)
    if standing is not None or now != epoch:
        return False
    choice = walk_newest(context, run, asked.query).choice
    return any(
        one.is_restorable and one.checkpoint.content_id == content_id for one in choice.verdicts
    )


def _decided_by_row(context: Context, run: StandingRun, own: Restart) -> Restart:
    """Inside the transaction: the row decides, and its record tells whoever reads the journal."""
    stands = context.catalog.decide(
        run.run_id, own.restart_id, own.epoch, own.content_id, own.fresh
    )
    own = replace(own, content_id=stands[0], fresh=stands[1])
    restart_journal.put(context, run.run_id, [NumberedRecord(0, own)])
    return own


def _published(
    context: Context,
    run: StandingRun,
    store: RunStore | None,
    own: Restart,
    choice: Choice,
    chosen: CheckpointFacts | None,
) -> Decided:
    won = own if store is None else store.publish_restart(own)
    if store is not None:
        restart_journal.index(context, run.run_id, won)
    content_id = chosen.content_id if chosen is not None else None
    is_ours = won.stamp.id == own.stamp.id
    if (won.content_id, won.fresh) != (content_id, chosen is None):
        return _read(context, run, won)
    return Decided(run=run, restart=won, chosen=chosen, choice=choice, decided_here=is_ours)


def _begin_fresh(
    context: Context,
    walk: Walk,
    store: RunStore | None,
    asked: AskedRestart,
    epoch: int,
) -> Decided | None:
    """A fresh start, where one was asked for and nothing at all is there; otherwise the error."""
    run = walk.run
    if epoch > 0 or not is_untouched(context.catalog, walk):
        raise why_none(walk)
    _look_at_empty_places(context, run)
    if not asked.allow_fresh:
        raise NeverAny(f"{run.name}: there never was a checkpoint")
    own = Restart(
        stamp=context.author.stamp(run.run_id),
        restart_id=asked.restart_id,
        epoch=epoch,
        fresh=True,
    )
    with context.catalog.transaction():
        now = standing_run(context, asked.run, node=None)
        standing, _epoch, _without = standing_epoch(now.records, asked.restart_id)
        again = walk_newest(context, now, asked.query)
        if standing is not None or not is_untouched(context.catalog, again):
            return None
        if store is None:
            own = _decided_by_row(context, run, own)
    return _published(context, run, store, own, walk.choice, None)


def _look_at_empty_places(context: Context, run: StandingRun) -> None:
    """See for ourselves that every place of the run answers, is this run's, and holds nothing.

    Raises:
        CouldNotLook: a place does not answer, or its root is not this run's.
        NoneRestorable: something lies there.
    """
    asked = context.asked(run.name, sealed_only=False)
    if asked is None or asked.unreachable:
        why = asked.unreachable[0].text if asked is not None else f"run {run.name} went away"
        raise CouldNotLook(
            f"a fresh start needs every place of the run to be seen empty, and {why}"
        )
    for look in asked.looks:
        where = f"{look.place.root}/{look.run_root}".rstrip("/")
        if look.identity is None or look.identity.run_id != run.run_id:
            raise CouldNotLook(f"{where}: the run's identity is not there", hint="is it mounted?")
        if not look.is_untouched():
            raise NoneRestorable(
                f"{where}: something lies there that the catalog does not know yet",
                hint="'ckptgov scan' looks at it",
            )


def _read(context: Context, run: StandingRun, restart: Restart) -> Decided:
    """What was decided, as it stands now: the same answer, whatever became newer since.

    Raises:
        CouldNotLook: it is not known here, or none of its copies can be reached.
    """
    if restart.fresh or restart.content_id is None:
        nothing = Choice(chosen=None, verdicts=())
        return Decided(run=run, restart=restart, chosen=None, choice=nothing, decided_here=False)
    chosen = _decided_checkpoint(context, run, restart.content_id)
    if chosen is None or not any(copy.is_reachable for copy in chosen.copies):
        raise CouldNotLook(
            f"restart {restart.restart_id} epoch {restart.epoch} was decided for "
            f"{restart.content_id}, and no copy of it can be reached",
            hint="'ckptgov report ... --outcome missing' opens the next epoch; a checkpoint that "
            "was never scanned here becomes known by 'ckptgov scan'",
        )
    choice = Choice(chosen=chosen, verdicts=(Verdict(checkpoint=chosen, findings=()),))
    return Decided(run=run, restart=restart, chosen=chosen, choice=choice, decided_here=False)


def _decided_checkpoint(
    context: Context, run: StandingRun, content_id: str
) -> CheckpointFacts | None:
    try:
        raw = context.catalog.manifest_bytes(run.run_id, content_id)
    except FileNotFoundError:
        return None
    step = decode_manifest_header(raw, where=f"the catalog's manifest of {content_id}").step
    return checkpoint_named(context, run, content_id, step=step)


def report(
    context: Context,
    run_name: str,
    *,
    restart_id: str,
    outcome: RestoreOutcome,
    epoch: int | None = None,
    reason: str | None = None,
    dry_run: bool = False,
) -> Record:
    """What became of a start, as a record; ranks that report the same make one.

    Raises:
        UnknownRun, CouldNotLook: as ``decide``.
        UsageError: nothing was decided for this id and epoch.
    """
    run = standing_run(context, run_name, node=None)
    store = restart_journal.home_store(context, run)
    if store is not None and restart_journal.catch_up(context, run, store, restart_id):
        run = standing_run(context, run_name, node=None)
    record = outcome_record(
        run.records,
        restart_id=restart_id,
        outcome=outcome,
        epoch=epoch,
        run_id=run.run_id,
        author=context.author,
        reason=reason,
    )
    known = _reported(run, record)
    if known is None and not dry_run:
        restart_journal.append(context, run, store, record)
    return known or record


def _reported(run: StandingRun, record: Outcome) -> Outcome | None:
    """The same report of another rank."""
    told = (record.restart_id, record.epoch, record.outcome)
    for item in run.records:
        one = item.record
        if isinstance(one, Outcome) and (one.restart_id, one.epoch, one.outcome) == told:
            return one
    return None


class _Flight(Generic[T]):
    def __init__(self) -> None:
        self.done = threading.Event()
        self.found: T | None = None
        self.error: BaseException | None = None

    def result(self) -> T:
        self.done.wait()
        if self.error is not None:
            raise self.error
        assert self.found is not None
        return self.found


class _Shared(Generic[T]):
    """One call for all who wait: each is served by one that began after it came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, _Flight[T]] = {}
        self._next: dict[Hashable, _Flight[T]] = {}

    def run(self, key: Hashable, work: Callable[[], T]) -> tuple[T, bool]:
        """What ``work`` gives, and whether it was this caller's."""
        with self._lock:
            before = self._under_way.get(key)
            joined = self._next.get(key)
            if joined is None:
                mine = _Flight[T]()
                (self._under_way if before is None else self._next)[key] = mine
        if joined is not None:
            return joined.result(), False
        if before is not None:
            before.done.wait()
            with self._lock:
                self._under_way[key] = self._next.pop(key)
        return self._led(key, mine, work), True

    def _led(self, key: Hashable, mine: _Flight[T], work: Callable[[], T]) -> T:
        try:
            mine.found = work()
        except BaseException as error:
            mine.error = error
        with self._lock:
            if self._under_way.get(key) is mine:
                del self._under_way[key]
        mine.done.set()
        return mine.result()
