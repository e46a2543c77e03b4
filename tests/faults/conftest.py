"""What the fault campaigns share: seed, size, and processes to be killed."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest.register_assert_rewrite("fault_trees", "fault_verbs", "fault_movers")

import fault_trace  # noqa: E402
from fault_process import Forkery  # noqa: E402
from fault_trees import Stage  # noqa: E402

_Item = TypeVar("_Item")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full-sweep"):
        return
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            item.add_marker(pytest.mark.skip(reason="part of the full campaign: make sweep"))


@pytest.fixture
def full_sweep(request: pytest.FixtureRequest) -> bool:
    """Whether everything is wanted, not a sample."""
    return bool(request.config.getoption("--full-sweep"))


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Chance that ``--seed`` repeats, a different one for every test."""
    return random.Random(f"{request.config.getoption('--seed')} {request.node.name}")


@pytest.fixture
def some(full_sweep: bool, dice: random.Random) -> Callable[[Sequence[_Item], int], list[_Item]]:
    """Every n-th of a sequence so that about ``count`` are left; all of it in the full campaign."""

    def every_nth(items: Sequence[_Item], count: int) -> list[_Item]:
        step = 1 if full_sweep else max(1, len(items) // count)
        return list(items[dice.randrange(step) :: step])

    return every_nth


@pytest.fixture(scope="session")
def forkery() -> Iterator[Forkery]:
    """Commands in processes of their own."""
    made = Forkery()
    yield made
    made.close()


@pytest.fixture
def strace() -> None:
    """For tests that need it."""
    if reason := fault_trace.why_not():
        pytest.skip(reason)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A place for one campaign."""
    made = Stage(tmp_path / "trial")
    yield made
    made.forget()
