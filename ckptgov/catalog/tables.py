"""The tables. Rows are seen in this room only.

Names and paths are bytes on disk, because POSIX names need not be UTF-8 and must sort by raw
bytes; steps of unsealed candidates are decimal text, because a directory may be called
``step_99999999999999999999``.
"""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    Dialect,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel


class RawText(TypeDecorator[str]):
    """Text with surrogate escapes (``os.fsdecode``), stored as the raw bytes it stands for."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return None if value is None else value.encode("utf-8", "surrogateescape")

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        return None if value is None else value.decode("utf-8", "surrogateescape")


class DecimalText(TypeDecorator[int]):
    """A whole number of any size, stored as decimal text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> int | None:
        return None if value is None else int(value)


def _of_checkpoint() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["run_id", "content_id"], ["checkpoints.run_id", "checkpoints.content_id"]
    )


class Row(SQLModel, registry=registry()):
    """Base of our tables, with metadata of their own."""


class MetaRow(Row, table=True):
    __tablename__: ClassVar[str] = "meta"
    key: str = Field(primary_key=True)
    value: str


class PlaceRow(Row, table=True):
    __tablename__: ClassVar[str] = "places"
    __table_args__ = (
        # At one root of one node (or of all of them) one place is met at a time.
        Index(
            "one_place_per_root",
            "root",
            text("ifnull(node, x'')"),
            unique=True,
            sqlite_where=text("is_current"),
        ),
    )
    place: str = Field(primary_key=True)
    tier: str
    node: str | None = Field(sa_type=RawText)
    root: str = Field(sa_type=RawText)
    fs_type: str = Field(sa_type=RawText)
    source: str = Field(sa_type=RawText)
    first_seen_at_ns: int = Field(sa_type=BigInteger)
    is_current: bool


class RunRow(Row, table=True):
    __tablename__: ClassVar[str] = "runs"
    run_id: str = Field(primary_key=True)
    name: str = Field(sa_type=RawText, unique=True)
    selector: str = Field(sa_type=RawText)
    expect: str | None
    created_at_ns: int = Field(sa_type=BigInteger)


class RunRootRow(Row, table=True):
    __tablename__: ClassVar[str] = "run_roots"
    place: str = Field(primary_key=True, foreign_key="places.place")
    path: str = Field(primary_key=True, sa_type=RawText)
    run_id: str = Field(foreign_key="runs.run_id", index=True)
    sidecar: str = Field(sa_type=RawText)


class CheckpointRow(Row, table=True):
    __tablename__: ClassVar[str] = "checkpoints"
    run_id: str = Field(primary_key=True, foreign_key="runs.run_id")
    content_id: str = Field(primary_key=True)
    name: str = Field(sa_type=RawText)
    step: int | None = Field(sa_type=BigInteger)
    step_kind: str
    layout: str
    world_size: int | None = Field(sa_type=BigInteger)
    purposes: str
    size_bytes: int = Field(sa_type=BigInteger)
    shard_count: int = Field(sa_type=BigInteger)
    line: int = Field(sa_type=BigInteger)
    attempt: int = Field(sa_type=BigInteger)
    sealed_at_ns: int = Field(sa_type=BigInteger)


class ManifestRow(Row, table=True):
    """Apart from the checkpoint, so that listing a run does not step over the blobs."""

    __tablename__: ClassVar[str] = "manifests"
    __table_args__ = (_of_checkpoint(),)
    run_id: str = Field(primary_key=True)
    content_id: str = Field(primary_key=True)
    packed: bytes


class CopyRow(Row, table=True):
    __tablename__: ClassVar[str] = "copies"
    __table_args__ = (_of_checkpoint(),)
    run_id: str = Field(primary_key=True)
    content_id: str = Field(primary_key=True)
    place: str = Field(primary_key=True, foreign_key="places.place")
    name: str = Field(sa_type=RawText)
    state: str
    coverage: bytes | None
    evidence: str
    verified_at_ns: int | None = Field(sa_type=BigInteger)
    findings: str


class SightingRow(Row, table=True):
    __tablename__: ClassVar[str] = "sightings"
    run_id: str = Field(primary_key=True, foreign_key="runs.run_id")
    place: str = Field(primary_key=True, foreign_key="places.place")
    name: str = Field(primary_key=True, sa_type=RawText)
    variant: str = Field(primary_key=True, sa_type=RawText)
    step: int | None = Field(sa_type=DecimalText)
    step_kind: str
    layout: str
    size_bytes: int = Field(sa_type=BigInteger)
    findings: str
    notes: str
    first_seen_at_ns: int = Field(sa_type=BigInteger)
    last_seen_at_ns: int = Field(sa_type=BigInteger)
    newest_mtime_ns: int = Field(sa_type=BigInteger)


