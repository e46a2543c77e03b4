from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlaceFacts, SealedFacts
from ckptgov.model.checkpoint import Purpose, RunIdentity, StepKind


class StillClock:
    """Time that moves only when told to."""

    def __init__(self) -> None:
        self.at_ns = 1_000

    def now_ns(self) -> int:
        return self.at_ns

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here sleeps")


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "home" / "catalog.db")


@pytest.fixture
def open_catalog(path, clock) -> Iterator[Callable[[], Catalog]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(
            Catalog.open(path, fs_type="ext4", is_network=False, clock=clock)
        )


@pytest.fixture
def catalog(open_catalog) -> Catalog:
    return open_catalog()


@pytest.fixture
def place() -> PlaceFacts:
    return PlaceFacts(
        place="p1",
        tier="lustre",
        node=None,
        root="/lustre/ckpt",
        fs_type="lustre",
        source="10.0.0.1@o2ib:/fs1",
        first_seen_at_ns=5,
    )


@pytest.fixture
def sealed() -> SealedFacts:
    return SealedFacts(
        run_id="r1",
        content_id="sha256:c1",
        name="step_100",
        step=100,
        step_kind=StepKind.STEP,
        layout="dcp",
        world_size=2,
        purposes=(Purpose.RESUME, Purpose.WEIGHTS),
        bytes=17,
        shard_count=3,
        line=1,
        attempt=0,
        sealed_at_ns=7,
    )


@pytest.fixture
def filled(catalog, place, sealed) -> Catalog:
    """A catalog with run r1, place p1 and one sealed checkpoint without copies."""
    catalog.put_place(place)
    catalog.put_run(RunIdentity(run_id="r1", name="team/llm"), 6)
    catalog.put_sealed(sealed, b'{"manifest":1}\n')
    return catalog
