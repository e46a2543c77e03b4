"""Tiers in an S3 store: registered, scanned and asked like any directory. A real server answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.clock import SystemClock
from ckptgov.storage.open import open_storage
from ckptgov.testing import seaweedfs
from ckptgov.testing.builders import write_dcp
from ckptgov.work import abilities

MOST_S = 60.0
"""The longest sum of waits before a person is told that nobody answers."""


@pytest.fixture(scope="module")
def server() -> Iterator[seaweedfs.WeedServer]:
    if reason := seaweedfs.reason_to_skip():
        pytest.skip(reason)
    with seaweedfs.weed_s3() as server:
        yield server


@pytest.fixture(scope="module")
def seen() -> list[abilities.Abilities]:
    """What the server was seen to do when it was first examined."""
    return []


@pytest.fixture
def store(
    server: seaweedfs.WeedServer,
    seen: list[abilities.Abilities],
    monkeypatch: pytest.MonkeyPatch,
) -> seaweedfs.WeedServer:
    """The server's credentials in the environment, and not its address.

    It is examined for real once, not for every test.
    """
    examine = abilities.probe

    def probe_once(*given: Any, **named: Any) -> abilities.Abilities:
        if not seen:
            seen.append(examine(*given, **named))
        return seen[0]

    monkeypatch.setattr(abilities, "probe", probe_once)
    for name, value in server.environment.items():
        if name != "AWS_ENDPOINT_URL_S3":
            monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def url(store: seaweedfs.WeedServer, tmp_path: Path) -> str:
    """A prefix of this test's own."""
    return f"s3://{store.bucket}/{tmp_path.name}"


@pytest.fixture
def upload(store: seaweedfs.WeedServer, tmp_path: Path) -> Callable[[str, str], None]:
    """Puts a small whole checkpoint at a URL and name, as a trainer would."""

    def put(root: str, name: str) -> None:
        local = tmp_path / "local" / name
        write_dcp(local, seed=name)
        storage = open_storage(root, endpoint=store.endpoint)
        for path in sorted(local.rglob("*"), key=lambda one: one.name == ".metadata"):
            if path.is_file():
                storage.publish(f"{name}/{path.relative_to(local)}", [path.read_bytes()])
        storage.close()

    return put


@pytest.fixture
def tier(cli, url: str, store: seaweedfs.WeedServer) -> str:
    """The prefix, registered as tier s3."""
    cli.done("tier", "add", "s3", url, "--endpoint", store.endpoint, "--ingest")
    return url


def test_a_prefix_becomes_a_tier_with_an_identity_and_what_it_can_do(
    cli, home, tier, store
) -> None:
    listed = cli.json("tier", "list").json["tiers"]
    assert [(one["name"], one["root"], one["endpoint"]) for one in listed] == [
        ("s3", tier, store.endpoint)
    ]
    storage = open_storage(tier, endpoint=store.endpoint)
    with storage.open(".ckptgov-tier.json") as file:
        assert json.loads(file.read_at(0, 65536))["tier"] == "s3"
    storage.close()
    told = cli.json("tier", "check", "s3")
    assert told.code == 0, told
    names = {one["name"]: one["severity"] for one in told.json["checks"]}
    assert names["identity"] == names["exclusive-create"] == "ok"


def test_a_run_there_is_scanned_and_asked_like_any_other(cli, tier, upload) -> None:
    upload(f"{tier}/run", "step_1")
    upload(f"{tier}/run", "step_2")
    scanned = cli.json("scan", f"{tier}/run")
    assert scanned.code == 0, scanned
    assert cli("latest", "run").out == f"{tier}/run/step_2\n"
    told = cli.json("latest", f"{tier}/run", "--evidence", "digest")
    assert (told.code, told.json["path"]) == (0, f"{tier}/run/step_2")
    assert cli.json("verify", "run").code == 0


def test_every_ingesting_tier_is_scanned_without_naming_it(cli, tier, upload) -> None:
    upload(f"{tier}/team/run", "step_1")
    assert cli.json("scan").code == 0
    assert cli("latest", "run").out == f"{tier}/team/run/step_1\n"


def test_one_checkpoint_there_is_committed(cli, tier, upload) -> None:
    upload(f"{tier}/run", "step_1")
    told = cli.json("commit", f"{tier}/run/step_1")
    assert told.code == 0, told
    assert cli.json("latest", "run").json["path"] == f"{tier}/run/step_1"


