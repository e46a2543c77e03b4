"""P1: a removal is durable before it shows: after a power cut no manifest stands over a half."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckptgov.layouts.tree import split
from ckptgov.model.files import Token
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.removals import GOES, NOW_NS, Files, Trial, write_runs
from ckptgov.work.removal_case import sealed_case
from ckptgov.work.removal_unseal import new_entry, unseal
from ckptgov.work.trash import MANIFEST, RECEIPT

Told = list[tuple[str, str, str]]
"""(rename, from, to) and (sync, directory, "") in the order they happened."""


class Watched(PosixStorage):
    """Tells of every renaming before it is done."""

    def __init__(self, root: Path, told: Told) -> None:
        super().__init__(root)
        self.told = told

    def rename(
        self,
        source: str,
        target: str,
        *,
        only: Token | None = None,
        durable: bool = True,
        parents: bool = True,
    ) -> None:
        self.told.append(("rename", source, target))
        super().rename(source, target, only=only, durable=durable, parents=parents)

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        self.told.append(("rename", source, target))
        super().rename_dir(source, target, parents=parents)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def tree(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A real directory, of which it is told what was synced when, and what renamed."""
    root = tmp_path.resolve() / "tier"
    root.mkdir()
    sync = os.fsync

    def watched(fd: int) -> None:
        sync(fd)
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isdir(path) and path.startswith(f"{root}/"):
            told.append(("sync", os.path.relpath(path, root), ""))

    monkeypatch.setattr(os, "fsync", watched)
    return Watched(root, told)


def require_durable(told: Told, *names: str) -> None:
    """What got each of these names lies there, and nowhere else, whenever the power is cut now."""
    for name in names:
        at, source, target = next(
            (index, source, target)
            for index, (kind, source, target) in reversed(list(enumerate(told)))
            if kind == "rename" and split(target)[1] == name
        )
        synced = [path for kind, path, _ in told[at:] if kind == "sync"]
        assert split(source)[0] in synced, f"{source} may be back"
        assert split(target)[0] in synced, f"{target} may be lost"


@pytest.mark.parametrize("form", GOES)
def test_receipt_and_manifest_are_away_for_good_before_any_file_is_moved(
    runs, tree: Watched, told: Told, form: str
) -> None:
    trial = Trial(form, runs[form], tree)
    told.clear()
    trial.stage.move(trial.manifest)
    first = next(
        index
        for index, (kind, source, _) in enumerate(told)
        if kind == "rename" and "/.ckptgov/" not in source
    )
    require_durable(told[:first], RECEIPT, MANIFEST)


@pytest.mark.parametrize("form", GOES)
def test_so_they_are_where_an_undone_removal_left_their_names_taken(
    runs, tree: Watched, told: Told, form: str
) -> None:
    trial = Trial(form, runs[form], tree)
    case = sealed_case(trial.stage.place(), trial.stage.store, trial.manifest.content_id)
    entry = new_entry(case, NOW_NS)
    for name in (RECEIPT, MANIFEST):
        tree.publish(f"{entry}/{name}", [b"of before"])
    told.clear()
    unseal(case, entry, tombstone=trial.stage.tombstone(trial.manifest), still=lambda: None)
    assert len([one for one in told if one[0] == "rename"]) == 4  # each was tried twice
    require_durable(told, RECEIPT, MANIFEST)
