"""What the client's tests share."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckptgov.client.address import ServiceAddress
from ckptgov.client.transport import Transport
from ckptgov.testing.builders.dcp import write_dcp

sys.path.insert(0, str(Path(__file__).parent))  # the modules beside the tests

from canned import Canned, FakeClock
from stage import Cli, serving


@pytest.fixture
def canned() -> Iterator[Canned]:
    server = Canned()
    yield server
    server.close()


@pytest.fixture
def other() -> Iterator[Canned]:
    """A second replica."""
    server = Canned()
    yield server
    server.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def transport(clock: FakeClock) -> Iterator[Callable[..., Transport]]:
    """Makes a transport to the servers given; its clock stands still while nobody sleeps."""
    with ExitStack() as stack:

        def make(*servers: Canned, token: str | None = None, **more: object) -> Transport:
            address = ServiceAddress(replicas=tuple(one.replica for one in servers), token=token)
            made = Transport(address, clock=clock, jitter=lambda: 0.5, **more)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def cli(
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """The command line over a home with a shared tier that is flushed to another one.

    Runs ``llm`` (steps 10, 20 and a torn 30) and ``red/llm`` (step 10) are scanned.
    """
    for name in ("lustre", "s3"):
        (tmp_path / name).mkdir()
    cli = Cli(capsysbinary, monkeypatch, tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CKPTGOV_URL", "CKPTGOV_TOKEN", "CKPTGOV_TOKEN_FILE", "CKPTGOV_CATALOG"):
        monkeypatch.delenv(name, raising=False)
    for step in (10, 20, 30):
        write_dcp(tmp_path / "lustre" / "llm" / f"step_{step}", ranks=2, seed=str(step))
    next((tmp_path / "lustre" / "llm" / "step_30").glob("*.distcp")).unlink()
    write_dcp(tmp_path / "lustre" / "red" / "step_10", ranks=2, seed="red")
    for words in (
        ("tier", "add", "lustre", tmp_path / "lustre", "--ingest"),
        ("tier", "add", "s3", tmp_path / "s3"),
        ("tier", "link", "lustre", "s3", "--last", "1"),
        ("run", "create", "red/llm", "--root", tmp_path / "lustre" / "red"),
        ("scan",),
    ):
        answer = cli.here(*words)
        assert answer.code == 0, answer
    return cli


@pytest.fixture
def served(cli: Cli) -> Iterator[Cli]:
    """The same with a service over that home."""
    with serving(cli.home) as (url, _):
        cli.url = url
        yield cli
