"""Plans, removals, claims of readers, signs of life, samples of capacity, the last time seen."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    UniqueConstraint,
    text,
)

from ckptgov.catalog.columns import Number, PlainText, RawText

revision = "4"
down_revision = "3"

_TABLES = ("ticks", "samples", "signs", "claims", "removals", "plans")
_NEW_EVENTS = "'plan-stored', 'plan-state', 'run-root-dropped'"
_EVENTS_STAY = {
    "sqlite": (
        "DROP TRIGGER events_stay",
        """CREATE TRIGGER events_stay BEFORE DELETE ON events
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
    ),
    "postgresql": (
        "DROP TRIGGER events_stay ON events",
        """CREATE TRIGGER events_stay BEFORE DELETE OR UPDATE ON events
       FOR EACH ROW EXECUTE FUNCTION events_refuse()""",
    ),
}
# What an undo does: nothing was moved of these, and version 3 cannot tell what was planned.
_UNDO = (
    "UPDATE copies SET state = 'verified' WHERE state = 'condemned' AND EXISTS"
    " (SELECT 1 FROM removals WHERE removals.run_id = copies.run_id"
    " AND removals.content_id = copies.content_id AND removals.place = copies.place)"
)


def _text(name: str) -> Column[str]:
    return Column(name, PlainText, nullable=False)


def _raw(name: str) -> Column[str]:
    return Column(name, RawText, nullable=False)


def _int(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


def _bytes(name: str) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=False)


def upgrade() -> None:
    _make_plans()
    _make_removals()
    _make_samples()


def _make_plans() -> None:
    op.create_table(
        "plans",
        Column("number", Number, primary_key=True),
        _text("plan_id"),
        _text("state"),
        _int("stored_at_ns"),
        _int("changed_at_ns"),
        _raw("by_whom"),
        _raw("note"),
        _bytes("head"),
        _bytes("entries"),
        UniqueConstraint("plan_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("plans_by_state", "plans", ["state", "number"])


def _make_removals() -> None:
    op.create_table(
        "removals",
        _text("run_id"),
        _text("content_id"),
        _text("place"),
        _text("action"),
        _text("plan_id"),
        _int("condemned_at_ns"),
        _int("due_at_ns"),
        Column("trash_s", Float, nullable=False),
        _int("size_bytes"),
        _int("files"),
        _raw("trash"),
        _raw("error"),
        PrimaryKeyConstraint("run_id", "content_id", "place"),
        ForeignKeyConstraint(
            ["run_id", "content_id", "place"],
            ["copies.run_id", "copies.content_id", "copies.place"],
        ),
    )
    op.create_index("removals_by_time", "removals", ["due_at_ns"])
    op.create_table(
        "claims",
        _text("lease_id"),
        _text("run_id"),
        _text("content_id"),
        _raw("owner"),
        _raw("reason"),
        _int("taken_at_ns"),
        _int("ttl_ns"),
        _int("ends_at_ns"),
        PrimaryKeyConstraint("lease_id"),
    )
    op.create_index("claims_of_run", "claims", ["run_id", "content_id"])


def _make_samples() -> None:
    op.create_table("signs", _text("run_id"), _int("asked_at_ns"), PrimaryKeyConstraint("run_id"))
    op.create_table(
        "samples",
        _text("place"),
        _int("at_ns"),
        _int("used_bytes"),
        _int("free_bytes", nullable=True),
        _int("total_bytes", nullable=True),
        _int("files", nullable=True),
        _int("free_files", nullable=True),
        _int("quota_bytes", nullable=True),
        _int("quota_files", nullable=True),
        PrimaryKeyConstraint("place", "at_ns"),
    )
    op.create_table(
        "ticks",
        Column("only", Integer, nullable=False),
        _int("at_ns"),
        PrimaryKeyConstraint("only"),
    )


def downgrade() -> None:
    op.execute(text(_UNDO))
    for table in _TABLES:
        op.drop_table(table)
    # Events of kinds that version 3 does not know would keep it from reading any.
    drop, make = _EVENTS_STAY[op.get_bind().dialect.name]
    op.execute(text(drop))
    op.execute(text(f"DELETE FROM events WHERE kind IN ({_NEW_EVENTS})"))  # noqa: S608 - constants
    op.execute(text(make))
