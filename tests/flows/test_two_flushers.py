"""Several movers of one checkpoint to one place: one copy, right bytes, whoever is stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from ckptgov.testing import juicefs, weed_mount
from ckptgov.testing.builders import write_dcp

MIB = 2**20
SHARD_BYTES = 8 * MIB
LIMIT = "8MB/s"
"""So slow that a flush of two shards can be met on its way."""

CONFIGURATION = """\
runs:
  - run: run
    expect: {glob: "step_*/*.bin", count: 2, marker: DONE, step: "step_(\\\\d+)"}
settle: 0s
digest_threads: 1
"""


def write_run(near: Path) -> Path:
    directory = near / "run/step_1"
    directory.mkdir(parents=True)
    for number in range(2):
        (directory / f"{number}.bin").write_bytes(random.Random(number).randbytes(SHARD_BYTES))
    (directory / "DONE").touch()
    return near / "run"


class Node:
    """A state directory and the processes that use it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        (home / "ckptgov.yaml").write_text(CONFIGURATION)

    def start(self, *words: str | Path) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(path for path in sys.path if path)
        return subprocess.Popen(
            [sys.executable, "-m", "ckptgov_cli.main", *words, "--json"],
            env={**os.environ, "PYTHONPATH": path, "CKPTGOV_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __call__(self, *words: str | Path) -> tuple[int, dict]:
        return ended(self.start(*words))

    def done(self, *words: str | Path) -> dict:
        code, told = self(*words)
        assert code == 0, (words, str(told.get("error")))
        return told

    def expire_leases(self) -> None:
        """As if the time of all leases on copying had run out."""
        with closing(sqlite3.connect(self.home / "catalog.sqlite")) as catalog:
            changed = catalog.execute("UPDATE copy_leases SET expires_at_ns = 1").rowcount
            catalog.commit()
        assert changed == 1


def ended(process: subprocess.Popen[bytes]) -> tuple[int, dict]:
    out, err = process.communicate(timeout=120)
    assert b"Traceback" not in err, err
    return process.returncode, json.loads(out)


@pytest.fixture
def started() -> Iterator[Callable[[subprocess.Popen[bytes]], subprocess.Popen[bytes]]]:
    """Notes processes that must not outlive the test, stopped ones too."""
    noted: list[subprocess.Popen[bytes]] = []

    def note(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        noted.append(process)
        return process

    yield note
    for process in noted:
        process.kill()
        process.communicate()


@pytest.fixture
def node(home: Path) -> Node:
    return Node(home)


@pytest.fixture
def run(node: Node, tmp_path: Path) -> Path:
    """A sealed run at the tier ``near``; ``far`` is there, and slow."""
    found = write_run(tmp_path / "near")
    (tmp_path / "far").mkdir()
    node.done("tier", "add", "near", tmp_path / "near", "--ingest")
    node.done("tier", "add", "far", tmp_path / "far")
    node.done("tier", "budget", "far", "--write", LIMIT)
    node.done("scan")
    return found


def wait_until_it_writes(process: subprocess.Popen[bytes], far_run: Path) -> None:
    """Return when a temporary file of this mover is there with bytes in it."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for path in (far_run / ".ckptgov/staging").glob("*/.ckptgov-tmp-*"):
            if path.stat().st_size >= MIB:
                return
        assert process.poll() is None, "it ended before anybody saw it at work"
        time.sleep(0.005)
    raise AssertionError("it never wrote anything")


def require_one_copy(far_run: Path, run: Path) -> None:
    wanted = {path.name: path.read_bytes() for path in (run / "step_1").iterdir()}
    assert {path.name: path.read_bytes() for path in (far_run / "step_1").iterdir()} == wanted
    assert sorted(path.name for path in far_run.iterdir() if path.name != ".ckptgov") == ["step_1"]
    assert not list(far_run.rglob(".ckptgov-tmp-*"))
    assert not list((far_run / ".ckptgov/staging").iterdir())
    assert len(list((far_run / ".ckptgov/manifests").iterdir())) == 1


def sent_bytes(documents: Sequence[dict]) -> int:
    return sum(one["sent_bytes"] for told in documents for one in told.get("checkpoints", []))


def test_two_started_together_make_one_copy(node: Node, run: Path, tmp_path: Path, started) -> None:
    both = [started(node.start("flush", "run", "--to", "far")) for _ in range(2)]
    answers = [ended(process) for process in both]
    codes = sorted(code for code, _ in answers)
    assert codes in ([0, 0], [0, 7]), answers
    assert sent_bytes([told for _, told in answers]) == 2 * SHARD_BYTES, "it was sent twice"
    require_one_copy(tmp_path / "far/run", run)


def test_one_stopped_past_its_lease_spoils_nothing_when_it_goes_on(
    node: Node, run: Path, tmp_path: Path, started
) -> None:
    stopped = started(node.start("flush", "run", "--to", "far"))
    wait_until_it_writes(stopped, tmp_path / "far/run")
    stopped.send_signal(signal.SIGSTOP)
    code, told = node("flush", "run", "--to", "far")
    assert code in (0, 7), told
    assert not (tmp_path / "far/run/step_1").exists(), "its lease holds as long as it lasts"
    node.expire_leases()
    node.done(
        "tier", "budget", "far", "--clear"
    )  # what the stopped one was granted is not waited for
    node.done("flush", "run", "--to", "far")
    assert node.done("latest", tmp_path / "far/run", "--evidence", "digest")["name"] == "step_1"
    stopped.send_signal(signal.SIGCONT)
    code, told = ended(stopped)
    assert code in (0, 7), told
    require_one_copy(tmp_path / "far/run", run)
    node.done("verify", "run")
    assert node.done("latest", "run")["name"] == "step_1"


def test_one_that_never_goes_on_is_cleared_away(
    node: Node, run: Path, tmp_path: Path, started
) -> None:
    stopped = started(node.start("flush", "run", "--to", "far"))
    wait_until_it_writes(stopped, tmp_path / "far/run")
    stopped.send_signal(signal.SIGSTOP)
    node.expire_leases()
    node.done(
        "tier", "budget", "far", "--clear"
    )  # what the stopped one was granted is not waited for
    node.done("flush", "run", "--to", "far")
    stopped.kill()
    stopped.wait()
    node.done("reconcile")
    require_one_copy(tmp_path / "far/run", run)


@pytest.fixture
def juice(tmp_path: Path) -> Iterator[tuple[Path, ...]]:
    if reason := juicefs.reason_to_skip():
        pytest.skip(reason)
    base = tmp_path / "juice"
    base.mkdir()
    with juicefs.juice_nodes(base, nodes=2) as points:
        yield points


def test_two_nodes_without_a_common_catalog_make_one_copy(
    node: Node, tmp_path: Path, juice: tuple[Path, ...], started
) -> None:
    """Neither sees the other's lease: only what lies on the shared file system tells them."""
    run = write_run(tmp_path / "near-a")
    nodes = [node, Node(tmp_path / "home-b")]
    node.done("tier", "add", "near", tmp_path / "near-a", "--ingest")
    node.done("scan")
    shutil.copytree(run, tmp_path / "near-b/run")
    nodes[1].done("tier", "add", "near", tmp_path / "near-b", "--ingest")
    nodes[1].done("scan")
    nodes[1].done("verify", "run")
    for one, point in zip(nodes, juice, strict=True):
        one.done("tier", "add", "far", point)
        one.done("tier", "budget", "far", "--write", LIMIT)
    stopped = started(nodes[0].start("flush", "run", "--to", "far"))
    wait_until_it_writes(stopped, juice[0] / "run")
    stopped.send_signal(signal.SIGSTOP)
    nodes[1].done("flush", "run", "--to", "far")
    stopped.send_signal(signal.SIGCONT)
    code, told = ended(stopped)
    assert code == 0, told
    for one, point in zip(nodes, juice, strict=True):
        require_one_copy(point / "run", run)
        assert one.done("latest", "run")["name"] == "step_1"


@pytest.fixture
def weed(tmp_path: Path) -> Iterator[tuple[Path, ...]]:
    if reason := weed_mount.reason_to_skip():
        pytest.skip(reason)
    base = tmp_path / "weed"
    base.mkdir()
    with weed_mount.weed_nodes(base, nodes=2) as points:
        yield points


def test_where_exclusive_create_lies_copies_may_lie_and_no_journal(
    node: Node, run: Path, tmp_path: Path, weed: tuple[Path, ...]
) -> None:
    first, second = weed
    (first / "tier").mkdir()
    node.done("tier", "add", "liar", first / "tier")
    code, told = node("tier", "check", "liar", "--via", second / "tier")
    failed = [one["name"] for one in told["checks"] if one["severity"] == "failure"]
    assert any("exclusive" in name for name in failed), told
    assert code != 0, told
    node.done("flush", "run", "--to", "liar")
    assert (first / "tier/run/step_1/1.bin").read_bytes() == (run / "step_1/1.bin").read_bytes()
    assert not (first / "tier/run/.ckptgov/journal").exists()
    write_dcp(first / "tier/other/step_1")
    code, told = node("scan", first / "tier/other")
    assert code == 9, told
    assert "journal" in told["error"]["message"], told
    assert told["error"]["hint"], told
    assert not (first / "tier/other/.ckptgov").exists()
