"""The tables of what is to go, and of what bears on it. Rows are seen in this room only.

Only a removal belongs to a copy, and goes where facts are wiped. Nothing else here has foreign
keys: a rebuild of the facts leaves plans as they are, and readers their claims.
"""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import BigInteger, ForeignKeyConstraint, Index, text
from sqlmodel import Field

from ckptgov.catalog.columns import Number, PlainText, RawText
from ckptgov.catalog.tables import Row

STANDING_PLANS = text("state IN ('proposed', 'waiting', 'approved')")
"""Those that something may still come of."""


class PlanRow(Row, table=True):
    """``head`` is the plan without its entries, so that listing plans steps over these."""

    __tablename__: ClassVar[str] = "plans"
    __table_args__ = (Index("plans_by_state", "state", "number"), {"sqlite_autoincrement": True})
    number: int | None = Field(default=None, primary_key=True, sa_type=Number)
    plan_id: str = Field(unique=True, sa_type=PlainText)
    state: str = Field(sa_type=PlainText)
    stored_at_ns: int = Field(sa_type=BigInteger)
    changed_at_ns: int = Field(sa_type=BigInteger)
    by_whom: str = Field(sa_type=RawText)
    note: str = Field(sa_type=RawText)
    head: bytes
    entries: bytes


class RemovalRow(Row, table=True):
    """How far it got is the state of its copy, which tells also what an undo gives back."""

    __tablename__: ClassVar[str] = "removals"
    __table_args__ = (
        ForeignKeyConstraint(
            ["run_id", "content_id", "place"],
            ["copies.run_id", "copies.content_id", "copies.place"],
        ),
        Index("removals_by_time", "due_at_ns"),
    )
    run_id: str = Field(primary_key=True, sa_type=PlainText)
    content_id: str = Field(primary_key=True, sa_type=PlainText)
    place: str = Field(primary_key=True, sa_type=PlainText)
    action: str = Field(sa_type=PlainText)
    plan_id: str = Field(sa_type=PlainText)
    condemned_at_ns: int = Field(sa_type=BigInteger)
    due_at_ns: int = Field(sa_type=BigInteger)
    trash_s: float
    size_bytes: int = Field(sa_type=BigInteger)
    files: int = Field(sa_type=BigInteger)
    trash: str = Field(sa_type=RawText)
    error: str = Field(sa_type=RawText)


class ClaimRow(Row, table=True):
    __tablename__: ClassVar[str] = "claims"
    __table_args__ = (Index("claims_of_run", "run_id", "content_id"),)
    lease_id: str = Field(primary_key=True, sa_type=PlainText)
    run_id: str = Field(sa_type=PlainText)
    content_id: str = Field(sa_type=PlainText)
    owner: str = Field(sa_type=RawText)
    reason: str = Field(sa_type=RawText)
    taken_at_ns: int = Field(sa_type=BigInteger)
    ttl_ns: int = Field(sa_type=BigInteger)
    ends_at_ns: int = Field(sa_type=BigInteger)


class SignRow(Row, table=True):
    """When a launcher last asked about a run, to the hour."""

    __tablename__: ClassVar[str] = "signs"
    run_id: str = Field(primary_key=True, sa_type=PlainText)
    asked_at_ns: int = Field(sa_type=BigInteger)


class SampleRow(Row, table=True):
    __tablename__: ClassVar[str] = "samples"
    place: str = Field(primary_key=True, sa_type=PlainText)
    at_ns: int = Field(primary_key=True, sa_type=BigInteger)
    used_bytes: int = Field(sa_type=BigInteger)
    free_bytes: int | None = Field(sa_type=BigInteger)
    total_bytes: int | None = Field(sa_type=BigInteger)
    files: int | None = Field(sa_type=BigInteger)
    free_files: int | None = Field(sa_type=BigInteger)
    quota_bytes: int | None = Field(sa_type=BigInteger)
    quota_files: int | None = Field(sa_type=BigInteger)


class TickRow(Row, table=True):
    """One row: the latest time that a removal was decided by."""

    __tablename__: ClassVar[str] = "ticks"
    only: int = Field(primary_key=True)
    at_ns: int = Field(sa_type=BigInteger)
