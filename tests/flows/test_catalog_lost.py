"""The catalog lost, on both engines: from the tiers, or from its copy, every run answers as before.

Asked are the directories' own process and a service; compared are whole documents.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ckptgov.catalog.catalog import Catalog
from ckptgov.errors import CkptgovError, LeaseLost
from ckptgov.model.access import Right
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.clock import SystemClock
from ckptgov.model.cluster import ActivityFacts
from ckptgov.ops import backup, rebuild
from ckptgov.service.answers import Answers
from ckptgov.service.app import create_app
from ckptgov.service.leadership import Leadership
from ckptgov.service.scheduler import Scheduler
from ckptgov.service.serving import Serving
from ckptgov.service.workers import Workers
from ckptgov.testing.builders import (
    date_files,
    truncate,
    write_dcp,
    write_deepspeed,
    write_hf_trainer,
)
from ckptgov.testing.postgres import PostgresServer, postgres, reason_to_skip
from ckptgov.testing.served import Served, running
from ckptgov.wire.requests import LatestQuery

FEW = {"plain": 20, "marked": 10, "torn": 300}
"""Each run of a small stage, and the step that is its latest."""
MANY = {
    **FEW,
    "rolled": 200,
    "stepped": 20,
    "moved": 10,
    "halves": 2,
    "team/new": None,
    "broken": None,
}
DECIDED = {"plain": "first.0", "stepped": "second.0"}


class Kept:
    """Where the catalog is kept, and how it gets lost."""

    def __init__(self, home: Path, server: PostgresServer | None) -> None:
        self._home = home
        self._server = server
        self.url = server.new_database() if server is not None else None

    def lose(self) -> None:
        """The file is deleted; the database is dropped and made anew, whoever is connected."""
        if self._server is None or self.url is None:
            for path in self._home.glob("catalog.sqlite*"):
                path.unlink()
            return
        self._server.drop(self.url)
        self._server.execute(f"CREATE DATABASE {self.url.rpartition('/')[2]} TEMPLATE template0")


class Stage:
    """A home with scanned, flushed and judged runs, whoever keeps its catalog."""

    def __init__(self, cli, root: Path, kept: Kept, patch: pytest.MonkeyPatch) -> None:
        self.cli = cli
        self.root = root
        self.kept = kept
        self.runs: tuple[str, ...] = ()
        self._patch = patch

    @property
    def home(self) -> Path:
        return self.root / "home"

    def keep_in(self, url: str | None) -> None:
        """What is asked from here on uses another catalog; None: the file in the home."""
        if url is None:
            self._patch.delenv("CKPTGOV_CATALOG", raising=False)
        else:
            self._patch.setenv("CKPTGOV_CATALOG", url)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Commands in the block use a home of their own, with the same settings."""
        other = self.root / "other"
        other.mkdir()
        shutil.copy(self.home / "ckptgov.yaml", other)
        with self._patch.context() as patch:
            patch.setenv("CKPTGOV_HOME", str(other))
            patch.delenv("CKPTGOV_CATALOG", raising=False)
            yield

    def answers(self) -> dict[tuple[str, str], object]:
        """What a process here says of every run: exit and document, or the bare path."""
        told: dict[tuple[str, str], object] = {}
        for run in self.runs:
            for command in ("latest", "list"):
                answer = self.cli.json(command, run)
                told[run, command] = (answer.code, answer.json)
            bare = self.cli("latest", run)
            told[run, "path"] = (bare.code, bare.out)
        return told

    def asks(self, served: Served, *words: str):
        """One command through a service, from a host without any state."""
        with self._patch.context() as patch:
            patch.setenv("CKPTGOV_URL", served.url)
            patch.setenv("CKPTGOV_TOKEN", served.admin)
            patch.setenv("CKPTGOV_HOME", str(self.root / "nothing"))
            patch.delenv("CKPTGOV_CATALOG", raising=False)
            return self.cli(*words)

    def served_answers(self, served: Served) -> dict[str, object]:
        """What a service says of every run."""
        told: dict[str, object] = {}
        for run in self.runs:
            answer = self.asks(served, "latest", run, "--json")
            told[run] = (answer.code, answer.json)
        return told

    def decided(self, run: str) -> tuple[object, ...]:
        """What a rank of its restart is told."""
        found = self.cli.json("latest", run, "--restart-id", DECIDED[run])
        assert found.code == 0, found
        restart = found.json["restart"]
        return found.json["path"], restart["epoch"], restart["decided_here"]

    def copies(self) -> list[Path]:
        """Copies of the catalog in the object tier, oldest first."""
        return sorted((self.root / "object").glob(f"{backup.DIRECTORY}/*/*.dump"))

    @contextmanager
    def serving(self) -> Iterator[Served]:
        """A service over the home, its workers included."""
        with ExitStack() as stack:
            own = stack.enter_context(Serving.open(str(self.home), clock=SystemClock()))
            workers = Workers(own, holder="test", poll_s=0.02)
            workers.start()
            stack.callback(workers.close, grace_s=5.0)
            yield Served(own, stack.enter_context(running(create_app(own))))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with postgres() as running_server:
        yield running_server


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request, cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A scanned tier, lustre, and another one, object; no run yet."""
    for name in ("CKPTGOV_URL", "CKPTGOV_TOKEN", "CKPTGOV_TOKEN_FILE", "CKPTGOV_CATALOG"):
        monkeypatch.delenv(name, raising=False)
    on_server = request.param == "postgresql"
    kept = Kept(home, request.getfixturevalue("server") if on_server else None)
    stage = Stage(cli, tmp_path, kept, monkeypatch)
    stage.keep_in(kept.url)
    for name in ("lustre", "object"):
        (tmp_path / name).mkdir()
    cli.done("tier", "add", "lustre", tmp_path / "lustre", "--ingest")
    cli.done("tier", "add", "object", tmp_path / "object")
    return stage


@pytest.fixture
def few(empty: Stage) -> Stage:
    """Three runs: one with a decided restart, one with a mark, one whose newest is torn."""
    tier = empty.root / "lustre"
    for step in (10, 20):
        write_dcp(tier / f"plain/step_{step}", seed=f"plain{step}")
        write_deepspeed(tier / "marked", step, world_size=2)
    write_hf_trainer(tier / "torn/checkpoint-300", 300)
    _write_torn(tier / "torn/checkpoint-400", 400)
    assert empty.cli("scan").code == 0
    empty.cli.done("mark-bad", "marked", "--step", "20", "--reason", "nan")
    empty.cli.done("latest", "plain", "--restart-id", "first.0")
    empty.runs = tuple(FEW)
    return empty


@pytest.fixture
def many(few: Stage) -> Stage:
    """Besides: a rollback, a start that did not load, what is left on the second tier only, a
    save on two nodes' disks, a run without a checkpoint, and one with nothing whole."""
    cli, root = few.cli, few.root
    for step in (10, 20, 30):
        write_dcp(root / f"lustre/stepped/step_{step}", seed=f"stepped{step}")
        write_dcp(root / f"lustre/moved/step_{step}", seed=f"moved{step}")
        write_hf_trainer(root / f"lustre/rolled/checkpoint-{step}0", step * 10)
    _write_torn(root / "lustre/broken/checkpoint-100", 100)
    for node, ranks in (("node0", [0, 1]), ("node1", [2, 3])):
        _write_half(root / node / "halves/checkpoint-2", ranks)
        cli.done("tier", "add", "nvme", root / node, "--node", node, "--ingest")
    cli.done("run", "create", "team/new", "--root", root / "lustre/team/new")
    assert cli("scan").code == 0
    cli.done("rollback", "rolled", "--to", "200", "--reason", "loss")
    cli.done("flush", "moved", "--step", "10", "--to", "object")
    for step in (10, 20, 30):
        shutil.rmtree(root / f"lustre/moved/step_{step}")
    cli.done("latest", "stepped", "--restart-id", "second.0")
    cli.done("report", "stepped", "--restart-id", "second.0", "--outcome", "load-failed")
    cli.done("latest", "stepped", "--restart-id", "second.0")
    assert cli("scan").code == 0
    few.runs = tuple(MANY)
    return few


