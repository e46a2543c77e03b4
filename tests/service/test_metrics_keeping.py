"""Metrics and alerts of retention: plans, what is on its way out, room, runs that fell silent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).parent))

from standing_stage import RUN_ID, Stage

from ckptgov.catalog.samples import TierSample
from ckptgov.model.retention import (
    Action,
    Plan,
    PlanEntry,
    PlanRefusal,
    PlanState,
    TierOutlook,
)
from ckptgov.planning.retention_plan import with_id
from ckptgov.service import keeping_census as module
from ckptgov.service.census import Census
from ckptgov.service.metrics import Metrics
from ckptgov.service.noticing import alerts_of
from ckptgov.testing import postgres
from ckptgov.testing.condemning import doomed, guard

DAY_S = 86400
HOUR_NS = 3600 * 10**9
CAP = PlanRefusal(is_cap=True, text="policy p: 9 checkpoints would go, more than 5 (max_count)")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, nodes=("n1",))
    yield made
    made.close()


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.PostgresServer]:
    reason = postgres.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with postgres.postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """A stage on either engine."""
    is_postgres = request.param == "postgresql"
    url = request.getfixturevalue("server").new_database() if is_postgres else None
    made = Stage(tmp_path, nodes=("n1",), catalog_url=url)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is counted anew each time."""
    monkeypatch.setattr(module, "REST", 0)


class Scraped:
    """What a scrape says, by name and labels."""

    def __init__(self, text: bytes) -> None:
        self.series = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.series.get((f"ckptgov_{name}", tuple(sorted(labels.items()))))


def scraped(stage: Stage, census: Census | None = None) -> Scraped:
    census = census or Census(stage.serving)
    census.refresh(limit_s=60.0)
    return Scraped(Metrics(stage.serving, census=census).text())


def alerts(stage: Stage, census: Census) -> dict[str, tuple[tuple[str, str], ...]]:
    census.refresh(limit_s=60.0)
    return {one.name: one.about for one in alerts_of(census, (), stage.catalog.now_ns())}


def made(stage: Stage, number: int, *actions: Action, **more: object) -> Plan:
    """A plan that lets one copy go for each of ``actions``, of 100 bytes."""
    entries = tuple(
        PlanEntry(
            run_id=RUN_ID,
            run="run",
            content_id=f"sha256:{index:064x}",
            checkpoint=f"step_{index}",
            step=index,
            place=stage.places["shared"].place,
            tier="shared",
            node=None,
            action=action,
            why=(),
            bytes=100,
            files=1,
            size_bytes=100,
        )
        for index, action in enumerate(actions)
    )
    plan = Plan(plan_id="", now_ns=number, change_seq=1, policies=(), entries=entries, **more)  # type: ignore[arg-type]
    return with_id(plan)


def put(
    stage: Stage, plan: Plan, state: PlanState, *, note: str = "", replaces: tuple[Plan, ...] = ()
) -> None:
    gone = [one.plan_id for one in replaces]
    stage.catalog.plans.put(plan, state=state, by="x", note=note, replaces=gone)


