"""What only a server does: its own clock, its locks, its restarts, its errors in our words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from ckptgov.catalog import postgres
from ckptgov.catalog.catalog import Catalog
from ckptgov.errors import (
    CkptgovError,
    ConfigError,
    StorageError,
    TransientStorageError,
    UsageError,
)
from ckptgov.model.access import Right, TokenFacts
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.clock import SystemClock
from ckptgov.model.cluster import NewTask, NodeBeat, TaskKind, TaskState

S = 10**9


@pytest.fixture
def connected(url, clock):
    """A catalog whose own clock stands still in 1970: the server's goes on."""
    with Catalog.connect(url, clock=clock) as catalog:
        yield catalog


def test_time_is_the_servers(connected, server) -> None:
    (now,) = server.execute("SELECT extract(epoch FROM clock_timestamp())")[0]
    for at_ns in (
        connected.now_ns(),
        connected.nodes.beat(NodeBeat(node="n", boot="b", version="1")).beat_at_ns,
        connected.activities.take_leader("a", 10.0).expires_at_ns - 10 * S,
        connected.tasks.add(NewTask(kind=TaskKind.SCAN, key="k", payload=b"")).created_at_ns,
    ):
        assert abs(at_ns - int(now * S)) < 60 * S


def test_time_goes_on_within_a_transaction(connected) -> None:
    with connected.transaction():
        first = connected.now_ns()
        connected.put_run(RunIdentity(run_id="r1", name="a"), 1)
        assert connected.now_ns() > first


def test_a_transaction_that_wipes_the_facts_may_stand_still_while_the_tiers_are_read(
    connected,
) -> None:
    with connected.transaction():
        connected.wipe_facts()
        with connected._database.read() as connection:
            (told,) = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").one()
        assert told == "0"


def test_a_server_that_was_restarted_is_asked_again(connected, server) -> None:
    connected.put_run(RunIdentity(run_id="r1", name="a"), 1)
    server.restart()
    assert [one.identity.name for one in connected.runs()] == ["a"]
    server.restart()
    connected.put_run(RunIdentity(run_id="r2", name="b"), 1)
    server.restart()
    with connected.transaction():
        connected.put_run(RunIdentity(run_id="r3", name="c"), 1)
    server.restart()
    connected.nodes.beat(NodeBeat(node="n", boot="b", version="1"))
    assert len(connected.runs()) == 3


def test_a_restart_in_the_middle_of_a_transaction_leaves_nothing_of_it(connected, server) -> None:
    def interrupted() -> None:
        with connected.transaction():
            connected.put_run(RunIdentity(run_id="r1", name="a"), 1)
            server.restart()
            connected.put_run(RunIdentity(run_id="r2", name="b"), 1)

    with pytest.raises(TransientStorageError):
        interrupted()
    assert connected.runs() == ()
    connected.put_run(RunIdentity(run_id="r1", name="a"), 1)


def test_a_server_that_is_down_is_a_passing_failure(connected, server) -> None:
    connected.runs()
    server.kill()
    try:
        with pytest.raises(TransientStorageError) as caught:
            connected.runs()
        with pytest.raises(TransientStorageError):
            connected.put_run(RunIdentity(run_id="r1", name="a"), 1)
    finally:
        server.start()
    assert "running" in (caught.value.hint or "")
    assert connected.runs() == ()


def test_whoever_waits_too_long_for_the_lock_gives_up(url, clock, monkeypatch) -> None:
    short = postgres._ON_CONNECT.replace("'10000'", "'50'")
    monkeypatch.setattr(postgres, "_ON_CONNECT", short)
    with Catalog.connect(url, clock=clock) as one, Catalog.connect(url, clock=clock) as other:
        with one.transaction():
            with pytest.raises(TransientStorageError, match="lock timeout"):
                other.put_run(RunIdentity(run_id="r1", name="a"), 1)
            assert other.runs() == ()  # readers wait for nobody
        other.put_run(RunIdentity(run_id="r1", name="a"), 1)


