"""Checkpoints that stand sealed at a place, and one that is taken away, for tests of removals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from ckptgov.errors import StorageError
from ckptgov.layouts.tree import LookSettings, join, split
from ckptgov.manifest.build import build_manifest
from ckptgov.model.checkpoint import (
    Evidence,
    Manifest,
    Purpose,
    Receipt,
    RunIdentity,
    Shard,
    StepKind,
    VerifyLevel,
)
from ckptgov.model.facts import CheckpointFacts
from ckptgov.model.files import Token
from ckptgov.model.journal import Stamp, Tombstone, Undelete
from ckptgov.storage.contract import Storage, Traits
from ckptgov.storage.memory import MemoryStorage
from ckptgov.testing.builders import write_dcp, write_lightning, write_torch_shards
from ckptgov.work.author import Author
from ckptgov.work.look import RunLook
from ckptgov.work.remove import Purged, Trashed, move_aside, purge, put_back, trash_entries
from ckptgov.work.runstore import RunStore, store_at
from ckptgov.work.scan import ScanProgress, prepare, scan_steps
from ckptgov.work.seal import SealSettings
from ckptgov.work.tier import Place, mint_identity
from ckptgov.work.trash import date_of
from ckptgov.work.verify import verify_sealed

Files = Mapping[str, bytes]

PLACE = "7a1c6d1e-0000-4000-8000-00000000000a"
RUN_ID = "7a1c6d1e-0000-4000-8000-00000000000b"
NOW_NS = time.time_ns() + 3600 * 10**9
"""Later than the times of any file that a test writes."""
DAY = date_of(NOW_NS)
WHOLE = {".metadata": b"marker", "a.bin": b"one" * 50, "deep/b.bin": b"two" * 90}
SECOND = {".metadata": b"marker", "a.bin": b"ONE" * 50, "deep/b.bin": b"TWO" * 90}


class Keys(MemoryStorage):
    """Says of itself that it has no directories, as an object store does."""

    @property
    def traits(self) -> Traits:
        return Traits(has_directories=False, has_links=False)

    def rename(
        self,
        source: str,
        target: str,
        *,
        only: Token | None = None,
        durable: bool = True,
        parents: bool = True,
    ) -> None:
        raise StorageError("no names to move")

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        raise StorageError("no directories to rename")

    def remove(self, path: str, *, only: Token | None = None) -> None:
        super().remove(path, only=only)
        with suppress(StorageError):
            while path := split(path)[0]:
                self.remove_dir(path)


def _digest(raw: bytes) -> str:
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(raw)}"


def manifest_of(name: str, files: Mapping[str, bytes], *, step: int = 1) -> Manifest:
    return build_manifest(
        name=name,
        step=step,
        step_kind=StepKind.STEP,
        layout="dcp",
        world_size=None,
        purposes=tuple(Purpose),
        shards=[Shard(path, len(raw), _digest(raw)) for path, raw in files.items()],
    )


@dataclass
class Stage:
    """One place with one run; ``storage`` may be wrapped later, ``tree`` is what really lies."""

    tree: Storage
    run_root: str = "run"
    records: int = field(default=0)

    def __post_init__(self) -> None:
        mint_identity(self.tree, tier="near", catalog=RUN_ID, epoch=1, new_id=lambda: PLACE)
        self.tree.make_dirs(self.run_root)
        self.store.create(RunIdentity(run_id=RUN_ID, name="run"))

    @classmethod
    def at(cls, tree: Storage) -> Stage:
        """The place that another process made."""
        made = cls.__new__(cls)
        made.tree, made.run_root, made.records = tree, "run", 1000
        return made

    @property
    def store(self) -> RunStore:
        return store_at(self.tree, self.run_root)

    def place(self, storage: Storage | None = None) -> Place:
        over = storage or self.tree
        return Place(storage=over, uuid=PLACE, tier="near", node=None, root=over.root)

    def look(self, storage: Storage | None = None, *, partial: bool = False) -> RunLook:
        settings = LookSettings(now_ns=NOW_NS)
        return RunLook(self.place(storage), self.run_root, settings, partial=partial)

    def put(self, path: str, raw: bytes) -> None:
        self.tree.publish(path, [raw])

    def seal(
        self,
        name: str,
        files: Mapping[str, bytes],
        *,
        step: int = 1,
        base: str | None = None,
        only: frozenset[str] | None = None,
        is_there: bool = False,
        verified_at_ns: int = NOW_NS - 10**9,
    ) -> Manifest:
        """Write the files (below ``base``, by default the checkpoint's name), then seal them."""
        manifest = manifest_of(name, files, step=step)
        full = join(self.run_root, name if base is None else base)
        tokens = []
        for shard in manifest.shards:
            if only is not None and shard.path not in only:
                continue
            path = join(full, shard.path)
            if not is_there:
                self.put(path, files[shard.path])
            tokens.append((shard.path, self.tree.stat(path).token))
        self.store.publish_manifest(manifest)
        receipt = Receipt(
            content_id=manifest.content_id,
            place=PLACE,
            evidence=Evidence.DIGEST,
            verified_at_ns=verified_at_ns,
            tokens=tuple(tokens),
        )
        self.store.publish_receipt(name, receipt)
        return manifest

    def tombstone(
        self, manifest: Manifest, storage: Storage | None = None, *, at_ns: int = NOW_NS
    ) -> Callable[[], None]:
        """Writes the record unless it stands."""
        store = RunStore(storage or self.tree, self.run_root, sidecar=self.store.sidecar)

        def write() -> None:
            record = Tombstone(stamp=self.stamp(at_ns), content_id=manifest.content_id, place=PLACE)
            standing = [one.record for one in store.journal().records]
            if not any(
                isinstance(one, Tombstone) and one.content_id == manifest.content_id
                for one in standing
            ):
                store.append(record)

        return write

    def undelete(self, manifest: Manifest, *, at_ns: int = NOW_NS + 1) -> None:
        self.store.append(
            Undelete(stamp=self.stamp(at_ns), content_id=manifest.content_id, place=PLACE)
        )

    def stamp(self, at_ns: int) -> Stamp:
        self.records += 1
        ending = f"{self.records:012x}"
        return Stamp(
            id=f"7a1c6d1e-0000-4000-8000-{ending}", run_id=RUN_ID, at_ns=at_ns, by="uid:0@test"
        )

    def move(
        self, manifest: Manifest, storage: Storage | None = None, *, partial: bool = False
    ) -> Trashed:
        with self.look(storage, partial=partial) as look:
            return move_aside(
                self.place(storage),
                look,
                manifest.content_id,
                now_ns=NOW_NS,
                tombstone=self.tombstone(manifest, storage),
                still=lambda: None,
            )

    def purge(self, manifest: Manifest, trash: str, storage: Storage | None = None) -> Purged:
        store = RunStore(storage or self.tree, self.run_root, sidecar=self.store.sidecar)
        return purge(self.place(storage), store, manifest.content_id, trash)

    def told(self) -> list[CheckpointFacts]:
        """What a look from nothing but storage tells of."""
        with self.look() as look:
            facts = [one.prove() for one in look.candidates()]
            return [one for one in facts if one is not None]

    def offered(self) -> list[CheckpointFacts]:
        """What may be offered of it, by whatever evidence."""
        return [one for one in self.told() if not one.findings]

    def names_offered(self) -> list[str]:
        return [one.name for one in self.offered()]

    def files(self, top: str | None = None) -> dict[str, bytes]:
        """Every file below a directory (by default the run's root), our own left out."""
        return files_below(self.tree, self.run_root if top is None else top)


def files_below(storage: Storage, top: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        entries = storage.list(top)
    except FileNotFoundError:
        return found
    for entry in entries:
        path = join(top, entry.name)
        if entry.name.startswith(".ckptgov"):
            continue
        if entry.kind == "dir":
            below = files_below(storage, path)
            found |= {join(entry.name, name): raw for name, raw in below.items()}
        elif entry.kind == "file":
            with storage.open(path) as file:
                found[entry.name] = file.read_at(0, file.stat().bytes)
    return found


def everything(storage: Storage, top: str = "") -> dict[str, bytes]:
    """All files of a tree, ours too."""
    found: dict[str, bytes] = {}
    for entry in storage.list(top):
        path = join(top, entry.name)
        if entry.kind == "dir":
            found |= everything(storage, path)
        elif entry.kind == "file":
            with storage.open(path) as file:
                found[path] = file.read_at(0, file.stat().bytes)
    return found


GOES = {
    "directory": "step_1",
    "group": "checkpoint_1_100",
    "single": "epoch=0-step=10-val/loss=1.ckpt",
}
STAYS = {
    "directory": "step_2",
    "group": "checkpoint_2_200",
    "single": "epoch=0-step=20.ckpt",
}
SETTINGS = SealSettings(threads=1)


class Clock:
    """Later than every file."""

    def now_ns(self) -> int:
        return NOW_NS - 10**9

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"waits {seconds} s")


AUTHOR = Author(clock=Clock(), by="uid:0@test")


def write_runs(base: Path) -> dict[str, Files]:
    """The files of three runs, as trainers write them, by path below the run's root; written
    below a directory first."""
    for form in GOES:
        (base / form).mkdir(parents=True)
        for name in (GOES[form], STAYS[form]):
            path = base / form / name
            path.parent.mkdir(exist_ok=True)
            match form:
                case "directory":
                    write_dcp(path)
                    (path / "notes.txt").write_text(name)
                case "group":
                    write_torch_shards(path.parent, name, range(3))
                case _:
                    write_lightning(path, 10 if name == GOES[form] else 20)
    return {form: _below(base / form) for form in GOES}


def _below(top: Path) -> Files:
    files = sorted(path for path in top.rglob("*") if path.is_file())
    return {str(path.relative_to(top)): path.read_bytes() for path in files}


class Trial:
    """One run at one place, sealed, with a checkpoint that is to go."""

    def __init__(self, form: str, files: Files, tree: Storage) -> None:
        self.name, self.kept = GOES[form], STAYS[form]
        self.trash = ""
        self.files = files
        self.stage = Stage(tree)
        for path, raw in files.items():
            self.stage.put(f"run/{path}", raw)
        assert len(self.scan().sealed) == 2
        with self.stage.look() as look:
            manifests = [copy.manifest for one in look.stored if (copy := look.sealed(one))]
        (self.manifest,) = [one for one in manifests if one.name == self.name]
        assert sorted(self.stage.names_offered()) == sorted([self.name, self.kept])

    @property
    def own(self) -> Files:
        """The files that are to go; on an object store only the shards are ours."""
        prefix = self.name if "/" in self.name or "." in self.name else f"{self.name}"
        own = {path: raw for path, raw in self.files.items() if path.startswith(prefix)}
        if not self.stage.tree.traits.has_directories:
            own.pop(self.strange, None)
        return own

    @property
    def strange(self) -> str:
        """A file in a checkpoint's directory that is no shard; only that form has one."""
        return f"{self.name}/notes.txt"

    @property
    def rest(self) -> Files:
        return {path: raw for path, raw in self.files.items() if path not in self.own}

    def scan(self) -> ScanProgress:
        with self.stage.look() as look:
            progress = prepare(look, RunIdentity(run_id="", name="run"))
            for _sealed in scan_steps(look, progress, author=AUTHOR, settings=SETTINGS):
                pass
        return progress

    def remove(self, storage: Storage) -> None:
        """As whoever keeps a list does: what was moved aside is only purged from then on."""
        if not self.trash:
            done = self.stage.move(self.manifest, storage)
            assert done.left == ()
            self.trash = done.trash
        assert self.stage.purge(self.manifest, self.trash, storage).left == ()

    def put_back(self, storage: Storage, trash: str) -> None:
        store = RunStore(storage, "run", sidecar="run/.ckptgov")
        assert put_back(self.stage.place(storage), store, trash) == self.name

    def has_tombstone(self) -> bool:
        records = [item.record for item in self.stage.store.journal().records]
        found = [one for one in records if isinstance(one, Tombstone)]
        assert len(found) <= 1
        return bool(found)

    def require_nothing_half(self, *, may_be_sealed_again: bool = False) -> None:
        """What is offered has all its bytes, what is on its way out is not, nor sealed again.

        ``may_be_sealed_again``: unless what is on its way out is whole, and no record says that
        it is; so it may be where there was no room for one.
        """
        for _ in range(2):
            there = self.stage.files()
            assert there.items() >= self.rest.items()
            offered = self.stage.names_offered()
            assert self.kept in offered
            if self.name in offered:
                assert there.items() >= self.own.items()
                assert not self.has_tombstone()
            sealed = self.scan().sealed
            if sealed:
                assert may_be_sealed_again
                assert not self.has_tombstone()
                assert there.items() >= self.own.items()

    def require_gone(self) -> None:
        assert self.stage.files() == self.rest
        assert self.stage.names_offered() == [self.kept]
        assert self.has_tombstone()
        assert trash_entries(self.stage.store) == ()
        ours = [path for path in everything(self.stage.tree) if "/.ckptgov/" in path]
        assert not [path for path in ours if "/trash/" in path]
        assert not [path for path in ours if self.manifest.content_id[7:23] in path]
        assert not self.scan().sealed

    def require_back(self) -> None:
        """Undone, and once its bytes were compared it counts as before."""
        assert self.stage.files() == self.files
        assert trash_entries(self.stage.store) == ()
        assert self.stage.names_offered() == [self.kept]
        self.stage.undelete(self.manifest)
        with self.stage.look() as look:
            (copy,) = [
                copy
                for one in look.stored
                if (copy := look.sealed(one)) and copy.manifest.name == self.name
            ]
            assert copy.proof.evidence is not Evidence.DIGEST
            done = verify_sealed(
                look, copy, level=VerifyLevel.DIGEST, clock=Clock(), settings=SETTINGS
            )
            assert done.findings == ()
        offered = {one.name: one.evidence for one in self.stage.offered()}
        assert offered == dict.fromkeys([self.name, self.kept], Evidence.DIGEST)
