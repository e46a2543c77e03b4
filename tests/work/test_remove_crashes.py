"""P1, P3: a removal or an undo that dies between any two calls of storage leaves nothing half."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckptgov.layouts.tree import join
from ckptgov.storage.contract import Storage
from ckptgov.storage.memory import MemoryStorage
from ckptgov.testing.crashing import Crash, CrashingStorage
from ckptgov.testing.removals import GOES, Files, Keys, Trial, everything, write_runs


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
