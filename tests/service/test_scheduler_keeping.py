"""What retention is on a schedule: plans are made, applied within their caps, and forgotten."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent))

from standing_stage import Stage

from ckptgov.catalog.samples import TierSample
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.cluster import NewTask, TaskFacts, TaskKind, TaskState
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import PlanState
from ckptgov.model.settings import TierSettings
from ckptgov.ops import prune
from ckptgov.ops.own_disks import meet_targets, settings_of_node
from ckptgov.ops.plan_upkeep import KEPT_S, forget_over
from ckptgov.ops.scan import scan
from ckptgov.ops.stored_plans import approve
from ckptgov.ops.tiers import add_tier
from ckptgov.service import node_removals
from ckptgov.service.outcomes import trouble
from ckptgov.service.payloads import (
    ApplyPayload,
    CapacityPayload,
    FlushPayload,
    PlanPayload,
    UndeletePayload,
    encoded,
)
from ckptgov.service.scheduler import Scheduler
from ckptgov.service.serving import Serving
from ckptgov.service.workers import Workers
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing import sealed_runs
from ckptgov.testing.builders.dcp import write_dcp
from ckptgov.testing.cluster import LeapingClock
from ckptgov.testing.postgres import PostgresServer, postgres, reason_to_skip
from ckptgov.work.runstore import store_at

STEPS = (10, 20, 30, 40)
RUN = "team/llm"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with postgres() as running:
        yield running


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture
def serving(tmp_path: Path, clock: LeapingClock) -> Iterator[Serving]:
    yield from governed(tmp_path, clock, "")


@pytest.fixture(params=["sqlite", "postgresql"])
def either(
    request: pytest.FixtureRequest, tmp_path: Path, clock: LeapingClock
) -> Iterator[Serving]:
    """The same with either engine under the catalog."""
    is_postgres = request.param == "postgresql"
    url = request.getfixturevalue("server").new_database() if is_postgres else ""
    yield from governed(tmp_path, clock, f"catalog: {url}\n" if url else "")


def governed(root: Path, clock: LeapingClock, config: str) -> Iterator[Serving]:
    """A service of one machine, over a tier with one run of four sealed checkpoints."""
    (root / "home" / "policies").mkdir(parents=True)
    (root / "home" / "ckptgov.yaml").write_text(config)
    for step in STEPS:
        write_dcp(root / "lustre" / RUN / f"step_{step}", seed=str(step))
    (root / "s3").mkdir()
    govern(root)
    with Serving.open(str(root / "home"), clock=clock) as serving:
        with serving.context() as context:
            for name in ("lustre", "s3"):
                root_of_tier = str(root / name)
                add_tier(
                    context, TierSettings(name=name, root=root_of_tier, ingest=name == "lustre")
                )
            answer = scan(context, [str(root / "lustre" / RUN)], run=RUN)
            assert answer.error is None, answer.error
        yield serving


def govern(root: Path, *, fraction: str = "100%", **more: object) -> None:
    """Put a policy in force by which the newest checkpoint stays; everything else goes at once."""
    told = {
        "policy": "ours",
        "keep": {"lustre": {"last": 1}},
        "floors": {"min_restorable": 1, "min_age": "0s"},
        "safety": {
            "adoption_grace": "0s",
            "max_fraction": fraction,
            "grace": "0s",
            "trash": "7d",
        },
    }
    (root / "home" / "policies" / "ours.yaml").write_text(json.dumps(told | more))


def work(serving: Serving, *, rounds: int = 1) -> None:
    """Carry out every task there is, by workers as a service has them."""
    for _ in range(rounds):
        with Workers(serving, holder="w") as workers:
            while workers.step():
                for run in workers._alive():
                    run.join(60)


def asked(serving: Serving, kind: TaskKind, payload: object) -> TaskFacts:
    """A task that somebody asks for, carried out."""
    new = NewTask(kind=kind, key=f"{kind}:asked", payload=encoded(payload))  # type: ignore[arg-type]
    task_id = serving.catalog.tasks.add(new).task_id
    work(serving)
    found = serving.catalog.tasks.task(task_id)
    assert found is not None
    return found


def told(task: TaskFacts) -> dict:
    return json.loads(task.outcome)


def turn(serving: Serving, *names: str, lease_s: float = 10_000.0) -> Scheduler:
    """One turn of each activity by a leader, carried out."""
    one = Scheduler(serving, holder="a", lease_s=lease_s)
    one.lead()
    for name in names:
        one.begin(name)
        work(serving)
        one.look()
    return one


def activity(serving: Serving, name: str) -> tuple[bool, str]:
    """Whether it succeeded, and why not."""
    found = {one.name: one for one in serving.catalog.activities.activities()}[name]
    return found.succeeded_at_ns > 0, found.error


def standing(root: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (root / "lustre" / RUN).glob("step_*"))


def states(serving: Serving, name: str = RUN) -> dict[int, CopyState]:
    run = serving.catalog.run_by_name(name)
    assert run is not None
    run_id = run.identity.run_id
    steps = {one.content_id: one.step for one in serving.catalog.checkpoints(run_id)}
    return {steps[one.content_id]: one.state for one in serving.catalog.copies(run_id)}


def plans(serving: Serving) -> list[PlanState]:
    return [one.state for one in serving.catalog.plans.plans(limit=100)]


class TestTheSchedule:
    def test_what_a_plan_lets_go_goes_by_itself(self, either: Serving, tmp_path: Path) -> None:
        turn(either, "plan", "apply")
        assert standing(tmp_path) == [40]
        assert set(states(either).values()) == {CopyState.TRASHED, CopyState.VERIFIED}
        assert plans(either) == [PlanState.APPLIED]
        assert activity(either, "plan") == (True, "")
        assert activity(either, "apply") == (True, "")

    def test_what_lay_in_the_trash_for_its_time_is_purged(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        turn(serving, "plan", "apply").close()
        turn(serving, "apply").close()
        assert list(tmp_path.glob(f"lustre/{RUN}/.ckptgov/trash/*/*/files"))
        time_is_over(tmp_path)
        turn(serving, "apply")
        assert not list(tmp_path.glob(f"lustre/{RUN}/.ckptgov/trash/*/*"))
        assert serving.catalog.removals.removals() == ()

    def test_a_plan_beyond_a_cap_is_left_for_people_and_is_no_failure(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        govern(tmp_path, fraction="10%")
        turn(serving, "plan", "apply")
        assert plans(serving) == [PlanState.WAITING]
        assert standing(tmp_path) == list(STEPS)
        assert activity(serving, "plan") == (True, "")
        assert activity(serving, "apply") == (True, "")

    def test_what_a_person_approved_is_left_for_people_to_apply(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        govern(tmp_path, fraction="10%")
        turn(serving, "plan")
        [waiting] = serving.catalog.plans.plans()
        with serving.context() as context:
            approve(context, waiting.plan.plan_id, reason="we know")
        asked(serving, TaskKind.APPLY, ApplyPayload(is_newest=True))
        assert standing(tmp_path) == list(STEPS)
        ended = asked(serving, TaskKind.APPLY, ApplyPayload(plan=waiting.plan.plan_id))
        assert told(ended)["counts"] == {"trashed": 3}
        assert standing(tmp_path) == [40]

    def test_what_a_person_planned_of_one_run_is_left_to_that_person(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        asked(serving, TaskKind.PLAN, PlanPayload(run=RUN))
        turn(serving, "apply")
        assert plans(serving) == [PlanState.PROPOSED]
        assert standing(tmp_path) == list(STEPS)

    def test_a_plan_by_a_policy_that_was_changed_waits_for_the_next_one(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        turn(serving, "plan")
        govern(tmp_path, keep={"lustre": {"last": 2}})
        one = turn(serving, "apply")
        assert standing(tmp_path) == list(STEPS)
        assert activity(serving, "apply") == (True, "")
        one.close()
        turn(serving, "plan", "apply")
        assert standing(tmp_path) == [30, 40]

    def test_while_a_policy_is_wrong_nothing_goes_and_the_plan_says_why(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        turn(serving, "plan").close()
        (tmp_path / "home" / "policies" / "ours.yaml").write_text("policy: ours\nkeep: 3\n")
        turn(serving, "plan", "apply")
        assert "keep" in activity(serving, "plan")[1]
        assert activity(serving, "apply") == (True, "")
        assert standing(tmp_path) == list(STEPS)

    def test_with_nothing_to_go_plans_do_not_pile_up(
        self, serving: Serving, tmp_path: Path, clock: LeapingClock
    ) -> None:
        govern(tmp_path, keep={"lustre": {"last": 9}})
        for _ in range(3):
            turn(serving, "plan", "apply").close()
            clock.ahead_s += 3600
        assert plans(serving) == [PlanState.PROPOSED]

    def test_a_later_plan_takes_the_place_of_one_that_nobody_carried_out(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        turn(serving, "plan").close()
        govern(tmp_path, keep={"lustre": {"last": 2}})
        turn(serving, "plan")
        assert plans(serving) == [PlanState.PROPOSED, PlanState.STALE]

    def test_what_only_waits_is_not_told_again_every_few_minutes(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        turn(serving, "plan", "apply")
        ended = asked(serving, TaskKind.APPLY, ApplyPayload(is_newest=True))
        assert (told(ended)["counts"], told(ended)["steps"]) == ({"waiting": 3}, [])
        ended = asked(serving, TaskKind.APPLY, ApplyPayload())
        assert len(told(ended)["steps"]) == 3, "whoever asks is told all"

    def test_entries_that_changed_since_are_no_failure_and_what_resists_is(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        turn(serving, "plan")
        (tmp_path / "lustre" / RUN / "step_10" / "__0_0.distcp").write_bytes(b"another")
        turned = turn(serving, "apply")
        assert standing(tmp_path) == [10, 40]
        assert activity(serving, "apply") == (True, "")
        turned.close()
        shutil.move(tmp_path / "lustre", tmp_path / "elsewhere")
        time_is_over(tmp_path)
        turn(serving, "apply")
        assert "lustre" in activity(serving, "apply")[1]


def time_is_over(root: Path) -> None:
    """As if the time of every removal had run out; storage's clock goes on as it is."""
    with closing(sqlite3.connect(root / "home" / "catalog.sqlite")) as catalog:
        catalog.execute("UPDATE removals SET due_at_ns = 1")
        catalog.commit()


