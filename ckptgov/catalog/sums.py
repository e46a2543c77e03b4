"""Copies summed by the database: what a run holds where, and what is on its way out where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, and_, bindparam, func, select
from sqlalchemy.orm import aliased
from sqlmodel import col

from ckptgov.catalog.removal_tables import RemovalRow
from ckptgov.catalog.rows import decoded
from ckptgov.catalog.tables import CheckpointRow, CopyRow, PlaceRow
from ckptgov.model.copies import CopyState


class PlacedSum(Struct, frozen=True, kw_only=True):
    """Whole copies in one state at one place."""

    place: str
    state: CopyState
    copies: int
    bytes: int


class HeldFacts(Struct, frozen=True, kw_only=True):
    """One copy, with what is needed of its checkpoint to tell how many bytes of it lie there."""

    content_id: str
    place: str
    state: CopyState
    coverage: bytes | None
    bytes: int  # of the whole checkpoint
    shard_count: int


class CopySums(Struct, frozen=True, kw_only=True):
    """One run's copies. ``parts`` are those with a coverage, one by one.

    ``undrained``: verified copies, whole or not, of checkpoints of which no whole verified one lies
    on a shared tier; in the order of their content ids. ``saved_at_ns``: the newest seal.
    """

    whole: tuple[PlacedSum, ...]
    parts: tuple[HeldFacts, ...]
    undrained: tuple[HeldFacts, ...]
    saved_at_ns: int | None


class LeavingSum(Struct, frozen=True, kw_only=True):
    """Copies on their way out, in one state at one place. ``resisting``: of those, how many did
    not go when it was tried last."""

    place: str
    state: CopyState
    copies: int
    bytes: int
    files: int
    resisting: int


_OF_CHECKPOINT = and_(
    col(CheckpointRow.run_id) == col(CopyRow.run_id),
    col(CheckpointRow.content_id) == col(CopyRow.content_id),
)
_OF_RUN = col(CopyRow.run_id) == bindparam("run_id")
_SUMS = (
    select(
        col(CopyRow.place),
        col(CopyRow.state),
        func.count(),
        func.sum(col(CheckpointRow.size_bytes)),
    )
    .join(CheckpointRow, _OF_CHECKPOINT)
    .where(_OF_RUN, col(CopyRow.coverage).is_(None))
    .group_by(col(CopyRow.place), col(CopyRow.state))
    .order_by(col(CopyRow.place), col(CopyRow.state))
)
_HELD = (
    select(
        col(CopyRow.content_id),
        col(CopyRow.place),
        col(CopyRow.state),
        col(CopyRow.coverage),
        col(CheckpointRow.size_bytes),
        col(CheckpointRow.shard_count),
    )
    .join(CheckpointRow, _OF_CHECKPOINT)
    .where(_OF_RUN)
    .order_by(col(CopyRow.content_id), col(CopyRow.place))
)
_PARTS = _HELD.where(col(CopyRow.coverage).is_not(None))
_Durable = aliased(CopyRow)
_IS_DURABLE = (
    select(_Durable)
    .join(PlaceRow, col(PlaceRow.place) == col(_Durable.place))
    .where(
        col(_Durable.run_id) == col(CopyRow.run_id),
        col(_Durable.content_id) == col(CopyRow.content_id),
        col(_Durable.state) == CopyState.VERIFIED.value,
        col(_Durable.coverage).is_(None),
        col(PlaceRow.node).is_(None),
    )
    .exists()
)
_UNDRAINED = _HELD.where(col(CopyRow.state) == CopyState.VERIFIED.value, ~_IS_DURABLE)
_SAVED_AT = select(func.max(col(CheckpointRow.sealed_at_ns))).where(
    col(CheckpointRow.run_id) == bindparam("run_id")
)
_LEAVING = (
    select(
        col(RemovalRow.place),
        col(CopyRow.state),
        func.count(),
        func.sum(col(RemovalRow.size_bytes)),
        func.sum(col(RemovalRow.files)),
        func.count().filter(col(RemovalRow.error) != ""),
    )
    .join(
        CopyRow,
        and_(
            col(CopyRow.run_id) == col(RemovalRow.run_id),
            col(CopyRow.content_id) == col(RemovalRow.content_id),
            col(CopyRow.place) == col(RemovalRow.place),
        ),
    )
    .group_by(col(RemovalRow.place), col(CopyRow.state))
    .order_by(col(RemovalRow.place), col(CopyRow.state))
)


def copy_sums(connection: Connection, run_id: str) -> CopySums:
    this = {"run_id": run_id}
    return CopySums(
        whole=tuple(_sum(*row) for row in connection.execute(_SUMS, this)),
        parts=_held(connection.execute(_PARTS, this)),
        undrained=_held(connection.execute(_UNDRAINED, this)),
        saved_at_ns=connection.execute(_SAVED_AT, this).scalar_one(),
    )


def leaving(connection: Connection) -> tuple[LeavingSum, ...]:
    return tuple(
        LeavingSum(
            place=place,
            state=CopyState(state),
            copies=copies,
            bytes=int(size),
            files=int(files),
            resisting=resisting,
        )
        for place, state, copies, size, files, resisting in connection.execute(_LEAVING)
    )


def _sum(place: str, state: str, copies: int, size: Any) -> PlacedSum:
    # PostgreSQL sums to numeric.
    return PlacedSum(place=place, state=CopyState(state), copies=copies, bytes=int(size))


def _held(rows: Iterable[Any]) -> tuple[HeldFacts, ...]:
    return decoded(
        lambda row: HeldFacts(
            content_id=row.content_id,
            place=row.place,
            state=CopyState(row.state),
            coverage=row.coverage,
            bytes=row.size_bytes,
            shard_count=row.shard_count,
        ),
        rows,
    )