def _write_torn(directory: Path, step: int) -> None:
    truncate(write_hf_trainer(directory, step) / "optimizer.pt", by_bytes=5)


def _write_half(directory: Path, ranks: list[int]) -> None:
    """What a node's own disk gets of a save of four ranks."""
    write_hf_trainer(directory, 2, world_size=4, optimizer=False, rng_ranks=ranks)
    write_deepspeed(directory, 2, world_size=4, bf16=False, ranks=ranks)
    date_files(directory, "latest", "trainer_state.json")


class Way:
    """How a lost catalog comes back: ``prepare`` while it is there, one command when it is not."""

    def __init__(self, *, has_copy: bool) -> None:
        self.has_copy = has_copy

    def prepare(self, stage: Stage) -> None:
        if self.has_copy:
            stage.cli.done("catalog", "backup", "--to", "object")

    def come_back(self, stage: Stage) -> None:
        stage.cli.done(*self.words)

    @property
    def words(self) -> tuple[str, ...]:
        return ("catalog", "restore", "object") if self.has_copy else ("catalog", "rebuild")

    def lose(self, stage: Stage) -> None:
        """All of it."""
        self.prepare(stage)
        stage.kept.lose()
        self.come_back(stage)


@pytest.fixture(params=[False, True], ids=["rebuilt", "restored"])
def way(request) -> Way:
    return Way(has_copy=request.param)


