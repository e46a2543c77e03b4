"""``ckptgov exec`` where a service is named: the service decides, and its silence is no answer."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptgov.testing.builders import write_dcp

pytest.importorskip("fastapi", reason="the service is not installed")

WORDS = ("--resume-args", "{path}", "--", "/bin/echo", "started")


@pytest.fixture
def served(ckptgov, tmp_path: Path) -> Iterator[str]:
    """A service over one shared tier; its address."""
    (tmp_path / "tier").mkdir()
    assert ckptgov("tier", "add", "t", tmp_path / "tier", "--ingest").returncode == 0
    process = ckptgov.start("serve", "--no-auth", "--listen", f"127.0.0.1:{_free_port()}")
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://"), process.communicate()
        with _drained(process):
            yield url
    finally:
        process.terminate()
        process.communicate()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _drained(process: subprocess.Popen[str]) -> Iterator[None]:
    """A pipe that nobody reads would stop the service when it is full."""
    import threading

    assert process.stderr is not None
    reader = threading.Thread(target=process.stderr.read, daemon=True)
    reader.start()
    yield


@pytest.fixture
def ask(ckptgov, served: str, tmp_path: Path):
    """``exec`` on a machine that has nothing but the service's address."""
    elsewhere = {"CKPTGOV_URL": served, "CKPTGOV_HOME": str(tmp_path / "elsewhere")}

    def start(restart: str, run: str = "new") -> subprocess.CompletedProcess[str]:
        return ckptgov("exec", run, "--restart-id", restart, *WORDS, **elsewhere)

    assert ckptgov("run", "create", "new", **elsewhere).returncode == 0
    return start


def test_a_run_begins_goes_on_and_never_begins_again(ask, ckptgov, served, tmp_path, journal):
    for _ in range(2):  # two ranks of one start
        assert ask("a").stdout == "started\n"
    assert ask("b").stdout == "started\n"  # nothing was saved yet
    root = tmp_path / "tier/new"
    write_dcp(root / "step_1")
    assert ckptgov("scan", CKPTGOV_URL=served).returncode == 0
    assert ask("c").stdout == f"started {root}/step_1\n"
    late = ask("a")
    assert (late.returncode, late.stdout) == (6, "")
    assert [one["outcome"] for one in journal(root)] == ["started"]


def test_an_unknown_run_and_a_silent_service_start_nothing(ask, ckptgov) -> None:
    unknown = ask("a", "nobody")
    assert (unknown.returncode, unknown.stdout) == (9, "")
    silent = ckptgov(
        *("exec", "new", "--restart-id", "a", "--allow-fresh", *WORDS),
        CKPTGOV_URL=f"http://127.0.0.1:{_free_port()}",
    )
    assert (silent.returncode, silent.stdout) == (9, "")
