"""A catalog of an older version is brought up in place, and down again, with what it knew."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import inspect

from ckptgov.catalog import schema
from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import SCHEMA_VERSION, EventKind
from ckptgov.catalog.migrations import run
from ckptgov.catalog.peek import Peek
from ckptgov.catalog.postgres import PostgresDatabase
from ckptgov.errors import ConfigError, StorageError, UsageError
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.cluster import NodeBeat
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import Plan, PlanState

NEWER = SCHEMA_VERSION + 1
VERSION_1 = Path(__file__).parent / "files" / "version_1.sql"


def make_old(path: str) -> None:
    Path(path).parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1.read_text())
    connection.close()


def tables(path: str) -> dict[str, str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL").fetchall()
    connection.close()
    return {name: re.sub(r"\s+", " ", sql).replace(" ,", ",") for name, sql in rows}


def told(catalog) -> list[dict[str, str]]:
    return [dict(one.detail) for one in catalog.events() if one.kind is EventKind.MIGRATED]


def version(catalog) -> int:
    with catalog._database.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT value FROM meta WHERE key = 'schema_version'"
            " UNION SELECT version_num FROM alembic_version"
        )
        (found,) = {row[0] for row in rows}
    return int(found)


def test_a_catalog_of_version_1_opens_with_all_it_knew(open_catalog, path) -> None:
    make_old(path)
    catalog = open_catalog()
    assert [one.place for one in catalog.places()] == ["p1"]
    assert [one.identity.name for one in catalog.runs()] == ["team/llm"]
    steps = [("1", "2"), ("2", "3"), ("3", "4")]
    assert told(catalog) == [{"from": before, "to": now} for before, now in steps]
    assert catalog.flows.registered() == ()
    assert catalog.abilities("p1") is None
    assert catalog.nodes.nodes() == catalog.changes(0) == ()
    assert catalog.plans.plans() == catalog.removals.removals() == catalog.claims.claims() == ()


def test_an_upgraded_catalog_has_the_schema_of_a_new_one(
    open_catalog, path, tmp_path, clock
) -> None:
    make_old(path)
    open_catalog().close()
    new = str(tmp_path / "new" / "catalog.db")
    Catalog.open(new, fs_type="ext4", is_network=False, clock=clock).close()
    assert tables(path) == tables(new)


def test_the_launchers_short_way_waits_for_the_upgrade(open_catalog, path) -> None:
    make_old(path)
    assert Peek.open(path) is None
    open_catalog()
    with Peek.open(path) as peek:
        assert [one.place for one in peek.places()] == ["p1"]
    assert SCHEMA_VERSION == 4, "a new version needs a test of its own here"


def schema_of(database) -> dict[str, list[tuple[object, ...]]]:
    """Everything a server's catalog is made of, in the server's own words."""
    asked = {
        "columns": "SELECT table_name, column_name, data_type, collation_name, is_nullable"
        " FROM information_schema.columns WHERE table_schema = 'public'",
        "indexes": "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'",
        "constraints": "SELECT conrelid::regclass::text, pg_get_constraintdef(oid)"
        " FROM pg_constraint WHERE connamespace = 'public'::regnamespace",
        "triggers": "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
        "functions": "SELECT proname, prosrc FROM pg_proc"
        " WHERE pronamespace = 'public'::regnamespace",
    }
    with database.read() as connection:
        return {
            name: sorted(tuple(row) for row in connection.exec_driver_sql(query))
            for name, query in asked.items()
        }


def test_a_server_brought_up_from_nothing_has_the_schema_of_a_new_one(catalog, server, url) -> None:
    empty = server.new_database()
    database = PostgresDatabase.at(empty)
    with database.transaction() as connection:
        run.run(connection, 0, SCHEMA_VERSION, lambda before, now: None)
    made = schema_of(database)
    database.close()
    server.drop(empty)
    assert made == schema_of(catalog._database)


@pytest.mark.parametrize("target", [1, 2, 3])
def test_down_and_up_again_keeps_the_facts(filled, open_catalog, sealed, target) -> None:
    filled.nodes.beat(NodeBeat(node="n1", boot="b", version="1"))
    before = filled.events()
    schema.downgrade(filled._database, target)
    assert version(filled) == target
    with filled._database.read() as connection:
        names = set(inspect(connection).get_table_names())
    assert "checkpoints" in names
    assert "removals" not in names
    assert ("nodes" in names) == (target >= 3)
    assert ("flows" in names) == (target >= 2)
    again = open_catalog()
    assert version(again) == SCHEMA_VERSION
    assert again.checkpoints("r1") == (sealed,)
    assert again.manifest_bytes("r1", sealed.content_id) == b'{"manifest":1}\n'
    assert len(again.nodes.nodes()) == (target >= 3)
    kept = [one for one in before if target >= 3 or one.kind is not EventKind.NODE_ADDED]
    assert list(again.events()[: len(kept)]) == kept
    steps = [(one["from"], one["to"]) for one in told(again)]
    down = [(str(n), str(n - 1)) for n in range(SCHEMA_VERSION, target, -1)]
    assert steps == down + [(to, before) for before, to in reversed(down)]
    again.put_run(RunIdentity(run_id="r2", name="new"), 9)
    assert again.change_seq() > 0


def test_what_was_condemned_counts_again_for_a_version_that_knows_no_removals(
    small, open_catalog, clock
) -> None:
    small.add(10, "s1")
    small.add(20, "s1", "n1")
    before = small.catalog.copies("r1")
    small.prune(("c10", "s1"))
    small.evict(("c20", "n1"))
    clock.at_ns += 10 * 10**9
    small.catalog.removals.begin("r1", "c20", "n1", small.guard())
    schema.downgrade(small.catalog._database, 3)
    again = open_catalog()
    kept, moving, other = again.copies("r1")
    assert (kept, other) == (before[0], before[2])
    assert moving.state is CopyState.TRASHING
    assert again.removals.removals() == ()


def test_what_an_older_version_cannot_read_of_plans_goes_with_them(filled, open_catalog) -> None:
    plan = Plan(plan_id="p", now_ns=1, change_seq=1, policies=(), entries=())
    filled.plans.put(plan, state=PlanState.PROPOSED, by="cli")
    filled.plans.set_state("p", expected=PlanState.PROPOSED, to=PlanState.STALE, by="cli")
    schema.downgrade(filled._database, 3)
    again = open_catalog()
    assert again.plans.plans() == ()
    kinds = {one.kind for one in again.events()}
    assert not kinds & {
        EventKind.PLAN_STORED,
        EventKind.PLAN_STATE,
        EventKind.RUN_ROOT_DROPPED,
    }
    assert EventKind.SEALED in kinds


@pytest.mark.parametrize("target", [2, 3])
def test_events_are_append_only_after_a_downgrade_too(filled, target) -> None:
    schema.downgrade(filled._database, target)
    with pytest.raises(StorageError, match="append-only"):
        delete_events(filled)


def delete_events(catalog) -> None:
    with catalog._database.write() as connection:
        connection.exec_driver_sql("DELETE FROM events")


@pytest.mark.parametrize("target", [0, NEWER])
def test_there_is_no_way_down_to_what_is_not_older(catalog, target) -> None:
    with pytest.raises(UsageError, match="cannot be brought down"):
        schema.downgrade(catalog._database, target)


@pytest.fixture
def newer(tmp_path, monkeypatch):
    """Lets the newest version be one that a revision of the test's own makes."""

    def be(body: str) -> None:
        scripts = tmp_path / "scripts"
        (scripts / "versions").mkdir(parents=True)
        for own in (*run.SCRIPTS.glob("*.py"), *run.SCRIPTS.glob("versions/*.py")):
            (scripts / own.relative_to(run.SCRIPTS)).write_text(own.read_text())
        lines = "\n".join(f"    op.execute({each!r})" for each in body.split(";"))
        (scripts / "versions" / f"v{NEWER}.py").write_text(
            f"from alembic import op\nrevision = '{NEWER}'\ndown_revision = '{SCHEMA_VERSION}'\n"
            f"def upgrade():\n{lines}\n"
        )
        monkeypatch.setattr(run, "SCRIPTS", scripts)
        monkeypatch.setattr(schema, "SCHEMA_VERSION", NEWER)

    return be