class RecordRow(Row, table=True):
    __tablename__: ClassVar[str] = "records"
    run_id: str = Field(primary_key=True, foreign_key="runs.run_id")
    record_id: str = Field(primary_key=True)
    number: int = Field(sa_type=BigInteger)
    kind: str
    at_ns: int = Field(sa_type=BigInteger)
    raw: bytes


class EventRow(Row, table=True):
    """No foreign keys: events outlive what they tell of."""

    __tablename__: ClassVar[str] = "events"
    __table_args__ = {"sqlite_autoincrement": True}
    seq: int | None = Field(default=None, primary_key=True)
    at_ns: int = Field(sa_type=BigInteger)
    kind: str
    run_id: str | None = Field(index=True)
    content_id: str | None
    place: str | None
    detail: str


class DecisionRow(Row, table=True):
    """No foreign key: a decision once handed out stands, also while facts are rebuilt."""

    __tablename__: ClassVar[str] = "decisions"
    run_id: str = Field(primary_key=True)
    restart_id: str = Field(primary_key=True, sa_type=RawText)
    epoch: int = Field(primary_key=True, sa_type=BigInteger)
    content_id: str | None
    fresh: bool


class FlowRow(Row, table=True):
    """A flow while its process works on it; rates are JSON lists, null is without limit."""

    __tablename__: ClassVar[str] = "flows"
    flow_id: str = Field(primary_key=True)
    what: str = Field(sa_type=RawText)
    flow_class: str
    source: str | None
    target: str | None
    node: str = Field(sa_type=RawText)
    size_bytes: int = Field(sa_type=BigInteger)
    weight: int = Field(sa_type=BigInteger)
    turn: str
    is_companion: bool
    host: str = Field(sa_type=RawText)
    boot: str
    pid: int = Field(sa_type=BigInteger)
    started: int = Field(sa_type=BigInteger)
    opened_at_ns: int = Field(sa_type=BigInteger)
    lease_ns: int = Field(sa_type=BigInteger)
    grant_seq: int = Field(sa_type=BigInteger)
    granted_at_ns: int = Field(sa_type=BigInteger)
    granted: str | None
    held: str | None
    fallback: str | None
    waits_for: str
    beats: int = Field(sa_type=BigInteger)
    beat_at_ns: int = Field(sa_type=BigInteger)
    moved_bytes: int = Field(sa_type=BigInteger)
    measured_bytes_per_s: int = Field(sa_type=BigInteger)
    wanted: str | None
    read_push_backs: int = Field(sa_type=BigInteger)
    write_push_backs: int = Field(sa_type=BigInteger)


class AllocatorRow(Row, table=True):
    """One row: the lease on computing the grants. Its epoch only grows."""

    __tablename__: ClassVar[str] = "allocator"
    only: int = Field(primary_key=True)
    holder: str
    epoch: int = Field(sa_type=BigInteger)
    expires_at_ns: int = Field(sa_type=BigInteger)


class TierPaceRow(Row, table=True):
    """How much of a tier's budget is given while its store pushes back, in thousandths."""

    __tablename__: ClassVar[str] = "tier_pace"
    subject: str = Field(primary_key=True)
    permille: int = Field(sa_type=BigInteger)
    changed_at_ns: int = Field(sa_type=BigInteger)


class AbilitiesRow(Row, table=True):
    """No foreign key: what a place can do stays known while facts are rebuilt."""

    __tablename__: ClassVar[str] = "abilities"
    place: str = Field(primary_key=True)
    told: str
    checked_at_ns: int = Field(sa_type=BigInteger)


class CopyLeaseRow(Row, table=True):
    """Rows stay when a lease ends, so that its epoch never comes again."""

    __tablename__: ClassVar[str] = "copy_leases"
    content_id: str = Field(primary_key=True)
    place: str = Field(primary_key=True)
    holder: str
    epoch: int = Field(sa_type=BigInteger)
    expires_at_ns: int = Field(sa_type=BigInteger)


TRIGGERS = (
    """CREATE TRIGGER events_stay BEFORE DELETE ON events
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
    """CREATE TRIGGER events_stand BEFORE UPDATE ON events
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
    # INSERT OR REPLACE deletes without firing the delete trigger.
    """CREATE TRIGGER events_are_new BEFORE INSERT ON events
       WHEN EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq)
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
)
