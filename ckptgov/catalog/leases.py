"""Leases on bringing one checkpoint to one place, and what places were seen to be able to do."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, select, update
from sqlmodel import col

from ckptgov.catalog.dialect import put
from ckptgov.catalog.flowfacts import CopyLease
from ckptgov.catalog.rows import decoded
from ckptgov.catalog.tables import AbilitiesRow, CopyLeaseRow
from ckptgov.errors import LeaseLost

_LEASE = select(CopyLeaseRow).where(
    col(CopyLeaseRow.content_id) == bindparam("content_id"),
    col(CopyLeaseRow.place) == bindparam("place"),
)
_ABILITIES = select(AbilitiesRow).where(col(AbilitiesRow.place) == bindparam("place"))


def lease(connection: Connection, content_id: str, place: str) -> CopyLease | None:
    found = decoded(
        _lease_of, connection.execute(_LEASE, {"content_id": content_id, "place": place})
    )
    return found[0] if found else None


def take(connection: Connection, wanted: CopyLease, *, at_ns: int) -> int:
    """Take the lease at a new epoch; ``wanted.epoch`` does not matter."""
    known = lease(connection, wanted.content_id, wanted.place)
    if known is not None and known.expires_at_ns > at_ns and known.holder != wanted.holder:
        raise _lost(known)
    epoch = 1 if known is None else known.epoch + 1
    values = {
        "holder": wanted.holder,
        "epoch": epoch,
        "expires_at_ns": wanted.expires_at_ns,
    }
    key = {"content_id": wanted.content_id, "place": wanted.place}
    put(connection, CopyLeaseRow, key, values)
    return epoch


def change_end(
    connection: Connection, content_id: str, place: str, epoch: int, *, expires_at_ns: int
) -> bool:
    """Set when the lease ends, where it still has this epoch; whether it has."""
    statement = update(CopyLeaseRow).where(
        col(CopyLeaseRow.content_id) == content_id,
        col(CopyLeaseRow.place) == place,
        col(CopyLeaseRow.epoch) == epoch,
    )
    return bool(connection.execute(statement.values(expires_at_ns=expires_at_ns)).rowcount)


def renew(
    connection: Connection, content_id: str, place: str, epoch: int, *, expires_at_ns: int
) -> None:
    if change_end(connection, content_id, place, epoch, expires_at_ns=expires_at_ns):
        return
    known = lease(connection, content_id, place)
    if known is None:
        raise LeaseLost(f"nobody holds a lease on copying {content_id} to place {place}")
    raise _lost(known)


def put_abilities(connection: Connection, place: str, text: str, at_ns: int) -> None:
    values = {"told": text, "checked_at_ns": at_ns}
    put(connection, AbilitiesRow, {"place": place}, values)


def abilities(connection: Connection, place: str) -> str | None:
    row = connection.execute(_ABILITIES, {"place": place}).one_or_none()
    return None if row is None else str(row.told)


def _lost(known: CopyLease) -> LeaseLost:
    return LeaseLost(
        f"{known.holder} is copying {known.content_id} to place {known.place}",
        hint="wait for it, or until its lease ends",
    )


def _lease_of(row: Any) -> CopyLease:
    return CopyLease(
        content_id=row.content_id,
        place=row.place,
        holder=row.holder,
        epoch=row.epoch,
        expires_at_ns=row.expires_at_ns,
    )