def test_an_older_schema_is_brought_up_when_it_is_opened(catalog, open_catalog, newer) -> None:
    newer("CREATE TABLE extra (a INT); ALTER TABLE extra ADD b INT")
    again = open_catalog()
    assert version(again) == NEWER
    with again._database.read() as connection:
        assert connection.exec_driver_sql("SELECT a, b FROM extra").all() == []
    assert told(again) == [{"from": str(SCHEMA_VERSION), "to": str(NEWER)}]
    assert told(open_catalog()) == [{"from": str(SCHEMA_VERSION), "to": str(NEWER)}]


def test_a_failing_migration_leaves_the_old_schema(catalog, open_catalog, newer) -> None:
    newer("CREATE TABLE extra (a INT); CREATE TABLE extra (a INT)")
    with pytest.raises(StorageError, match="already exists"):
        open_catalog()
    with catalog._database.read() as connection:
        assert "extra" not in inspect(connection).get_table_names()
    assert version(catalog) == SCHEMA_VERSION


def test_a_newer_schema_is_refused_naming_both_versions(catalog, open_catalog) -> None:
    with catalog._database.write() as connection:
        connection.exec_driver_sql(
            f"UPDATE meta SET value = '{NEWER}' WHERE key = 'schema_version'"
        )
    words = f"schema version {NEWER}, and this ckptgov knows up to {SCHEMA_VERSION}"
    with pytest.raises(ConfigError, match=words):
        open_catalog()


def test_a_schema_without_a_way_up_is_refused(catalog, open_catalog) -> None:
    with catalog._database.write() as connection:
        connection.exec_driver_sql("UPDATE meta SET value = '0' WHERE key = 'schema_version'")
    with pytest.raises(ConfigError, match="cannot be brought up"):
        open_catalog()


def test_an_upgrade_believes_the_programs_version_not_alembics(catalog, open_catalog) -> None:
    """A ckptgov from before Alembic may have changed the one and not the other."""
    schema.downgrade(catalog._database, 1)
    with catalog._database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '2'")
    assert version(open_catalog()) == SCHEMA_VERSION
