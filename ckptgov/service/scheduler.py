"""The schedule: every replica has one, and only the leader's makes anything happen.

APScheduler keeps the times (jitter, coalescing, never two turns of one activity at once); what a
turn does is ``activities``' and is fenced by ``leadership``. When a process becomes leader, each
activity is due as long after its last beginning, by whichever leader, as its cadence says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from apscheduler.job import Job  # type: ignore[import-untyped]
from apscheduler.schedulers.background import (  # type: ignore[import-untyped]
    BackgroundScheduler,
)
from msgspec.structs import replace

from ckptgov.errors import CkptgovError, ConfigError, LeaseLost
from ckptgov.model.closing import Closing
from ckptgov.model.cluster import ActivityFacts, NewTask
from ckptgov.model.settings import Cadence, Link, Settings
from ckptgov.ops.plan_upkeep import forget_over
from ckptgov.ops.policies import every_link
from ckptgov.service import logs
from ckptgov.service.activities import Activity, heard_of, is_on, planned
from ckptgov.service.alerts import Notifier
from ckptgov.service.census import Census
from ckptgov.service.leadership import LEASE_S, Leadership
from ckptgov.service.noticing import alerts_of
from ckptgov.service.payloads import By
from ckptgov.service.serving import Serving

LOOK_EVERY_S = 2.0
NOTICE_EVERY_S = 30.0
FORGET_EVERY_S = 3600.0
TASKS_KEPT_S = 7 * 86400.0
"""How long ended tasks are kept for whoever asks what they came to."""
_JITTER = 0.1
_LONGEST_JITTER_S = 60.0


class Scheduler(Closing):
    """The schedule of one process. ``on_tasks`` is called when tasks were made."""

    def __init__(
        self,
        serving: Serving,
        *,
        holder: str,
        census: Census | None = None,
        notifier: Notifier | None = None,
        lease_s: float = LEASE_S,
        look_every_s: float = LOOK_EVERY_S,
        notice_every_s: float = NOTICE_EVERY_S,
        on_tasks: Callable[[], None] = lambda: None,
    ) -> None:
        self._serving = serving
        self._catalog = serving.catalog
        self._census = census or Census(serving)
        self._notifier = notifier
        self._look_every_s = look_every_s
        self._notice_every_s = notice_every_s
        self._on_tasks = on_tasks
        self.leadership = Leadership(
            serving.catalog, holder=holder, clock=serving.clock, ttl_s=lease_s
        )
        self._times = BackgroundScheduler(
            timezone=UTC,
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._activities: dict[str, Activity] = {}
        self._cadences: dict[str, Cadence] = {}
        self._jobs: dict[str, Job] = {}
        self._led: int | None = None

    def start(self) -> None:
        """Claim to lead, and keep time, in threads of its own."""
        for name, work, every_s in (
            ("lead", self.lead, self.leadership.ttl_s / 3),
            ("look", self.look, self._look_every_s),
            ("notice", self.notice, self._notice_every_s),
            ("forget", self.forget, FORGET_EVERY_S),
        ):
            self._times.add_job(
                work, "interval", seconds=every_s, id=name, next_run_time=datetime.now(UTC)
            )
        self._times.start()

    def close(self) -> None:
        """Keep time no longer and let another process lead at once."""
        if self._times.running:
            self._times.shutdown(wait=True)
        self.leadership.close()

    def leads(self) -> int | None:
        """The epoch under which this process leads; None where it does not."""
        lead = self.leadership.lead()
        return None if lead is None else lead.leader.epoch

    def due_in_s(self, name: str) -> float | None:
        """Seconds until the next turn of an activity here; None where it is off."""
        job = self._jobs.get(name)
        if job is None:
            return None
        at: datetime = job.next_run_time
        return max(0.0, (at - datetime.now(UTC)).total_seconds())

    def lead(self) -> None:
        """Take or renew the lease; a new leader sets the times by what was last begun."""
        lead = self.leadership.step()
        epoch = None if lead is None else lead.leader.epoch
        if epoch != self._led:
            self._led = epoch
            if self._notifier is not None and epoch is None:
                self._notifier.forget()
            self._cadences = {}
        self._set_times()

    def look(self) -> None:
        """Take in which tasks ended."""
        for activity in list(self._activities.values()):
            self._guarded(activity.name, activity.look)

    def begin(self, name: str) -> None:
        """One turn of an activity, if this process leads."""
        if self.leads() is None:
            return
        activity = self._activities[name]
        if self._guarded(name, activity.begin):
            self._on_tasks()

    def notice(self) -> None:
        """Tell the webhook what stands now, if this process leads."""
        if self._notifier is None or self.leads() is None:
            return
        until = self._serving.clock.monotonic() + self._notice_every_s / 2
        try:
            # In pieces, so that whoever scrapes need not wait; what is left keeps its last count.
            while not self._census.refresh() and self._serving.clock.monotonic() < until:
                continue
            self._notifier.notice(alerts_of(self._census, self._on(), self._now_ns()))
        except CkptgovError as error:
            logs.tell("not-noticed", level=logging.WARNING, error=error)

    def forget(self) -> None:
        """Drop tasks and plans that were over long ago, if this process leads."""
        if self.leads() is not None:
            self._guarded("forget", self._forget)

    def _forget(self) -> None:
        with self._serving.context("service") as context, self.leadership.writing():
            before_ns = self._now_ns() - int(TASKS_KEPT_S * 1e9)
            self._catalog.tasks.forget_ended(before_ns=before_ns)
            forget_over(context)

    def _guarded(self, name: str, work: Callable[[], None]) -> bool:
        """Whether it was done: losing the lease or the catalog is told, and is no crash."""
        try:
            work()
        except LeaseLost as error:
            logs.tell("leader-lost", level=logging.WARNING, activity=name, error=error)
        except CkptgovError as error:
            logs.tell("activity-not-begun", level=logging.WARNING, activity=name, error=error)
        else:
            return True
        return False

    def _set_times(self) -> None:
        """Follow the settings: what is on, how often; turned off ones are declared off, too."""
        settings = self._serving.settings()
        wanted = {
            name: cadence if is_on(name, settings) else Cadence(every_s=0.0, slo_s=cadence.slo_s)
            for name, cadence in settings.service.cadences.items()
        }
        if wanted == self._cadences:
            return
        try:
            for name, cadence in wanted.items():
                self._catalog.activities.declare(name, every_s=cadence.every_s, slo_s=cadence.slo_s)
            known = {one.name: one for one in self._catalog.activities.activities()}
            now_ns = self._now_ns()
        except CkptgovError as error:
            logs.tell("not-declared", level=logging.WARNING, error=error)
            return
        self._cadences = wanted
        for name, cadence in wanted.items():
            self._set_time(name, cadence, known.get(name), now_ns)

    def _set_time(
        self, name: str, cadence: Cadence, known: ActivityFacts | None, now_ns: int
    ) -> None:
        job = self._jobs.pop(name, None)
        if job is not None:
            job.remove()
        if cadence.every_s <= 0:
            self._activities.pop(name, None)
            return
        if name not in self._activities:
            self._activities[name] = Activity(
                name, self._catalog, self.leadership, lambda by: self._plan(name, by)
            )
        began_at_ns = known.began_at_ns if known is not None else 0
        wait_s = min(cadence.every_s, began_at_ns / 1e9 + cadence.every_s - now_ns / 1e9)
        self._jobs[name] = self._times.add_job(
            self.begin,
            "interval",
            args=(name,),
            id=name,
            seconds=cadence.every_s,
            jitter=min(_LONGEST_JITTER_S, cadence.every_s * _JITTER),
            next_run_time=datetime.now(UTC) + timedelta(seconds=max(0.0, wait_s)),
        )

    def _plan(self, name: str, by: By) -> Sequence[NewTask]:
        settings = self._serving.settings()
        nodes = heard_of(
            self._catalog.nodes.nodes(),
            self._catalog.places(),
            now_ns=self._now_ns(),
            timeout_s=settings.service.node_timeout_s,
        )
        settings = replace(settings, links=self._links(settings))
        return planned(name, settings, nodes, here=self._serving.here, by=by)

    def _links(self, settings: Settings) -> tuple[Link, ...]:
        """Those of policies as well. One that is wrong is told by what goes along the others."""
        try:
            with self._serving.context("service") as context:
                return every_link(context)
        except ConfigError:
            return settings.links

    def _on(self) -> list[ActivityFacts]:
        return [one for one in self._catalog.activities.activities() if one.every_s > 0]

    def _now_ns(self) -> int:
        """By the catalog's clock, which stamps beats, beginnings and ends."""
        return self._catalog.now_ns()
