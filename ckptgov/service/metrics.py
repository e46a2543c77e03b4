"""Metrics for Prometheus: gathered from the catalog when scraped, at a bounded cost.

Every replica tells the same of the cluster (use ``max`` over them), and of itself whether it
leads, what it was asked over HTTP and which tasks it ended. Labels are bounded: runs by number,
everything else by what is configured.
"""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ckptgov import __version__
from ckptgov.errors import CkptgovError
from ckptgov.model.cluster import TaskKind, TaskState
from ckptgov.model.settings import Settings
from ckptgov.service.activities import is_here
from ckptgov.service.census import Census
from ckptgov.service.families import (
    Seen,
    gauge,
    of_activities,
    of_flows,
    of_nodes,
    of_runs,
    of_tiers,
    of_work,
    plain,
)
from ckptgov.service.families_keeping import of_capacity, of_plans, of_removals
from ckptgov.service.request_metrics import RequestMetrics
from ckptgov.service.serving import Serving
from ckptgov.service.spaces import Space, Spaces

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
KEPT_S = 1.0
_COUNT_S = 1.0
_OPEN_TASKS = 10_000


class Metrics:
    """The metrics of one process. ``leads`` tells whether it leads just now."""

    def __init__(
        self,
        serving: Serving,
        *,
        census: Census | None = None,
        leads: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._serving = serving
        self._census = census or Census(serving)
        self._leads = leads
        self._spaces = Spaces()
        self._lock = threading.Lock()
        self._text = b""
        self._text_from: float | None = None
        self.registry = CollectorRegistry()
        self.registry.register(_Gathered(self._families))
        ProcessCollector(registry=self.registry)
        self.requests = RequestMetrics(self.registry)
        self._ended = Counter(
            "ckptgov_tasks_ended",
            "Tasks that this process ended.",
            ("kind", "state"),
            registry=self.registry,
        )

    def text(self) -> bytes:
        """The exposition, at most a second old."""
        with self._lock:
            now = self._serving.clock.monotonic()
            if self._text_from is None or now - self._text_from >= KEPT_S:
                self._text = generate_latest(self.registry)
                self._text_from = self._serving.clock.monotonic()
            return self._text

    def task_ended(self, kind: TaskKind, state: TaskState) -> None:
        """Count a task that this process ended."""
        self._ended.labels(kind=kind.value, state=state.value).inc()

    def _families(self) -> Iterator[Metric]:
        yield gauge("ckptgov_build_info", "What runs here.", {("version",): [((__version__,), 1)]})
        epoch = self._leads()
        yield plain("ckptgov_leader", "Whether this process runs the schedule.", epoch is not None)
        try:
            seen = self._look()
        except CkptgovError:
            seen = None
        yield plain("ckptgov_catalog_up", "Whether the catalog answers.", seen is not None)
        if seen is not None:
            yield from of_runs(seen)
            yield from of_tiers(seen, self._free(seen.settings))
            yield from of_flows(seen)
            yield from of_activities(seen)
            yield from of_nodes(seen)
            yield from of_work(seen)
            yield from of_plans(seen)
            yield from of_removals(seen)
            yield from of_capacity(seen)

    def _look(self) -> Seen:
        catalog = self._serving.catalog
        self._census.refresh(limit_s=_COUNT_S)
        open_tasks = catalog.tasks.tasks(
            states=(TaskState.QUEUED, TaskState.CLAIMED), limit=_OPEN_TASKS
        )
        return Seen(
            now_ns=catalog.now_ns(),
            settings=self._serving.settings(),
            newest=self._census.newest(),
            sums=self._census.sums(),
            places=self._census.places(),
            nodes=catalog.nodes.nodes(),
            activities=catalog.activities.activities(),
            flows=self._serving.desk.facts(),
            open_tasks=Tally((one.task.kind.value, one.state.value) for one in open_tasks),
            decided=self._census.decided(),
            keeping=self._census.keeping(),
        )

    def _free(self, settings: Settings) -> dict[str, Space]:
        here = self._serving.here
        return self._spaces.of(one for one in settings.tiers if is_here(one, here))


class _Gathered(Collector):
    """Adapter to the registry: the families are made anew for every scrape."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def describe(self) -> Iterable[Metric]:
        return ()
