"""What tests of the service share: a home with two tiers and two runs, and services over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.clock import SystemClock
from ckptgov.service.app import Limits, create_app
from ckptgov.service.serving import Serving
from ckptgov.testing.served import Served, make_home, running, scanned

RUNS = ("red/llm", "blue/llm")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a scanned tier, lustre, that is flushed to another, s3.

    Two runs lie in it, each with whole checkpoints of steps 10 and 20, not scanned yet.
    """
    return make_home(tmp_path, RUNS)


@pytest.fixture
def opened(home: Path) -> Iterator[Callable[..., Served]]:
    """Start services over the home; they end with the test."""
    with ExitStack() as stack:

        def start(*, is_open: bool = False, limits: Limits | None = None, **more: Any) -> Served:
            serving = stack.enter_context(
                Serving.open(str(home), clock=SystemClock(), is_open=is_open, **more)
            )
            url = stack.enter_context(running(create_app(serving, limits=limits)))
            return Served(serving, url)

        yield start


@pytest.fixture
def served(opened: Callable[..., Served]) -> Served:
    """A service that knows the runs of ``home``, sealed."""
    served = opened()
    scanned(served.serving, *RUNS)
    return served


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """As ``served``, one for all tests of a module that only ask, or are refused."""
    home = make_home(tmp_path_factory.mktemp("quiet"), RUNS)
    with (
        Serving.open(str(home), clock=SystemClock()) as serving,
        running(create_app(serving)) as url,
    ):
        scanned(serving, *RUNS)
        yield Served(serving, url)
