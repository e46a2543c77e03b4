"""Whether a run still lives: what people said of it, and the signs of life it gave.

A run is finished or retired because a person said so (a record), dead because nothing was heard of
it for so long. A record later than it that a checkpoint was sealed lifts a ``finish`` or a
``retire``: whoever saves again is at work again. Signs of life are saves, what a restart was given
or came to, pins and leases, readers, and a launcher's question; how many checkpoints there are does
not count, so that a run that crashed before its first one dies like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from ckptgov.errors import CkptgovError
from ckptgov.model.policy import Lifecycle
from ckptgov.model.retention import CheckpointLease, RunLife

if TYPE_CHECKING:
    from ckptgov.catalog.catalog import Catalog
    from ckptgov.catalog.facts import RunFacts


class Sign(StrEnum):
    """What a run was last heard of by."""

    MET = "met"  # nothing since the catalog met it
    SAVE = "save"
    SIGHTING = "sighting"  # something unsealed came to lie there
    RESTART = "restart"  # decided, or what came of it
    LEASE = "lease"  # pinned, leased, or let go
    READER = "reader"
    QUESTION = "question"


_SIGN_OF: Mapping[str, Sign] = {
    "sealed": Sign.SAVE,
    "restart": Sign.RESTART,
    "outcome": Sign.RESTART,
    "pin": Sign.LEASE,
    "unpin": Sign.LEASE,
}
"""Kinds of records that tell of life; what only a person says of the past (mark-bad) does not."""


class Told(Protocol):
    """A journal record as far as it is needed here: the catalog's copy of it has these."""

    @property
    def kind(self) -> str: ...

    @property
    def at_ns(self) -> int: ...


class LifeFacts(Struct, frozen=True, kw_only=True):
    """What is known of a run's life. ``alive_at_ns`` is its last sign of life, ``by`` what it was.

    ``finished_at_ns`` and ``retired_at_ns``: None where nobody said so, or where a later save
    lifted it. Times are those of the records, which their writers' clocks stamped; the others are
    the catalog's.
    """

    met_at_ns: int
    alive_at_ns: int
    by: Sign = Sign.MET
    saved_at_ns: int | None = None
    finished_at_ns: int | None = None
    retired_at_ns: int | None = None


def life_facts(
    records: Iterable[Told],
    *,
    met_at_ns: int,
    saved_at_ns: int | None = None,
    sighted_at_ns: int | None = None,
    asked_at_ns: int | None = None,
    claims: Iterable[CheckpointLease] = (),
) -> LifeFacts:
    """Everything that tells of one run's life, put together.

    ``records``: of every kind, or the binding ones with the newest save's time in ``saved_at_ns``.
    ``sighted_at_ns``: when something unsealed was first seen there. ``claims`` are living ones: a
    reader is at work until its claim ends.
    """
    signs: list[tuple[int, Sign]] = [(met_at_ns, Sign.MET)]
    ends: dict[str, int] = {}
    saved = [] if saved_at_ns is None else [saved_at_ns]
    for one in records:
        if one.kind in ("finish", "retire"):
            ends[one.kind] = max(one.at_ns, ends.get(one.kind, 0))
        elif one.kind == "sealed":
            saved.append(one.at_ns)
        elif one.kind in _SIGN_OF:
            signs.append((one.at_ns, _SIGN_OF[one.kind]))
    signs += [(at_ns, Sign.SAVE) for at_ns in saved]
    signs += [(one.ends_at_ns, Sign.READER) for one in claims]
    if sighted_at_ns is not None:
        signs.append((sighted_at_ns, Sign.SIGHTING))
    if asked_at_ns is not None:
        signs.append((asked_at_ns, Sign.QUESTION))
    alive_at_ns, by = max(signs)
    newest_save_ns = max(saved, default=None)
    return LifeFacts(
        met_at_ns=met_at_ns,
        alive_at_ns=alive_at_ns,
        by=by,
        saved_at_ns=newest_save_ns,
        finished_at_ns=_standing(ends.get("finish"), newest_save_ns),
        retired_at_ns=_standing(ends.get("retire"), newest_save_ns),
    )


def _standing(said_at_ns: int | None, newest_save_ns: int | None) -> int | None:
    """When it was said, unless a save came after it."""
    if said_at_ns is None or (newest_save_ns is not None and newest_save_ns > said_at_ns):
        return None
    return said_at_ns


def life_of(facts: LifeFacts, lifecycle: Lifecycle, *, now_ns: int) -> RunLife:
    """Where a run stands under its policy's lifecycle (without a policy: ``Lifecycle()``).

    Retired is what a person said, or what a policy makes of a run that has been dead for so long.
    A finished run is never called dead.
    """
    if retired_since_ns(facts, lifecycle, now_ns=now_ns) is not None:
        return RunLife.RETIRED
    if facts.finished_at_ns is not None:
        return RunLife.FINISHED
    return RunLife.DEAD if _is_dead(facts, lifecycle, now_ns) else RunLife.LIVE


def retired_since_ns(facts: LifeFacts, lifecycle: Lifecycle, *, now_ns: int) -> int | None:
    """Since when a run counts as retired; None: it does not."""
    if facts.retired_at_ns is not None:
        return facts.retired_at_ns
    after_s = lifecycle.retire_dead_after_s
    if after_s is None or facts.finished_at_ns is not None:
        return None
    if not _is_dead(facts, lifecycle, now_ns):
        return None
    since_ns = facts.alive_at_ns + int(max(after_s, lifecycle.dead_after_s) * 1e9)
    return since_ns if since_ns <= now_ns else None


def _is_dead(facts: LifeFacts, lifecycle: Lifecycle, now_ns: int) -> bool:
    return now_ns - facts.alive_at_ns >= int(lifecycle.dead_after_s * 1e9)


def read_life(catalog: Catalog, run: RunFacts, *, asked_at_ns: int | None = None) -> LifeFacts:
    """One run's life as the catalog knows it; ``asked_at_ns`` is its entry in ``signs``."""
    run_id = run.identity.run_id
    sightings = [one.first_seen_at_ns for one in catalog.sightings(run_id)]
    saves = [one.sealed_at_ns for one in catalog.checkpoints(run_id)]
    return life_facts(
        catalog.binding_records(run_id),
        met_at_ns=run.created_at_ns,
        saved_at_ns=max(saves, default=None),
        sighted_at_ns=max(sightings, default=None),
        asked_at_ns=asked_at_ns,
        claims=catalog.claims.claims(run_id),
    )


def asked(catalog: Catalog, run_id: str) -> None:
    """Note that a launcher asked for a run: a sign of life, written at most once an hour.

    A question never fails for it.
    """
    with suppress(CkptgovError):
        catalog.signs.asked(run_id)
