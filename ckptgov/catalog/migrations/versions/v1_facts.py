"""Facts about runs and checkpoints, events, restart decisions."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKeyConstraint,
    LargeBinary,
    PrimaryKeyConstraint,
    UniqueConstraint,
    text,
)

from ckptgov.catalog.columns import DecimalText, Number, PlainText, RawText

revision = "1"
down_revision = None

_ONE_PLACE_PER_ROOT = {
    "sqlite": "CREATE UNIQUE INDEX one_place_per_root ON places (root, ifnull(node, x'')) "
    "WHERE is_current",
    "postgresql": "CREATE UNIQUE INDEX one_place_per_root ON places "
    "(root, coalesce(node, ''::bytea)) WHERE is_current",
}
_TRIGGERS = {
    "sqlite": (
        """CREATE TRIGGER events_stay BEFORE DELETE ON events
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
        """CREATE TRIGGER events_stand BEFORE UPDATE ON events
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
        """CREATE TRIGGER events_are_new BEFORE INSERT ON events
       WHEN EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq)
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
    ),
    "postgresql": (
        """CREATE OR REPLACE FUNCTION events_refuse() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN RAISE EXCEPTION 'events are append-only'; END $$""",
        """CREATE TRIGGER events_stay BEFORE DELETE OR UPDATE ON events
       FOR EACH ROW EXECUTE FUNCTION events_refuse()""",
        """CREATE TRIGGER events_stand BEFORE TRUNCATE ON events
       FOR EACH STATEMENT EXECUTE FUNCTION events_refuse()""",
    ),
}


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, PlainText, nullable=nullable)


def _raw(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, RawText, nullable=nullable)


def _int(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


def _of_run() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["run_id"], ["runs.run_id"])


def _of_place() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["place"], ["places.place"])


def _of_checkpoint() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["run_id", "content_id"], ["checkpoints.run_id", "checkpoints.content_id"]
    )


def upgrade() -> None:
    _make_places_and_runs()
    _make_checkpoints()
    _make_history()
    for statement in _TRIGGERS[op.get_bind().dialect.name]:
        op.execute(text(statement))


def _make_places_and_runs() -> None:
    op.create_table("meta", _text("key"), _text("value"), PrimaryKeyConstraint("key"))
    op.create_table(
        "places",
        _text("place"),
        _text("tier"),
        _raw("node", nullable=True),
        _raw("root"),
        _raw("fs_type"),
        _raw("source"),
        _int("first_seen_at_ns"),
        Column("is_current", Boolean, nullable=False),
        PrimaryKeyConstraint("place"),
    )
    op.execute(text(_ONE_PLACE_PER_ROOT[op.get_bind().dialect.name]))
    op.create_table(
        "runs",
        _text("run_id"),
        _raw("name"),
        _raw("selector"),
        _text("expect", nullable=True),
        _int("created_at_ns"),
        PrimaryKeyConstraint("run_id"),
        UniqueConstraint("name"),
    )
    op.create_table(
        "run_roots",
        _text("place"),
        _raw("path"),
        _text("run_id"),
        _raw("sidecar"),
        PrimaryKeyConstraint("place", "path"),
        _of_place(),
        _of_run(),
    )
    op.create_index("ix_run_roots_run_id", "run_roots", ["run_id"])


def _make_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        _text("run_id"),
        _text("content_id"),
        _raw("name"),
        _int("step", nullable=True),
        _text("step_kind"),
        _text("layout"),
        _int("world_size", nullable=True),
        _text("purposes"),
        _int("size_bytes"),
        _int("shard_count"),
        _int("line"),
        _int("attempt"),
        _int("sealed_at_ns"),
        PrimaryKeyConstraint("run_id", "content_id"),
        _of_run(),
    )
    op.create_table(
        "manifests",
        _text("run_id"),
        _text("content_id"),
        Column("packed", LargeBinary, nullable=False),
        PrimaryKeyConstraint("run_id", "content_id"),
        _of_checkpoint(),
    )
    op.create_table(
        "copies",
        _text("run_id"),
        _text("content_id"),
        _text("place"),
        _raw("name"),
        _text("state"),
        Column("coverage", LargeBinary),
        _text("evidence"),
        _int("verified_at_ns", nullable=True),
        _text("findings"),
        PrimaryKeyConstraint("run_id", "content_id", "place"),
        _of_checkpoint(),
        _of_place(),
    )
    op.create_table(
        "sightings",
        _text("run_id"),
        _text("place"),
        _raw("name"),
        _raw("variant"),
        Column("step", DecimalText),
        _text("step_kind"),
        _text("layout"),
        _int("size_bytes"),
        _text("findings"),
        _text("notes"),
        _int("first_seen_at_ns"),
        _int("last_seen_at_ns"),
        _int("newest_mtime_ns"),
        PrimaryKeyConstraint("run_id", "place", "name", "variant"),
        _of_run(),
        _of_place(),
    )


def _make_history() -> None:
    op.create_table(
        "records",
        _text("run_id"),
        _text("record_id"),
        _int("number"),
        _text("kind"),
        _int("at_ns"),
        Column("raw", LargeBinary, nullable=False),
        PrimaryKeyConstraint("run_id", "record_id"),
        _of_run(),
    )
    op.create_table(
        "events",
        Column("seq", Number, primary_key=True),
        _int("at_ns"),
        _text("kind"),
        _text("run_id", nullable=True),
        _text("content_id", nullable=True),
        _text("place", nullable=True),
        _text("detail"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_run_id", "events", ["run_id"])
    op.create_table(
        "decisions",
        _text("run_id"),
        _raw("restart_id"),
        _int("epoch"),
        _text("content_id", nullable=True),
        Column("fresh", Boolean, nullable=False),
        PrimaryKeyConstraint("run_id", "restart_id", "epoch"),
    )
