from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptgov.testing import weed_mount

pytestmark = pytest.mark.skipif(
    weed_mount.reason_to_skip() is not None, reason=str(weed_mount.reason_to_skip())
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ...]]:
    with weed_mount.weed_nodes(tmp_path_factory.mktemp("weed")) as points:
        yield points


def test_what_one_node_closed_the_other_reads(nodes: tuple[Path, ...]) -> None:
    first, second = nodes
    (first / "a").write_bytes(b"whole")
    assert (second / "a").read_bytes() == b"whole"


def test_a_lock_holds_only_on_its_own_node(nodes: tuple[Path, ...]) -> None:
    first, second = nodes
    (first / "locked").touch()
    with (first / "locked").open() as one, (second / "locked").open() as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_both_nodes_create_the_same_name_exclusively(nodes: tuple[Path, ...]) -> None:
    start, won = threading.Barrier(2), ([], [])

    def create(node: int) -> None:
        for number in range(50):
            start.wait(timeout=60)
            try:
                (nodes[node] / f"new{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            won[node].append(number)

    threads = [threading.Thread(target=create, args=(node,)) for node in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(won[0]) & set(won[1])
