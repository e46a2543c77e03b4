"""The tables. Rows are seen in this room only.

Names and paths are bytes on disk, because POSIX names need not be UTF-8 and must sort by raw
bytes; steps of unsealed candidates are decimal text, because a directory may be called
``step_99999999999999999999``.
"""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKeyConstraint,
    Index,
    PrimaryKeyConstraint,
    String,
    Table,
    text,
)
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

from ckptgov.catalog.columns import DecimalText, Number, PlainText, RawText


def _of_checkpoint() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["run_id", "content_id"], ["checkpoints.run_id", "checkpoints.content_id"]
    )


class Row(SQLModel, registry=registry()):
    """Base of our tables, with metadata of their own."""


ALEMBIC = Table(
    "alembic_version",
    Row.metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table, as it makes it: a new catalog is stamped without importing Alembic."""


class MetaRow(Row, table=True):
    __tablename__: ClassVar[str] = "meta"
    key: str = Field(primary_key=True, sa_type=PlainText)
    value: str = Field(sa_type=PlainText)


class PlaceRow(Row, table=True):
    __tablename__: ClassVar[str] = "places"
    place: str = Field(primary_key=True, sa_type=PlainText)
    tier: str = Field(sa_type=PlainText)
    node: str | None = Field(sa_type=RawText)
    root: str = Field(sa_type=RawText)
    fs_type: str = Field(sa_type=RawText)
    source: str = Field(sa_type=RawText)
    first_seen_at_ns: int = Field(sa_type=BigInteger)
    is_current: bool


class RunRow(Row, table=True):
    __tablename__: ClassVar[str] = "runs"
    run_id: str = Field(primary_key=True, sa_type=PlainText)
    name: str = Field(sa_type=RawText, unique=True)
    selector: str = Field(sa_type=RawText)
    expect: str | None = Field(sa_type=PlainText)
    created_at_ns: int = Field(sa_type=BigInteger)


class RunRootRow(Row, table=True):
    __tablename__: ClassVar[str] = "run_roots"
    place: str = Field(primary_key=True, foreign_key="places.place", sa_type=PlainText)
    path: str = Field(primary_key=True, sa_type=RawText)
    run_id: str = Field(foreign_key="runs.run_id", index=True, sa_type=PlainText)
    sidecar: str = Field(sa_type=RawText)


class CheckpointRow(Row, table=True):
    __tablename__: ClassVar[str] = "checkpoints"
    __table_args__ = (
        # Stepless ones come last where the newest come first.
        Index(
            "newest_checkpoints",
            "run_id",
            text("coalesce(step, -1)"),
            "line",
            "attempt",
            "content_id",
        ),
    )
    run_id: str = Field(primary_key=True, foreign_key="runs.run_id", sa_type=PlainText)
    content_id: str = Field(primary_key=True, sa_type=PlainText)
    name: str = Field(sa_type=RawText)
    step: int | None = Field(sa_type=BigInteger)
    step_kind: str = Field(sa_type=PlainText)
    layout: str = Field(sa_type=PlainText)
    world_size: int | None = Field(sa_type=BigInteger)
    purposes: str = Field(sa_type=PlainText)
    size_bytes: int = Field(sa_type=BigInteger)
    shard_count: int = Field(sa_type=BigInteger)
    line: int = Field(sa_type=BigInteger)
    attempt: int = Field(sa_type=BigInteger)
    sealed_at_ns: int = Field(sa_type=BigInteger)


class ManifestRow(Row, table=True):
    """Apart from the checkpoint, so that listing a run does not step over the blobs."""

    __tablename__: ClassVar[str] = "manifests"
    __table_args__ = (_of_checkpoint(),)
    run_id: str = Field(primary_key=True, sa_type=PlainText)
    content_id: str = Field(primary_key=True, sa_type=PlainText)
    packed: bytes


class CopyRow(Row, table=True):
    __tablename__: ClassVar[str] = "copies"
    __table_args__ = (_of_checkpoint(),)
    run_id: str = Field(primary_key=True, sa_type=PlainText)
    content_id: str = Field(primary_key=True, sa_type=PlainText)
    place: str = Field(primary_key=True, foreign_key="places.place", sa_type=PlainText)
    name: str = Field(sa_type=RawText)
    state: str = Field(sa_type=PlainText)
    coverage: bytes | None
    evidence: str = Field(sa_type=PlainText)
    verified_at_ns: int | None = Field(sa_type=BigInteger)
    findings: str = Field(sa_type=PlainText)


class SightingRow(Row, table=True):
    __tablename__: ClassVar[str] = "sightings"
    run_id: str = Field(primary_key=True, foreign_key="runs.run_id", sa_type=PlainText)
    place: str = Field(primary_key=True, foreign_key="places.place", sa_type=PlainText)
    name: str = Field(primary_key=True, sa_type=RawText)
    variant: str = Field(primary_key=True, sa_type=RawText)
    step: int | None = Field(sa_type=DecimalText)
    step_kind: str = Field(sa_type=PlainText)
    layout: str = Field(sa_type=PlainText)
    size_bytes: int = Field(sa_type=BigInteger)
    findings: str = Field(sa_type=PlainText)
    notes: str = Field(sa_type=PlainText)
    first_seen_at_ns: int = Field(sa_type=BigInteger)
    last_seen_at_ns: int = Field(sa_type=BigInteger)
    newest_mtime_ns: int = Field(sa_type=BigInteger)


BINDING_RECORDS = text("kind NOT IN ('sealed', 'metric')")
"""Those that decide about ``latest``: few, however many checkpoints a run has."""


class RecordRow(Row, table=True):
    __tablename__: ClassVar[str] = "records"
    run_id: str = Field(primary_key=True, foreign_key="runs.run_id", sa_type=PlainText)
    record_id: str = Field(primary_key=True, sa_type=PlainText)
    number: int = Field(sa_type=BigInteger)
    kind: str = Field(sa_type=PlainText)
    at_ns: int = Field(sa_type=BigInteger)
    raw: bytes


class EventRow(Row, table=True):
    """No foreign keys: events outlive what they tell of."""

    __tablename__: ClassVar[str] = "events"
    __table_args__ = {"sqlite_autoincrement": True}
    seq: int | None = Field(default=None, primary_key=True, sa_type=Number)
    at_ns: int = Field(sa_type=BigInteger)
    kind: str = Field(sa_type=PlainText)
    run_id: str | None = Field(index=True, sa_type=PlainText)
    content_id: str | None = Field(sa_type=PlainText)
    place: str | None = Field(sa_type=PlainText)
    detail: str = Field(sa_type=PlainText)


class ChangeRow(Row, table=True):
    """The number of a run's newest change; of all runs' under an empty id."""

    __tablename__: ClassVar[str] = "changes"
    run_id: str = Field(primary_key=True, sa_type=PlainText)
    seq: int = Field(unique=True, sa_type=BigInteger)


class DecisionRow(Row, table=True):
    """No foreign key: a decision once handed out stands, also while facts are rebuilt."""

    __tablename__: ClassVar[str] = "decisions"
    run_id: str = Field(primary_key=True, sa_type=PlainText)
    restart_id: str = Field(primary_key=True, sa_type=RawText)
    epoch: int = Field(primary_key=True, sa_type=BigInteger)
    content_id: str | None = Field(sa_type=PlainText)
    fresh: bool


class FlowRow(Row, table=True):
    """A flow while its process works on it; rates are JSON lists, null is without limit."""

    __tablename__: ClassVar[str] = "flows"
    flow_id: str = Field(primary_key=True, sa_type=PlainText)
    what: str = Field(sa_type=RawText)
    flow_class: str = Field(sa_type=PlainText)
    source: str | None = Field(sa_type=PlainText)
    target: str | None = Field(sa_type=PlainText)
    node: str = Field(sa_type=RawText)
    size_bytes: int = Field(sa_type=BigInteger)
    weight: int = Field(sa_type=BigInteger)
    turn: str = Field(sa_type=PlainText)
    is_companion: bool
    host: str = Field(sa_type=RawText)
    boot: str = Field(sa_type=PlainText)
    pid: int = Field(sa_type=BigInteger)
    started: int = Field(sa_type=BigInteger)
    opened_at_ns: int = Field(sa_type=BigInteger)
    lease_ns: int = Field(sa_type=BigInteger)
    grant_seq: int = Field(sa_type=BigInteger)
    granted_at_ns: int = Field(sa_type=BigInteger)
    granted: str | None = Field(sa_type=PlainText)
    held: str | None = Field(sa_type=PlainText)
    fallback: str | None = Field(sa_type=PlainText)
    waits_for: str = Field(sa_type=PlainText)
    beats: int = Field(sa_type=BigInteger)
    beat_at_ns: int = Field(sa_type=BigInteger)
    moved_bytes: int = Field(sa_type=BigInteger)
    measured_bytes_per_s: int = Field(sa_type=BigInteger)
    wanted: str | None = Field(sa_type=PlainText)
    read_push_backs: int = Field(sa_type=BigInteger)
    write_push_backs: int = Field(sa_type=BigInteger)


class AllocatorRow(Row, table=True):
    """One row: the lease on computing the grants. Its epoch only grows."""

    __tablename__: ClassVar[str] = "allocator"
    only: int = Field(primary_key=True)
    holder: str = Field(sa_type=PlainText)
    epoch: int = Field(sa_type=BigInteger)
    expires_at_ns: int = Field(sa_type=BigInteger)


class TierPaceRow(Row, table=True):
    """How much of a tier's budget is given while its store pushes back, in thousandths."""

    __tablename__: ClassVar[str] = "tier_pace"
    subject: str = Field(primary_key=True, sa_type=PlainText)
    permille: int = Field(sa_type=BigInteger)
    changed_at_ns: int = Field(sa_type=BigInteger)


class AbilitiesRow(Row, table=True):
    """No foreign key: what a place can do stays known while facts are rebuilt."""

    __tablename__: ClassVar[str] = "abilities"
    place: str = Field(primary_key=True, sa_type=PlainText)
    told: str = Field(sa_type=PlainText)
    checked_at_ns: int = Field(sa_type=BigInteger)


class CopyLeaseRow(Row, table=True):
    """Rows stay when a lease ends, so that its epoch never comes again."""

    __tablename__: ClassVar[str] = "copy_leases"
    content_id: str = Field(primary_key=True, sa_type=PlainText)
    place: str = Field(primary_key=True, sa_type=PlainText)
    holder: str = Field(sa_type=PlainText)
    epoch: int = Field(sa_type=BigInteger)
    expires_at_ns: int = Field(sa_type=BigInteger)
