"""The flows that move bytes now, what they were granted, and who computes the grants.

A flow changes only its own row. Grants are written by the one holder of the allocator's lease,
and every such change names the lease's epoch: a former holder that was stopped and goes on is
refused. Connections here are fleeting ones: see ``database``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, bindparam, delete, select, update
from sqlmodel import col

from ckptgov.catalog.database import Database, within
from ckptgov.catalog.dialect import add_new, put
from ckptgov.catalog.flowfacts import Allocator, Beat, Grant, GrantChange, Rates, RegisteredFlow
from ckptgov.catalog.flowrows import flow_of, flow_values, grant_of, rates_of, rates_text
from ckptgov.catalog.rows import decoded
from ckptgov.catalog.tables import AllocatorRow, FlowRow, TierPaceRow
from ckptgov.errors import LeaseLost, StaleState

_FLOWS = select(FlowRow).order_by(col(FlowRow.flow_id))
_FLOW = select(FlowRow).where(col(FlowRow.flow_id) == bindparam("flow_id"))
_ALLOCATOR = select(AllocatorRow)
_PACES = select(TierPaceRow)
_ONLY = 1


class FlowBook:
    """Flows and grants. Every call is one transaction, or part of the caller's own."""

    def __init__(self, database: Database, fleeting: Database) -> None:
        self._database = database
        self._fleeting = fleeting

    def open(self, flow: RegisteredFlow) -> None:
        """Register a flow.

        Raises:
            FileExistsError: one of this id is registered.
        """
        with self._writing() as connection:
            if not add_new(connection, FlowRow, flow_values(flow)):
                raise FileExistsError(f"flow {flow.request.flow_id} is registered already")

    def beat(self, beats: Sequence[Beat]) -> dict[str, Grant]:
        """Tell that these flows go on; what each of them hears from now on.

        A flow that is missing in the answer is not registered any more, or by another process:
        nothing is counted for it, so it must stop.
        """
        heard: dict[str, Grant] = {}
        with self._writing() as connection:
            now_ns = self._database.now_ns(connection)
            for one in beats:
                row = connection.execute(_FLOW, {"flow_id": one.flow_id}).one_or_none()
                if row is None or (row.boot, row.pid, row.started) != (
                    one.owner.boot,
                    one.owner.pid,
                    one.owner.started,
                ):
                    continue
                (heard[one.flow_id],) = decoded(grant_of, [row])
                if one.acts_on not in (None, row.grant_seq):
                    continue  # what it uses is still what it was granted before
                this = update(FlowRow).where(col(FlowRow.flow_id) == one.flow_id)
                connection.execute(
                    this.values(
                        # Whatever it was granted before, it uses no more than this from here on.
                        held=row.granted,
                        beats=row.beats + 1,
                        beat_at_ns=now_ns,
                        moved_bytes=one.moved_bytes,
                        measured_bytes_per_s=one.measured_bytes_per_s,
                        wanted=rates_text(one.wanted),
                        read_push_backs=one.read_push_backs,
                        write_push_backs=one.write_push_backs,
                    )
                )
        return heard

    def close(self, flow_ids: Iterable[str]) -> None:
        """Forget flows that ended; nothing is counted for them from here on."""
        with self._writing() as connection:
            for flow_id in flow_ids:
                connection.execute(delete(FlowRow).where(col(FlowRow.flow_id) == flow_id))

    def reap(self, silent: Iterable[tuple[str, int]]) -> int:
        """Forget flows that surely ended, each unless it was heard after the beat named with it.

        Returns how many there were.
        """
        reaped = 0
        with self._writing() as connection:
            for flow_id, beat in silent:
                this = (col(FlowRow.flow_id) == flow_id, col(FlowRow.beats) == beat)
                reaped += connection.execute(delete(FlowRow).where(*this)).rowcount
        return reaped

    def registered(
        self, *, flow_ids: Collection[str] | None = None, host: str | None = None
    ) -> tuple[RegisteredFlow, ...]:
        """Registered flows, by id: every one, those named, or those of one host."""
        statement = _FLOWS
        if flow_ids is not None:
            statement = statement.where(col(FlowRow.flow_id).in_(flow_ids))
        if host is not None:
            statement = statement.where(col(FlowRow.host) == host)
        with self._current.read() as connection:
            return decoded(flow_of, connection.execute(statement))

    def allocator(self) -> Allocator | None:
        """Who holds, or held last, the lease on computing the grants."""
        with self._current.read() as connection:
            return _allocator(connection)

    def take_allocator(self, holder: str, ttl_ns: int) -> Allocator | None:
        """Take or prolong the lease; None while someone else holds it.

        A new holder gets a new epoch. Without the write lock while it is plainly someone else's.
        """
        with self._current.read() as connection:
            now_ns = self._database.now_ns(connection)
            if _is_held_by_other(_allocator(connection), holder, now_ns, ttl_ns):
                return None
        with self._writing() as connection:
            known, now_ns = _allocator(connection), self._database.now_ns(connection)
            if _is_held_by_other(known, holder, now_ns, ttl_ns):
                return None
            epoch = known.epoch if known is not None else 0
            if known is None or known.holder != holder or known.expires_at_ns <= now_ns:
                epoch += 1
            taken = Allocator(holder=holder, epoch=epoch, expires_at_ns=now_ns + ttl_ns)
            _put_allocator(connection, taken)
            return taken

    def release_allocator(self, held: Allocator) -> None:
        """Let the next one take the lease at once; nothing happens where it was taken over."""
        with self._writing() as connection:
            if _is_current(connection, held):
                ended = Allocator(holder="", epoch=held.epoch, expires_at_ns=0)
                _put_allocator(connection, ended)

    def write_grants(
        self,
        held: Allocator,
        changes: Sequence[GrantChange],
        paces: Mapping[str, int] | None = None,
    ) -> None:
        """Write what the allocator decided; flows that ended meanwhile are passed over.

        ``paces`` replaces what is known of these subjects.

        Raises:
            LeaseLost: someone else took the lease over; nothing was written.
            StaleState: a flow that was to be reclaimed was heard meanwhile; nothing was written.
        """
        with self._writing() as connection:
            now_ns = self._database.now_ns(connection)
            if not _is_current(connection, held):
                raise LeaseLost("another process computes the grants by now")
            for change in changes:
                _grant(connection, change, now_ns)
            for subject, permille in (paces or {}).items():
                _put_pace(connection, subject, permille, now_ns)

    def paces(self) -> dict[str, int]:
        """How much of each budget is given while its store pushes back, in thousandths."""
        with self._current.read() as connection:
            return {row.subject: row.permille for row in connection.execute(_PACES)}

    @property
    def _current(self) -> Database:
        return within(self._database, self._fleeting)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._current.write() as connection:
            if self._current is self._database:
                self._fleeting.join(connection)
            yield connection