def test_every_run_answers_as_before(many: Stage, way: Way) -> None:
    before = many.answers()
    assert {run: before[run, "latest"][1].get("step") for run in MANY} == MANY
    with many.serving() as served:
        served_before = many.served_answers(served)
    starts = {run: many.decided(run) for run in DECIDED}
    write_dcp(many.root / "lustre/plain/step_30", seed="plain30")
    way.lose(many)
    assert {run: many.decided(run) for run in starts} == starts
    shutil.rmtree(many.root / "lustre/plain/step_30")
    many.cli("scan")
    assert many.answers() == before
    with many.serving() as served:
        assert many.served_answers(served) == served_before


def test_tokens_and_decisions_that_only_the_catalog_holds_come_back_with_its_copy(
    many: Stage,
) -> None:
    with many.serving() as served:
        text = served.token(Right.READ, Right.RESTORE)
        revoked = served.token(Right.READ)
        assert many.asks(served, "token", "revoke", revoked.split("_")[1]).code == 0
        start = many.asks(served, "latest", "halves", "--restart-id", "third.0", "--json")
    assert start.code == 0, start
    Way(has_copy=True).lose(many)
    with many.serving() as served:
        assert served.get("/v1/runs/plain/latest", token=text).status == 200
        assert served.get("/v1/runs/plain/latest", token=revoked).status == 401
        again = many.asks(served, "latest", "halves", "--restart-id", "third.0", "--json")
    first, second = start.json, again.json
    assert [one["restart"].pop("decided_here") for one in (first, second)] == [True, False]
    assert second == first


def test_who_led_before_the_loss_writes_nothing_afterwards(few: Stage, way: Way) -> None:
    with Serving.open(str(few.home), clock=SystemClock()) as old:
        leadership = Leadership(old.catalog, holder="old", clock=SystemClock(), ttl_s=3600)
        assert leadership.step() is not None
        way.lose(few)
        assert leadership.lead() is not None, "it cannot know yet"
        with pytest.raises(LeaseLost), leadership.writing():
            pass


def test_an_older_instance_writes_no_copy_that_would_be_the_newest(few: Stage) -> None:
    """A catalog that was thought to be lost, and somebody who still uses it."""
    few.cli.done("catalog", "backup", "--to", "object")
    with few.elsewhere():
        few.cli.done("catalog", "restore", "object")
    kept = few.copies()
    answer = few.cli("catalog", "backup", "--to", "object", "--keep", "1")
    assert answer.code == 7, answer
    assert few.copies() == kept


def test_a_service_that_ran_meanwhile_says_what_the_new_catalog_knows(few: Stage, way: Way) -> None:
    with few.serving() as served:
        for _ in range(2):
            assert served.get("/v1/runs/plain/latest").document["step"] == 20
        way.prepare(few)
        few.kept.lose()
        served.wait_until(lambda: served.get("/v1/runs/plain/latest").status == 503)
        few.cli.done("mark-bad", few.root / "lustre/plain", "--step", "20", "--reason", "nan")
        way.come_back(few)
        token = served.token(Right.READ)
        served.wait_until(
            lambda: served.get("/v1/runs/plain/latest", token=token).document.get("step") == 10
        )


def test_answers_of_another_catalog_are_forgotten_however_much_changed_in_this_one(
    few: Stage,
) -> None:
    with (
        Serving.open(str(few.home), clock=SystemClock()) as old,
        Answers(old, oldest_s=3600) as answers,
    ):
        _change(old.catalog, 100)
        answers.catch_up()
        assert b'"step":20' in answers.latest("plain", LatestQuery()).body
        few.kept.lose()
        few.cli.done("mark-bad", few.root / "lustre/plain", "--step", "20", "--reason", "nan")
        few.cli.done("catalog", "rebuild")
        _change(old.catalog, 200)
        answers.catch_up()
        assert b'"step":10' in answers.latest("plain", LatestQuery()).body


