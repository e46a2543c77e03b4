"""Claims of readers: a checkpoint that somebody reads now, or means to, goes nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlmodel import col

from ckptgov.catalog.database import Database
from ckptgov.catalog.removal_tables import ClaimRow
from ckptgov.catalog.rows import decoded
from ckptgov.catalog.tables import CheckpointRow
from ckptgov.errors import LeaseLost, UnknownRun
from ckptgov.model.retention import CheckpointLease

_CLAIMS = (
    select(ClaimRow)
    .where(col(ClaimRow.ends_at_ns) > bindparam("now_ns"))
    .order_by(col(ClaimRow.run_id), col(ClaimRow.content_id), col(ClaimRow.lease_id))
)
_CLAIMS_OF_RUN = _CLAIMS.where(col(ClaimRow.run_id) == bindparam("run_id"))
_KNOWN = select(col(CheckpointRow.content_id)).where(
    col(CheckpointRow.run_id) == bindparam("run_id"),
    col(CheckpointRow.content_id) == bindparam("content_id"),
)


class ClaimBook:
    """Claims. Taken and prolonged durably, and in turn with whoever removes.

    One that ended protects for as long again, and can be prolonged for so long: its holder may
    only be slow. What was condemned before it was taken is not moved aside while it lasts.
    """

    def __init__(self, database: Database, new_uuid: Callable[[], str]) -> None:
        self._database = database
        self._new_uuid = new_uuid

    def take(
        self, run_id: str, content_id: str, *, owner: str, reason: str, ttl_s: float
    ) -> CheckpointLease:
        """Claim a checkpoint for ``ttl_s`` from now. Look for its copies afterwards, not before.

        Raises:
            UnknownRun: no such checkpoint is sealed in this run.
            ValueError: the time is not above 0.
        """
        ttl_ns = _ttl_ns(ttl_s)
        lease_id = self._new_uuid()
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            _drop_dead(connection, now_ns)
            wanted = {"run_id": run_id, "content_id": content_id}
            if connection.execute(_KNOWN, wanted).first() is None:
                raise UnknownRun(f"the catalog knows no checkpoint {content_id} of run {run_id}")
            values = {
                **wanted,
                "lease_id": lease_id,
                "owner": owner,
                "reason": reason,
                "taken_at_ns": now_ns,
                "ttl_ns": ttl_ns,
                "ends_at_ns": now_ns + ttl_ns,
            }
            connection.execute(insert(ClaimRow), values)
        return CheckpointLease(
            run_id=run_id,
            content_id=content_id,
            lease_id=lease_id,
            owner=owner,
            reason=reason,
            taken_at_ns=now_ns,
            ends_at_ns=now_ns + ttl_ns,
        )

    def renew(self, lease_id: str, *, ttl_s: float) -> None:
        """Let a claim last for ``ttl_s`` from now.

        Raises:
            LeaseLost: it was released, or ended too long ago: the checkpoint may be going.
            ValueError: the time is not above 0.
        """
        ttl_ns = _ttl_ns(ttl_s)
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            this = (
                col(ClaimRow.lease_id) == lease_id,
                col(ClaimRow.ends_at_ns) + col(ClaimRow.ttl_ns) > now_ns,
            )
            values = {"ttl_ns": ttl_ns, "ends_at_ns": now_ns + ttl_ns}
            if not connection.execute(update(ClaimRow).where(*this).values(values)).rowcount:
                raise LeaseLost(
                    f"claim {lease_id} was released, or ended too long ago",
                    hint="claim the checkpoint anew, and see whether it is still there",
                )

    def release(self, lease_id: str) -> None:
        """End a claim; nothing happens where it ended before."""
        with self._database.write() as connection:
            connection.execute(delete(ClaimRow).where(col(ClaimRow.lease_id) == lease_id))

    def claims(self, run_id: str | None = None) -> tuple[CheckpointLease, ...]:
        """Claims that have not ended, of one run or all, by run, checkpoint and id."""
        with self._database.read() as connection:
            wanted: dict[str, object] = {"now_ns": self._database.now_ns(connection)}
            if run_id is None:
                return decoded(_claim, connection.execute(_CLAIMS, wanted))
            wanted["run_id"] = run_id
            return decoded(_claim, connection.execute(_CLAIMS_OF_RUN, wanted))


def _ttl_ns(ttl_s: float) -> int:
    if not ttl_s > 0:
        raise ValueError(f"a claim for {ttl_s} s is none")
    return int(ttl_s * 1e9)


def _drop_dead(connection: Connection, now_ns: int) -> None:
    dead = col(ClaimRow.ends_at_ns) + col(ClaimRow.ttl_ns) <= now_ns
    connection.execute(delete(ClaimRow).where(dead))


def _claim(row: Any) -> CheckpointLease:
    return CheckpointLease(
        run_id=row.run_id,
        content_id=row.content_id,
        lease_id=row.lease_id,
        owner=row.owner,
        reason=row.reason,
        taken_at_ns=row.taken_at_ns,
        ends_at_ns=row.ends_at_ns,
    )
