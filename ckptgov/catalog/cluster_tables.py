"""The tables of what only a service needs. Rows are seen in this room only.

None has foreign keys into the facts about checkpoints, so that a rebuild of those leaves them.
"""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import BigInteger, Index, text
from sqlmodel import Field

from ckptgov.catalog.columns import Number, PlainText, RawText
from ckptgov.catalog.tables import Row

OPEN_TASKS = text("state IN ('queued', 'claimed')")


class NodeRow(Row, table=True):
    __tablename__: ClassVar[str] = "nodes"
    node: str = Field(primary_key=True, sa_type=RawText)
    state: str = Field(sa_type=PlainText)
    reason: str = Field(sa_type=RawText)
    boot: str = Field(sa_type=RawText)
    version: str = Field(sa_type=RawText)
    peer_url: str | None = Field(sa_type=RawText)
    first_seen_at_ns: int = Field(sa_type=BigInteger)
    beat_at_ns: int = Field(sa_type=BigInteger)


class TaskRow(Row, table=True):
    """``number`` orders tasks of one priority, and tells people which are newest."""

    __tablename__: ClassVar[str] = "tasks"
    __table_args__ = (
        Index("tasks_of_run", "for_run", "number"),
        Index("tasks_of_node", "node", "number"),
        Index("tasks_that_ended", "ended_at_ns"),
        {"sqlite_autoincrement": True},
    )
    number: int | None = Field(default=None, primary_key=True, sa_type=Number)
    task_id: str = Field(unique=True, sa_type=PlainText)
    kind: str = Field(sa_type=PlainText)
    key: str = Field(sa_type=RawText)
    payload: bytes
    node: str | None = Field(sa_type=RawText)
    for_run: str | None = Field(sa_type=RawText)
    priority: int = Field(sa_type=BigInteger)
    state: str = Field(sa_type=PlainText)
    lease: int = Field(sa_type=BigInteger)
    holder: str = Field(sa_type=RawText)
    lease_ends_at_ns: int = Field(sa_type=BigInteger)
    attempts: int = Field(sa_type=BigInteger)
    created_at_ns: int = Field(sa_type=BigInteger)
    ended_at_ns: int | None = Field(sa_type=BigInteger)
    outcome: bytes


class TokenRow(Row, table=True):
    __tablename__: ClassVar[str] = "tokens"
    token_id: str = Field(primary_key=True, sa_type=PlainText)
    label: str = Field(sa_type=RawText)
    secret_sha256: str = Field(unique=True, sa_type=PlainText)
    rights: str = Field(sa_type=PlainText)
    teams: str = Field(sa_type=PlainText)
    node: str | None = Field(sa_type=RawText)
    created_at_ns: int = Field(sa_type=BigInteger)
    expires_at_ns: int | None = Field(sa_type=BigInteger)
    revoked_at_ns: int | None = Field(sa_type=BigInteger)


class ActivityRow(Row, table=True):
    __tablename__: ClassVar[str] = "activities"
    name: str = Field(primary_key=True, sa_type=PlainText)
    every_s: float
    slo_s: float
    known_since_ns: int = Field(sa_type=BigInteger)
    began_at_ns: int = Field(sa_type=BigInteger)
    ended_at_ns: int = Field(sa_type=BigInteger)
    succeeded_at_ns: int = Field(sa_type=BigInteger)
    failures: int = Field(sa_type=BigInteger)
    error: str = Field(sa_type=RawText)


class LeaderRow(Row, table=True):
    """One row, which stays when the lease ends: its epoch only grows."""

    __tablename__: ClassVar[str] = "leader"
    only: int = Field(primary_key=True)
    holder: str = Field(sa_type=RawText)
    epoch: int = Field(sa_type=BigInteger)
    expires_at_ns: int = Field(sa_type=BigInteger)


class PartRow(Row, table=True):
    __tablename__: ClassVar[str] = "parts"
    run_id: str = Field(primary_key=True, sa_type=PlainText)
    name: str = Field(primary_key=True, sa_type=RawText)
    place: str = Field(primary_key=True, sa_type=PlainText)
    told: bytes
    posted_at_ns: int = Field(sa_type=BigInteger)
