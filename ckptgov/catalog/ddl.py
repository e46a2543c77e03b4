"""What a new catalog has beside its tables, in each engine's words: partial indexes, triggers.

In plain text, because SQLAlchemy loads all of PostgreSQL's dialect for one such index.
"""

from __future__ import annotations

_INDEXES = (
    # While one is open, no second task of its key is made.
    "CREATE UNIQUE INDEX one_open_task_per_key ON tasks (key) WHERE state IN ('queued', 'claimed')",
    "CREATE INDEX tasks_to_do ON tasks (node, priority, number)"
    " WHERE state IN ('queued', 'claimed')",
    # Those that decide about ``latest``: few, however many checkpoints a run has.
    "CREATE INDEX binding_records ON records (run_id, number, record_id)"
    " WHERE kind NOT IN ('sealed', 'metric')",
)

EVENTS_STAY = {
    "sqlite": (
        """CREATE TRIGGER events_stay BEFORE DELETE ON events
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
        """CREATE TRIGGER events_stand BEFORE UPDATE ON events
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
        # INSERT OR REPLACE deletes without firing the delete trigger.
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
"""What keeps events as they are."""

EVENTS_MAY_GO = {
    "sqlite": tuple(
        f"DROP TRIGGER {name}" for name in ("events_stay", "events_stand", "events_are_new")
    ),
    "postgresql": tuple(
        f"DROP TRIGGER {name} ON events" for name in ("events_stay", "events_stand")
    ),
}
"""The opposite, until the end of a transaction that makes them stay again."""

BESIDE_TABLES = {
    "sqlite": (
        # At one root of one node (or of all of them) one place is met at a time.
        "CREATE UNIQUE INDEX one_place_per_root ON places (root, ifnull(node, x''))"
        " WHERE is_current",
        *_INDEXES,
        *EVENTS_STAY["sqlite"],
    ),
    "postgresql": (
        "CREATE UNIQUE INDEX one_place_per_root ON places (root, coalesce(node, ''::bytea))"
        " WHERE is_current",
        *_INDEXES,
        *EVENTS_STAY["postgresql"],
    ),
}
