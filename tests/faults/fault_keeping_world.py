"""A small cluster in one process: real directories, a real catalog, a clock that is told to move.

Every verb runs in a "process" of its own, which can be killed at any call of its storages or its
catalog, or be interrupted there by what somebody else does.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlaceFacts
from ckptgov.catalog.flowfacts import FlowOwner
from ckptgov.catalog.postgres import PostgresDatabase
from ckptgov.config.load import load_settings
from ckptgov.governor.local import Governor, open_governor
from ckptgov.model.files import FileStat
from ckptgov.model.settings import TierSettings
from ckptgov.ops import copy_lease
from ckptgov.ops.context import Context, open_catalog
from ckptgov.testing.builders import WRITTEN_AT_NS
from ckptgov.testing.crashing import Crash, CrashingStorage
from ckptgov.testing.sealed_runs import put_place
from ckptgov.work.tier import Place

RUN = "run"
NODE = "n1"
SHARED, NEAR = "lustre", "nvme"
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
_UUIDS = {
    SHARED: "5e4d0001-0000-4000-8000-00000000000a",
    NEAR: "5e4d0002-0000-4000-8000-00000000000b",
}
_SETTINGS = """\
tiers:
  - {{name: lustre, url: {base}/lustre, scope: shared, ingest: true}}
  - {{name: nvme, url: {base}/nvme, scope: node, node: n1, ingest: true}}
links:
  - {{from: nvme, to: lustre, every: 1}}
runs:
  - run: run
    expect: {{glob: "step_*/*.bin", count: 2, marker: DONE, step: "step_([0-9]+)"}}
digest_threads: 1
"""


class MovedClock:
    """An hour ahead of every file, and further whenever somebody says so."""

    def __init__(self) -> None:
        self.at_ns = time.time_ns() + 3600 * 10**9
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        with self._lock:
            self.at_ns += 1_000_000
            return self.at_ns

    def monotonic(self) -> float:
        return self.now_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        self.pass_(seconds)

    def pass_(self, seconds: float) -> None:
        """Let so much time go by."""
        with self._lock:
            self.at_ns += int(seconds * 1e9)


class Fuse:
    """Goes off once: at the call ``at`` (from 0), or at the change ``at`` where ``changes``."""

    def __init__(self, at: int, act: Callable[[], None] | None, *, changes: bool = False) -> None:
        self._left = at
        self._act = act
        self._changes = changes
        self.has_gone_off = False

    def burn(self, process: Process, *, is_change: bool) -> None:
        if self.has_gone_off or (self._changes and not is_change):
            return
        self._left -= 1
        if self._left >= 0:
            return
        if self._act is not None and process.is_in_transaction():
            return  # others could not come in between; at the next call they can
        self.has_gone_off = True
        if self._act is None:
            process.die()
            raise Crash("killed")
        self._act()


class Process:
    """What one governor does, until it dies."""

    def __init__(self, fuse: Fuse | None) -> None:
        self.is_dead = False
        self.number = next(_hosts)
        self.fuse = fuse
        self.catalog: Catalog | None = None
        self.storages: list[ProcessStorage] = []
        self._thread = threading.get_ident()

    def die(self) -> None:
        """Nothing is done any more; what was being delivered is held by nobody."""
        self.is_dead = True
        for storage in self.storages:
            storage.abandon_all()

    def is_in_transaction(self) -> bool:
        catalog = self.catalog
        if catalog is None:
            return False
        return catalog._database.is_in_transaction() or catalog._fleeting.is_in_transaction()

    def call(self, *, is_change: bool = False) -> None:
        """One call of anything outside of the process."""
        if self.is_dead:
            raise Crash("long since")
        if self.fuse is not None and threading.get_ident() == self._thread:
            self.fuse.burn(self, is_change=is_change)


_here = threading.local()
"""Which process a thread plays."""
_hosts = itertools.count(1)


@contextmanager
def _as_process(process: Process) -> Iterator[None]:
    before = getattr(_here, "process", None)
    _here.process = process
    try:
        yield
    finally:
        _here.process = before


def _process_here() -> FlowOwner:
    """Each on a machine of its own: of one that was killed nobody knows that it ended."""
    process: Process | None = getattr(_here, "process", None)
    host = f"host-{process.number}" if process is not None else "host-0"
    return FlowOwner(host=host, boot=host, pid=1, started=1)


class ProcessStorage(CrashingStorage):
    """A tier as one process sees it; what a file is stamped with is the world's time."""

    def __init__(self, inner: Any, process: Process, clock: MovedClock) -> None:
        super().__init__(inner)
        self._process = process
        self._clock = clock
        process.storages.append(self)

    def abandon_all(self) -> None:
        """As when a process dies in the middle of deliveries."""
        for delivery in self._deliveries:
            delivery.abandon()

    def stat(self, path: str) -> FileStat:
        found = super().stat(path)
        if "clock-" in path:
            return replace(found, mtime_ns=self._clock.now_ns())
        return found

    def _mutate(self, call: str, path: str) -> None:
        self._process.call(is_change=True)
        super()._mutate(call, path)

    def _alive(self) -> None:
        super()._alive()
        self._process.call()


