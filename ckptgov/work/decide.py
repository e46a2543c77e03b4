"""Restart decisions: all ranks of one restart get the same checkpoint.

The first decision of (restart id, epoch) wins by a create-once record in the run's journal; all
others read it. A report that it could not be loaded opens the next epoch of the same id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import CouldNotLook, NeverAny, UsageError
from ckptgov.model.checkpoint import digits_of
from ckptgov.model.facts import CheckpointFacts, Choice, Query
from ckptgov.model.journal import NumberedRecord, Outcome, Restart, RestoreOutcome
from ckptgov.work.author import Author
from ckptgov.work.look import RunLook
from ckptgov.work.runstore import RunStore

MAX_RESTART_ID_BYTES = 1024

_OPENS_NEXT_EPOCH = frozenset(
    {RestoreOutcome.MISSING, RestoreOutcome.CORRUPT, RestoreOutcome.LOAD_FAILED}
)


class Decision(Struct, frozen=True, kw_only=True):
    """The one answer of a restart. ``choice`` is None for a rank that read another's decision."""

    restart: Restart
    chosen: CheckpointFacts
    choice: Choice | None
    decided_here: bool


def check_restart_id(restart_id: str) -> str:
    """Refuse an id that cannot name one restart.

    Raises:
        UsageError: it is empty, too long or holds control characters.
    """
    is_text = restart_id.isprintable() and restart_id.strip() == restart_id
    if not restart_id or not is_text or len(restart_id.encode()) > MAX_RESTART_ID_BYTES:
        raise UsageError(
            f"restart id {restart_id!r} is not usable",
            hint="compose it from what names one restart: scheduler run and attempt, "
            "TORCHELASTIC_RUN_ID, RESTART_COUNT and MASTER_PORT",
        )
    return restart_id


def standing_epoch(
    records: Sequence[NumberedRecord], restart_id: str
) -> tuple[Restart | None, int, frozenset[str]]:
    """The decision that stands, the epoch to decide next, and what may not be chosen again.

    The decision is None when the next epoch is open.
    """
    decisions = {
        item.record.epoch: item.record
        for item in records
        if isinstance(item.record, Restart) and item.record.restart_id == restart_id
    }
    failed = {
        (item.record.epoch, item.record.content_id)
        for item in records
        if isinstance(item.record, Outcome)
        and item.record.restart_id == restart_id
        and item.record.outcome in _OPENS_NEXT_EPOCH
    }
    without = frozenset(content_id for _, content_id in failed)
    if not decisions:
        return None, 0, without
    newest = max(decisions)
    if any(epoch == newest for epoch, _ in failed):
        return None, newest + 1, without
    return decisions[newest], newest, without


def decide(
    looks: Sequence[RunLook],
    home: RunStore,
    records: Sequence[NumberedRecord],
    *,
    restart_id: str,
    query: Query,
    run_id: Callable[[], str],
    author: Author,
    choose: Callable[[Query], Choice],
    seal: Callable[[CheckpointFacts], str],
) -> Decision:
    """Read the decision of this restart, or make it.

    ``choose`` gives the choice for a query (raising when there is none); ``seal`` gives the
    content id of the chosen checkpoint, sealing it if it must: a decision names bytes.

    Raises:
        CouldNotLook: the decision could not be written, or what it names is not to be found here.
    """
    check_restart_id(restart_id)
    standing, epoch, without = standing_epoch(records, restart_id)
    if standing is not None:
        return _read(standing, looks)
    choice = choose(replace(query, without=query.without | without))
    chosen = choice.chosen
    assert chosen is not None
    content_id = seal(chosen)
    own = Restart(
        stamp=author.stamp(run_id()),
        restart_id=restart_id,
        epoch=epoch,
        content_id=content_id,
    )
    won = home.publish_restart(own)
    if won.stamp.id != own.stamp.id:
        return _read(won, looks)
    return Decision(
        restart=won,
        chosen=replace(chosen, content_id=content_id),
        choice=choice,
        decided_here=True,
    )


def _read(restart: Restart, looks: Sequence[RunLook]) -> Decision:
    if restart.fresh or restart.content_id is None:
        raise NeverAny(f"restart {restart.restart_id} was decided as a fresh start")
    prefix = digits_of(restart.content_id)[:16]
    for look in looks:
        for stored in look.store.manifests():
            if stored.content_prefix != prefix:
                continue
            copy = look.sealed(stored)
            if copy is not None and copy.manifest.content_id == restart.content_id:
                facts = look.facts_of_sealed(copy)
                return Decision(restart=restart, chosen=facts, choice=None, decided_here=False)
    raise CouldNotLook(
        f"restart {restart.restart_id} epoch {restart.epoch} was decided for "
        f"{restart.content_id}, whose manifest is not here",
        hint="is the tier that holds it mounted? 'ckptgov report ... --outcome missing' opens "
        "the next epoch",
    )


def outcome_record(
    records: Sequence[NumberedRecord],
    *,
    restart_id: str,
    outcome: RestoreOutcome,
    epoch: int | None,
    run_id: str,
    author: Author,
    reason: str | None = None,
) -> Outcome:
    """The record of a rank's report about the start it was given.

    Raises:
        UsageError: nothing was decided for this restart id (and epoch).
    """
    check_restart_id(restart_id)
    decisions = {
        item.record.epoch: item.record
        for item in records
        if isinstance(item.record, Restart) and item.record.restart_id == restart_id
    }
    wanted = max(decisions, default=-1) if epoch is None else epoch
    decision = decisions.get(wanted)
    if decision is None or decision.content_id is None:
        raise UsageError(
            f"no checkpoint was decided for restart id {restart_id!r}"
            + (f" epoch {epoch}" if epoch is not None else ""),
            hint="report with the id and epoch that 'ckptgov latest --restart-id' gave",
        )
    return Outcome(
        stamp=author.stamp(run_id, reason=reason),
        content_id=decision.content_id,
        restart_id=restart_id,
        epoch=wanted,
        outcome=outcome,
    )
