from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlaceFacts, SealedFacts
from ckptgov.catalog.postgres import PostgresDatabase
from ckptgov.model.checkpoint import Purpose, RunIdentity, StepKind
from ckptgov.model.clock import SystemClock
from ckptgov.testing.postgres import PostgresServer, postgres, reason_to_skip


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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test runs on both engines, save those that ask for the one's file or URL."""
    if "engine" not in metafunc.fixturenames:
        return
    engines = ["sqlite", "postgresql"]
    if "path" in metafunc.fixturenames:
        engines = ["sqlite"]
    elif "url" in metafunc.fixturenames:
        engines = ["postgresql"]
    metafunc.parametrize("engine", engines, scope="session")


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "home" / "catalog.db")


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with postgres() as running:
        yield running


@pytest.fixture(scope="session")
def template(server) -> str:
    """The name of a database with a new catalog, which others are copied from."""
    url = server.new_database()
    Catalog.connect(url, clock=SystemClock()).close()
    return url.rpartition("/")[2]


@pytest.fixture
def url(server, template) -> Iterator[str]:
    """A database with a new catalog."""
    url = server.new_database(template=template)
    yield url
    server.drop(url)


@pytest.fixture
def still(clock, monkeypatch) -> None:
    """Let the server's clock be the test's."""
    monkeypatch.setattr(PostgresDatabase, "now_ns", lambda self, connection: clock.now_ns())


@pytest.fixture
def opening(engine, request) -> str:
    """The expression that opens the catalog in a process of its own."""
    if engine == "postgresql":
        return f"Catalog.connect({request.getfixturevalue('url')!r}, clock=SystemClock())"
    path = request.getfixturevalue("path")
    return f"Catalog.open({path!r}, fs_type='ext4', is_network=False, clock=SystemClock())"


@pytest.fixture
def open_catalog(engine, request, clock) -> Iterator[Callable[[], Catalog]]:
    """Opens the one catalog of the test, again and again; its clock is the test's."""
    with ExitStack() as stack:
        if engine == "postgresql":
            request.getfixturevalue("still")
            url = request.getfixturevalue("url")
            yield lambda: stack.enter_context(Catalog.connect(url, clock=clock))
            stack.close()  # before the database is dropped
        else:
            path = request.getfixturevalue("path")
            yield lambda: stack.enter_context(
                Catalog.open(path, fs_type="ext4", is_network=False, clock=clock)
            )


@pytest.fixture
def catalog(open_catalog) -> Catalog:
    return open_catalog()


class GivenUp(Exception):
    """What ends a transaction that is to leave nothing."""


@pytest.fixture
def undone() -> Callable[[Catalog, Callable[[], object]], None]:
    """Does something in a transaction that is then given up."""

    def do(catalog: Catalog, work: Callable[[], object]) -> None:
        with suppress(GivenUp), catalog.transaction():
            work()
            raise GivenUp

    return do


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