class TestUpkeep:
    def test_plans_that_were_over_long_ago_are_forgotten(
        self, serving: Serving, clock: LeapingClock, tmp_path: Path
    ) -> None:
        one = turn(serving, "plan", lease_s=10**8)
        govern(tmp_path, keep={"lustre": {"last": 2}})
        one.begin("plan")
        work(serving)
        one.forget()
        assert plans(serving) == [PlanState.PROPOSED, PlanState.STALE]
        clock.ahead_s += KEPT_S + 1
        one.forget()
        assert plans(serving) == [PlanState.PROPOSED], "one that stands is never forgotten"

    def test_a_plan_that_a_removal_still_goes_by_is_kept(
        self, serving: Serving, clock: LeapingClock, tmp_path: Path
    ) -> None:
        turn(serving, "plan", "apply").close()
        clock.ahead_s = KEPT_S + 1
        with serving.context() as context:
            assert forget_over(context) == 0
        clock.ahead_s = 0
        time_is_over(tmp_path)
        turn(serving, "apply")
        assert serving.catalog.removals.removals() == ()
        clock.ahead_s = KEPT_S + 1
        with serving.context() as context:
            assert forget_over(context) == 1


class TestALostLease:
    def lose_after_the_first(
        self, serving: Serving, monkeypatch: pytest.MonkeyPatch, workers: Workers, task_id: str
    ) -> list[str]:
        """While the first copy is moved aside, another process takes the task over."""
        carry_on, done = prune.carry_on, []

        def one(removing: object, removal: object, caught_up: object) -> object:
            step = carry_on(removing, removal, caught_up)  # type: ignore[arg-type]
            done.append(step.checkpoint)
            if len(done) == 1:
                tasks = serving.catalog.tasks
                task = tasks.task(task_id)
                assert task is not None
                tasks.give_back(task_id, task.lease)
                tasks.claim(node=None, holder="b", kinds=None, ttl_s=60.0)
                workers.renew()
            return step

        monkeypatch.setattr(prune, "carry_on", one)
        monkeypatch.setattr("ckptgov.ops.apply.go_on", prune.go_on)
        return done

    def test_a_former_leaders_apply_removes_nothing_more(
        self, either: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        turn(either, "plan")
        one = Scheduler(either, holder="a", lease_s=10_000.0)
        one.lead()
        one.begin("apply")
        [task] = [each for each in either.catalog.tasks.tasks() if each.task.kind is TaskKind.APPLY]
        with Workers(either, holder="a") as workers:
            asks: list[object] = []
            monkeypatch.setattr(node_removals, "ask_nodes", asks.append)
            done = self.lose_after_the_first(either, monkeypatch, workers, task.task_id)
            workers.step()
            for run in workers._alive():
                run.join(60)
        assert len(done) == 1
        assert len(standing(tmp_path)) == 3, "one of three was moved aside"
        assert asks == [], "no node is asked either"
        found = either.catalog.tasks.task(task.task_id)
        assert found is not None
        assert (found.state, found.holder) == (TaskState.CLAIMED, "b")
        monkeypatch.undo()
        either.catalog.tasks.give_back(task.task_id, found.lease)
        work(either)
        assert standing(tmp_path) == [40], "whoever takes it over goes on"


class TestTasks:
    def test_the_outcome_of_a_plan_is_its_document_without_what_goes(
        self, serving: Serving
    ) -> None:
        ended = asked(serving, TaskKind.PLAN, PlanPayload())
        document = told(ended)
        [stored] = serving.catalog.plans.plans()
        assert ended.state is TaskState.DONE
        assert document["plan_id"] == stored.plan.plan_id
        assert document["state"] == "proposed"
        assert document["left_out"] == {"entries": 3}
        assert document["freed_bytes"] > 0
        assert "entries" not in document

    def test_a_plan_that_waits_says_so_in_its_outcome(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        govern(tmp_path, fraction="10%")
        ended = asked(serving, TaskKind.PLAN, PlanPayload())
        assert (ended.state, told(ended)["state"]) == (TaskState.DONE, "waiting")
        assert told(ended)["error"]["exit_code"] == 6
        assert trouble(ended) is None

    def test_a_plan_that_must_not_be_applied_is_refused_in_words(self, serving: Serving) -> None:
        ended = asked(serving, TaskKind.APPLY, ApplyPayload(plan="sha256:beef"))
        assert ended.state is TaskState.FAILED
        assert told(ended)["error"]["kind"] == "usage"

    def test_what_came_back_is_told_as_undelete_tells_it(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        turn(serving, "plan", "apply")
        ended = asked(serving, TaskKind.UNDELETE, UndeletePayload(run=RUN, step=20))
        assert ended.state is TaskState.DONE
        assert len(told(ended)["restored"]) == 1
        assert standing(tmp_path) == [20, 40]
        assert states(serving)[20] is CopyState.VERIFIED

    def test_nodes_are_asked_for_what_lies_in_their_trash(
        self, serving: Serving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asks: list[tuple[object, ...]] = []
        monkeypatch.setattr(node_removals, "ask_back", lambda *told: asks.append(told[1:]) or ())
        turn(serving, "plan", "apply")
        asked(serving, TaskKind.UNDELETE, UndeletePayload(run=RUN, step=20))
        assert asks == [(RUN, 20)]

    def test_nothing_of_a_node_is_asked_where_nothing_may_be_removed(
        self, serving: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        asks: list[object] = []
        monkeypatch.setattr(node_removals, "ask_nodes", asks.append)
        govern(tmp_path, fraction="10%")
        made = asked(serving, TaskKind.PLAN, PlanPayload())
        ended = asked(serving, TaskKind.APPLY, ApplyPayload(plan=told(made)["plan_id"]))
        assert told(ended)["error"]["kind"] == "refused"
        assert asks == []
        asked(serving, TaskKind.APPLY, ApplyPayload())
        assert len(asks) == 1


class TestCapacity:
    def test_every_tier_that_is_seen_is_sampled(self, serving: Serving) -> None:
        ended = asked(serving, TaskKind.CAPACITY, CapacityPayload())
        assert ended.state is TaskState.DONE
        places = {one.place: one.tier for one in serving.catalog.places()}
        newest = serving.catalog.samples.newest()
        assert sorted(places[one.place] for one in newest) == ["lustre", "s3"]
        assert [one["place"] for one in told(ended)["samples"]]

    def test_one_that_does_not_answer_is_told_and_leaves_no_sample(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        shutil.rmtree(tmp_path / "s3")
        ended = asked(serving, TaskKind.CAPACITY, CapacityPayload())
        assert ended.state is TaskState.DONE
        assert "s3" in str(trouble(ended))
        assert len(serving.catalog.samples.newest()) == 1


class TestLinksOfPolicies:
    FLUSH = ({"from": "lustre", "to": "s3", "every": 1},)

    def keys(self, serving: Serving) -> list[str]:
        found = serving.catalog.tasks.tasks(states=(TaskState.QUEUED,))
        return sorted(one.task.key for one in found)

    def test_flushes_are_made_along_them(self, serving: Serving, tmp_path: Path) -> None:
        one = Scheduler(serving, holder="a")
        one.lead()
        one.begin("flush")
        assert self.keys(serving) == []
        govern(tmp_path, flush=self.FLUSH)
        one.begin("flush")
        assert self.keys(serving) == ["flush:from:lustre"]
        work(serving)
        assert sorted(path.name for path in (tmp_path / "s3" / RUN).glob("step_*")) == [
            f"step_{step}" for step in STEPS
        ]

    def test_a_task_from_one_tier_flushes_along_no_others(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        govern(tmp_path, flush=self.FLUSH)
        asked(serving, TaskKind.FLUSH, FlushPayload(sources=("s3",)))
        assert not list((tmp_path / "s3").glob("team/*"))

    def test_a_policy_that_is_wrong_leaves_the_links_of_the_settings(
        self, serving: Serving, tmp_path: Path
    ) -> None:
        path = tmp_path / "home" / "ckptgov.yaml"
        path.write_text(path.read_text() + "links:\n  - {from: lustre, to: s3, every: 1}\n")
        (tmp_path / "home" / "policies" / "ours.yaml").write_text("nonsense: 1\n")
        one = Scheduler(serving, holder="a")
        one.lead()
        one.begin("flush")
        assert self.keys(serving) == ["flush:from:lustre"]


class TestNodes:
    """A replica of a cluster, which sees no node's disk."""

    @pytest.fixture
    def stage(self, tmp_path: Path) -> Iterator[Stage]:
        """Two checkpoints on a node's disk, of which the newer one lies on the shared tier too."""
        made = Stage(tmp_path, nodes=("n1",))
        made.seal(10, "n1")
        made.seal(20, "n1", "shared")
        made.beat("n1")
        (made.home / "policies").mkdir()
        yield made
        made.close()

    def planned(self, stage: Stage, **more: object) -> dict:
        govern(stage.root, **{"keep": {"nvme": {"last": 1}}} | more)  # type: ignore[arg-type]
        turn(stage.serving, "plan").close()
        [stored] = stage.catalog.plans.plans(limit=1)
        return {
            "goes": [(one.step, one.tier) for one in stored.plan.entries],
            "tiers": {one.node: one for one in stored.plan.tiers if one.tier == "nvme"},
        }

    def test_their_links_count_as_well(self, stage: Stage) -> None:
        assert self.planned(stage)["goes"] == [(10, "nvme")]
        path = stage.home / "ckptgov.yaml"
        path.write_text(path.read_text() + "links:\n  - {from: nvme, to: shared, every: 1}\n")
        turn(stage.serving, "plan")
        newest = stage.catalog.plans.plans(limit=1)[0]
        assert newest.plan.entries == (), "a link has yet to bring it away"

    def test_a_disk_that_no_settings_here_name_is_as_full_as_its_node_told(
        self, stage: Stage
    ) -> None:
        path = stage.home / "ckptgov.yaml"
        path.write_text(path.read_text().split("  - name: nvme")[0])
        self.fill(stage, 95)
        limits = {"nvme": {"high": "90%", "low": "80%"}}
        tiers = self.planned(stage, capacity=limits)["tiers"]
        assert (tiers["n1"].used_bytes, tiers["n1"].limit_bytes) == (95, 90)

    def fill(self, stage: Stage, used: int) -> None:
        sample = TierSample(
            place=stage.places["n1"].place,
            at_ns=stage.catalog.now_ns(),
            used_bytes=used,
            free_bytes=100 - used,
            total_bytes=100,
        )
        stage.catalog.samples.add(sample)

    def test_that_nothing_brings_it_below_its_limit_makes_a_new_plan(self, stage: Stage) -> None:
        """How full it is alone does not; both would keep what is alerted on as it was."""
        limits = {"nvme": {"high": "90%", "low": "80%", "yields": ["unkept"]}}
        over = []
        for used in (50, 60, 95, 97):
            self.fill(stage, used)
            made = self.planned(stage, keep={"nvme": {"last": 9}}, capacity=limits)
            over.append((len(plans(stage.serving)), made["tiers"]["n1"].over_bytes > 0))
        assert over == [(1, False), (1, False), (2, True), (2, True)]

    def test_what_an_agent_was_asked_to_bring_back_is_no_failure(self, stage: Stage) -> None:
        govern(stage.root, keep={"nvme": {"last": 1}})
        turn(stage.serving, "plan", "apply").close()
        turn(stage.serving, "apply").close()
        assert states(stage.serving, "run")[10] is CopyState.TRASHING
        ended = asked(stage.serving, TaskKind.UNDELETE, UndeletePayload(run="run"))
        [step] = told(ended)["steps"]
        assert (ended.state, step["went"]) == (TaskState.DONE, "waiting")
        assert "agent of node n1" in step["text"]
        assert "error" not in told(ended)

    def test_one_that_has_not_told_lately_is_named(self, stage: Stage) -> None:
        """Once, and not the disk that was there before it."""
        renewed = replace(stage.places["n1"], place="00000000-0000-4000-8000-00000000000f")
        stage.catalog.put_place(renewed)
        govern(stage.root, capacity={"nvme": {"high": "90%", "low": "80%"}})
        ended = asked(stage.serving, TaskKind.PLAN, PlanPayload())
        assert [one["run"] for one in told(ended)["notes"]] == ["tier nvme of node n1"]


class TestAnAgentsTargets:
    """Where a node's disk is to be drained to, as its agent knows it."""

    OTHER = "0b7a41c0-0000-4000-8000-000000000009"

    @pytest.fixture
    def stage(self, tmp_path: Path) -> Iterator[Stage]:
        """A run on the node's disk that another node has brought to the shared tier already."""
        made = Stage(tmp_path, nodes=("n1",), here=frozenset({"n1"}))
        sealed_runs.put_run(made.catalog, "other", self.OTHER, [made.places["n1"]])
        self.bring(made.places["shared"].root)
        (made.home / "policies").mkdir()
        yield made
        made.close()

    def bring(self, root: str) -> None:
        with PosixStorage(root) as storage:
            storage.make_dirs("other")
            store_at(storage, "other").create(RunIdentity(run_id=self.OTHER, name="other"))

    def met(self, stage: Stage) -> set[str]:
        with stage.context() as context:
            context.settings = settings_of_node(context.settings, "n1")
            meet_targets(context)
        return {one.place for one in stage.catalog.roots_of(self.OTHER)}

    def test_links_of_policies_lead_there_as_well(self, stage: Stage) -> None:
        govern(stage.root, keep={}, flush=[{"from": "nvme", "to": "shared", "every": 1}])
        assert stage.places["shared"].place in self.met(stage)

    def test_where_a_link_begins_elsewhere_others_look(self, stage: Stage) -> None:
        path = stage.home / "ckptgov.yaml"
        far = TierSettings(name="far", root=str(stage.root / "far"))
        path.write_text(path.read_text() + f"  - name: far\n    url: {far.root}\n")
        uuid = "00000000-0000-4000-8000-00000000000f"
        place = sealed_runs.put_place(stage.catalog, Path(far.root), tier="far", uuid=uuid)
        self.bring(place.root)
        link = {"from": "shared", "to": "far", "every": 1}
        govern(stage.root, keep={}, flush=[link])
        assert place.place not in self.met(stage)
        govern(stage.root, keep={}, flush=[link | {"from": "nvme"}])
        assert place.place in self.met(stage)

    def test_while_a_policy_is_wrong_those_of_the_settings_do(self, stage: Stage) -> None:
        path = stage.home / "ckptgov.yaml"
        path.write_text(path.read_text() + "links:\n  - {from: nvme, to: shared, every: 1}\n")
        (stage.home / "policies" / "ours.yaml").write_text("nonsense: 1\n")
        assert stage.places["shared"].place in self.met(stage)
