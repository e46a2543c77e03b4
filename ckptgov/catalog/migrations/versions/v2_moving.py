"""Flows and their grants, abilities of places, leases on copying."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Integer, PrimaryKeyConstraint

from ckptgov.catalog.columns import PlainText, RawText

revision = "2"
down_revision = "1"

_TABLES = ("copy_leases", "abilities", "tier_pace", "allocator", "flows")


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, PlainText, nullable=nullable)


def _raw(name: str) -> Column[str]:
    return Column(name, RawText, nullable=False)


def _int(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def upgrade() -> None:
    op.create_table(
        "flows",
        _text("flow_id"),
        _raw("what"),
        _text("flow_class"),
        _text("source", nullable=True),
        _text("target", nullable=True),
        _raw("node"),
        _int("size_bytes"),
        _int("weight"),
        _text("turn"),
        Column("is_companion", Boolean, nullable=False),
        _raw("host"),
        _text("boot"),
        _int("pid"),
        _int("started"),
        _int("opened_at_ns"),
        _int("lease_ns"),
        _int("grant_seq"),
        _int("granted_at_ns"),
        _text("granted", nullable=True),
        _text("held", nullable=True),
        _text("fallback", nullable=True),
        _text("waits_for"),
        _int("beats"),
        _int("beat_at_ns"),
        _int("moved_bytes"),
        _int("measured_bytes_per_s"),
        _text("wanted", nullable=True),
        _int("read_push_backs"),
        _int("write_push_backs"),
        PrimaryKeyConstraint("flow_id"),
    )
    op.create_table(
        "allocator",
        Column("only", Integer, nullable=False),
        _text("holder"),
        _int("epoch"),
        _int("expires_at_ns"),
        PrimaryKeyConstraint("only"),
    )
    op.create_table(
        "tier_pace",
        _text("subject"),
        _int("permille"),
        _int("changed_at_ns"),
        PrimaryKeyConstraint("subject"),
    )
    op.create_table(
        "abilities",
        _text("place"),
        _text("told"),
        _int("checked_at_ns"),
        PrimaryKeyConstraint("place"),
    )
    op.create_table(
        "copy_leases",
        _text("content_id"),
        _text("place"),
        _text("holder"),
        _int("epoch"),
        _int("expires_at_ns"),
        PrimaryKeyConstraint("content_id", "place"),
    )


def downgrade() -> None:
    for table in _TABLES:
        op.drop_table(table)
