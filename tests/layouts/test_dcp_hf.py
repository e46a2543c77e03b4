"""DCP's safetensors writer: consolidated and not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.checkpoint import Expect, Purpose
from ckptgov.model.files import FileStat
from ckptgov.testing.builders import truncate

Look = Callable[..., Any]

TOP = "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"
UNPROVEN = "unproven step_1: nothing on disk tells its full set: declare a rule or commit it"


@pytest.fixture
def consolidated(samples: Path, tmp_path: Path) -> Path:
    return shutil.copytree(samples / "dcp-hf/consolidated", tmp_path / "run")


@pytest.fixture
def distributed(samples: Path, tmp_path: Path) -> Path:
    return shutil.copytree(samples / "dcp-hf/save-distributed", tmp_path / "run")


def test_a_real_consolidated_save_is_whole(look: Look, samples: Path) -> None:
    seen = look(samples / "dcp-hf/consolidated")["step_1"]
    assert (seen.layout, seen.step, seen.findings, seen.extras) == ("dcp-hf", 1, (), ())
    assert (seen.purposes, seen.reshardable) == ((Purpose.WEIGHTS,), True)
    assert [(shard.path, shard.is_marker) for shard in seen.shards] == [(TOP, False), (INDEX, True)]


def test_a_plain_copy_is_still_whole(look: Look, samples: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(
        samples / "dcp-hf/consolidated", tmp_path / "copied", copy_function=shutil.copyfile
    )
    assert look(copied).whole == ["step_1"]


def test_without_its_index_it_is_being_written(look: Look, consolidated: Path) -> None:
    (consolidated / "step_1" / INDEX).unlink()
    (told,) = look(consolidated).told("step_1")
    assert told.startswith(f"being-written step_1/{INDEX}: ")


def test_killed_before_consolidating_it_is_being_written(look: Look, consolidated: Path) -> None:
    (consolidated / "step_1" / INDEX).unlink()
    (consolidated / "step_1" / TOP).unlink()
    assert look(consolidated).whole == []


@pytest.mark.parametrize("by_bytes", [1, 11_000])
def test_a_cut_consolidated_file_is_torn(look: Look, consolidated: Path, by_bytes: int) -> None:
    truncate(consolidated / "step_1" / TOP, by_bytes=by_bytes)
    (told,) = look(consolidated).told("step_1")
    assert told == f"torn step_1/{TOP}: has {21776 - by_bytes} of 21776 bytes"


def test_rewritten_under_an_old_index_is_torn(look: Look, consolidated: Path) -> None:
    index_ns = (consolidated / "step_1" / INDEX).stat().st_mtime_ns
    os.utime(consolidated / "step_1" / TOP, ns=(index_ns + 10**8, index_ns + 10**8))

    def born(_path: str, _stat: FileStat) -> int:
        return index_ns - 10**9

    assert look(consolidated, born=born).told("step_1") == [
        f"torn step_1/{TOP}: written after its marker {INDEX} (by 0.10 s)"
    ]


def test_bare_shards_are_unproven(look: Look, samples: Path) -> None:
    assert look(samples / "dcp-hf/save-distributed").told("step_1") == [UNPROVEN]


def test_a_declared_rule_proves_bare_shards(look: Look, samples: Path) -> None:
    rule = Expect(glob="step_*/shard-*.safetensors", count=2)
    seen = look(samples / "dcp-hf/save-distributed", rules=(rule,))
    assert (seen.whole, seen["step_1"].layout) == (["step_1"], "declared")


def test_a_missing_first_rank_is_told(look: Look, distributed: Path) -> None:
    (distributed / f"step_1/shard-00001-{TOP}").unlink()
    assert look(distributed).told("step_1") == [
        "missing-shard step_1: no shard-00001-* is here, and 00002 is",
        UNPROVEN,
    ]


def test_a_model_file_without_any_shard_is_told(look: Look, distributed: Path) -> None:
    for rank in (1, 2):
        shard = distributed / f"step_1/shard-{rank:05d}-{TOP}"
        shard.rename(shard.with_name(f"shard-{rank:05d}-model-00001-of-00002.safetensors"))
    assert look(distributed).told("step_1") == [
        "missing-shard step_1: no shard of model-00002-of-00002 is here",
        UNPROVEN,
    ]


def test_a_cut_bare_shard_is_torn(look: Look, distributed: Path) -> None:
    truncate(distributed / f"step_1/shard-00002-{TOP}", by_bytes=1)
    assert look(distributed).told("step_1")[0] == (
        f"torn step_1/shard-00002-{TOP}: has 11391 of 11392 bytes"
    )
