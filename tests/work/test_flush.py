"""A landed copy becomes known in an order that a reader of the target alone can rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ckptgov.layouts.tree import LookSettings
from ckptgov.manifest.digest import digest_file
from ckptgov.model.checkpoint import Manifest, RunIdentity
from ckptgov.model.clock import SystemClock
from ckptgov.model.journal import MarkBad
from ckptgov.model.settings import Proof
from ckptgov.storage.contract import Storage
from ckptgov.storage.memory import MemoryStorage
from ckptgov.testing.crashing import Crash, CrashingStorage
from ckptgov.work.author import Author
from ckptgov.work.copy import CopySettings, ShardSource
from ckptgov.work.flush import publish
from ckptgov.work.landing import Form, Landing, land
from ckptgov.work.look import RunLook
from ckptgov.work.runstore import RunStore
from ckptgov.work.tier import Place

FILES = {"__0_0.distcp": b"a" * 99, ".metadata": b"index"}
RUN = RunIdentity(run_id="11111111-2222-4333-8444-555555555555", name="run")
HERE, THERE = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee", "aaaaaaaa-bbbb-4ccc-8ddd-ffffffffffff"
MARKS = 3


def place_at(storage: Storage, uuid: str) -> Place:
    return Place(storage=storage, uuid=uuid, tier="t", node=None, root=storage.root)


@pytest.fixture
def source() -> Iterator[RunLook]:
    """The run where it was saved, with marks in its journal that must bind everywhere."""
    storage = MemoryStorage("source")
    for path, content in FILES.items():
        storage.put_file(f"run/step_1/{path}", content)
    store = RunStore(storage, "run")
    store.create(RUN)
    author = Author(clock=SystemClock(), by="uid:0@here")
    for step in range(MARKS):
        store.append(MarkBad(stamp=author.stamp(RUN.run_id), from_step=step, until_step=step))
    with RunLook(place_at(storage, HERE), "run", LookSettings(now_ns=1)) as look:
        yield look


def bring(target: Storage, source: RunLook, manifest: Manifest) -> None:
    """Land the checkpoint and make it known, as a flush does."""
    storage = source.place.storage
    landing = Landing(
        manifest=manifest,
        form=Form.DIRECTORY,
        sources={
            path: (ShardSource(storage=storage, path=f"run/step_1/{path}", place=HERE),)
            for path in FILES
        },
        target=target,
        run_root="run",
        sidecar="run/.ckptgov",
        proof=Proof.READBACK,
        copying=CopySettings(threads=1),
        on_fault=lambda _: None,
    )
    publish(
        landing,
        land(landing),
        place=place_at(target, THERE),
        identity=RUN,
        looks=[source],
        with_journal=True,
        clock=SystemClock(),
    )


def names(storage: Storage, directory: str) -> list[str]:
    try:
        return [entry.name for entry in storage.list(f"run/.ckptgov/{directory}")]
    except FileNotFoundError:
        return []


def test_killed_anywhere_a_manifest_has_all_shards_and_the_whole_journal_before_it(
    source: RunLook, manifest_of: Callable[..., Manifest]
) -> None:
    manifest = manifest_of(FILES)
    whole = CrashingStorage(MemoryStorage("target"))
    bring(whole, source, manifest)
    seen = set()
    for crash_at in range(len(whole.calls)):
        target = MemoryStorage("target")
        with pytest.raises(Crash):
            bring(CrashingStorage(target, crash_at), source, manifest)
        if names(target, "receipts"):
            assert names(target, "manifests")
        if names(target, "manifests"):
            seen.add(crash_at)
            assert len(names(target, "journal")) == MARKS
            for shard in manifest.shards:
                with target.open(f"run/step_1/{shard.path}") as file:
                    assert digest_file(file).digest == shard.digest
        bring(target, source, manifest)  # the next try makes it whole
        assert len(names(target, "receipts")) == len(names(target, "manifests")) == 1
        assert len(names(target, "journal")) == MARKS
    assert seen, "no crash came between the manifest and the end"
