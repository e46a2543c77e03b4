"""P1, P3: a removal or an undo that dies between any two calls of storage leaves nothing half."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable

import pytest

from ckptgov.errors import StorageError
from ckptgov.layouts.tree import join
from ckptgov.model.files import FileStat
from ckptgov.storage.contract import Storage
from ckptgov.storage.memory import MemoryStorage
from ckptgov.testing.crashing import Crash, CrashingStorage
from ckptgov.testing.removals import GOES, NOW_NS, Files, Keys, Trial, everything, write_runs
from ckptgov.work.removal_case import sealed_case
from ckptgov.work.removal_files import move_files
from ckptgov.work.removal_unseal import new_entry
from ckptgov.work.remove import is_coming_back


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    return write_runs(tmp_path_factory.mktemp("runs"))


FORMS = [(form, kind) for form in GOES for kind in (MemoryStorage, Keys)]
AS_NAMED = [f"{form}-{kind.__name__}" for form, kind in FORMS]


def crashes(
    make: Callable[[], Trial], act: Callable[[Trial, Storage], None], check: Callable[[Trial], None]
) -> int:
    """Let ``act`` die at each of its calls; then nothing is half, and again it comes to an end."""
    undisturbed = make()
    counted = CrashingStorage(undisturbed.stage.tree)
    act(undisturbed, counted)
    check(undisturbed)
    for crash_at in range(len(counted.calls)):
        trial = make()
        with pytest.raises(Crash):
            act(trial, CrashingStorage(trial.stage.tree, crash_at))
        try:
            trial.require_nothing_half()
            act(trial, trial.stage.tree)
            check(trial)
        except BaseException as error:
            error.add_note(f"died at {counted.calls[crash_at]}")
            raise
    return len(counted.calls)


@pytest.mark.parametrize(("form", "kind"), FORMS, ids=AS_NAMED)
def test_a_removal_that_dies_anywhere_leaves_nothing_half_and_converges(
    runs, form: str, kind: type[MemoryStorage]
) -> None:
    count = crashes(
        lambda: Trial(form, runs[form], kind()),
        lambda trial, storage: trial.remove(storage),
        Trial.require_gone,
    )
    assert count >= 8


@pytest.mark.parametrize(("form", "kind"), FORMS, ids=AS_NAMED)
def test_an_undo_that_dies_anywhere_leaves_nothing_half_and_converges(
    runs, form: str, kind: type[MemoryStorage]
) -> None:
    trash: list[str] = []

    def make() -> Trial:
        trial = Trial(form, runs[form], kind())
        trash[:] = [trial.stage.move(trial.manifest).trash]
        return trial

    count = crashes(
        make, lambda trial, storage: trial.put_back(storage, trash[0]), Trial.require_back
    )
    assert count >= 3


@pytest.mark.parametrize(("form", "kind"), FORMS, ids=AS_NAMED)
def test_after_a_removal_that_died_it_may_be_undone_instead(
    runs, form: str, kind: type[MemoryStorage]
) -> None:
    counted = CrashingStorage((made := Trial(form, runs[form], kind())).stage.tree)
    made.stage.move(made.manifest, counted)
    for crash_at in range(len(counted.calls)):
        trial = Trial(form, runs[form], kind())
        with pytest.raises(Crash):
            trial.stage.move(trial.manifest, CrashingStorage(trial.stage.tree, crash_at))
        done = trial.stage.move(trial.manifest)  # only forward from here
        trial.put_back(trial.stage.tree, done.trash)
        trial.require_back()


@pytest.mark.parametrize(("form", "kind"), FORMS, ids=AS_NAMED)
def test_what_is_seen_of_every_kind_is_what_was_there_before(
    runs, form: str, kind: type[MemoryStorage]
) -> None:
    trial = Trial(form, runs[form], kind())
    assert {join("run", path) for path in trial.own} <= set(everything(trial.stage.tree))
    assert trial.own
    assert trial.rest


@pytest.mark.parametrize("form", GOES)
def test_once_its_entry_is_gone_nothing_more_is_taken(runs, form: str) -> None:
    trial = Trial(form, runs[form], MemoryStorage())
    stage = trial.stage
    case = sealed_case(stage.place(), stage.store, trial.manifest.content_id)
    before = everything(stage.tree)
    entry = new_entry(case, NOW_NS)  # another process had made it, and has undone all of it
    with stage.look() as look, pytest.raises(FileNotFoundError):
        move_files(case, look, case.standing(), entry, None)
    assert everything(stage.tree) == before


class Tight(MemoryStorage):
    """Has only so many blocks once ``limit_blocks`` is set: a name takes one, and every 4 KiB."""

    limit_blocks: int | None = None

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        content = b"".join(chunks)
        self._require(1 + len(content) // 4096)
        return super().publish(path, [content])

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            above = "/".join(parts[:depth])
            try:
                self.stat(above)
            except FileNotFoundError:
                self._require(1)
            super().make_dirs(above, like=like)

    def used_blocks(self, top: str = "") -> int:
        used = 0
        for one in self.list(top):
            path = join(top, one.name)
            used += 1 + self.stat(path).bytes // 4096
            used += self.used_blocks(path) if one.kind == "dir" else 0
        return used

    def _require(self, blocks: int) -> None:
        if self.limit_blocks is not None and self.used_blocks() + blocks > self.limit_blocks:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise StorageError("no room", hint="free some") from full


def tight(form: str, files: Files, free_blocks: int) -> Trial:
    # Where every shard has to make room, strange files beside them stay.
    shards = {path: raw for path, raw in files.items() if not path.endswith("notes.txt")}
    tree = Tight()
    trial = Trial(form, shards, tree)
    tree.limit_blocks = tree.used_blocks() + free_blocks
    return trial


@pytest.mark.parametrize("free_blocks", range(7))
@pytest.mark.parametrize("form", GOES)
def test_a_removal_without_room_that_dies_anywhere_leaves_nothing_half_and_converges(
    runs, form: str, free_blocks: int
) -> None:
    made = tight(form, runs[form], free_blocks)
    counted = CrashingStorage(made.stage.tree)
    made.remove(counted)
    made.require_gone()
    for crash_at, call in enumerate(counted.calls):
        trial = tight(form, runs[form], free_blocks)
        with pytest.raises(Crash):
            trial.remove(CrashingStorage(trial.stage.tree, crash_at))
        try:
            _require_whole_or_out(trial)
            trial.scan()  # seals again what is whole and not recorded as removed
            _require_whole_or_out(trial)
            trial.remove(trial.stage.tree)
            trial.require_gone()
        except BaseException as error:
            error.add_note(f"died at {call}")
            raise


def _require_whole_or_out(trial: Trial) -> None:
    there, offered = trial.stage.files(), trial.stage.names_offered()
    assert there.items() >= trial.rest.items()
    assert trial.kept in offered
    assert trial.name not in offered or there.items() >= trial.own.items()


@pytest.mark.parametrize("form", GOES)
def test_a_removal_of_which_record_and_receipt_stand_is_offered_to_nobody(runs, form: str) -> None:
    trial = Trial(form, runs[form], MemoryStorage())
    trial.stage.tombstone(trial.manifest)()
    for one in trial.stage.store.manifests():  # it gave its room to the record
        if trial.manifest.content_id[7:23] == one.content_prefix:
            trial.stage.tree.remove(f"{trial.stage.store.sidecar}/manifests/{one.file}")
    trial.require_nothing_half()
    assert trial.stage.names_offered() == [trial.kept]
    for path, raw in trial.own.items():  # its trainer saved it again
        trial.stage.tree.remove(f"run/{path}")
        trial.stage.put(f"run/{path}", raw)
    assert sorted(trial.stage.names_offered()) == sorted([trial.name, trial.kept])


@pytest.mark.parametrize(("form", "kind"), FORMS, ids=AS_NAMED)
def test_of_an_undo_that_died_it_is_known_whether_anything_came_back(
    runs, form: str, kind: type[MemoryStorage]
) -> None:
    def make() -> tuple[Trial, str]:
        trial = Trial(form, runs[form], kind())
        return trial, trial.stage.move(trial.manifest).trash

    trial, trash = make()
    lying = _out_of_the_trash(trial)
    trial.put_back(counted := CrashingStorage(trial.stage.tree), trash)
    seen = set()
    for crash_at, call in enumerate(counted.calls):
        trial, trash = make()
        with pytest.raises(Crash):
            trial.put_back(CrashingStorage(trial.stage.tree, crash_at), trash)
        is_back = _out_of_the_trash(trial) != lying
        told = is_coming_back(trial.stage.place(), trial.stage.store, trash)
        assert told == is_back, f"died at {call}"
        seen.add(told)
    assert seen == {True, False}


def _out_of_the_trash(trial: Trial) -> set[str]:
    return {path for path in everything(trial.stage.tree) if "/trash/" not in path}