def test_a_stopped_process_holds_up_nobody_for_long(connected, url, server) -> None:
    """What SIGSTOP does inside a transaction: the server ends it, and its commit is refused."""
    script = textwrap.dedent(
        f"""
        import sys
        from ckptgov.catalog import postgres
        from ckptgov.catalog.catalog import Catalog
        from ckptgov.errors import TransientStorageError
        from ckptgov.model.checkpoint import RunIdentity
        from ckptgov.model.clock import SystemClock
        postgres._ON_CONNECT = postgres._ON_CONNECT.replace("'20000'", "'300'")
        catalog = Catalog.connect({url!r}, clock=SystemClock())
        try:
            with catalog.transaction():
                catalog.put_run(RunIdentity(run_id="half", name="half"), 1)
                print("held", flush=True)
                sys.stdin.readline()
        except TransientStorageError:
            print("refused")
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    os.kill(process.pid, signal.SIGSTOP)
    try:
        connected.put_run(RunIdentity(run_id="r1", name="whole"), 1)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert process.communicate("\n", timeout=60)[0] == "refused\n"
    assert [one.identity.name for one in connected.runs()] == ["whole"]


def test_a_leader_that_slept_is_fenced_by_the_servers_clock(connected, url, clock) -> None:
    leader = connected.activities.take_leader("asleep", 0.001)
    with Catalog.connect(url, clock=clock) as other:
        until = other.now_ns() + 5_000_000
        while other.now_ns() < until:
            pass
        assert other.activities.take_leader("awake", 30.0).epoch == leader.epoch + 1
    seen: list[str] = []
    for call in (
        lambda: connected.activities.require_leader(leader),
        lambda: connected.activities.ended("scan", leader=leader, error=None),
    ):
        try:
            call()
        except Exception as error:
            seen.append(type(error).__name__)
    assert seen == ["LeaseLost", "LeaseLost"]


def test_a_transaction_sees_what_was_committed_while_it_waited(url, clock) -> None:
    """The lock comes before the view: a guard reads what the one before it wrote."""
    with Catalog.connect(url, clock=clock) as one, Catalog.connect(url, clock=clock) as other:
        seen: list[int] = []

        def look() -> None:
            with other.transaction():
                seen.append(len(other.runs()))

        thread = threading.Thread(target=look)
        with one.transaction():
            thread.start()
            thread.join(timeout=0.3)
            one.put_run(RunIdentity(run_id="r1", name="a"), 1)
        thread.join()
    assert seen == [1]


def test_a_server_with_other_defaults_guards_no_less(server, url, clock) -> None:
    name = url.rpartition("/")[2]
    server.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    test_a_transaction_sees_what_was_committed_while_it_waited(url, clock)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM events",
        "UPDATE events SET at_ns = 0",
        "TRUNCATE events",
        "INSERT INTO events (seq, at_ns, kind, detail) VALUES (1, 0, 'x', '{}')",
    ],
)
def test_events_cannot_be_changed(connected, server, url, statement) -> None:
    import psycopg

    before = connected.events()
    with pytest.raises(psycopg.Error, match=r"append-only|duplicate key"):
        server.execute(statement, url=url)
    assert connected.events() == before


def test_two_that_make_a_new_catalog_together_share_one(server) -> None:
    url = server.new_database()
    seen: set[str] = set()
    gate = threading.Barrier(4)

    def connect() -> None:
        gate.wait()
        with Catalog.connect(url, clock=SystemClock()) as catalog:
            seen.add(catalog.identity().uuid)

    threads = [threading.Thread(target=connect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.drop(url)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://x/y", "cannot lie at mysql"),
        ("no url", "cannot be read"),
        ("postgresql://u:secret@127.0.0.1:port/x", "cannot be read"),
    ],
)
def test_what_is_no_url_of_ours_is_refused(words, url, clock) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Catalog.connect(url, clock=clock)
    assert "postgresql://" in (caught.value.hint or "")


def test_a_setting_that_is_none_is_refused(server, clock) -> None:
    with pytest.raises(ConfigError, match="invalid"):
        Catalog.connect(server.url() + "?no_such_setting=1", clock=clock)


def test_a_password_among_the_options_of_the_url_is_not_told_either(clock) -> None:
    url = "postgresql://ckptgov@127.0.0.1:1/none?password=hunter2&sslkey=/hunter2"
    with pytest.raises(CkptgovError) as caught:
        Catalog.connect(url, clock=clock)
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_what_the_server_refuses_is_told_without_the_password(server, clock) -> None:
    right = server.url("nowhere")
    password = right.split(":")[2].split("@")[0]
    for wrong in (right, right.replace(password, "guess")):
        with pytest.raises(StorageError) as caught:
            Catalog.connect(wrong, clock=clock)
        assert not isinstance(caught.value, TransientStorageError)
        assert "check the catalog's URL" in (caught.value.hint or "")
        assert password not in str(caught.value)


def test_a_database_of_another_program_is_left_alone(server, clock) -> None:
    url = server.new_database()
    server.execute("CREATE TABLE runs (a INT)", url=url)
    with pytest.raises(StorageError) as caught:
        Catalog.connect(url, clock=clock)
    assert "of its own" in (caught.value.hint or "")
    assert server.execute("SELECT to_regclass('meta')", url=url) == [(None,)]
    server.drop(url)


def test_a_database_that_cannot_hold_all_text_is_refused(server, clock) -> None:
    server.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(ConfigError, match="encoding is LATIN1"):
        Catalog.connect(server.url("latin"), clock=clock)
    server.execute("DROP DATABASE latin WITH (FORCE)")


def test_a_table_that_was_dropped_is_damage_with_a_way_out(connected, server, url) -> None:
    server.execute("DROP TABLE sightings", url=url)
    with pytest.raises(StorageError) as caught:
        connected.sightings("r1")
    assert caught.value.hint == "ckptgov catalog rebuild"


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_no_column_takes_is_refused_also_when_asked_for(connected, text) -> None:
    with pytest.raises(UsageError, match="cannot hold"):
        connected.run_by_id(text)
    with pytest.raises(UsageError, match="cannot hold"):
        connected.put_run(RunIdentity(run_id=text, name="a"), 1)
    assert connected.runs() == ()


def test_a_token_with_a_nul_in_its_digest_is_refused_not_an_error_of_the_server(connected) -> None:
    token = TokenFacts(
        token_id="t",
        label="a\0b",
        secret_sha256="\0",
        rights=frozenset({Right.READ}),
        created_at_ns=1,
    )
    with pytest.raises(UsageError, match="cannot hold"):
        connected.tokens.add(token)


def test_names_sort_by_their_bytes_whatever_the_servers_language(server, clock) -> None:
    url = server.new_database()
    with Catalog.connect(url, clock=clock) as catalog:
        for name in ("b", "A", "a", "B", "é"):
            catalog.activities.declare(name, every_s=1.0, slo_s=1.0)
        assert [one.name for one in catalog.activities.activities()] == ["A", "B", "a", "b", "é"]
        with catalog._database.read() as connection:
            rows = connection.exec_driver_sql(
                "SELECT DISTINCT collation_name FROM information_schema.columns"
                " WHERE data_type = 'character varying' AND table_schema = 'public'"
                " AND table_name <> 'alembic_version'"
            )
            assert [row[0] for row in rows] == ["C"]
    server.drop(url)


def test_a_task_ended_behind_a_lost_connection_is_told_of_once(connected, server) -> None:
    connected.tasks.add(NewTask(kind=TaskKind.SCAN, key="k", payload=b""))
    (held,) = connected.tasks.claim(node=None, holder="h", kinds=None, ttl_s=60.0)
    server.kill()
    with pytest.raises(TransientStorageError):
        connected.tasks.end(held.task_id, held.lease, state=TaskState.DONE, outcome=b"")
    server.start()
    ended = connected.tasks.end(held.task_id, held.lease, state=TaskState.DONE, outcome=b"x")
    assert (ended.state, ended.outcome) == (TaskState.DONE, b"x")


def test_nothing_of_a_server_is_loaded_for_a_file() -> None:
    script = textwrap.dedent(
        """
        import sys, tempfile
        from ckptgov.catalog.catalog import Catalog
        from ckptgov.model.clock import SystemClock
        with tempfile.TemporaryDirectory() as home:
            path = home + "/catalog.db"
            Catalog.open(path, fs_type="ext4", is_network=False, clock=SystemClock()).close()
        dear = ("psycopg", "alembic", "sqlalchemy.dialects.postgresql")
        sys.exit(", ".join(name for name in dear if name in sys.modules) or 0)
        """
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
