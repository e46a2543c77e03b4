"""P1, P3: a scan that dies at any of its storage calls, or is overtaken at any of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.checkpoint import Evidence, RunIdentity
from ckptgov.model.facts import Choice, Query
from ckptgov.model.files import FileStat
from ckptgov.model.journal import MarkBad, Record, Rollback, Sealed
from ckptgov.storage.contract import Storage
from ckptgov.storage.memory import MemoryStorage
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.builders import dcp_files
from ckptgov.testing.crashing import Crash, CrashingStorage
from ckptgov.work.answer import answer
from ckptgov.work.author import Author
from ckptgov.work.look import RunLook, look_settings
from ckptgov.work.runstore import RunStore
from ckptgov.work.scan import prepare, scan_steps
from ckptgov.work.seal import SealSettings
from ckptgov.work.tier import Place

RUN = RunIdentity(run_id="5f0c1b5e-60e5-4b8c-9c35-8f6f3c0f7a11", name="run")
PLACE = "0b7e6c7c-9f1b-4a52-8d6e-2f4f6a1c9d22"
STEPS = (1, 2)
COMPARED = Query(min_evidence=Evidence.DIGEST)


class Clock:
    """A clock that goes on by a second whenever somebody looks at it."""

    def __init__(self) -> None:
        self._seconds = itertools.count(time.time_ns() // 10**9)

    def now_ns(self) -> int:
        return next(self._seconds) * 10**9

    def monotonic(self) -> float:
        return float(next(self._seconds))

    def sleep(self, seconds: float) -> None:
        del seconds


CLOCK = Clock()
AUTHOR = Author(clock=CLOCK, by="uid:0@node0")


def _look(storage: Storage) -> RunLook:
    place = Place(storage=storage, uuid=PLACE, tier="tier", node=None, root=storage.root)
    return RunLook(place, "run", look_settings(place, CLOCK, clock_margin_s=0))


def _scan(storage: Storage) -> None:
    with _look(storage) as look:
        progress = prepare(look, RUN)
        settings = SealSettings(threads=1)
        for _ in scan_steps(look, progress, author=AUTHOR, settings=settings):
            pass
        assert progress.failures == []


def _latest(storage: Storage, query: Query = COMPARED) -> Choice:
    with _look(storage) as look:
        return answer([look], query)


def _manifests(storage: Storage) -> dict[str, bytes]:
    store = RunStore(storage, "run")
    found = {}
    for one in store.manifests():
        with storage.open(f"run/.ckptgov/manifests/{one.file}") as file:
            found[one.file] = file.read_at(0, 2**20)
    return found


def _sealed_once(storage: Storage) -> list[tuple[int | None, int, int]]:
    """Step, line and attempt of every seal; a record that two wrote counts once, by its id."""
    records = [item.record for item in RunStore(storage, "run").journal().records]
    sealed = {one.stamp.id: one for one in records if isinstance(one, Sealed)}
    return sorted((one.step, one.line, one.attempt) for one in sealed.values())


def _in_memory(tmp_path: Path) -> MemoryStorage:
    del tmp_path
    storage = MemoryStorage(now_ns=CLOCK.now_ns)
    for step in STEPS:
        for name, content in dcp_files(seed=f"{step}", name=f"step_{step}").items():
            storage.put_file(f"run/step_{step}/{name}", content)
    return storage


_FOLDERS = itertools.count()


def _on_disk(tmp_path: Path) -> PosixStorage:
    root = tmp_path / f"{next(_FOLDERS)}"
    for step in STEPS:
        directory = root / f"run/step_{step}"
        directory.mkdir(parents=True)
        for name, content in dcp_files(seed=f"{step}", name=f"step_{step}").items():
            (directory / name).write_bytes(content)
    return PosixStorage(root)


@pytest.mark.parametrize("tree", [_in_memory, _on_disk], ids=["memory", "disk"])
def test_a_scan_that_dies_at_any_call_offers_only_what_is_sealed_and_is_made_good(
    tree: Callable[[Path], Storage], tmp_path: Path, some
) -> None:
    whole = tree(tmp_path)
    undisturbed = CrashingStorage(whole)
    _scan(undisturbed)
    assert [step for step, _, _ in _sealed_once(whole)] == list(STEPS)
    wanted = _manifests(whole)
    assert len(wanted) == len(STEPS)
    for crash_at in some(range(len(undisturbed.calls)), 8):
        storage = tree(tmp_path)
        with suppress(Crash):
            _scan(CrashingStorage(storage, crash_at))
        chosen = _latest(storage).chosen
        assert chosen is None or chosen.step == max(STEPS), crash_at
        assert _manifests(storage).items() <= wanted.items(), crash_at
        offered = _latest(storage, Query()).chosen
        assert offered is not None, crash_at
        assert offered.step == max(STEPS), crash_at
        _scan(storage)
        assert _manifests(storage) == wanted, crash_at
        assert _sealed_once(storage) == _sealed_once(whole), crash_at
        chosen = _latest(storage).chosen
        assert chosen is not None, crash_at
        assert chosen.step == max(STEPS), crash_at


class Overtaken:
    """``inner``, where somebody else does something between two of our changing calls."""

    def __init__(self, inner: Storage, at: int, event: Callable[[], object]) -> None:
        self._inner = inner
        self._at = at
        self._event = event
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        return self._changing(real) if name in ("publish", "make_dirs", "remove") else real

    def _changing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.count == self._at:
                self._event()
            self.count += 1
            return real(*arguments, **named)

        return call


def _every_moment(tmp_path: Path) -> range:
    """The numbers of a scan's changing calls, and one more: after the last."""
    storage = CrashingStorage(_in_memory(tmp_path))
    _scan(storage)
    return range(len(storage.calls) + 1)


