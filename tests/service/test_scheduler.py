"""The schedule: only the leader makes tasks, rounds end when their tasks have, alerts stand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckptgov.catalog.facts import PlacedCopy, PlaceFacts, SealedFacts
from ckptgov.errors import LeaseLost
from ckptgov.model.checkpoint import Evidence, Purpose, RunIdentity, StepKind
from ckptgov.model.clock import SystemClock
from ckptgov.model.cluster import ActivityFacts, NewTask, NodeBeat, TaskKind, TaskState
from ckptgov.model.copies import CopyState
from ckptgov.model.settings import Link, TierSettings
from ckptgov.ops.budgets import link_tiers
from ckptgov.ops.tiers import add_tier
from ckptgov.service import census as module
from ckptgov.service.activities import Activity
from ckptgov.service.alerts import Alert, Notifier
from ckptgov.service.census import Census, Sums
from ckptgov.service.leadership import Leadership
from ckptgov.service.payloads import By
from ckptgov.service.scheduler import Scheduler, alerts_of
from ckptgov.service.serving import Serving


class SteppedClock(SystemClock):
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.at_s = 1_000_000.0

    def now_ns(self) -> int:
        return int(self.at_s * 1e9)

    def monotonic(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def opened(tmp_path: Path, clock: SteppedClock) -> Iterator[Callable[..., Serving]]:
    """Open replicas over one home with a scanned tier, lustre, that is flushed to s3."""
    (tmp_path / "home").mkdir()
    with ExitStack() as stack:

        def another() -> Serving:
            return stack.enter_context(Serving.open(str(tmp_path / "home"), clock=clock))

        with another().context() as context:
            for name in ("lustre", "s3"):
                (tmp_path / name).mkdir()
                root = str(tmp_path / name)
                add_tier(context, TierSettings(name=name, root=root, ingest=name == "lustre"))
            link_tiers(context, Link(source="lustre", target="s3", every=1))
        yield another


@pytest.fixture
def serving(opened: Callable[..., Serving]) -> Serving:
    return opened()


def leadership(serving: Serving, holder: str = "a", ttl_s: float = 15.0) -> Leadership:
    return Leadership(serving.catalog, holder=holder, clock=serving.clock, ttl_s=ttl_s)


class TestLeadership:
    def test_one_replica_leads_and_the_other_does_not(self, opened: Callable[..., Serving]) -> None:
        first, second = leadership(opened(), "a"), leadership(opened(), "b")
        assert first.step() is not None
        assert second.step() is None

    def test_another_leads_once_the_lease_has_ended(
        self, opened: Callable[..., Serving], clock: SteppedClock
    ) -> None:
        first, second = leadership(opened(), "a"), leadership(opened(), "b")
        before = first.step()
        clock.at_s += 16
        after = second.step()
        assert before is not None
        assert after is not None
        assert after.leader.epoch > before.leader.epoch

    def test_a_leader_that_slept_past_its_lease_knows_before_it_asks(
        self, serving: Serving, clock: SteppedClock
    ) -> None:
        lead = leadership(serving)
        lead.step()
        clock.at_s += 16
        assert lead.lead() is None
        with pytest.raises(LeaseLost), lead.writing():
            pytest.fail("nothing is written by a former leader")

    def test_a_leader_that_was_stopped_in_between_is_refused_in_the_transaction(
        self, opened: Callable[..., Serving], clock: SteppedClock
    ) -> None:
        """Its own clock stood still with it: only the catalog can tell."""
        own = SteppedClock()
        catalog = opened().catalog
        first = Leadership(catalog, holder="a", clock=own, ttl_s=15.0)
        first.step()
        clock.at_s += 16
        assert leadership(opened(), "b").step() is not None
        assert first.lead() is not None, "it still believes to lead"
        with pytest.raises(LeaseLost), first.writing():
            pytest.fail("nothing is written by a former leader")

    def test_a_leader_of_an_earlier_catalog_epoch_is_refused(self, serving: Serving) -> None:
        lead = leadership(serving)
        lead.step()
        identity = serving.catalog.identity()
        serving.catalog.adopt_identity(identity.uuid, identity.epoch + 1)
        with pytest.raises(LeaseLost, match="epoch"), lead.writing():
            pytest.fail("the catalog was rebuilt meanwhile")

    def test_a_leader_that_ends_lets_the_next_one_lead_at_once(
        self, opened: Callable[..., Serving]
    ) -> None:
        first, second = leadership(opened(), "a"), leadership(opened(), "b")
        first.step()
        first.close()
        assert first.step() is None, "it does not come back"
        assert second.step() is not None


def activity(
    serving: Serving, lead: Leadership, *keys: str, name: str = "scan"
) -> tuple[Activity, list[str]]:
    """An activity with a task for each key; the list may be changed."""
    wanted = list(keys)

    def plan(by: By) -> Sequence[NewTask]:
        return [NewTask(kind=TaskKind.SCAN, key=key, payload=b"{}") for key in wanted]

    serving.catalog.activities.declare(name, every_s=60.0, slo_s=900.0)
    return Activity(name, serving.catalog, lead, plan), wanted


def facts(serving: Serving, name: str = "scan") -> ActivityFacts:
    return next(one for one in serving.catalog.activities.activities() if one.name == name)


def end(serving: Serving, key: str, error: dict[str, str] | None = None) -> None:
    """Work on the open task of a key and end it."""
    tasks = serving.catalog.tasks
    for one in tasks.claim(node=None, holder="w", kinds=None, ttl_s=60.0, limit=100):
        if one.task.key != key:
            tasks.renew(one.task_id, one.lease, ttl_s=0.0)
            continue
        outcome = json.dumps({} if error is None else {"error": error}).encode()
        state = TaskState.DONE if error is None else TaskState.FAILED
        tasks.end(one.task_id, one.lease, state=state, outcome=outcome)


def open_keys(serving: Serving) -> list[str]:
    states = (TaskState.QUEUED, TaskState.CLAIMED)
    return sorted(one.task.key for one in serving.catalog.tasks.tasks(states=states))


class TestRounds:
    @pytest.fixture
    def lead(self, serving: Serving) -> Leadership:
        lead = leadership(serving, ttl_s=10_000.0)
        lead.step()
        return lead

    def test_success_is_recorded_when_every_task_has_ended(
        self, serving: Serving, lead: Leadership, clock: SteppedClock
    ) -> None:
        scan, _ = activity(serving, lead, "x", "y")
        scan.begin()
        assert (facts(serving).began_at_ns, facts(serving).succeeded_at_ns) == (clock.now_ns(), 0)
        end(serving, "x")
        scan.look()
        assert facts(serving).succeeded_at_ns == 0
        clock.at_s += 5
        end(serving, "y")
        scan.look()
        assert facts(serving).succeeded_at_ns == clock.now_ns()

    def test_a_failed_task_is_a_failure_with_its_reason_until_the_next_round(
        self, serving: Serving, lead: Leadership
    ) -> None:
        scan, _ = activity(serving, lead, "x")
        scan.begin()
        end(serving, "x", {"kind": "storage", "message": "does not answer"})
        scan.look()
        assert facts(serving).succeeded_at_ns == 0
        assert (facts(serving).failures, facts(serving).error) == (1, "x: does not answer")
        scan.begin()
        end(serving, "x")
        scan.look()
        assert facts(serving).succeeded_at_ns > 0
        assert facts(serving).failures == 0

    def test_turns_never_pile_up_on_a_slow_task(self, serving: Serving, lead: Leadership) -> None:
        scan, _ = activity(serving, lead, "slow", "fast")
        scan.begin()
        end(serving, "fast")
        for _ in range(3):
            scan.begin()
        assert open_keys(serving) == ["fast", "slow"]

    def test_a_round_ends_though_some_task_is_always_open(
        self, serving: Serving, lead: Leadership
    ) -> None:
        scan, _ = activity(serving, lead, "x", "y")
        scan.begin()
        end(serving, "x")
        scan.look()
        scan.begin()  # x is made anew
        end(serving, "y")
        scan.look()
        assert open_keys(serving) == ["x"]
        assert facts(serving).succeeded_at_ns > 0

    def test_a_tier_that_was_removed_is_not_waited_for(
        self, serving: Serving, lead: Leadership
    ) -> None:
        scan, wanted = activity(serving, lead, "x", "gone")
        scan.begin()
        end(serving, "gone", {"kind": "storage", "message": "unmounted"})
        scan.look()
        wanted.remove("gone")
        scan.begin()
        end(serving, "x")
        scan.look()
        assert facts(serving).succeeded_at_ns > 0

    def test_a_round_that_two_threads_see_the_end_of_is_recorded_once(
        self, serving: Serving, lead: Leadership, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scan, _ = activity(serving, lead, "x")
        scan.begin()
        end(serving, "x", {"kind": "storage", "message": "does not answer"})
        book = serving.catalog.activities
        record, others = book.ended, []

        def ended(name: str, **more: object) -> None:
            if not others:
                others.append(threading.Thread(target=scan.look))
                others[0].start()
                others[0].join(0.2)
            record(name, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(book, "ended", ended)
        scan.look()
        others[0].join()
        assert facts(serving).failures == 1

    def test_with_nothing_to_do_a_round_succeeds(self, serving: Serving, lead: Leadership) -> None:
        scan, _ = activity(serving, lead)
        scan.begin()
        assert facts(serving).succeeded_at_ns > 0

    def test_a_new_leader_joins_the_tasks_of_the_former_one(
        self, opened: Callable[..., Serving], clock: SteppedClock
    ) -> None:
        first, second = opened(), opened()
        former, new = leadership(first, "a"), leadership(second, "b")
        former.step()
        begun, _ = activity(first, former, "x")
        begun.begin()
        clock.at_s += 16
        new.step()
        joined, _ = activity(second, new, "x")
        joined.begin()
        assert open_keys(second) == ["x"]
        end(second, "x")
        begun.look()
        assert facts(second).succeeded_at_ns == 0, "the former leader records nothing"
        joined.look()
        assert facts(second).succeeded_at_ns > 0

    def test_a_former_leader_makes_no_tasks(
        self, opened: Callable[..., Serving], clock: SteppedClock
    ) -> None:
        own = SteppedClock()  # stood still with it
        serving = opened()
        former = Leadership(serving.catalog, holder="a", clock=own, ttl_s=15.0)
        former.step()
        scan, _ = activity(serving, former, "x")
        clock.at_s += 16
        leadership(opened(), "b").step()
        with pytest.raises(LeaseLost):
            scan.begin()
        assert open_keys(serving) == []
        assert facts(serving).began_at_ns == 0


class Recorder(Notifier):
    def __init__(self, clock: SystemClock) -> None:
        super().__init__(lambda: None, clock=clock, in_background=False)
        self.seen: list[Alert] = []

    def notice(self, alerts: object) -> None:
        self.seen = list(alerts)  # type: ignore[call-overload]


def scheduler(serving: Serving, holder: str = "a", **more: object) -> Scheduler:
    return Scheduler(serving, holder=holder, **more)  # type: ignore[arg-type]


class TestScheduler:
    def test_what_is_on_is_declared_with_its_promise(self, serving: Serving) -> None:
        scheduler(serving).lead()
        declared = {one.name: one for one in serving.catalog.activities.activities()}
        assert (declared["scan"].every_s, declared["scan"].slo_s) == (60.0, 900.0)
        assert declared["backup"].every_s == 0, "there is no tier to back up to"

    def test_the_leader_begins_activities(self, serving: Serving) -> None:
        woken: list[int] = []
        one = scheduler(serving, on_tasks=lambda: woken.append(1))
        one.lead()
        for name in ("scan", "flush", "verify", "reconcile"):
            one.begin(name)
        assert open_keys(serving) == [
            "flush:from:lustre",
            "reconcile:lustre",
            "reconcile:s3",
            "scan:lustre",
            "verify:lustre",
            "verify:s3",
        ]
        assert woken == [1, 1, 1, 1]

    def test_a_replica_that_does_not_lead_begins_nothing(
        self, opened: Callable[..., Serving]
    ) -> None:
        leader, other = scheduler(opened()), scheduler(opened(), "b")
        leader.lead()
        other.lead()
        other.begin("scan")
        assert other.leads() is None
        assert open_keys(opened()) == []

    def test_an_activity_is_due_as_long_after_its_last_beginning_as_its_cadence_says(
        self, serving: Serving, clock: SteppedClock
    ) -> None:
        """However often leaders change: a day's activity is neither skipped nor hurried."""
        first = scheduler(serving)
        first.lead()
        first.begin("verify")
        clock.at_s += 86400 / 4
        first.leadership.close()
        second = scheduler(serving, "b")
        second.lead()
        assert second.due_in_s("verify") == pytest.approx(86400 * 3 / 4, abs=5)
        assert second.due_in_s("scan") == pytest.approx(0, abs=5)

    def test_nodes_are_asked_whose_beats_are_new_by_the_clock_that_stamped_them(
        self,
        tmp_path: Path,
        opened: Callable[..., Serving],
        clock: SteppedClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        opened()
        with Serving.open(str(tmp_path / "home"), clock=clock, here=frozenset()) as serving:
            serving.catalog.nodes.beat(NodeBeat(node="n1", boot="b", version="1"))
            at_ns = clock.now_ns()
            clock.at_s += 3600.0  # this process's own clock is ahead of the catalog's
            monkeypatch.setattr(serving.catalog, "now_ns", lambda: at_ns)
            one = scheduler(serving)
            one.lead()
            one.begin("flush")
            assert "flush:node:n1" in open_keys(serving)

    def test_what_is_turned_off_is_declared_off(
        self, serving: Serving, tmp_path: Path, clock: SteppedClock
    ) -> None:
        one = scheduler(serving)
        one.lead()
        path = tmp_path / "home" / "ckptgov.yaml"
        path.write_text(path.read_text() + "service:\n  activities:\n    scan: {every: 0s}\n")
        one.lead()
        assert facts(serving, "scan").every_s == 0
        assert one.due_in_s("scan") is None

    def test_an_activity_that_never_succeeded_is_late_once_it_is_known_for_long(
        self, serving: Serving, clock: SteppedClock
    ) -> None:
        recorder = Recorder(clock)
        one = scheduler(serving, notifier=recorder, lease_s=10_000.0)
        one.lead()
        one.notice()
        assert recorder.seen == []
        clock.at_s += 901
        one.notice()
        assert [(each.name, each.about) for each in recorder.seen] == [
            ("activity-late", (("activity", "scan"),))
        ]
        assert "never" in recorder.seen[0].text

    def test_a_replica_that_does_not_lead_notices_nothing(
        self, opened: Callable[..., Serving], clock: SteppedClock
    ) -> None:
        recorder = Recorder(clock)
        scheduler(opened(), lease_s=10_000.0).lead()
        other = scheduler(opened(), "b", notifier=recorder)
        other.lead()
        clock.at_s += 901
        other.notice()
        assert recorder.seen == []


def put_corrupt(serving: Serving) -> None:
    """A run with a corrupt copy at lustre."""
    catalog = serving.catalog
    catalog.put_run(RunIdentity(run_id="r", name="llama"), 1)
    place = PlaceFacts(
        place="p",
        tier="lustre",
        node=None,
        root="/lustre",
        fs_type="ext4",
        source="x",
        first_seen_at_ns=1,
    )
    catalog.put_place(place)
    sealed = SealedFacts(
        run_id="r",
        content_id="sha256:" + "0" * 64,
        name="step_10",
        step=10,
        step_kind=StepKind.STEP,
        layout="dcp",
        world_size=2,
        purposes=(Purpose.RESUME,),
        bytes=100,
        shard_count=2,
        line=1,
        attempt=0,
        sealed_at_ns=5,
    )
    catalog.put_sealed(sealed, b"{}")
    copy = PlacedCopy(
        run_id="r",
        content_id=sealed.content_id,
        place="p",
        name="step_10",
        state=CopyState.CORRUPT,
        evidence=Evidence.DIGEST,
    )
    catalog.put_copy(copy, 6)


def test_a_corrupt_copy_is_an_alert_that_names_run_and_tier(serving: Serving) -> None:
    census = Census(serving)
    census.refresh(limit_s=60.0)
    assert list(alerts_of(census, (), serving.clock.now_ns())) == []
    put_corrupt(serving)
    census.refresh(limit_s=60.0)
    [alert] = alerts_of(census, (), serving.clock.now_ns())
    assert (alert.name, alert.about) == ("corrupt-copy", (("run", "llama"), ("tier", "lustre")))


def test_a_run_that_is_dear_to_count_is_counted_again_after_a_rest(
    serving: Serving, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_corrupt(serving)
    counted: list[float] = []
    sums_of = module.sums_of

    def slowly(*args: object) -> Sums:
        counted.append(clock.at_s)
        clock.at_s += 1.0
        return sums_of(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "sums_of", slowly)
    census = Census(serving)
    census.refresh(limit_s=60.0)
    for step in (1, 2):
        lose_and_find(serving, step)
        census.refresh(limit_s=60.0)
        assert len(counted) == step, "it rests"
        clock.at_s += 50.0
        census.refresh(limit_s=60.0)
        assert len(counted) == step + 1


def lose_and_find(serving: Serving, at_ns: int) -> None:
    """A change of the run."""
    [copy] = serving.catalog.copies("r")
    for expected, to in (
        (CopyState.CORRUPT, CopyState.LOST),
        (CopyState.LOST, CopyState.CORRUPT),
    ):
        serving.catalog.transition("r", copy.content_id, "p", expected=expected, to=to, at_ns=at_ns)


def test_tasks_that_ended_long_ago_are_forgotten(serving: Serving, clock: SteppedClock) -> None:
    one = scheduler(serving, lease_s=10**7)
    one.lead()
    for key in ("old", "new"):
        serving.catalog.tasks.add(NewTask(kind=TaskKind.SCAN, key=key, payload=b"{}"))
        end(serving, key)
        clock.at_s += 5 * 86400
    one.forget()
    assert [each.task.key for each in serving.catalog.tasks.tasks()] == ["new"]
