"""What runs on a schedule, and who leads: the one process that may run it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, select, update
from sqlmodel import col

from ckptgov.catalog.cluster_tables import ActivityRow, LeaderRow
from ckptgov.catalog.database import Database
from ckptgov.catalog.dialect import put
from ckptgov.catalog.rows import decoded
from ckptgov.errors import LeaseLost, UsageError
from ckptgov.model.cluster import ActivityFacts, Leader

_ACTIVITIES = select(ActivityRow).order_by(col(ActivityRow.name))
_ACTIVITY = select(ActivityRow).where(col(ActivityRow.name) == bindparam("name"))
_LEADER = select(LeaderRow)
_ONLY = 1


class ActivityBook:
    """Activities and the lease on running them.

    A leader that was stopped and goes on finds that its lease ended, by the catalog's own clock;
    who was taken over is refused by the epoch. What names no leader is refused nothing.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def declare(self, name: str, *, every_s: float, slo_s: float) -> None:
        """Say that an activity is to run, and how often; since when it is known stays."""
        values: dict[str, object] = {"every_s": every_s, "slo_s": slo_s}
        never = {"began_at_ns": 0, "ended_at_ns": 0, "succeeded_at_ns": 0, "failures": 0}
        with self._database.write() as connection:
            if _found(connection, name) is not None:
                _change(connection, name, values)
                return
            new = {**values, **never, "error": "", "known_since_ns": self._now_ns(connection)}
            put(connection, ActivityRow, {"name": name}, new)

    def began(self, name: str, *, leader: Leader | None) -> None:
        """Note that an activity runs from now on.

        Raises:
            LeaseLost: ``leader`` leads no more; nothing was noted.
            UsageError: it was never declared.
        """
        with self._database.write() as connection:
            self._require(connection, leader)
            _required(connection, name)
            _change(connection, name, {"began_at_ns": self._now_ns(connection)})

    def ended(self, name: str, *, leader: Leader | None, error: str | None) -> None:
        """Note that an activity ended just now, and with which error, if any.

        Raises:
            LeaseLost: ``leader`` leads no more; nothing was noted.
            UsageError: it was never declared.
        """
        with self._database.write() as connection:
            self._require(connection, leader)
            known = _required(connection, name)
            now_ns = self._now_ns(connection)
            values: dict[str, object] = {"ended_at_ns": now_ns, "error": error or ""}
            if error is None:
                values |= {"succeeded_at_ns": now_ns, "failures": 0}
            else:
                values["failures"] = known.failures + 1
            _change(connection, name, values)

    def activities(self) -> tuple[ActivityFacts, ...]:
        """Every activity ever declared, by name."""
        with self._database.read() as connection:
            return decoded(_activity, connection.execute(_ACTIVITIES))

    def take_leader(self, holder: str, ttl_s: float) -> Leader | None:
        """Begin to lead, or go on, for ``ttl_s`` from now; None while someone else leads.

        A new holder, and one whose lease ended, gets a new epoch. ``holder`` must be one
        process's own. Without the write lock while someone else plainly leads.
        """
        ttl_ns = int(ttl_s * 1e9)
        with self._database.read() as connection:
            now_ns = self._now_ns(connection)
            if _is_held_by_other(_leader(connection), holder, now_ns, ttl_ns):
                return None
        with self._database.write() as connection:
            known, now_ns = _leader(connection), self._now_ns(connection)
            if _is_held_by_other(known, holder, now_ns, ttl_ns):
                return None
            epoch = known.epoch if known is not None else 0
            if known is None or known.holder != holder or known.expires_at_ns <= now_ns:
                epoch += 1
            taken = Leader(holder=holder, epoch=epoch, expires_at_ns=now_ns + ttl_ns)
            _put_leader(connection, taken)
            return taken

    def release_leader(self, leader: Leader) -> None:
        """Let the next one lead at once; nothing happens where it was taken over."""
        with self._database.write() as connection:
            if _is_newest(_leader(connection), leader):
                _put_leader(connection, Leader(holder="", epoch=leader.epoch, expires_at_ns=0))

    def leader(self) -> Leader | None:
        """Who leads now; None where nobody does."""
        with self._database.read() as connection:
            known = _leader(connection)
            if known is None or known.expires_at_ns <= self._now_ns(connection):
                return None
            return known

    def require_leader(self, leader: Leader) -> None:
        """Make sure that it still leads. First in a transaction, it does so until its end.

        Raises:
            LeaseLost: its lease ended, or someone else took it over.
        """
        with self._database.read() as connection:
            self._require(connection, leader)

    def _require(self, connection: Connection, leader: Leader | None) -> None:
        if leader is None:
            return
        known = _leader(connection)
        if known is None or not _is_newest(known, leader):
            raise LeaseLost(f"{leader.holder} leads no more: another process took over")
        if known.expires_at_ns <= self._now_ns(connection):
            raise LeaseLost(f"{leader.holder} leads no more: its lease ended")

    def _now_ns(self, connection: Connection) -> int:
        return self._database.now_ns(connection)


def _required(connection: Connection, name: str) -> ActivityFacts:
    found = _found(connection, name)
    if found is None:
        raise UsageError(f"there is no activity {name!r}")
    return found


def _found(connection: Connection, name: str) -> ActivityFacts | None:
    found = decoded(_activity, connection.execute(_ACTIVITY, {"name": name}))
    return found[0] if found else None


def _change(connection: Connection, name: str, values: dict[str, object]) -> None:
    connection.execute(update(ActivityRow).where(col(ActivityRow.name) == name).values(values))


def _leader(connection: Connection) -> Leader | None:
    found = decoded(_leader_of, connection.execute(_LEADER))
    return found[0] if found else None


def _is_newest(known: Leader | None, held: Leader) -> bool:
    return known is not None and (known.holder, known.epoch) == (held.holder, held.epoch)


def _is_held_by_other(known: Leader | None, holder: str, now_ns: int, ttl_ns: int) -> bool:
    """A lease that ends too far away was written before the clock was set back: it ended."""
    if known is None or known.holder == holder:
        return False
    return now_ns < known.expires_at_ns <= now_ns + 2 * ttl_ns


def _put_leader(connection: Connection, leader: Leader) -> None:
    values = {
        "holder": leader.holder,
        "epoch": leader.epoch,
        "expires_at_ns": leader.expires_at_ns,
    }
    put(connection, LeaderRow, {"only": _ONLY}, values)


def _leader_of(row: Any) -> Leader:
    return Leader(holder=row.holder, epoch=row.epoch, expires_at_ns=row.expires_at_ns)


def _activity(row: Any) -> ActivityFacts:
    return ActivityFacts(
        name=row.name,
        every_s=row.every_s,
        slo_s=row.slo_s,
        known_since_ns=row.known_since_ns,
        began_at_ns=row.began_at_ns,
        ended_at_ns=row.ended_at_ns,
        succeeded_at_ns=row.succeeded_at_ns,
        failures=row.failures,
        error=row.error,
    )
