"""torchsnapshot: the manifest's files and sizes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.facts import Depth
from ckptgov.testing.builders import flip_bit, truncate

Look = Callable[..., Any]

BATCHED = "batched/55a8d1d5-d5cf-445c-a55b-12809f9dc700"
OBJECT = "0/progress/blob"


@pytest.fixture
def run(samples: Path, tmp_path: Path) -> Path:
    return shutil.copytree(samples / "torchsnapshot/2rank", tmp_path / "run")


def _manifest(run: Path, entries: dict[str, object], world_size: int = 2) -> None:
    told = {"version": "0.1.0", "world_size": world_size, "manifest": entries}
    (run / "step_1/.snapshot_metadata").write_text(json.dumps(told))


def test_a_real_one_is_whole(look: Look, samples: Path) -> None:
    seen = look(samples / "torchsnapshot/2rank")["step_1"]
    assert (seen.findings, seen.extras, len(seen.shards)) == ((), (), 11)
    assert (seen.step, seen.world_size, seen.reshardable) == (1, 2, None)


def test_a_plain_copy_is_still_whole(look: Look, samples: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(
        samples / "torchsnapshot/2rank", tmp_path / "copied", copy_function=shutil.copyfile
    )
    assert look(copied).whole == ["step_1"]


def test_an_empty_manifest_is_torn(look: Look, samples: Path) -> None:
    assert look(samples / "torchsnapshot-torn/empty-metadata").told("step_2") == [
        "torn step_2/.snapshot_metadata: is empty (0 bytes)"
    ]


def test_without_its_manifest_it_is_being_written(look: Look, samples: Path) -> None:
    (told,) = look(samples / "torchsnapshot-torn/async-no-metadata").told("step_2")
    assert told.startswith("being-written step_2/.snapshot_metadata: ")


@pytest.mark.parametrize("lost", [BATCHED, OBJECT])
def test_a_file_the_manifest_names_is_missed(look: Look, run: Path, lost: str) -> None:
    (run / "step_1" / lost).unlink()
    assert look(run).told("step_1") == [
        f"missing-shard step_1/{lost}: is missing: .snapshot_metadata names it"
    ]


def test_a_cut_tensor_file_is_refused_with_numbers(look: Look, run: Path) -> None:
    truncate(run / "step_1" / BATCHED, by_bytes=8)
    assert look(run, depth=Depth.STRUCTURE).told("step_1") == [
        f"torn step_1/{BATCHED}: has 49920 of 49928 bytes"
    ]


def test_a_cut_object_is_torn(look: Look, run: Path) -> None:
    truncate(run / "step_1" / OBJECT, by_bytes=8)
    assert look(run, depth=Depth.STRUCTURE).told("step_1")[0].startswith(f"torn step_1/{OBJECT}: ")


def test_a_flipped_bit_in_an_object_is_found_deep(look: Look, run: Path) -> None:
    content = (run / "step_1" / OBJECT).read_bytes()
    flip_bit(run / "step_1" / OBJECT, content.index(b"\x80\x02") + 4, 0)
    assert look(run, depth=Depth.STRUCTURE).whole == ["step_1"]
    assert "corrupt" in look(run).told("step_1")[0]


@pytest.mark.parametrize("by", ["shards", "chunks"])
def test_parts_of_sharded_and_chunked_tensors_are_members(look: Look, run: Path, by: str) -> None:
    tensor = {"type": "Tensor", "location": "sharded/w.0", "serializer": "buffer_protocol"}
    part = {"tensor": {**tensor, "dtype": "torch.float32", "shape": [2, 3]}}
    _manifest(run, {"0/w": {"type": "ShardedTensor", by: [part]}})
    assert "missing-shard step_1/sharded/w.0" in look(run).told("step_1")[0]
    (run / "step_1/sharded").mkdir()
    (run / "step_1/sharded/w.0").write_bytes(bytes(23))
    assert look(run).told("step_1") == ["torn step_1/sharded/w.0: has 23 of 24 bytes"]
    (run / "step_1/sharded/w.0").write_bytes(bytes(24))
    seen = look(run)["step_1"]
    assert (seen.findings, seen.reshardable) == ((), True)


@pytest.mark.parametrize("location", ["../escape", "/etc/passwd", "a/../../b"])
def test_a_location_outside_is_missing_and_never_looked_at(
    look: Look, run: Path, location: str
) -> None:
    (run.parent / "escape").write_bytes(b"x")
    _manifest(run, {"0/w": {"type": "object", "location": location, "serializer": "torch_save"}})
    assert look(run).told("step_1")[0].startswith("missing-shard ")


@pytest.mark.parametrize("text", ["{}", "[]", '{"manifest": []}', '{"manifest"'])
def test_a_manifest_of_another_shape_is_torn(look: Look, run: Path, text: str) -> None:
    (run / "step_1/.snapshot_metadata").write_text(text)
    assert look(run).told("step_1")[0].startswith("torn step_1/.snapshot_metadata: ")


def test_entries_of_other_shapes_are_survived(look: Look, run: Path) -> None:
    _manifest(
        run,
        {
            "a": None,
            "b": {"type": "Tensor", "location": 7},
            "c": {"type": "ShardedTensor", "shards": {"x": 1}},
            "d": {"type": "ShardedTensor", "shards": [None, {"tensor": 3}]},
        },
    )
    assert look(run).told("step_1") == []
