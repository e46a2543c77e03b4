"""Two nodes on one shared file system (two JuiceFS mounts of one volume)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptgov.errors import StorageError
from ckptgov.model.clock import SystemClock
from ckptgov.model.files import Attributes
from ckptgov.storage.backoff import RetryPolicy
from ckptgov.storage.posix import PosixStorage
from ckptgov.storage.retrying import RetryingStorage
from ckptgov.testing.delivery_contract import deliver
from ckptgov.testing.juicefs import juice_nodes, reason_to_skip

PIECE = 2**20
WANTED = b"".join(bytes([65 + at]) * PIECE for at in range(5))
ENTRY_CACHE_S = 30.0

OTHER_NODE = """
import os, sys
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.delivery_contract import deliver

PIECE = 2**20
WANTED = b"".join(bytes([65 + at]) * PIECE for at in range(5))
delivery = PosixStorage(sys.argv[1]).receive("d/a", len(WANTED))
deliver(delivery, WANTED[: 3 * PIECE], PIECE)
os.fsync(delivery._temp.fd)  # else it would be seen when the kernel likes
os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ...]]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with juice_nodes(tmp_path_factory.mktemp("juice"), entry_cache_s=ENTRY_CACHE_S) as points:
        yield points


@pytest.fixture
def roots(nodes: tuple[Path, ...], request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """One directory, as each of the nodes sees it."""
    (nodes[0] / request.node.name / "d").mkdir(parents=True)
    os.listdir(nodes[1])
    return nodes[0] / request.node.name, nodes[1] / request.node.name


@pytest.fixture
def here(roots: tuple[Path, Path]) -> Iterator[PosixStorage]:
    with PosixStorage(roots[0]) as storage:
        yield storage


@pytest.fixture
def there(roots: tuple[Path, Path]) -> Iterator[PosixStorage]:
    with PosixStorage(roots[1]) as storage:
        yield storage


def test_what_a_killed_process_of_another_node_left_is_taken_up(
    here: PosixStorage, there: PosixStorage
) -> None:
    command = [sys.executable, "-c", OTHER_NODE, there.root, str(int(signal.SIGKILL))]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    _wait_until(lambda: [one.is_held for one in here.pending("d")] == [False])
    delivery = here.receive("d/a", len(WANTED))
    deliver(delivery, WANTED, PIECE)
    delivery.finish()
    assert (delivery.sent_bytes, delivery.resumed_bytes) == (2 * PIECE, 3 * PIECE)
    with here.open("d/a") as file:
        assert file.read_at(0, len(WANTED)) == WANTED


def test_a_stopped_process_of_another_node_is_not_robbed(
    here: PosixStorage, there: PosixStorage
) -> None:
    command = [sys.executable, "-c", OTHER_NODE, there.root, str(int(signal.SIGSTOP))]
    with subprocess.Popen(command) as stopped:
        try:
            os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
            [held] = here.pending("d")
            assert held.is_held
            with pytest.raises(StorageError, match="in use"):
                here.forget(held)
            delivery = here.receive("d/a", len(WANTED))
            assert not delivery.stands(0, PIECE)
            delivery.discard()
        finally:
            stopped.kill()


def test_modes_and_times_arrive_exactly(here: PosixStorage, there: PosixStorage) -> None:
    given = Attributes(
        mode=0o640, uid=os.geteuid(), gid=os.getegid(), mtime_ns=1_700_000_000_123_456_789
    )
    delivery = here.receive("d/a", len(WANTED), attributes=given)
    deliver(delivery, WANTED, PIECE)
    told, _ = delivery.finish()
    assert told.mtime_ns == given.mtime_ns
    assert here.attributes("d/a") == given
    there.list("d")
    assert there.attributes("d/a") == given


def test_directories_move_without_replacing_and_files_get_second_names(
    here: PosixStorage, there: PosixStorage
) -> None:
    here.publish("d/a", [b"x"])
    here.make_dirs("taken")
    there.list("")
    with pytest.raises(FileExistsError):
        there.rename_dir("d", "taken")
    there.rename_dir("d", "new/e")
    here.list("")
    here.link("new/e/a", "b")
    assert here.stat("b").links == 2


def test_a_name_replaced_on_another_node_is_found_after_all(
    here: PosixStorage, there: PosixStorage
) -> None:
    here.publish("d/a", [b"old"])
    there.list("d")
    assert there.stat("d/a").bytes == 3
    here.replace("d/a", [b"newer"])
    patient = RetryingStorage(there, policy=RetryPolicy(), clock=SystemClock(), random=lambda: 0.0)
    with patient.open("d/a") as file:
        assert file.read_at(0, 9) == b"newer"


def _wait_until(is_so: Callable[[], bool], limit_s: float = 20) -> None:
    """What another node did is seen once this one's caches have run out."""
    until = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.1)