def test_a_scan_overtaken_by_another_one_at_any_call_gives_one_result(tmp_path: Path, some) -> None:
    alone = _in_memory(tmp_path)
    _scan(alone)
    for at in some(_every_moment(tmp_path), 8):
        storage = _in_memory(tmp_path)
        _scan(Overtaken(storage, at, lambda inner=storage: _scan(inner)))
        assert _manifests(storage) == _manifests(alone), at
        assert _sealed_once(storage) == _sealed_once(alone), at
        chosen = _latest(storage).chosen
        assert chosen is not None, at
        assert chosen.step == max(STEPS), at


def _record(storage: Storage, make: Callable[[], Record]) -> Callable[[], int]:
    return lambda: RunStore(storage, "run").append(make())


def _rollback() -> Record:
    return Rollback(stamp=AUTHOR.stamp(RUN.run_id), to_step=1, line=2)


def _mark_bad() -> Record:
    return MarkBad(stamp=AUTHOR.stamp(RUN.run_id), content_id=None, from_step=2, until_step=None)


@pytest.mark.parametrize("make", [_rollback, _mark_bad], ids=["rollback", "mark-bad"])
def test_what_a_person_decides_at_any_moment_of_a_scan_is_obeyed(
    make: Callable[[], Record], tmp_path: Path, some
) -> None:
    for at in some(_every_moment(tmp_path), 8):
        storage = _in_memory(tmp_path)
        decide = _record(storage, make)
        overtaken = Overtaken(storage, at, decide)
        _scan(overtaken)
        if overtaken.count <= at:
            decide()
        for query in (Query(), COMPARED):
            chosen = _latest(storage, query).chosen
            assert chosen is not None, at
            assert chosen.step == 1, at
        _scan(storage)
        chosen = _latest(storage).chosen
        assert chosen is not None, at
        assert chosen.step == 1, at


class Watched:
    """``inner``, noting what was made durable before each manifest."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self._durable: set[str] = set()
        self.before: dict[str, set[str]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, path: str) -> _WatchedFile:
        return _WatchedFile(self._inner.open(path), lambda: self._durable.add(path))

    def sync_dir(self, path: str) -> None:
        self._inner.sync_dir(path)
        self._durable.add(path)

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        if path.startswith("run/.ckptgov/manifests/"):
            self.before[path.rpartition("/")[2].partition(".")[0]] = set(self._durable)
        return self._inner.publish(path, chunks)


class _WatchedFile:
    def __init__(self, inner: Any, synced: Callable[[], object]) -> None:
        self._inner = inner
        self._synced = synced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> _WatchedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.close()

    def sync(self) -> None:
        self._inner.sync()
        self._synced()


def test_every_shard_and_directory_is_durable_before_its_manifest_appears(
    tmp_path: Path,
) -> None:
    storage = Watched(_in_memory(tmp_path))
    _scan(storage)
    assert set(storage.before) == {f"step_{step}" for step in STEPS}
    for name, durable in storage.before.items():
        shards = {f"run/{name}/{file}" for file in dcp_files()}
        assert durable >= {*shards, f"run/{name}", "run"}, name
