"""Metrics: what Prometheus is told of runs, tiers, flows, activities, nodes, tasks and requests."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).parent))

from standing_stage import RUN_ID, Stage

from ckptgov.catalog.facts import RecordFacts
from ckptgov.catalog.samples import TierSample
from ckptgov.errors import StorageError, TransientStorageError
from ckptgov.manifest.forms.records import encode_record
from ckptgov.model.cluster import NewTask, NodeState, TaskKind, TaskState
from ckptgov.model.copies import CopyState
from ckptgov.model.journal import Outcome, RestoreOutcome, Stamp
from ckptgov.model.pacing import FlowClass, FlowRequest
from ckptgov.model.settings import TierSettings
from ckptgov.service import families
from ckptgov.service.census import Census
from ckptgov.service.metrics import Metrics
from ckptgov.service.request_metrics import RequestMetrics, tell_route
from ckptgov.service.spaces import Spaces
from ckptgov.testing import sealed_runs

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, nodes=("n1", "n2"))
    yield stage
    stage.close()


def report(stage: Stage, number: int, outcome: RestoreOutcome) -> None:
    """What a restart reported of a checkpoint, as the journal's mirror in the catalog has it."""
    stamp = Stamp(
        id=f"00000000-0000-4000-9000-{number:012d}",
        run_id=RUN_ID,
        at_ns=stage.clock.now_ns(),
        by="uid:0@host",
    )
    record = Outcome(
        stamp=stamp,
        content_id=f"sha256:{number:064x}",
        restart_id="job",
        epoch=number,
        outcome=outcome,
    )
    facts = RecordFacts(
        run_id=RUN_ID,
        record_id=stamp.id,
        number=number + 1,
        kind="outcome",
        at_ns=stamp.at_ns,
        raw=encode_record(record),
    )
    stage.catalog.put_records([facts])


def parsed(text: bytes) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def scraped(stage: Stage, **more: object) -> Series:
    return parsed(Metrics(stage.serving, **more).text())  # type: ignore[arg-type]


def value(series: Series, name: str, **labels: str) -> float | None:
    return series.get((name, tuple(sorted(labels.items()))))


