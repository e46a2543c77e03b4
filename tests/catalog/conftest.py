from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlacedCopy, PlaceFacts, SealedFacts
from ckptgov.catalog.guards import Doomed, Guard
from ckptgov.catalog.postgres import PostgresDatabase
from ckptgov.model.checkpoint import Evidence, Purpose, RunIdentity, StepKind
from ckptgov.model.clock import SystemClock
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import Action
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


DAY_NS = 86400 * 10**9
LATELY_NS = 10 * DAY_NS
"""When whatever is verified in a small run was compared."""


class SmallRun:
    """Run r1 with places s1 and s2 (shared), n1 and n2 (nodes' own); every checkpoint of 4 shards.

    Content ids are c<step>, or as given. ``at`` is where a checkpoint lies verified: a place, or a
    place and which of its shards.
    """

    places = ("s1", "s2", "n1", "n2")

    def __init__(self, catalog: Catalog, clock: StillClock) -> None:
        self.catalog = catalog
        clock.at_ns = LATELY_NS + DAY_NS
        for place in self.places:
            is_shared = place.startswith("s")
            catalog.put_place(
                PlaceFacts(
                    place=place,
                    tier="shared" if is_shared else "nvme",
                    node=None if is_shared else f"node-{place}",
                    root=f"/{place}",
                    fs_type="ext4",
                    source="",
                    first_seen_at_ns=5,
                )
            )
        catalog.put_run(RunIdentity(run_id="r1", name="team/llm"), 6)

    def add(
        self,
        step: int | None,
        *at: str | tuple[str, str],
        content_id: str | None = None,
        line: int = 1,
        attempt: int = 0,
        purposes: tuple[Purpose, ...] = (Purpose.RESUME, Purpose.WEIGHTS),
        **copy: object,
    ) -> str:
        content_id = content_id or f"c{step}"
        sealed = SealedFacts(
            run_id="r1",
            content_id=content_id,
            name=f"step_{step}" if step is not None else "release",
            step=step,
            step_kind=StepKind.STEP if step is not None else StepKind.NONE,
            layout="dcp",
            world_size=2,
            purposes=purposes,
            bytes=17,
            shard_count=4,
            line=line,
            attempt=attempt,
            sealed_at_ns=7,
        )
        self.catalog.put_sealed(sealed, b"{}\n")
        for each in at:
            place, shards = each if isinstance(each, tuple) else (each, "0123")
            self.copy(content_id, place, sealed.name, shards, **copy)
        return content_id

    def copy(
        self, content_id: str, place: str, name: str = "", shards: str = "0123", **copy: object
    ) -> None:
        bits = sum(1 << int(shard) for shard in shards)
        fields: dict[str, object] = {
            "state": CopyState.VERIFIED,
            "coverage": None if bits == 15 else bytes([bits]),
            "evidence": Evidence.DIGEST,
            "verified_at_ns": LATELY_NS,
        }
        self.catalog.put_copy(
            PlacedCopy(
                run_id="r1",
                content_id=content_id,
                place=place,
                name=name,
                **(fields | copy),
            ),
            9,
        )

    def guard(self, **changes: object) -> Guard:
        fields: dict[str, object] = {
            "path": ((1, None),),
            "reachable": frozenset(self.places),
            "min_restorable": 1,
            "min_durable_copies": 1,
            "compared_since_ns": LATELY_NS,
        }
        return Guard(**(fields | changes))

    def doomed(self, content_id: str, place: str, action: Action, **changes: object) -> Doomed:
        fields: dict[str, object] = {"trash_s": 100.0, "grace_s": 10.0, "bytes": 17, "files": 4}
        return Doomed(content_id=content_id, place=place, action=action, **(fields | changes))

    def condemn(self, action: Action, *copies: tuple[str, str], **guard: object):
        doomed = [self.doomed(content_id, place, action) for content_id, place in copies]
        return self.catalog.removals.condemn("r1", doomed, self.guard(**guard), plan_id="sha256:p")

    def prune(self, *copies: tuple[str, str], **guard: object):
        return self.condemn(Action.PRUNE, *copies, **guard)

    def evict(self, *copies: tuple[str, str], **guard: object):
        return self.condemn(Action.EVICT, *copies, **guard)

    def states(self) -> dict[tuple[str, str], CopyState]:
        return {(one.content_id, one.place): one.state for one in self.catalog.copies("r1")}

    def change(self, content_id: str, place: str, to: CopyState) -> None:
        """What somebody else finds out about a verified copy."""
        self.catalog.transition(
            "r1", content_id, place, expected=CopyState.VERIFIED, to=to, at_ns=10
        )


@pytest.fixture
def small(catalog, clock) -> SmallRun:
    return SmallRun(catalog, clock)


@pytest.fixture
def small_run() -> type[SmallRun]:
    """For tests that make many of them."""
    return SmallRun
