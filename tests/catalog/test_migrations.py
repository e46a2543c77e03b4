"""A catalog of an older version is brought up in place, and is then like a new one."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from ckptgov.catalog.facts import SCHEMA_VERSION, EventKind
from ckptgov.catalog.peek import Peek

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


def test_a_catalog_of_version_1_opens_with_all_it_knew(open_catalog, path) -> None:
    make_old(path)
    catalog = open_catalog()
    assert [one.place for one in catalog.places()] == ["p1"]
    assert [one.identity.name for one in catalog.runs()] == ["team/llm"]
    migrated = catalog.events()[-1]
    assert migrated.kind is EventKind.MIGRATED
    assert dict(migrated.detail) == {"from": "1", "to": "2"}
    assert catalog.flows.registered() == ()
    assert catalog.abilities("p1") is None


def test_an_upgraded_catalog_has_the_schema_of_a_new_one(
    open_catalog, path, tmp_path, clock
) -> None:
    from ckptgov.catalog.catalog import Catalog

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
    assert SCHEMA_VERSION == 2, "a new version needs a test of its own here"
