from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import textwrap

import pytest

from ckptgov.catalog import schema, sqlite
from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.database import set_aside
from ckptgov.catalog.facts import SCHEMA_VERSION
from ckptgov.catalog.sqlite import SqliteDatabase, prepare
from ckptgov.errors import ConfigError, StaleState, StorageError, TransientStorageError

NEWER = SCHEMA_VERSION + 1


def raw(path: str, *statements: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
        connection.commit()
    finally:
        connection.close()
    return rows


def test_a_new_catalog_is_for_its_owner_only(open_catalog, path):
    old = os.umask(0)
    try:
        catalog = open_catalog()
        catalog.adopt_identity("u", 2)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    modes = {
        name: stat.S_IMODE(os.stat(os.path.join(os.path.dirname(path), name)).st_mode)
        for name in os.listdir(os.path.dirname(path))
    }
    assert modes == {"catalog.db": 0o600, "catalog.db-wal": 0o600, "catalog.db-shm": 0o600}


def test_a_new_catalog_has_an_identity_of_its_own_that_stays(open_catalog, tmp_path, clock):
    first = open_catalog()
    other = str(tmp_path / "other" / "catalog.db")
    with Catalog.open(other, fs_type="ext4", is_network=False, clock=clock) as second:
        assert first.identity().uuid != second.identity().uuid
    assert first.identity().epoch == 1
    assert open_catalog().identity() == first.identity()


def test_every_connection_is_durable_and_checks_references(catalog, path, clock):
    connection = SqliteDatabase(path, clock)
    with connection.read() as reading:
        values = [
            reading.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]
    connection.close()
    assert values == ["wal", 2, 1, 10_000]


def test_a_network_file_system_is_refused_before_anything_is_made(path, clock):
    with pytest.raises(ConfigError, match="network file system") as caught:
        Catalog.open(path, fs_type="nfs4", is_network=True, clock=clock)
    assert "CKPTGOV_HOME" in (caught.value.hint or "")
    assert not os.path.exists(os.path.dirname(path))


def test_a_newer_schema_is_refused_naming_both_versions(open_catalog, path):
    open_catalog().close()
    raw(path, f"UPDATE meta SET value = '{NEWER}' WHERE key = 'schema_version'")
    words = f"schema version {NEWER}, and this ckptgov knows up to {SCHEMA_VERSION}"
    with pytest.raises(ConfigError, match=words):
        open_catalog()


def test_an_adopted_identity_stays_and_its_epoch_only_rises(open_catalog):
    catalog = open_catalog()
    catalog.adopt_identity("u", 3)
    with pytest.raises(StaleState, match="epoch 3"):
        catalog.adopt_identity("u", 2)
    with pytest.raises(ValueError, match="below 1"):
        catalog.adopt_identity("v", 0)
    identity = open_catalog().identity()
    assert (identity.uuid, identity.epoch) == ("u", 3)


@pytest.mark.parametrize("kept_bytes", [0, 1, 100, 4096, 5000, 20_000])
def test_a_cut_off_file_is_damaged_not_empty(filled, open_catalog, path, kept_bytes):
    filled.close()
    os.truncate(path, kept_bytes)
    with pytest.raises(StorageError) as caught:
        open_catalog().runs()
    assert caught.value.hint == "ckptgov catalog rebuild"
    assert os.path.getsize(path) == kept_bytes


@pytest.mark.parametrize("content", [b"not a database at all\n" * 500, bytes(8192)])
def test_a_file_of_something_else_is_damaged_not_empty(open_catalog, path, content):
    os.mkdir(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(StorageError) as caught:
        open_catalog()
    assert caught.value.hint == "ckptgov catalog rebuild"


def test_a_database_of_another_program_is_no_catalog(open_catalog, path):
    os.mkdir(os.path.dirname(path))
    raw(path, "CREATE TABLE notes (a)")
    with pytest.raises(StorageError) as caught:
        open_catalog()
    assert caught.value.hint == "ckptgov catalog rebuild"
    assert raw(path, "SELECT name FROM sqlite_master") == [("notes",)]


def test_a_damaged_page_is_found_when_it_is_read(filled, open_catalog, path):
    filled.close()
    (page,) = raw(path, "SELECT rootpage FROM sqlite_master WHERE name = 'runs'")[0]
    with open(path, "r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(StorageError) as caught:
        open_catalog().runs()
    assert caught.value.hint == "ckptgov catalog rebuild"


def test_a_lost_file_whose_log_is_there_is_damaged_not_absent(open_catalog, path):
    os.mkdir(os.path.dirname(path))
    with open(path + "-wal", "wb") as file:
        file.write(b"left over")
    with pytest.raises(StorageError, match="missing, though its log"):
        open_catalog()
    assert not os.path.exists(path)


def test_a_file_that_vanishes_is_not_made_anew(catalog, path):
    catalog.close()
    os.unlink(path)
    with pytest.raises(StorageError, match="unable to open"):
        catalog.runs()
    assert not os.path.exists(path)


def test_a_catalog_whose_log_could_not_be_folded_in_is_not_published(path, clock):
    readers: list[sqlite3.Connection] = []

    def fill(new: SqliteDatabase) -> None:
        with new.write() as connection:
            schema.create(connection, uuid="u", at_ns=1)
        readers.append(sqlite3.connect(new.path))
        readers[0].execute("SELECT * FROM meta").fetchone()

    with pytest.raises(StorageError, match="could not write all"):
        prepare(path, fs_type="ext4", is_network=False, clock=clock, fill=fill)
    readers[0].close()
    assert os.listdir(os.path.dirname(path)) == []


def test_of_two_that_make_a_new_catalog_the_first_stands(open_catalog, path, clock):
    winners: list[str] = []

    def fill(new: SqliteDatabase) -> None:
        with new.write() as connection:
            schema.create(connection, uuid="loser", at_ns=1)
        winners.append(open_catalog().identity().uuid)

    prepare(path, fs_type="ext4", is_network=False, clock=clock, fill=fill)
    assert [open_catalog().identity().uuid] == winners


def test_what_is_no_file_is_refused(open_catalog, path):
    os.makedirs(path)
    with pytest.raises(StorageError, match="not a regular file"):
        open_catalog()


def test_a_directory_that_cannot_be_made_is_a_storage_error(tmp_path, clock):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Not a directory"):
        Catalog.open(
            str(tmp_path / "file" / "home" / "catalog.db"),
            fs_type="ext4",
            is_network=False,
            clock=clock,
        )


def test_a_failed_first_write_leaves_no_file(open_catalog, path, monkeypatch):
    monkeypatch.setattr(schema, "BESIDE_TABLES", {"sqlite": ("CREATE NONSENSE",)})
    with pytest.raises(StorageError):
        open_catalog()
    assert os.listdir(os.path.dirname(path)) == []


def test_a_damaged_catalog_is_set_aside_whole_and_a_new_one_made(open_catalog, path):
    os.mkdir(os.path.dirname(path))
    for suffix in ("", "-wal"):
        with open(path + suffix, "wb") as file:
            file.write(b"damaged")
    assert set_aside(path, at_ns=5) == (f"{path}.damaged-5", f"{path}.damaged-5-wal")
    assert open_catalog().runs() == ()


def test_a_held_lock_is_a_passing_failure(catalog, path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(sqlite, "_PRAGMAS", ("PRAGMA busy_timeout=10",))
    catalog.close()  # the connections it opens from now on wait 10 ms only
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(TransientStorageError, match="locked"):
            catalog.adopt_identity("u", 2)
    finally:
        other.close()
    catalog.adopt_identity("u", 2)


def test_processes_that_open_a_new_catalog_together_share_one(path):
    script = textwrap.dedent(
        """
        import sys
        from ckptgov.catalog.catalog import Catalog
        from ckptgov.model.clock import SystemClock
        with Catalog.open(
            sys.argv[1], fs_type="ext4", is_network=False, clock=SystemClock()
        ) as catalog:
            print(catalog.identity().uuid)
        """
    )
    openers = [
        subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    seen = {opener.communicate(timeout=60)[0] for opener in openers}
    assert len(seen) == 1
    assert len(seen.pop().strip()) == 36
    assert os.listdir(os.path.dirname(path)) == ["catalog.db"]


def test_the_room_and_its_facts_load_no_sql():
    script = "import sys, ckptgov.catalog.facts; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
