"""Orbax steps: markers, temporary names and the closure of each item's manifest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import Depth
from ckptgov.testing.builders import flip_bit, truncate

Look = Callable[..., Any]

NODE = "state/d/22438974929dd9cdfea7be41d7a82a95"
ARRAYS = "state/ocdbt.process_0/d/cdb6538174dda3df8cb7aac99769f1a2"


@pytest.fixture
def run(samples: Path, tmp_path: Path) -> Path:
    return shutil.copytree(samples / "orbax/atomic-rename", tmp_path / "run")


@pytest.fixture
def prefixed(samples: Path, tmp_path: Path) -> Path:
    return shutil.copytree(samples / "orbax/commit-file-prefix", tmp_path / "run")


@pytest.mark.parametrize("sample", ["atomic-rename", "commit-file-prefix"])
def test_real_steps_are_whole(look: Look, samples: Path, sample: str) -> None:
    seen = look(samples / "orbax" / sample)
    assert len(seen.whole) == 2
    assert [(s.step, s.step_kind, s.layout) for s in seen.sightings] == [
        (1, StepKind.STEP, "orbax"),
        (2, StepKind.STEP, "orbax"),
    ]
    assert all(s.reshardable and not s.extras for s in seen.sightings)


def test_a_plain_copy_is_still_whole(look: Look, samples: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(
        samples / "orbax/atomic-rename", tmp_path / "copied", copy_function=shutil.copyfile
    )
    assert look(copied).whole == ["1", "2"]


def test_a_step_named_with_any_prefix_carries_its_number(look: Look, prefixed: Path) -> None:
    (prefixed / "ckpt_00000002").rename(prefixed / "llama_00000002")
    assert look(prefixed)["llama_00000002"].step == 2


def test_a_temporary_name_is_staging_whatever_it_holds(look: Look, run: Path) -> None:
    (run / "2").rename(run / "2.orbax-checkpoint-tmp-1700000000")
    seen = look(run)
    assert seen.whole == ["1"]
    assert [debris.path for debris in seen.survey.staging] == ["2.orbax-checkpoint-tmp-1700000000"]


def test_a_temporary_item_in_a_final_step_is_refused(look: Look, run: Path) -> None:
    (run / "2/state").rename(run / "2/state.orbax-checkpoint-tmp")
    told = look(run).told("2")
    assert any("2/state.orbax-checkpoint-tmp: has a temporary name" in text for text in told)
    assert any("2/state: is missing: _CHECKPOINT_METADATA lists the item" in t for t in told)


def test_killed_async_save_leaves_the_step_before_it(look: Look, samples: Path) -> None:
    assert look(samples / "orbax-torn/async-atomic-rename").whole == ["1"]


def test_a_null_commit_time_is_refused(look: Look, samples: Path) -> None:
    seen = look(samples / "orbax-torn/commit-file-async-midway")
    assert seen.whole == ["ckpt_00000001"]
    assert (
        "being-written ckpt_00000002/_CHECKPOINT_METADATA: "
        "commit_timestamp_nsecs is null: the save never ended"
    ) in seen.told("ckpt_00000002")


def test_a_missing_commit_file_is_refused_where_its_item_has_one(look: Look, samples: Path) -> None:
    seen = look(samples / "orbax-torn/commit-file-missing")
    assert seen.whole == ["ckpt_00000001"]
    (told,) = seen.told("ckpt_00000002")
    assert told.startswith("being-written ckpt_00000002/commit_success.txt: is missing and")


def test_a_lone_step_without_a_commit_file_is_refused_where_its_item_has_one(
    look: Look, prefixed: Path
) -> None:
    shutil.rmtree(prefixed / "ckpt_00000001")
    (prefixed / "ckpt_00000002/commit_success.txt").unlink()
    assert look(prefixed).told("ckpt_00000002") == [
        "being-written ckpt_00000002/commit_success.txt: "
        "is missing and ckpt_00000002/default has one: it was never committed"
    ]


def test_a_missing_commit_file_is_refused_where_a_sibling_has_one(
    look: Look, prefixed: Path
) -> None:
    for name in ("commit_success.txt", "default/commit_success.txt"):
        (prefixed / "ckpt_00000002" / name).unlink()
    assert look(prefixed).told("ckpt_00000002") == [
        "being-written ckpt_00000002/commit_success.txt: "
        "is missing and ckpt_00000001 has one: it was never committed"
    ]


def test_older_releases_without_any_commit_file_are_whole(look: Look, run: Path) -> None:
    for path in run.rglob("commit_success.txt"):
        path.unlink()
    assert look(run).whole == ["1", "2"]


def test_a_step_with_neither_marker_is_unproven(look: Look, run: Path) -> None:
    for path in [*run.rglob("commit_success.txt"), run / "1/_CHECKPOINT_METADATA"]:
        path.unlink()
    assert look(run).told("1")[0].startswith("unproven 1: neither _CHECKPOINT_METADATA nor")


def test_cut_step_metadata_is_refused(look: Look, run: Path) -> None:
    truncate(run / "1/_CHECKPOINT_METADATA", to_bytes=100)
    assert "torn 1/_CHECKPOINT_METADATA: does not parse as JSON" in look(run).told("1")[0]


@pytest.mark.parametrize(
    ("lost", "because"),
    [
        ("state/manifest.ocdbt", "the arrays cannot be found without it"),
        ("state/_METADATA", "nothing is restored without it"),
        (NODE, "the manifest leads to it"),
        (ARRAYS, "the manifest leads to it"),
    ],
)
def test_what_a_restore_reads_may_not_be_missing(
    look: Look, run: Path, lost: str, because: str
) -> None:
    (run / "1" / lost).unlink()
    seen = look(run, depth=Depth.STRUCTURE)
    assert seen.told("1") == [f"missing-shard 1/{lost}: is missing: {because}"]
    assert lost in seen["1"].expected


def test_what_no_restore_reads_may_be_missing(look: Look, run: Path) -> None:
    for name in ("_sharding", "ocdbt.process_0/manifest.ocdbt", "array_metadatas/process_0"):
        (run / "1/state" / name).unlink()
    assert "1" in look(run).whole


def test_a_cut_array_file_is_refused_with_numbers(look: Look, run: Path) -> None:
    truncate(run / "1" / ARRAYS, to_bytes=10_000)
    assert look(run, depth=Depth.STRUCTURE).told("1") == [
        f"torn 1/{ARRAYS}: has 10000 of at least 20371 bytes"
    ]


def test_a_tail_that_only_a_pruned_index_needs_may_be_cut(look: Look, run: Path) -> None:
    truncate(run / "1" / ARRAYS, by_bytes=1)
    assert "1" in look(run).whole


@pytest.mark.parametrize("name", ["state/manifest.ocdbt", NODE])
def test_a_flipped_bit_in_the_index_is_found(look: Look, run: Path, name: str) -> None:
    flip_bit(run / "1" / name, 60, 3)
    (told,) = look(run, depth=Depth.STRUCTURE).told("1")
    assert told.startswith(f"torn 1/{name}: ")


def test_a_listed_item_without_files_is_refused(look: Look, run: Path) -> None:
    for path in (run / "1/meta").iterdir():
        path.unlink()
    assert look(run).told("1") == ["missing-shard 1/meta: the item's directory holds no file"]


def test_a_cut_json_item_is_refused(look: Look, run: Path) -> None:
    truncate(run / "1/meta/metadata", by_bytes=3)
    assert look(run).told("1")[0].startswith("torn 1/meta/metadata: does not parse as JSON")


def test_arrays_outside_ocdbt_are_unproven(look: Look, run: Path) -> None:
    path = run / "1/state/_METADATA"
    path.write_text(json.dumps({**json.loads(path.read_text()), "use_ocdbt": False}))
    assert look(run).told("1")[0].startswith("unproven 1/state: its arrays lie in plain zarr")


def test_an_item_saved_without_a_manager_is_a_step(look: Look, run: Path) -> None:
    shutil.copytree(run / "1/state", run / "step_7")
    shutil.copy2(run / "1/_CHECKPOINT_METADATA", run / "step_7/_CHECKPOINT_METADATA")
    text = (run / "step_7/_CHECKPOINT_METADATA").read_text()
    (run / "step_7/_CHECKPOINT_METADATA").write_text(
        json.dumps({**json.loads(text), "item_handlers": "PyTreeCheckpointHandler"})
    )
    seen = look(run)
    assert "step_7" in seen.whole
    assert seen["step_7"].step == 7


def test_an_index_too_large_for_structure_is_noted(
    look: Look, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptgov.layouts.orbax._SHALLOW_BUDGET_BYTES", 100)
    notes = look(run, depth=Depth.STRUCTURE)["1"].notes
    assert [note.kind for note in notes] == ["not-checked"]
