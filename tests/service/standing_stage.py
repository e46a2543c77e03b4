"""A service's catalog with a run at places of its own, for tests of answers and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from ckptgov.catalog.facts import RecordFacts
from ckptgov.manifest.forms.records import encode_record
from ckptgov.model.checkpoint import Manifest
from ckptgov.model.clock import SystemClock
from ckptgov.model.cluster import NodeBeat
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Query
from ckptgov.model.journal import KIND_OF, Record, Stamp
from ckptgov.ops import standing
from ckptgov.ops.context import Context
from ckptgov.service.serving import Serving
from ckptgov.testing import sealed_runs

RUN_ID = "0b7a41c0-0000-4000-8000-000000000001"


class WallClock(SystemClock):
    """The machine's clock, put forward by ``ahead_s``."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_ns(self) -> int:
        return super().now_ns() + int(self.ahead_s * 1e9)

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here sleeps")


class Stage:
    """Home, a shared tier and nodes' disks below one directory; the run is called ``run``."""

    def __init__(
        self,
        root: Path,
        *,
        nodes: Sequence[str] = (),
        is_shared: bool = True,
        here: frozenset[str] | None = frozenset(),
        catalog_url: str | None = None,
    ) -> None:
        self.root = root
        self.here = here
        self.clock = WallClock()
        self.home = root / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        lines = ["tiers:"] if catalog_url is None else [f"catalog: {catalog_url}", "tiers:"]
        if is_shared:
            lines += ["  - name: shared", f"    url: {root}/shared"]
        for node in nodes:
            lines += ["  - name: nvme", f"    url: {root}/{node}", "    scope: node"]
            lines += [f"    node: {node}"]
        (self.home / "ckptgov.yaml").write_text("\n".join(lines) + "\n")
        self.serving = self.another()
        catalog = self.catalog
        self.places = {}
        if is_shared:
            self.places["shared"] = sealed_runs.put_place(
                catalog, root / "shared", tier="shared", uuid=_uuid(0)
            )
        for number, node in enumerate(nodes, start=1):
            self.places[node] = sealed_runs.put_place(
                catalog, root / node, tier="nvme", node=node, uuid=_uuid(number)
            )
        sealed_runs.put_run(catalog, "run", RUN_ID, list(self.places.values()))

    @property
    def catalog(self):
        return self.serving.catalog

    def another(self) -> Serving:
        """Another process's service over the same home."""
        return Serving.open(str(self.home), clock=self.clock, here=self.here)

    def context(self, by: str | None = None) -> AbstractContextManager[Context]:
        return self.serving.context(by)

    def run_root(self, where: str) -> Path:
        return Path(self.places[where].root) / "run"

    def seal(
        self,
        step: int,
        *where: str,
        line: int = 1,
        attempt: int = 0,
        at_ns: int | None = None,
        state: CopyState = CopyState.VERIFIED,
        seed: str = "",
    ) -> Manifest:
        """A whole checkpoint, written and recorded at these places (the shared one)."""
        manifest = sealed_runs.manifest_of_step(step, seed=seed)
        for one in where or ("shared",):
            sealed_runs.write_shards(self.run_root(one), manifest, seed=seed)
        sealed_runs.record_sealed(
            self.catalog,
            RUN_ID,
            manifest,
            [self.places[one].place for one in where or ("shared",)],
            at_ns=self.clock.now_ns() if at_ns is None else at_ns,
            line=line,
            attempt=attempt,
            state=state,
        )
        return manifest

    def seal_halves(self, step: int, *nodes: str) -> Manifest:
        """One shard of two on each of two nodes."""
        manifest = sealed_runs.manifest_of_step(step)
        for number, node in enumerate(nodes):
            only = [manifest.shards[number].path]
            sealed_runs.write_shards(self.run_root(node), manifest, only=only)
            sealed_runs.record_sealed(
                self.catalog,
                RUN_ID,
                manifest,
                [self.places[node].place],
                only=only,
                is_new=number == 0,
            )
        return manifest

    def stamp(self, number: int) -> Stamp:
        return Stamp(
            id=f"00000000-0000-4000-9000-{number:012d}",
            run_id=RUN_ID,
            at_ns=self.clock.now_ns(),
            by="uid:0@host",
            reason="why",
        )

    def record(self, number: int, record: Record) -> None:
        """The catalog's copy of a record."""
        told = RecordFacts(
            run_id=RUN_ID,
            record_id=record.stamp.id,
            number=number,
            kind=KIND_OF[type(record)],
            at_ns=record.stamp.at_ns,
            raw=encode_record(record),
        )
        self.catalog.put_records([told])

    def beat(self, *nodes: str) -> None:
        for node in nodes:
            self.catalog.nodes.beat(NodeBeat(node=node, boot="b", version="1"))

    def latest(self, *, node: str | None = None, **query):
        """The answer the catalog gives."""
        with self.context() as context:
            return standing.latest(context, "run", Query(**query), node=node).answer

    def close(self) -> None:
        self.serving.close()


def _uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"