def test_a_url_answers_with_no_catalog_and_no_configuration(
    cli, tier, upload, store, monkeypatch, tmp_path
) -> None:
    upload(f"{tier}/run", "step_1")
    cli.done("scan", f"{tier}/run")
    monkeypatch.setenv("CKPTGOV_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
    told = cli.json("latest", f"{tier}/run", "--evidence", "digest")
    assert (told.code, told.json["path"]) == (0, f"{tier}/run/step_1")
    one = cli.json("latest", f"{tier}/run/step_1", "--evidence", "digest")
    assert (one.code, one.json["path"]) == (0, f"{tier}/run/step_1")
    assert not (tmp_path / "nowhere").exists()


def test_an_unregistered_prefix_answers_from_structure(
    cli, url, upload, store, monkeypatch
) -> None:
    upload(f"{url}/run", "step_1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
    told = cli.json("latest", f"{url}/run")
    assert (told.code, told.json["path"]) == (0, f"{url}/run/step_1")
    assert told.json["evidence"] == "structure"


def test_scanning_an_unregistered_prefix_registers_it(cli, url, upload, store, monkeypatch) -> None:
    upload(f"{url}/run", "step_1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
    cli.done("scan", f"{url}/run")
    assert [one["root"] for one in cli.json("tier", "list").json["tiers"]] == [f"{url}/run"]
    assert cli.json("latest", "run", "--evidence", "digest").code == 0


def test_a_name_that_keys_carry_escaped_is_found(cli, tier, upload) -> None:
    upload(tier, "my run/step_1")
    assert cli.json("scan", f"{tier}/my%20run").code == 0
    assert cli.json("latest", f"{tier}/my%20run", "--evidence", "digest").code == 0


def test_a_lost_identity_is_could_not_look(cli, tier, upload, store) -> None:
    upload(f"{tier}/run", "step_1")
    cli.done("scan", f"{tier}/run")
    storage = open_storage(tier, endpoint=store.endpoint)
    storage.remove(".ckptgov-tier.json")
    storage.close()
    told = cli.json("latest", "run")
    assert (told.code, told.json["error"]["kind"]) == (9, "foreign-place")


def test_the_catalog_is_rebuilt_from_the_store(cli, tier, upload, forget_catalog) -> None:
    upload(f"{tier}/run", "step_1")
    cli.done("scan", f"{tier}/run")
    forget_catalog()
    cli.done("catalog", "rebuild")
    assert cli("latest", "run").out == f"{tier}/run/step_1\n"


def test_a_run_may_be_created_there_before_its_first_checkpoint(cli, tier, tmp_path) -> None:
    before = set(os.listdir())
    cli.done("run", "create", "team/new", "--root", f"{tier}/new")
    assert set(os.listdir()) == before
    assert cli.json("latest", "team/new").code == 4


@contextlib.contextmanager
def silent_port() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between tries, in seconds; none is really waited for."""
    waits: list[float] = []
    monkeypatch.setattr(SystemClock, "sleep", lambda _self, wait_s: waits.append(wait_s))
    return waits


def test_a_wrong_endpoint_is_told_soon(cli, url, waits, monkeypatch) -> None:
    with silent_port() as nowhere:
        added = cli.json("tier", "add", "s3", url, "--endpoint", nowhere)
        assert (added.code, cli.json("tier", "list").json["tiers"]) == (9, [])
        assert sum(waits) < MOST_S
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", nowhere)
        waits.clear()
        assert cli.json("latest", f"{url}/run").code == 9
        assert sum(waits) < MOST_S


def test_a_missing_bucket_is_could_not_look(cli, store, monkeypatch) -> None:
    gone = "s3://no-such-bucket-here/run"
    assert cli.json("tier", "add", "s3", gone, "--endpoint", store.endpoint).code == 9
    assert cli.json("tier", "list").json["tiers"] == []
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
    assert cli.json("latest", gone).code == 9


def test_an_empty_prefix_is_could_not_look_and_not_never_any(cli, url, store, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
    assert cli.json("latest", f"{url}/typo").code == 9


@pytest.mark.parametrize(
    "command", [("latest",), ("scan",), ("commit",), ("list",), ("tier", "add", "s3")]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(cli, home, command) -> None:
    told = cli.json(*command, "s3://key:secret@bucket/run")
    assert told.code == 2
    assert "secret" not in told.out + told.err
    assert not (home / "ckptgov.yaml").exists()


def test_a_url_inside_a_registered_one_is_refused(cli, tier, store) -> None:
    told = cli.json("tier", "add", "other", f"{tier}/run", "--endpoint", store.endpoint)
    assert told.code == 2
    assert "lie in one another" in told.json["error"]["message"]


def test_the_same_prefix_of_another_store_is_another_tier(cli, tier, waits) -> None:
    with silent_port() as nowhere:
        told = cli.json("tier", "add", "other", tier, "--endpoint", nowhere)
    assert told.code == 9  # it was asked, and did not answer
    assert waits