def _grant(connection: Connection, change: GrantChange, now_ns: int) -> None:
    row = connection.execute(_FLOW, {"flow_id": change.flow_id}).one_or_none()
    if row is None:
        return
    held = _most(rates_of(row.held), change.rates)
    if change.reclaim_at_beat is not None:
        if row.beats != change.reclaim_at_beat:
            raise StaleState(f"flow {change.flow_id} was heard again")
        held = change.rates
    this = update(FlowRow).where(col(FlowRow.flow_id) == change.flow_id)
    connection.execute(
        this.values(
            grant_seq=row.grant_seq + 1,
            granted_at_ns=now_ns,
            granted=rates_text(change.rates),
            held=rates_text(held),
            fallback=rates_text(change.fallback),
            waits_for=change.waits_for,
        )
    )


def _most(held: Rates | None, granted: Rates | None) -> Rates | None:
    """The most a flow may be using that heard one of the two."""
    if held is None or granted is None:
        return held if granted is None else granted
    return tuple(
        None if one is None or other is None else max(one, other)
        for one, other in zip(held, granted, strict=True)
    )


def _allocator(connection: Connection) -> Allocator | None:
    row = connection.execute(_ALLOCATOR).one_or_none()
    if row is None:
        return None
    return Allocator(holder=row.holder, epoch=row.epoch, expires_at_ns=row.expires_at_ns)


def _is_held_by_other(known: Allocator | None, holder: str, now_ns: int, ttl_ns: int) -> bool:
    """A lease that ends too far away was written before the clock was set back: it ended."""
    if known is None or known.holder == holder:
        return False
    return now_ns < known.expires_at_ns <= now_ns + 2 * ttl_ns


def _is_current(connection: Connection, held: Allocator) -> bool:
    known = _allocator(connection)
    return known is not None and (known.holder, known.epoch) == (held.holder, held.epoch)


def _put_allocator(connection: Connection, taken: Allocator) -> None:
    values = {
        "holder": taken.holder,
        "epoch": taken.epoch,
        "expires_at_ns": taken.expires_at_ns,
    }
    put(connection, AllocatorRow, {"only": _ONLY}, values)


def _put_pace(connection: Connection, subject: str, permille: int, now_ns: int) -> None:
    values = {"permille": permille, "changed_at_ns": now_ns}
    put(connection, TierPaceRow, {"subject": subject}, values)
