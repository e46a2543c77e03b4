"""Claims on checkpoints: which one a person means to keep, and what a reader holds while it reads.

A person's claim is a record in the run's journal: a pin. A lease is a pin that runs out, and beside
it a row in the catalog, where whoever removes sees it in the very transaction. A reader has such a
row alone, and renews it while bytes come.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ckptgov.errors import CkptgovError, LeaseLost, NoneRestorable, UnknownRun, UsageError
from ckptgov.model.copies import GONE
from ckptgov.model.journal import NumberedRecord, Pin, Record, Unpin
from ckptgov.planning.flushable import standing_pins
from ckptgov.planning.lines import Lines

if TYPE_CHECKING:
    from ckptgov.catalog.catalog import Catalog
    from ckptgov.ops.context import Context

LEASE: Final = "lease:"
"""How the names of pins begin that a running command holds."""

READ_TTL_S: Final = 60.0
READ_RENEW_S: Final = 15.0

_EVER_NS = -1  # a time at which none has run out
_LONGEST_NAME = 200
_LONGEST_S = 100 * 365 * 86400


class AtStep(Struct, frozen=True, kw_only=True):
    """One of the checkpoints that were sealed at a step. ``stands``: some of it still lies
    somewhere, or may: a place of the run cannot be looked at."""

    content_id: str
    line: int
    attempt: int
    stands: bool


def meant(run: str, step: int, found: Iterable[AtStep], lines: Lines) -> str:
    """The content id that a person means by a step: the newest attempt of those that stand.

    What the active line offers comes before what only an older line has.

    Raises:
        NoneRestorable: none was sealed, or all are gone.
    """
    every = list(found)
    standing = [one for one in every if one.stands]
    if not standing:
        what = "is gone" if every else "is sealed"
        none = "the checkpoint" if every else "no checkpoint"
        raise NoneRestorable(
            f"{run}: {none} of step {step} {what}",
            hint="'ckptgov list' shows the steps there are",
        )
    return max(
        standing, key=lambda one: (lines.includes(one.line, step), one.line, one.attempt)
    ).content_id


def pinned(
    run: str,
    step: int,
    name: str,
    records: Iterable[NumberedRecord],
    at_step: Container[str],
) -> str:
    """The checkpoint of a step that is pinned under a name, run out or not.

    Raises:
        UsageError: none of this step is.
    """
    names = standing_pins(records, now_ns=_EVER_NS)
    for content_id, held in names.items():
        if content_id in at_step and name in held:
            return content_id
    others = sorted({each for key, held in names.items() if key in at_step for each in held})
    hint = f"it is pinned under {', '.join(others)}" if others else "nothing pins it"
    raise UsageError(f"{run}: step {step} is not pinned under {name!r}", hint=hint)


def check_name(name: str) -> str:
    """A name for a pin as it may stand in a record and on a line.

    Raises:
        UsageError: empty, too long, or with characters that do not print.
    """
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise UsageError(
            f"{name!r} is no name for a pin",
            hint=f"write 1 to {_LONGEST_NAME} printable characters",
        )
    return name


def ends_at_ns(at_ns: int, ttl_s: float | None) -> int | None:
    """When a claim that is made at ``at_ns`` runs out; None: never.

    Raises:
        UsageError: at once, or in more than a hundred years.
    """
    if ttl_s is None:
        return None
    if not 0 < ttl_s <= _LONGEST_S:
        raise UsageError(
            f"a claim of {ttl_s:g} s",
            hint="it lasts more than 0 s and at most 100 years; without an end it is a pin",
        )
    return at_ns + int(ttl_s * 1e9)


def follow(catalog: Catalog, record: Record) -> None:
    """Claim in the catalog what a record leases, or let go of what it ends.

    A pin keeps a checkpoint; a lease keeps each of its copies where it lies, for a command reads it
    there. Of a checkpoint that this catalog does not know it removes nothing in any case.

    Raises:
        NoneRestorable: all that the catalog knows of is gone, or was being moved aside before.
    """
    if not isinstance(record, Pin | Unpin) or not record.pin_name.startswith(LEASE):
        return
    run_id, owner = record.stamp.run_id, record.pin_name.removeprefix(LEASE)
    held = [
        one
        for one in catalog.claims.claims(run_id)
        if (one.owner, one.content_id) == (owner, record.content_id)
    ]
    if isinstance(record, Pin) and record.until_ns is not None:
        with suppress(UnknownRun):
            catalog.claims.take(
                run_id,
                record.content_id,
                owner=owner,
                reason=record.stamp.reason or f"leased by {record.stamp.by}",
                ttl_s=(record.until_ns - record.stamp.at_ns) / 1e9,
            )
        placed = catalog.copies_of(run_id, [record.content_id])[record.content_id]
        if placed and all(one.state in GONE for one in placed):  # looked for once it is claimed
            raise NoneRestorable(
                "the checkpoint is being removed", hint="'ckptgov undelete' may bring it back"
            )
    for one in held:
        catalog.claims.release(one.lease_id)


class ReadClaim:
    """A reader's claim on a checkpoint, renewed whenever ``keep`` is asked and it is time.

    No thread is needed: movers ask between pieces whether to stop. Nothing here ends a restore: a
    catalog that does not answer, or a claim that ran out meanwhile, costs the protection for a
    while; what is then moved away under the reader it takes from another copy, or fails.
    """

    def __init__(self, context: Context, run_id: str, content_id: str, reason: str) -> None:
        self._context = context
        self._run_id = run_id
        self._content_id = content_id
        self._reason = reason
        self._clock = context.author.clock
        self._lock = threading.Lock()
        self._lease_id: str | None = None
        self._renewed = 0.0
        self._take()

    def keep(self) -> bool:
        """Renew it if it is time; always False, for a mover that asks whether to stop."""
        with self._lock:
            if self._clock.monotonic() - self._renewed >= READ_RENEW_S:
                self._renew()
        return False

    def release(self) -> None:
        """Let go of it."""
        if self._lease_id is not None:
            with suppress(CkptgovError):
                self._context.catalog.claims.release(self._lease_id)

    def _renew(self) -> None:
        self._renewed = self._clock.monotonic()
        if self._lease_id is None:
            self._take()
            return
        try:
            self._context.catalog.claims.renew(self._lease_id, ttl_s=READ_TTL_S)
        except LeaseLost:  # it ran out while this process was stopped
            self._take()
        except CkptgovError:
            pass  # the next piece tries again

    def _take(self) -> None:
        self._renewed = self._clock.monotonic()
        self._lease_id = None
        with suppress(CkptgovError):
            self._lease_id = self._context.catalog.claims.take(
                self._run_id,
                self._content_id,
                owner=self._context.author.by,
                reason=self._reason,
                ttl_s=READ_TTL_S,
            ).lease_id


@contextmanager
def reading(context: Context, run_id: str, content_id: str, *, reason: str) -> Iterator[ReadClaim]:
    """Hold a reader's claim for the block; for runs that this home's catalog knows."""
    claim = ReadClaim(context, run_id, content_id, reason)
    try:
        yield claim
    finally:
        claim.release()
