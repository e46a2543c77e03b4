"""Lightning files and directories, and NeMo's marker and directories on top of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.facts import Reason, SeenShard

Build = Callable[..., bytes]
STATE = {"pytorch-lightning_version": "2.6.6", "global_step": 200, "optimizer_states": []}


def test_a_file_is_its_own_only_shard(samples: Path, look: Any) -> None:
    (sighting,) = look(samples / "lightning/last-symlink").sightings
    assert sighting.found.is_file
    assert sighting.shards == (SeenShard("", 57648),)
    assert sighting.resume.path == "epoch=0-step=2.ckpt"


def test_the_step_inside_counts_and_a_differing_name_is_told(
    tmp_path: Path, look: Any, torch_file: Build
) -> None:
    (tmp_path / "epoch=1-step=100.ckpt").write_bytes(torch_file(STATE))
    (sighting,) = look(tmp_path).sightings
    assert (sighting.step, sighting.step_kind) == (200, StepKind.STEP)
    assert [note.text for note in sighting.notes] == ["its name says step 100, its content 200"]


def test_a_name_without_a_step_takes_it_from_inside(
    tmp_path: Path, look: Any, torch_file: Build
) -> None:
    (tmp_path / "best.ckpt").write_bytes(torch_file(STATE))
    (sighting,) = look(tmp_path).sightings
    assert (sighting.layout, sighting.step) == ("lightning", 200)


def test_a_checkpoint_without_optimizer_states_is_weights_only(
    tmp_path: Path, look: Any, torch_file: Build
) -> None:
    state = {key: STATE[key] for key in STATE if key != "optimizer_states"}
    (tmp_path / "epoch=1-step=200.ckpt").write_bytes(torch_file(state))
    assert look(tmp_path).sightings[0].purposes == (Purpose.WEIGHTS,)


def test_a_ckpt_file_of_somebody_else_is_not_lightnings(
    tmp_path: Path, look: Any, torch_file: Build
) -> None:
    (tmp_path / "step_3.ckpt").write_bytes(torch_file({"weights": 1}))
    assert [s.layout for s in look(tmp_path).sightings] == ["torch"]
    (tmp_path / "epoch=1-step=4.ckpt").write_bytes(torch_file({"weights": 1}))
    (finding,) = look(tmp_path)["epoch=1-step=4.ckpt"].findings
    assert finding.reason is Reason.UNPROVEN


@pytest.mark.parametrize("length", [0, 1, 5000, 57647])
def test_a_cut_file_is_torn_with_the_step_of_its_name(
    samples: Path, tmp_path: Path, look: Any, length: int
) -> None:
    whole = (samples / "lightning/single-file/last.ckpt").read_bytes()
    (tmp_path / "epoch=0-step=2.ckpt").write_bytes(whole[:length])
    (sighting,) = look(tmp_path).sightings
    assert sighting.step == 2
    assert [finding.reason for finding in sighting.findings] == [Reason.TORN]


def test_a_crafted_pickle_in_a_file_is_torn(tmp_path: Path, look: Any, torch_file: Build) -> None:
    bomb = torch_file(STATE).replace(b"}q\x00", b"}q\xff")
    (tmp_path / "epoch=0-step=2.ckpt").write_bytes(bomb)
    assert look(tmp_path).whole == []


def test_a_directory_needs_meta_pt_whole(samples: Path, tmp_path: Path, look: Any) -> None:
    run = Path(shutil.copytree(samples / "lightning/distributed-dir", tmp_path / "run"))
    sighting = look(run)["epoch=0-step=2.ckpt"]
    assert {s.path for s in sighting.shards if s.is_marker} == {".metadata", "meta.pt"}
    with (run / "last.ckpt/meta.pt").open("r+b") as file:
        file.truncate(3000)
    assert look(run).whole == ["epoch=0-step=2.ckpt"]


@pytest.mark.parametrize("name", ["epoch=0-step=2.ckpt", "megatron-step=2-EMA.ckpt"])
def test_nemos_marker_forbids_whatever_else_is_there(
    samples: Path, tmp_path: Path, look: Any, name: str
) -> None:
    shutil.copy(samples / "lightning/single-file/last.ckpt", tmp_path / name)
    assert look(tmp_path).whole == [name]
    stem = name.removesuffix(".ckpt").removesuffix("-EMA")
    (tmp_path / f"{stem}-unfinished").touch()
    looked = look(tmp_path)
    assert looked.told(name) == [
        f"being-written {name}: {stem}-unfinished beside it says that it is not finished"
    ]
    # Cleaning the marker away would vouch for the checkpoint.
    assert looked.survey.staging == ()


@pytest.fixture
def nemo(samples: Path, tmp_path: Path) -> Path:
    target = tmp_path / "run" / "model--step=200"
    shutil.copytree(samples / "megatron/core-torch_dist/iter_0000200", target / "weights")
    (target / "context").mkdir()
    (target / "context/io.json").write_text("{}")
    return tmp_path / "run"


def test_a_nemo_directory_is_one_checkpoint(nemo: Path, look: Any) -> None:
    (sighting,) = look(nemo).sightings
    assert (sighting.name, sighting.layout) == ("model--step=200", "lightning")
    assert (sighting.step, sighting.findings) == (200, ())
    assert {"context/io.json", "weights/common.pt", "weights/metadata.json"} <= set(
        sighting.expected
    )


def test_a_nemo_directory_without_its_context_is_refused(nemo: Path, look: Any) -> None:
    shutil.rmtree(nemo / "model--step=200/context")
    (told,) = look(nemo).told("model--step=200")
    assert told.startswith("missing-shard model--step=200/context: is missing")


def test_a_nemo_directory_with_its_marker_is_refused(nemo: Path, look: Any) -> None:
    (nemo / "model--step=200-unfinished").touch()
    assert look(nemo).whole == []