@pytest.mark.parametrize("has_copy", [False, True], ids=["rebuilt", "restored"])
def test_nobody_sees_a_catalog_that_is_back_by_half(
    few: Stage, has_copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way(has_copy=has_copy)
    way.prepare(few)
    few.cli.done("mark-bad", "plain", "--step", "20", "--reason", "nan")
    if has_copy:
        few.kept.lose()
    before = few.answers()
    with monkeypatch.context() as patch:
        for module in (backup, rebuild):
            patch.setattr(module, "read_tier", _killed)
        assert few.cli(*way.words).code == 130
    assert few.answers() == before


def _killed(*words: object, **more: object) -> list[CkptgovError]:
    raise KeyboardInterrupt


def test_a_rebuild_under_a_running_service_reaches_its_answers(few: Stage) -> None:
    with few.serving() as served:
        before = few.served_answers(served)
        shutil.rmtree(few.root / "lustre/plain/.ckptgov/manifests")
        few.cli.done("catalog", "rebuild")
        served.wait_until(lambda: few.asks(served, "latest", "plain", "--json").code == 5)
        after = few.served_answers(served)
    assert after.pop("plain") != before.pop("plain")
    assert after == before


def test_a_catalog_moves_to_the_other_engine(few: Stage, server: PostgresServer) -> None:
    before = few.answers()
    with few.serving() as served:
        token = served.token(Right.READ)
    few.cli.done("catalog", "backup", "--to", few.root / "catalog.dump")
    few.keep_in(server.new_database() if few.kept.url is None else None)
    assert few.cli("latest", "plain").code == 9
    few.cli.done("catalog", "restore", few.root / "catalog.dump")
    assert few.answers() == before
    with few.serving() as served:
        assert served.get("/v1/runs/plain/latest", token=token).document["step"] == 20


def test_a_damaged_copy_is_refused_whole(few: Stage) -> None:
    before = few.answers()
    path = few.root / "catalog.dump"
    few.cli.done("catalog", "backup", "--to", path)
    raw = path.read_bytes()
    few.kept.lose()
    untouched = few.cli.json("doctor").json
    for at in range(0, len(raw), len(raw) // 7):
        for damaged in (raw[:at], raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :]):
            path.write_bytes(damaged)
            answer = few.cli("catalog", "restore", path)
            assert answer.code in (2, 9), (at, answer)
    assert few.cli.json("run", "list").json["runs"] == []
    assert few.cli.json("doctor").json == untouched
    path.write_bytes(raw)
    few.cli.done("catalog", "restore", path)
    assert few.answers() == before


def test_a_catalog_that_holds_facts_is_left_as_it_is(few: Stage) -> None:
    few.cli.done("catalog", "backup", "--to", "object")
    few.cli.done("rollback", "plain", "--to", "10", "--reason", "loss")
    before = few.answers()
    assert few.cli("catalog", "restore", "object").code == 2
    assert few.answers() == before


def test_the_schedule_keeps_the_newest_copies_and_tells_when_their_tier_is_away(
    few: Stage,
) -> None:
    with (few.home / "ckptgov.yaml").open("a") as file:
        file.write("service:\n  backup: {tier: object, keep: 2}\n")
    with few.serving() as served, Scheduler(served.serving, holder="test") as scheduler:
        scheduler.lead()

        def back_up() -> str:
            ended = _activity(served).ended_at_ns
            scheduler.begin("backup")
            served.wait_until(lambda: scheduler.look() or _activity(served).ended_at_ns != ended)
            return _activity(served).error

        found = []
        for _ in range(4):
            assert back_up() == ""
            found.append(few.copies())
        assert [len(one) for one in found] == [1, 2, 2, 2]
        assert found[3][0] == found[2][1]
        (few.root / "object").rename(few.root / "away")
        assert "object" in back_up()
        assert served.get("/v1/runs/plain/latest").document["step"] == 20
        assert served.get("/readyz").status == 200
        (few.root / "away").rename(few.root / "object")
        assert back_up() == ""
        assert len(few.copies()) == 2


def _change(catalog: Catalog, times: int) -> None:
    for number in range(times):
        catalog.put_run(RunIdentity(run_id=str(number), name=f"other{number}"), 1)


def _activity(served: Served) -> ActivityFacts:
    found = {one.name: one for one in served.serving.catalog.activities.activities()}
    return found["backup"]