class TestRuns:
    def test_the_age_is_of_the_newest_restorable_checkpoint(self, stage: Stage) -> None:
        now_ns = stage.clock.now_ns()
        stage.seal(10, at_ns=now_ns - 7200 * 10**9)
        stage.seal(20, at_ns=now_ns - 3600 * 10**9)
        stage.seal(30, at_ns=now_ns - 60 * 10**9, state=CopyState.CORRUPT)
        series = scraped(stage)
        age_s = value(series, "ckptgov_restorable_age_seconds", run="run")
        assert age_s == pytest.approx(3600, abs=60)
        assert value(series, "ckptgov_newest_step", run="run") == 20
        assert value(series, "ckptgov_run_restorable", run="run") == 1

    def test_a_run_without_one_has_a_series_that_only_grows(self, stage: Stage) -> None:
        stage.seal(10, state=CopyState.CORRUPT)
        series = scraped(stage)
        assert value(series, "ckptgov_run_restorable", run="run") == 0
        assert value(series, "ckptgov_newest_step", run="run") is None
        assert value(series, "ckptgov_restorable_age_seconds", run="run") is not None

    def test_a_node_that_falls_silent_takes_its_checkpoints_with_it(self, stage: Stage) -> None:
        stage.seal(10)
        stage.seal(20, "n1")
        stage.beat("n1", "n2")
        metrics = Metrics(stage.serving)
        assert value(parsed(metrics.text()), "ckptgov_newest_step", run="run") == 20
        stage.clock.ahead_s += 61
        series = scraped(stage, census=metrics._census)
        assert value(series, "ckptgov_newest_step", run="run") == 10

    def test_halves_on_two_nodes_are_restorable_together(self, stage: Stage) -> None:
        stage.seal(10)
        stage.seal_halves(20, "n1", "n2")
        stage.beat("n1", "n2")
        assert value(scraped(stage), "ckptgov_newest_step", run="run") == 20

    def test_checkpoints_reported_unloadable_are_counted(self, stage: Stage) -> None:
        for number, outcome in enumerate(
            (RestoreOutcome.LOAD_FAILED, RestoreOutcome.CORRUPT, RestoreOutcome.STARTED)
        ):
            report(stage, number, outcome)
        assert value(scraped(stage), "ckptgov_load_failures", run="run") == 2

    def test_only_so_many_runs_have_series(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(families, "MOST_RUNS", 2)
        now_ns = stage.clock.now_ns()
        for number in range(4):
            run_id = f"0b7a41c0-0000-4000-8000-00000000001{number}"
            sealed_runs.put_run(stage.catalog, f"r{number}", run_id, [stage.places["shared"]])
            manifest = sealed_runs.manifest_of_step(number + 1, seed=run_id)
            sealed_runs.record_sealed(
                stage.catalog,
                run_id,
                manifest,
                [stage.places["shared"].place],
                at_ns=now_ns - number * 10**9,
            )
        series = scraped(stage)
        shown = [key for key in series if key[0] == "ckptgov_restorable_age_seconds"]
        assert [labels for _name, labels in shown] == [(("run", "r0"),), (("run", "r1"),)]
        assert value(series, "ckptgov_runs") == 5
        assert value(series, "ckptgov_runs_not_shown") == 3


class TestTiers:
    def test_bytes_are_told_by_tier_and_node(self, stage: Stage) -> None:
        whole = stage.seal(10)
        only = stage.seal(20, "n1")
        stage.seal(30, "n1", "shared")
        bad = stage.seal(40, state=CopyState.CORRUPT)
        doubted = stage.seal(50, state=CopyState.REOPENED)
        series = scraped(stage)

        def at(name: str, tier: str, node: str = "") -> float | None:
            return value(series, f"ckptgov_{name}", tier=tier, node=node)

        assert at("undrained_bytes", "nvme", "n1") == only.bytes
        assert at("undrained_bytes", "nvme", "n2") == 0
        assert at("undrained_bytes", "shared") == 0
        assert at("corrupt_copies", "shared") == 1
        assert at("corrupt_copies", "nvme", "n1") == 0
        assert at("unverified_bytes", "shared") == doubted.bytes
        assert at("tier_checkpoint_bytes", "shared") == sum(
            one.bytes for one in (whole, whole, bad, doubted)
        )

    def test_a_part_counts_as_a_part(self, stage: Stage) -> None:
        halves = stage.seal_halves(20, "n1", "n2")
        series = scraped(stage)
        for node in ("n1", "n2"):
            undrained = value(series, "ckptgov_undrained_bytes", tier="nvme", node=node)
            assert undrained == halves.bytes // 2

    def test_room_is_told_of_tiers_that_are_paths_here(self, stage: Stage) -> None:
        series = scraped(stage)
        free = value(series, "ckptgov_tier_free_bytes", tier="shared", node="")
        size = value(series, "ckptgov_tier_size_bytes", tier="shared", node="")
        assert free is not None
        assert size is not None
        assert 0 < free <= size
        assert value(series, "ckptgov_tier_free_bytes", tier="nvme", node="n1") is None

    def test_only_copies_on_nodes_out_of_reach_are_counted(self, stage: Stage) -> None:
        stage.seal(10, "n1", "shared")
        only = stage.seal(20, "n1")
        halves = stage.seal_halves(30, "n1", "n2")
        stage.seal(40, "n1", "n2")
        stage.beat("n1", "n2")
        assert value(scraped(stage), "ckptgov_unreachable_only_copies") == 0
        stage.catalog.nodes.set_state("n1", NodeState.DEAD, reason="fire")
        series = scraped(stage)
        assert value(series, "ckptgov_unreachable_only_copies") == 2
        lost_bytes = value(series, "ckptgov_unreachable_only_copies_bytes")
        assert lost_bytes == only.bytes + halves.bytes
        assert value(series, "ckptgov_nodes", state="dead") == 1
        assert value(series, "ckptgov_nodes", state="active") == 1
        stage.clock.ahead_s += 61
        series = scraped(stage)
        assert value(series, "ckptgov_unreachable_only_copies") == 3
        assert value(series, "ckptgov_nodes", state="silent") == 1


class TestSpaces:
    TIERS = tuple(TierSettings(name=name, root=f"/{name}") for name in ("hangs", "fine", "away"))

    def test_a_mount_that_hangs_holds_nobody_up_and_is_asked_once(self) -> None:
        let_go, asked = threading.Event(), []

        def measure(tier: TierSettings) -> tuple[int, int]:
            asked.append(tier.name)
            if tier.name == "hangs":
                let_go.wait(30)
            if tier.name == "away":
                raise StorageError("unmounted")
            return 1, 2

        spaces = Spaces(wait_s=0.05, measure=measure)
        assert spaces.of(self.TIERS) == {"/fine": (1, 2)}
        assert spaces.of(self.TIERS) == {"/fine": (1, 2)}
        assert asked.count("hangs") == 1
        let_go.set()


class TestCluster:
    def test_flows_are_told_by_tier_and_reason(self, stage: Stage) -> None:
        request = FlowRequest(
            flow_id="f1",
            what="run step_10",
            flow_class=FlowClass.DURABLE,
            source=None,
            target="shared",
            node="n1",
            bytes=100,
        )
        with stage.serving.desk.open(request):
            series = scraped(stage)
        assert value(series, "ckptgov_flows", state="moving") == 1
        assert value(series, "ckptgov_flows_waiting", reason="rate") == 0
        moving = "ckptgov_flow_moving_bytes_per_second"
        assert value(series, moving, tier="shared", direction="write") == 0

    def test_an_activity_that_never_succeeded_has_a_stamp_of_zero(self, stage: Stage) -> None:
        stage.catalog.activities.declare("verify", every_s=60.0, slo_s=100.0)
        stage.catalog.activities.declare("backup", every_s=0.0, slo_s=100.0)

        def of(name: str, activity: str) -> float | None:
            return value(scraped(stage), f"ckptgov_activity_{name}", activity=activity)

        assert of("last_success_timestamp_seconds", "verify") == 0
        assert of("late", "verify") == 0
        assert of("known_since_timestamp_seconds", "verify") == pytest.approx(
            stage.clock.now_ns() / 1e9, abs=60
        )
        assert of("slo_seconds", "verify") == 100
        stage.clock.ahead_s += 200
        assert of("late", "verify") == 1
        assert of("late", "backup") is None, "what is off promises nothing"

    def test_open_tasks_and_those_ended_here_are_counted(self, stage: Stage) -> None:
        for key in ("a", "b"):
            stage.catalog.tasks.add(NewTask(kind=TaskKind.SCAN, key=key, payload=b""))
        stage.catalog.tasks.claim(node=None, holder="x", kinds=None, ttl_s=60.0)
        metrics = Metrics(stage.serving)
        metrics.task_ended(TaskKind.FLUSH, TaskState.FAILED)
        series = parsed(metrics.text())
        assert value(series, "ckptgov_tasks", kind="scan", state="queued") == 1
        assert value(series, "ckptgov_tasks", kind="scan", state="claimed") == 1
        assert value(series, "ckptgov_tasks", kind="flush", state="queued") == 0
        assert value(series, "ckptgov_tasks_ended_total", kind="flush", state="failed") == 1

    def test_decisions_and_steps_over_are_counted_for_the_whole_cluster(self, stage: Stage) -> None:
        for epoch in (0, 1):
            stage.catalog.decide(RUN_ID, "job-1", epoch, f"sha256:{epoch}", False)
        stage.catalog.decide(RUN_ID, "job-2", 0, None, True)
        series = scraped(stage)
        assert value(series, "ckptgov_restart_decisions_total") == 3
        assert value(series, "ckptgov_restart_step_overs_total") == 1

    def test_it_says_whether_this_process_leads(self, stage: Stage) -> None:
        assert value(scraped(stage), "ckptgov_leader") == 0
        assert value(scraped(stage, leads=lambda: 3), "ckptgov_leader") == 1

    def test_without_a_catalog_the_rest_is_told_all_the_same(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*args: object, **more: object) -> object:
            raise TransientStorageError("does not answer")

        monkeypatch.setattr(stage.catalog, "change_seq", away)
        series = scraped(stage)
        assert value(series, "ckptgov_catalog_up") == 0
        assert value(series, "ckptgov_leader") == 0
        assert not [name for name, _ in series if name.startswith("ckptgov_run")]


class TestCost:
    def test_a_scrape_within_a_second_asks_nothing_again(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        metrics = Metrics(stage.serving)
        first = metrics.text()
        monkeypatch.setattr(Census, "refresh", lambda *args, **more: pytest.fail("asked again"))
        assert metrics.text() == first

    def test_only_runs_that_changed_are_judged_again(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ckptgov.service import census as module

        judged: list[str] = []
        newest_of = module.newest_of

        def counted(context: object, run: object) -> object:
            judged.append(run.identity.name)  # type: ignore[attr-defined]
            return newest_of(context, run)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "newest_of", counted)
        sealed_runs.put_run(stage.catalog, "other", RUN_ID[:-1] + "2", [stage.places["shared"]])
        census = Census(stage.serving)
        census.refresh(limit_s=60.0)
        assert sorted(judged) == ["other", "run"]
        judged.clear()
        census.refresh(limit_s=60.0)
        assert judged == []
        stage.seal(10)
        census.refresh(limit_s=60.0)
        assert judged == ["run"]

    def test_a_refresh_ends_with_its_time_and_goes_on_with_the_next(self, stage: Stage) -> None:
        census = Census(stage.serving)
        assert not census.refresh(limit_s=-1.0)
        assert census.newest() == []
        assert census.refresh(limit_s=60.0)
        assert [one.run for one in census.newest()] == ["run"]


async def _answer(scope: dict, receive: object, send: object) -> None:
    """An application with one route, at a path of the caller's choice, and one that breaks."""
    if scope["path"] == "/broken":
        raise ZeroDivisionError
    status = 404
    if scope["path"].startswith("/v1/runs/"):
        tell_route({**scope}, "/v1/runs/{run}")
        status = 200
    await send({"type": "http.response.start", "status": status, "headers": []})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


class TestRequests:
    def count(self, *requests: tuple[str, str]) -> Series:
        registry = CollectorRegistry()
        app = RequestMetrics(registry).around(_answer)  # type: ignore[arg-type]

        async def nothing(message: object = None) -> None: ...

        async def ask() -> None:
            for method, path in requests:
                scope = {"type": "http", "method": method, "path": path}
                try:
                    await app(scope, nothing, nothing)  # type: ignore[arg-type]
                except ZeroDivisionError:
                    continue

        asyncio.run(ask())
        return parsed(generate_latest(registry))

    def test_requests_are_counted_by_the_routes_template(self) -> None:
        series = self.count(("GET", "/v1/runs/a"), ("GET", "/v1/runs/b"))
        told = {"route": "/v1/runs/{run}", "method": "GET"}
        assert value(series, "ckptgov_http_requests_total", status="200", **told) == 2
        assert value(series, "ckptgov_http_request_duration_seconds_count", **told) == 2

    def test_paths_and_methods_of_a_strangers_choice_make_no_series(self) -> None:
        series = self.count(*((f"M{one}", f"/x{one}") for one in range(50)))
        told = {"route": "other", "method": "other", "status": "404"}
        assert value(series, "ckptgov_http_requests_total", **told) == 50
        assert len([key for key in series if key[0] == "ckptgov_http_requests_total"]) == 1

    def test_a_request_that_broke_the_application_counts_as_500(self) -> None:
        series = self.count(("GET", "/broken"))
        told = {"route": "other", "method": "GET", "status": "500"}
        assert value(series, "ckptgov_http_requests_total", **told) == 1


class TestForm:
    def test_promtool_finds_nothing_to_say(self, stage: Stage) -> None:
        tool = shutil.which("promtool")
        if tool is None:
            pytest.skip("promtool is not installed (Debian: prometheus)")
        fill(stage)
        text = Metrics(stage.serving).text()
        done = subprocess.run(
            [tool, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    def test_every_metric_that_a_rule_names_is_exported(self, stage: Stage) -> None:
        fill(stage)
        census = Census(stage.serving)
        census.refresh(limit_s=60.0)
        exported = {name for name, _labels in parsed(Metrics(stage.serving, census=census).text())}
        expressions = re.findall(r"expr: (\|\n(?:\s{10,}.*\n)+|.*\n)", RULES.read_text())
        named = {name for one in expressions for name in re.findall(r"\bckptgov_\w+", one)}
        assert len(named) > 10
        assert named - exported == set()


def fill(stage: Stage) -> None:
    """Something of everything."""
    stage.seal(10)
    stage.seal(20, "n1")
    stage.beat("n1")
    stage.catalog.activities.declare("scan", every_s=60.0, slo_s=100.0)
    place, now_ns = stage.places["shared"].place, stage.catalog.now_ns()
    for hours in (12, 6, 0):
        sample = TierSample(
            place=place, at_ns=now_ns - hours * 3600 * 10**9, used_bytes=13 - hours, free_bytes=9
        )
        stage.catalog.samples.add(sample)
    path = stage.home / "ckptgov.yaml"
    path.write_text(path.read_text().replace("shared\n", "shared\n    quota: 1GiB\n", 1))
