"""All layouts together: who claims first, and how errors of one candidate are told."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ckptgov.errors import StorageError
from ckptgov.layouts.registry import LAYOUTS
from ckptgov.model.facts import Reason
from ckptgov.storage.posix import PosixStorage


def test_every_layout_has_a_name_of_its_own() -> None:
    names = [layout.name for layout in LAYOUTS]
    assert len(set(names)) == len(names)
    assert {"dcp", "deepspeed", "hf-trainer", "lightning", "megatron", "orbax"} <= set(names)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StorageError("step_2/.metadata: permission denied"), Reason.UNREADABLE),
        (FileNotFoundError(2, "gone", "step_2/.metadata"), Reason.BEING_WRITTEN),
    ],
)
def test_one_candidate_that_cannot_be_looked_at_hides_no_other(
    samples: Path,
    tmp_path: Path,
    look: Any,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reason: Reason,
) -> None:
    for name in ("step_1", "step_2"):
        shutil.copytree(samples / "dcp/single/step_1", tmp_path / name)
    opened = PosixStorage.open

    def refuse(self: PosixStorage, path: str) -> object:
        if path == "step_2/.metadata":
            raise error
        return opened(self, path)

    monkeypatch.setattr(PosixStorage, "open", refuse)
    looked = look(tmp_path)
    assert looked.whole == ["step_1"]
    (finding,) = looked["step_2"].findings
    assert finding.reason is reason
    assert ".metadata" in f"{finding.path} {finding.evidence}"


def test_a_frameworks_directory_is_claimed_before_what_it_is_made_of(
    samples: Path, tmp_path: Path, look: Any
) -> None:
    for run in ("megatron/core-torch_dist", "lightning/distributed-dir", "dcp/single"):
        shutil.copytree(samples / run, tmp_path / run, dirs_exist_ok=True)
    layouts = {s.name.split("/")[0]: s.layout for s in look(tmp_path).sightings}
    assert layouts == {"dcp": "dcp", "lightning": "lightning", "megatron": "megatron"}


def test_a_stray_file_does_not_hide_the_checkpoint_it_lies_in(
    samples: Path, tmp_path: Path, look: Any
) -> None:
    shutil.copytree(samples / "dcp/single/step_1", tmp_path / "step_1")
    shutil.copy(samples / "lightning/single-file/last.ckpt", tmp_path / "step_1")
    (sighting,) = look(tmp_path).sightings
    assert (sighting.layout, sighting.extras) == ("dcp", ("last.ckpt",))


def test_final_weights_beside_checkpoint_files_do_not_hide_them(
    samples: Path, tmp_path: Path, look: Any
) -> None:
    shutil.copytree(samples / "hf-trainer/single/checkpoint-2", tmp_path / "kept")
    for path in (tmp_path / "kept").iterdir():
        if not path.name.startswith(("model", "config")):
            path.unlink()
    shutil.copy(samples / "lightning/single-file/last.ckpt", tmp_path / "kept")
    assert "kept/last.ckpt" in look(tmp_path).whole
