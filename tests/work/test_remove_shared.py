"""What lies beside a checkpoint that goes, in its directory: another set's, or another save's."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from ckptgov.model.checkpoint import Manifest
from ckptgov.storage.memory import MemoryStorage
from ckptgov.testing.crashing import Crash, CrashingStorage
from ckptgov.testing.removals import SECOND, WHOLE, Keys, Stage
from ckptgov.work.remove import is_coming_back, trash_entries

FOUR = {f"model_{n}_of_4.pt": b"4" * 10 for n in range(4)} | {"common.json": b"{}"}
EIGHT = {f"model_{n}_of_8.pt": b"8" * 10 for n in range(8)} | {"common.json": b"{}"}
KINDS = (MemoryStorage, Keys)


class Two(NamedTuple):
    """One directory with the sets of two world sizes, which share a file."""

    stage: Stage
    four: Manifest
    eight: Manifest

    def require_eight(self) -> None:
        standing = self.stage.files()
        assert standing.items() >= {f"actor/{path}": raw for path, raw in EIGHT.items()}.items()


def two(kind: type[MemoryStorage]) -> Two:
    stage = Stage(kind())
    four = stage.seal("actor", FOUR)
    for path in EIGHT.keys() - FOUR.keys():
        stage.put(f"run/actor/{path}", EIGHT[path])
    return Two(stage, four, stage.seal("actor", EIGHT, is_there=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_another_set_has_too_survives_move_and_purge(kind) -> None:
    made = two(kind)
    trash = made.stage.move(made.four).trash
    made.require_eight()
    (entry,) = trash_entries(made.stage.store)
    assert entry.moved, "what another set holds there is no half of a removal"
    assert made.stage.purge(made.four, trash).left == ()
    made.require_eight()
    assert "actor/model_0_of_4.pt" not in made.stage.files()


@pytest.mark.parametrize("kind", KINDS)
def test_nor_does_a_removal_that_died_anywhere_take_it_when_it_goes_on(kind) -> None:
    made = two(kind)
    made.stage.move(made.four, counted := CrashingStorage(made.stage.tree))
    for crash_at, call in enumerate(counted.calls):
        made = two(kind)
        with pytest.raises(Crash):
            made.stage.move(made.four, CrashingStorage(made.stage.tree, crash_at))
        made.stage.purge(made.four, made.stage.move(made.four).trash)
        made.require_eight()
        assert "actor/model_0_of_4.pt" not in made.stage.files(), call


def test_in_a_directory_of_many_checkpoints_too() -> None:
    stage = Stage(MemoryStorage())
    shards = {f"step_1-{n}.pt": b"%d" % n for n in range(3)}
    first = stage.seal("step_1", shards, base="")
    more = shards | {"step_1-3.pt": b"3"}
    stage.put("run/step_1-3.pt", b"3")
    stage.seal("step_1", more, base="", is_there=True)
    stage.purge(first, stage.move(first).trash)
    assert stage.files() == more


def test_what_is_left_standing_for_another_set_did_not_come_back() -> None:
    made = two(MemoryStorage)
    trash = made.stage.move(made.four).trash
    made.stage.move(made.eight, counted := CrashingStorage(made.stage.tree))
    for crash_at, call in enumerate(counted.calls):
        made = two(MemoryStorage)
        trash = made.stage.move(made.four).trash
        with pytest.raises(Crash):
            made.stage.move(made.eight, CrashingStorage(made.stage.tree, crash_at))
        assert not is_coming_back(made.stage.place(), made.stage.store, trash), call


@pytest.mark.parametrize(("later_ns", "goes"), [(-(10**9), True), (10**9, False)])
def test_files_younger_than_the_last_comparison_stay(later_ns: int, goes: bool) -> None:
    """They may be of another save, which nobody has looked at yet."""
    stage = Stage(MemoryStorage())
    stage.put("run/step_1/notes.txt", b"of whom?")
    written_ns = stage.tree.stat("run/step_1/notes.txt").mtime_ns
    gone = stage.seal("step_1", WHOLE, verified_at_ns=written_ns - later_ns)
    done = stage.move(gone)
    assert ("step_1/notes.txt" in stage.files()) is not goes
    assert (done.extras == ("notes.txt",)) is goes
    assert not stage.files().keys() & {f"step_1/{path}" for path in WHOLE}


def test_a_checkpoint_sealed_below_it_after_a_kill_does_not_go_along() -> None:
    stage = Stage(MemoryStorage())
    gone = stage.seal("step_1", WHOLE)
    stage.move(gone, counted := CrashingStorage(stage.tree))
    for crash_at, call in enumerate(counted.calls):
        stage = Stage(MemoryStorage())
        gone = stage.seal("step_1", WHOLE)
        with pytest.raises(Crash):
            stage.move(gone, CrashingStorage(stage.tree, crash_at))
        if call[0] == "rename_dir" or crash_at == len(counted.calls) - 1:
            below = stage.seal("step_1/export", SECOND, step=2)
            stage.move(gone)
            assert below.name in stage.names_offered(), call


def test_where_nothing_lies_beside_it_the_run_is_not_walked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A walk of a large run costs more than the removal of one checkpoint."""
    stage = Stage(MemoryStorage())
    gone = stage.seal("step_1", WHOLE)

    def walked(tree: object) -> None:
        raise AssertionError("walked")

    monkeypatch.setattr("ckptgov.work.look.survey", walked)
    stage.move(gone)
    assert not stage.files().keys() & {f"step_1/{path}" for path in WHOLE}