class TestPlans:
    def test_the_newest_plan_is_told_by_action(self, stage: Stage) -> None:
        put(stage, made(stage, 1, Action.PRUNE), PlanState.REFUSED)
        put(stage, made(stage, 2, Action.EVICT, Action.PRUNE, Action.PRUNE), PlanState.PROPOSED)
        told = scraped(stage)
        assert told("plan_entries", state="proposed", action="prune") == 2
        assert told("plan_bytes", state="proposed", action="evict") == 100
        assert told("plan_entries", state="refused", action="prune") == 0
        assert told("plans", state="proposed") == 1
        assert told("plans", state="waiting") == 0

    def test_one_that_was_applied_is_still_the_newest(self, stage: Stage) -> None:
        plan = made(stage, 1, Action.PRUNE)
        put(stage, plan, PlanState.PROPOSED)
        census = Census(stage.serving)
        assert scraped(stage, census)("plan_entries", state="proposed", action="prune") == 1
        stage.catalog.plans.set_state(
            plan.plan_id, expected=PlanState.PROPOSED, to=PlanState.APPLIED, by="x"
        )
        told = scraped(stage, census)
        assert told("plan_entries", state="applied", action="prune") == 1
        assert told("plan_entries", state="proposed", action="prune") == 0
        assert told("plans", state="proposed") == 0

    def test_what_somebody_planned_of_one_run_is_not_the_newest(self, stage: Stage) -> None:
        put(stage, made(stage, 1, Action.PRUNE), PlanState.PROPOSED)
        put(stage, made(stage, 2, Action.EVICT), PlanState.PROPOSED, note="of run run")
        told = scraped(stage)
        assert told("plan_entries", state="proposed", action="prune") == 1
        assert told("plan_entries", state="proposed", action="evict") == 0
        assert told("plans", state="proposed") == 2

    def test_refusals_are_told_by_reason(self, stage: Stage) -> None:
        refusals = (CAP, CAP, PlanRefusal(is_cap=False, text="run r: (max_bytes) would be left"))
        put(stage, made(stage, 1, Action.PRUNE, refusals=refusals), PlanState.REFUSED)
        told = scraped(stage)
        assert told("plan_refusals", reason="max_count") == 2
        assert told("plan_refusals", reason="emptied") == 1
        assert told("plan_refusals", reason="max_bytes") == 0

    def test_plans_are_read_again_only_when_something_became_of_them(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(stage, made(stage, 1, Action.PRUNE), PlanState.PROPOSED)
        census = Census(stage.serving)
        census.refresh(limit_s=60.0)
        census.refresh(limit_s=60.0)
        monkeypatch.setattr(module, "newest_of_all", lambda *_: pytest.fail("read again"))
        census.refresh(limit_s=60.0)

    def test_it_is_told_how_long_a_person_has_been_waited_for(self, either: Stage) -> None:
        """A later plan that waits as well does not begin the wait anew."""
        assert scraped(either)("plan_waiting_seconds") == 0
        first, second = (made(either, number, refusals=(CAP,)) for number in (1, 2))
        put(either, first, PlanState.WAITING)
        census = Census(either.serving)
        census.refresh(limit_s=60.0)
        assert census.keeping().waiting_since_ns is not None
        since_ns = census.keeping().waiting_since_ns
        put(either, second, PlanState.WAITING, replaces=(first,))
        for one in (census, Census(either.serving)):
            one.refresh(limit_s=60.0)
            one.refresh(limit_s=60.0)
            assert one.keeping().waiting_since_ns == since_ns
        either.catalog.plans.set_state(
            second.plan_id, expected=PlanState.WAITING, to=PlanState.APPROVED, by="x", note="go"
        )
        third = made(either, 3, refusals=(CAP,))
        put(either, third, PlanState.WAITING)
        census.refresh(limit_s=60.0)
        assert census.keeping().waiting_since_ns != since_ns, "somebody was there in between"

    def test_one_of_a_single_run_is_waited_for_by_nobody_but_who_asked(self, stage: Stage) -> None:
        plan = made(stage, 1, refusals=(CAP,))
        put(stage, plan, PlanState.WAITING, note="of run run")
        assert scraped(stage)("plan_waiting_seconds") == 0

    def test_a_wait_of_more_than_a_day_is_an_alert(self, stage: Stage) -> None:
        census = Census(stage.serving)
        put(stage, made(stage, 1, refusals=(CAP,)), PlanState.WAITING)
        stage.clock.ahead_s += DAY_S - 60
        assert "plan-waits" not in alerts(stage, census)
        stage.clock.ahead_s += 120
        assert alerts(stage, census)["plan-waits"] == ()


class TestRemovals:
    def condemned(self, stage: Stage) -> str:
        """The older of two checkpoints on the node, which lies on the shared tier as well."""
        older = stage.seal(10, "n1", "shared")
        stage.seal(20)
        goes = doomed(older.content_id, stage.places["n1"].place, action=Action.EVICT, bytes=7)
        free = guard(reachable=frozenset(one.place for one in stage.places.values()))
        stage.catalog.removals.condemn(RUN_ID, [goes], free, plan_id="p")
        return older.content_id

    def test_what_is_on_its_way_out_is_told_by_tier_and_state(self, stage: Stage) -> None:
        self.condemned(stage)
        told = scraped(stage)
        assert told("removals", tier="nvme", node="n1", state="condemned") == 1
        assert told("removal_bytes", tier="nvme", node="n1", state="condemned") == 7
        assert told("removals", tier="nvme", node="n1", state="trashed") == 0
        assert told("removal_bytes", tier="shared", node="", state="trashed") == 0
        assert told("removals_resisting", tier="nvme", node="n1") == 0

    def test_what_is_dear_to_count_is_counted_again_after_a_rest(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "REST", 10**6)
        census = Census(stage.serving)
        census.refresh(limit_s=60.0)
        self.condemned(stage)
        census.refresh(limit_s=60.0)
        assert census.keeping().leaving == ()
        monkeypatch.setattr(stage.clock, "monotonic", lambda: 1e12)
        census.refresh(limit_s=60.0)
        assert len(census.keeping().leaving) == 1

    def test_what_resists_for_an_hour_is_an_alert(self, stage: Stage) -> None:
        census = Census(stage.serving)
        content_id, place = self.condemned(stage), stage.places["n1"].place
        stage.catalog.removals.resisted(RUN_ID, content_id, place, "busy")
        assert "removals-resist" not in alerts(stage, census)
        assert scraped(stage, census)("removals_resisting", tier="nvme", node="n1") == 1
        stage.clock.ahead_s += 3700
        assert alerts(stage, census)["removals-resist"] == (("tier", "nvme"), ("node", "n1"))
        stage.catalog.removals.undo(RUN_ID, content_id, place)
        assert "removals-resist" not in alerts(stage, census)


class TestRoom:
    def fill(self, stage: Stage, where: str, *used: int, free: int = 1000) -> None:
        """Samples six hours apart, the last one just now."""
        now_ns = stage.catalog.now_ns()
        for index, used_bytes in enumerate(reversed(used)):
            stage.catalog.samples.add(
                TierSample(
                    place=stage.places[where].place,
                    at_ns=now_ns - index * 6 * HOUR_NS,
                    used_bytes=used_bytes,
                    free_bytes=free,
                    total_bytes=free + used_bytes,
                )
            )

    def test_tiers_are_told_as_they_were_measured_nodes_disks_too(self, either: Stage) -> None:
        self.fill(either, "shared", 5)
        self.fill(either, "n1", 7, free=93)
        told = scraped(either)
        assert told("tier_used_bytes", tier="shared", node="") == 5
        assert told("tier_used_bytes", tier="nvme", node="n1") == 7
        assert told("tier_free_bytes", tier="nvme", node="n1") == 93
        assert told("tier_size_bytes", tier="nvme", node="n1") == 100
        assert told("tier_full_in_seconds", tier="nvme", node="n1") is None

    def test_what_was_measured_long_ago_is_not_told(self, stage: Stage) -> None:
        self.fill(stage, "n1", 7)
        stage.clock.ahead_s += 3601
        assert scraped(stage)("tier_used_bytes", tier="nvme", node="n1") is None

    def test_a_tier_that_fills_is_told_with_when_it_will_be_full(self, stage: Stage) -> None:
        census = Census(stage.serving)
        self.fill(stage, "n1", 0, 100, 200, free=1000)
        told = scraped(stage, census)
        assert told("tier_full_in_seconds", tier="nvme", node="n1") == pytest.approx(
            2.5 * DAY_S, rel=0.01
        )
        assert alerts(stage, census)["tier-fills-up"] == (("tier", "nvme"), ("node", "n1"))
        stage.clock.ahead_s += 60
        self.fill(stage, "n1", 200, free=9000)
        assert "tier-fills-up" not in alerts(stage, census), "there is room again"

    def test_growth_is_told_as_time_allows(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        census = Census(stage.serving)
        census.refresh(limit_s=60.0)
        self.fill(stage, "n1", 0, 100, 200)
        grown: list[object] = []
        growth_at = module.growth_at
        monkeypatch.setattr(
            module, "growth_at", lambda *args: (grown.append(args), growth_at(*args))[1]
        )
        census.refresh(limit_s=-1.0)
        assert grown == []
        for _ in range(2):
            census.refresh(limit_s=60.0)
        assert len(grown) == 1, "once for a sample"

    def test_what_nothing_can_free_is_told_and_is_an_alert(self, stage: Stage) -> None:
        def outlook(node: str | None, over: int, limit: int) -> TierOutlook:
            return TierOutlook(
                tier="shared" if node is None else "nvme",
                node=node,
                used_bytes=900,
                limit_bytes=limit,
                freed_bytes=10,
                freed_files=1,
                over_bytes=over,
            )

        census = Census(stage.serving)
        assert scraped(stage)("tier_over_limit_bytes", tier="nvme", node="n1") == 0
        told = (outlook("n1", 0, 800), outlook(None, 40, 850), outlook(None, 0, 700))
        put(stage, made(stage, 1, tiers=told), PlanState.PROPOSED)
        seen = scraped(stage, census)
        assert seen("tier_limit_bytes", tier="shared", node="") == 700
        assert seen("tier_over_limit_bytes", tier="shared", node="") == 40
        assert seen("tier_over_limit_bytes", tier="nvme", node="n1") == 0
        assert seen("tier_over_limit_files", tier="shared", node="") == 0
        assert alerts(stage, census)["tier-over-limit"] == (("tier", "shared"),)


class TestSilentRuns:
    def test_dead_runs_are_told_with_their_bytes(self, stage: Stage) -> None:
        one = stage.seal(10, "n1", "shared", at_ns=stage.clock.now_ns())
        census = Census(stage.serving)
        told = scraped(stage, census)
        assert (told("dead_runs"), told("dead_run_bytes")) == (0, 0)
        later = Later(stage, census)
        assert later(13 * DAY_S) == (0, 0)
        assert later(14 * DAY_S) == (1, 2 * one.bytes)

    def test_a_question_or_a_reader_keeps_a_run_alive(self, stage: Stage) -> None:
        one = stage.seal(10)
        census = Census(stage.serving)
        later = Later(stage, census)
        stage.clock.ahead_s += 10 * DAY_S
        stage.catalog.signs.asked(RUN_ID)
        stage.clock.ahead_s -= 10 * DAY_S
        assert later(20 * DAY_S) == (0, 0)
        assert later(25 * DAY_S) == (1, one.bytes)
        stage.clock.ahead_s += 25 * DAY_S
        stage.catalog.claims.take(RUN_ID, one.content_id, owner="x", reason="", ttl_s=60.0)
        stage.clock.ahead_s -= 25 * DAY_S
        assert later(25 * DAY_S) == (0, 0)

    def test_the_policy_says_when_a_run_is_dead(self, stage: Stage) -> None:
        stage.seal(10, at_ns=stage.clock.now_ns())
        policies = stage.home / "policies"
        policies.mkdir()
        (policies / "p.yaml").write_text("policy: p\nlifecycle: {dead_after: 2d}\n")
        assert Later(stage, Census(stage.serving))(3 * DAY_S)[0] == 1


class Later:
    """Dead runs and their bytes as of later; the servers of databases have clocks of their own."""

    def __init__(self, stage: Stage, census: Census) -> None:
        self.stage, self.census = stage, census

    def __call__(self, ahead_s: float) -> tuple[int, int]:
        with pytest.MonkeyPatch.context() as patch:
            now_ns = self.stage.catalog.now_ns() + int(ahead_s * 1e9)
            patch.setattr(self.stage.catalog, "now_ns", lambda: now_ns)
            self.census.refresh(limit_s=60.0)
            return self.census.keeping().dead
