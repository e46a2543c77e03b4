from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptgov.testing import juicefs

pytestmark = pytest.mark.skipif(
    juicefs.reason_to_skip() is not None, reason=str(juicefs.reason_to_skip())
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ...]]:
    with juicefs.juice_nodes(tmp_path_factory.mktemp("juice")) as points:
        yield points


def test_what_one_node_closed_the_other_reads(nodes: tuple[Path, ...]) -> None:
    first, second = nodes
    (first / "a").write_bytes(b"whole")
    assert (second / "a").read_bytes() == b"whole"
    assert os.listdir(second) == ["a"]


def test_a_name_taken_on_one_node_is_taken_on_the_other(nodes: tuple[Path, ...]) -> None:
    first, second = nodes
    (first / "taken").touch(exist_ok=False)
    with pytest.raises(FileExistsError):
        (second / "taken").touch(exist_ok=False)


def test_afterwards_nothing_is_mounted(tmp_path: Path) -> None:
    with juicefs.juice_nodes(tmp_path, nodes=1) as (point,):
        assert os.path.ismount(point)
    assert not os.path.ismount(point)
