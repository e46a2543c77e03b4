"""Nodes, tasks, tokens, activities, parts; changes by run; indexes of the newest checkpoints."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    UniqueConstraint,
    text,
)

from ckptgov.catalog.columns import Number, PlainText, RawText

revision = "3"
down_revision = "2"

_TABLES = ("parts", "leader", "activities", "tokens", "tasks", "nodes", "changes")
_PARTIAL_INDEXES = (
    "CREATE UNIQUE INDEX one_open_task_per_key ON tasks (key) WHERE state IN ('queued', 'claimed')",
    "CREATE INDEX tasks_to_do ON tasks (node, priority, number)"
    " WHERE state IN ('queued', 'claimed')",
    "CREATE INDEX binding_records ON records (run_id, number, record_id)"
    " WHERE kind NOT IN ('sealed', 'metric')",
)
_NEW_EVENTS = "'node-added', 'node-state', 'token-added', 'token-revoked', 'catalog-loaded'"
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


def _text(name: str) -> Column[str]:
    return Column(name, PlainText, nullable=False)


def _raw(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, RawText, nullable=nullable)


def _int(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


def _bytes(name: str) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=False)


def upgrade() -> None:
    op.create_index(
        "newest_checkpoints",
        "checkpoints",
        ["run_id", text("coalesce(step, -1)"), "line", "attempt", "content_id"],
    )
    op.create_table(
        "changes",
        _text("run_id"),
        _int("seq"),
        PrimaryKeyConstraint("run_id"),
        UniqueConstraint("seq"),
    )
    _make_nodes()
    _make_tasks()
    _make_activities()
    for statement in _PARTIAL_INDEXES:
        op.execute(text(statement))


def _make_nodes() -> None:
    op.create_table(
        "nodes",
        _raw("node"),
        _text("state"),
        _raw("reason"),
        _raw("boot"),
        _raw("version"),
        _raw("peer_url", nullable=True),
        _int("first_seen_at_ns"),
        _int("beat_at_ns"),
        PrimaryKeyConstraint("node"),
    )
    op.create_table(
        "tokens",
        _text("token_id"),
        _raw("label"),
        _text("secret_sha256"),
        _text("rights"),
        _text("teams"),
        _raw("node", nullable=True),
        _int("created_at_ns"),
        _int("expires_at_ns", nullable=True),
        _int("revoked_at_ns", nullable=True),
        PrimaryKeyConstraint("token_id"),
        UniqueConstraint("secret_sha256"),
    )
    op.create_table(
        "parts",
        _text("run_id"),
        _raw("name"),
        _text("place"),
        _bytes("told"),
        _int("posted_at_ns"),
        PrimaryKeyConstraint("run_id", "name", "place"),
    )


def _make_tasks() -> None:
    op.create_table(
        "tasks",
        Column("number", Number, primary_key=True),
        _text("task_id"),
        _text("kind"),
        _raw("key"),
        _bytes("payload"),
        _raw("node", nullable=True),
        _raw("for_run", nullable=True),
        _int("priority"),
        _text("state"),
        _int("lease"),
        _raw("holder"),
        _int("lease_ends_at_ns"),
        _int("attempts"),
        _int("created_at_ns"),
        _int("ended_at_ns", nullable=True),
        _bytes("outcome"),
        UniqueConstraint("task_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("tasks_of_run", "tasks", ["for_run", "number"])
    op.create_index("tasks_of_node", "tasks", ["node", "number"])
    op.create_index("tasks_that_ended", "tasks", ["ended_at_ns"])


def _make_activities() -> None:
    op.create_table(
        "activities",
        _text("name"),
        Column("every_s", Float, nullable=False),
        Column("slo_s", Float, nullable=False),
        _int("known_since_ns"),
        _int("began_at_ns"),
        _int("ended_at_ns"),
        _int("succeeded_at_ns"),
        _int("failures"),
        _raw("error"),
        PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "leader",
        Column("only", Integer, nullable=False),
        _raw("holder"),
        _int("epoch"),
        _int("expires_at_ns"),
        PrimaryKeyConstraint("only"),
    )


def downgrade() -> None:
    for table in _TABLES:
        op.drop_table(table)
    op.drop_index("binding_records", "records")
    op.drop_index("newest_checkpoints", "checkpoints")
    # Events of kinds that version 2 does not know would keep it from reading any.
    drop, make = _EVENTS_STAY[op.get_bind().dialect.name]
    op.execute(text(drop))
    op.execute(text(f"DELETE FROM events WHERE kind IN ({_NEW_EVENTS})"))  # noqa: S608 - constants
    op.execute(text(make))