class ProcessContext(Context):
    """A context whose storages and catalog belong to one process."""

    process: Process
    world: World

    def _opened(self, tier: TierSettings) -> Place:
        opened = super()._opened(tier)
        storage = ProcessStorage(opened.storage, self.process, self.world.clock)
        return replace(opened, storage=storage)

    @property
    def catalog(self) -> Catalog:
        self.process.call()
        self._catalog = self.process.catalog = self.world.catalog
        return self._catalog


class World:
    """Two tiers, one of them a node's disk that may be away; one run."""

    def __init__(self, base: Path, catalog_url: str | None) -> None:
        self.base = base
        self.home = base / "home"
        self.clock = MovedClock()
        self.is_away = False
        self._stack = ExitStack()
        self._catalog: Catalog | None = None
        self._environ = {"CKPTGOV_HOME": str(self.home)}
        (self.home / "policies").mkdir(parents=True)
        (self.home / "ckptgov.yaml").write_text(_SETTINGS.format(base=base))
        if catalog_url is not None:
            self._environ["CKPTGOV_CATALOG"] = catalog_url
            # All of a cluster's users share the server's clock: here it is the world's.
            clock = self.clock
            moved = mock.patch.object(PostgresDatabase, "now_ns", lambda *about: clock.now_ns())  # noqa: PT008
            self._stack.enter_context(moved)
        self._stack.enter_context(mock.patch.object(copy_lease, "this_process", _process_here))
        self._settings = load_settings(str(self.home), self._environ)
        self.places: dict[str, PlaceFacts] = {}
        for tier, node in ((SHARED, None), (NEAR, NODE)):
            self.places[tier] = put_place(
                self.catalog, base / tier, tier=tier, node=node, uuid=_UUIDS[tier]
            )
            (base / tier / RUN).mkdir()

    @property
    def catalog(self) -> Catalog:
        """One for all processes: its engine remembers what it compiled, which is half the time."""
        if self._catalog is None:
            self._catalog = open_catalog(self._settings, self.clock)
        return self._catalog

    @property
    def is_rebuildable(self) -> bool:
        """Whether the catalog is a file that can be lost."""
        return "CKPTGOV_CATALOG" not in self._environ

    def close(self) -> None:
        self.close_catalog()
        self._stack.close()
        shutil.rmtree(self.base, ignore_errors=True)

    @contextmanager
    def process(self, fuse: Fuse | None = None) -> Iterator[Governor]:
        """A governor that starts now and sees what there is now."""
        with open_governor(environ=self._environ, clock=self.clock) as governor:
            context = ProcessContext(
                settings=self._settings,
                author=governor.author,
                talk=governor.talk,
                stack=governor._stack,
            )
            context.process = Process(fuse)
            context.world = self
            governor._context = context
            with _as_process(context.process):
                yield governor

    def govern(self, text: str) -> None:
        """Put a policy in force."""
        (self.home / "policies/drawn.yaml").write_text(text)

    def root(self, tier: str) -> Path:
        """Where a tier's bytes are now."""
        away = self.is_away and tier == NEAR
        return self.base / ("parked" if away else tier)

    def node_dies(self) -> None:
        """Nobody reaches its disk any more; the bytes are still there."""
        (self.base / NEAR).rename(self.base / "parked")
        self.is_away = True

    def node_returns(self) -> None:
        (self.base / "parked").rename(self.base / NEAR)
        self.is_away = False

    def close_catalog(self) -> None:
        """Let go of its file."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def lose_catalog(self) -> None:
        self.close_catalog()
        for one in self.home.glob("catalog.sqlite*"):
            one.unlink()

    def run_root(self, tier: str) -> Path:
        return self.root(tier) / RUN


def write_shards(directory: Path, text: str, *, at_ns: int) -> None:
    """As a trainer does: two shards, then the marker; ``at_ns`` is when."""
    directory.mkdir(exist_ok=True)
    for order, name in enumerate(("a.bin", "b.bin", "DONE")):
        (directory / name).write_bytes(f"{name} of {text}\n".encode() * 4)
        os.utime(directory / name, ns=(at_ns + order, at_ns + order))


KEEPS_ONE = """\
policy: drawn
runs: ["*"]
keep: {lustre: {last: 1}}
floors: {min_restorable: 1, min_age: 0s}
safety: {max_fraction: 99%, grace: 0s, trash: 7d, adoption_grace: 0s}
"""


def world_of_two(base: Path) -> World:
    """Steps 1 and 2 of the run are sealed at the shared tier, of which the policy keeps one."""
    made = World(base, None)
    made.govern(KEEPS_ONE)
    for step in (1, 2):
        directory = made.run_root(SHARED) / f"step_{step}"
        write_shards(directory, str(step), at_ns=WRITTEN_AT_NS + step * 10**10)
        with made.process() as governor:
            governor.commit(str(directory), run=RUN)
    return made


def files_of(directory: Path) -> Mapping[str, bytes]:
    """Every file below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
