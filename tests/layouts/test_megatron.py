"""Megatron: torch_dist with its marker, torch_dcp, the legacy format, and the tracker."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.facts import Pointer, Reason

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.fixture
def run(samples: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(samples / "megatron/core-torch_dist", tmp_path / "run"))


def test_a_whole_iteration_demands_common_and_marker(run: Path, look: Any) -> None:
    sighting = look(run)["iter_0000200"]
    assert (sighting.layout, sighting.step, sighting.world_size) == ("megatron", 200, 2)
    assert sighting.reshardable is True
    assert {s.path for s in sighting.shards if s.is_marker} == {".metadata", "metadata.json"}
    assert "common.pt" in sighting.expected


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda d: (d / "common.pt").unlink(), "missing-shard iter_0000200/common.pt"),
        (lambda d: (d / "common.pt").write_bytes(b""), "torn iter_0000200/common.pt: is empty"),
        (lambda d: (d / "metadata.json").write_text(""), "torn iter_0000200/metadata.json: is em"),
        (lambda d: (d / "metadata.json").write_text("{"), "torn iter_0000200/metadata.json"),
        (lambda d: (d / "metadata.json").unlink(), "being-written iter_0000200/metadata.json"),
        (lambda d: (d / "__0_1.distcp").unlink(), "missing-shard iter_0000200/__0_1.distcp"),
    ],
)
def test_each_damage_is_named(
    run: Path, look: Any, damage: Callable[[Path], object], told: str
) -> None:
    damage(run / "iter_0000200")
    findings = look(run).told("iter_0000200")
    assert any(finding.startswith(told) for finding in findings), findings


def test_a_cut_marker_still_demands_what_it_vouched_for(run: Path, look: Any) -> None:
    (run / "iter_0000200/metadata.json").write_text('{"sharded_ba')
    assert look(run).whole == ["iter_0000100"]


def test_another_backend_is_unproven(run: Path, look: Any) -> None:
    (run / "iter_0000200/metadata.json").write_text('{"sharded_backend": "zarr"}')
    reasons = {f.reason for f in look(run)["iter_0000200"].findings}
    assert Reason.UNPROVEN in reasons


def test_the_iteration_inside_must_be_the_one_in_the_name(run: Path, look: Any) -> None:
    (run / "iter_0000200").rename(run / "iter_0000300")
    assert look(run).told("iter_0000300") == [
        "torn iter_0000300/common.pt: says iteration 200, the directory's name says 300"
    ]


def test_release_is_stepless(run: Path, look: Any) -> None:
    (run / "iter_0000200").rename(run / "release")
    sighting = look(run)["release"]
    assert (sighting.step, sighting.step_kind, sighting.findings) == (None, StepKind.NONE, ())


def test_common_state_inside_the_shards_needs_no_common_file(
    tmp_path: Path, look: Any, dcp_index: Any, torch_file: Callable[..., bytes]
) -> None:
    entry = torch_file({})
    dcp_index.tensor("common_state/shard_0_1", rows=1, chunks=[(0, 1)])
    dcp_index.stored("common_state/shard_0_1", "__0_0.distcp", 0, len(entry))
    target = tmp_path / "iter_0000005"
    target.mkdir()
    (target / "__0_0.distcp").write_bytes(entry)
    (target / ".metadata").write_bytes(dcp_index.pickled())
    (finding,) = look(tmp_path)["iter_0000005"].findings
    assert (finding.reason, finding.path) == (
        Reason.BEING_WRITTEN,
        "iter_0000005/metadata.json",
    )
    (target / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    assert look(tmp_path).whole == ["iter_0000005"]


def test_an_iteration_of_plain_dcp_needs_only_its_index(
    samples: Path, tmp_path: Path, look: Any
) -> None:
    shutil.copytree(samples / "dcp/single/step_1", tmp_path / "iter_0000007")
    (sighting,) = look(tmp_path).sightings
    assert (sighting.layout, sighting.step, sighting.findings) == ("megatron", 7, ())


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("200", Pointer(TRACKER, "200", "iter_0000200")),
        ("200\n", Pointer(TRACKER, "200", "iter_0000200")),
        ("", Pointer(TRACKER, "", None)),
        ("300", Pointer(TRACKER, "300", None)),
        ("release", Pointer(TRACKER, "release", None)),
        ("../run", Pointer(TRACKER, "../run", None)),
        ("x" * 5000, Pointer(TRACKER, "", None)),
    ],
)
def test_the_tracker_is_a_hint(run: Path, look: Any, text: str, pointer: Pointer) -> None:
    (run / TRACKER).write_text(text)
    looked = look(run)
    assert looked.survey.pointers == (pointer,)
    assert looked.whole == ["iter_0000100", "iter_0000200"]


def _legacy(
    run: Path, torch_file: Callable[..., bytes], ranks: list[str], **arguments: object
) -> None:
    state = {"iteration": 50, "args": argparse.Namespace(**arguments)}
    for rank in ranks:
        target = run / "iter_0000050" / rank
        target.mkdir(parents=True)
        (target / "model_optim_rng.pt").write_bytes(torch_file(state))


def test_the_legacy_format_is_proved_by_the_arguments_inside(
    tmp_path: Path, look: Any, torch_file: Callable[..., bytes]
) -> None:
    ranks = [f"mp_rank_{t:02d}_{p:03d}" for t in range(2) for p in range(2)]
    sizes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    _legacy(tmp_path, torch_file, ranks, **sizes, world_size=8)
    (sighting,) = look(tmp_path).sightings
    assert (sighting.step, sighting.findings) == (50, ())
    assert (sighting.world_size, sighting.reshardable) == (8, False)
    assert len(sighting.shards) == 4


def test_a_missing_legacy_rank_is_named(
    tmp_path: Path, look: Any, torch_file: Callable[..., bytes]
) -> None:
    sizes = {"tensor_model_parallel_size": 3, "pipeline_model_parallel_size": 1}
    _legacy(tmp_path, torch_file, ["mp_rank_00", "mp_rank_01"], **sizes)
    (told,) = look(tmp_path).told("iter_0000050")
    assert told.startswith("missing-shard iter_0000050/mp_rank_02/model_optim_rng.pt")


def test_a_legacy_distributed_optimizer_is_demanded(
    tmp_path: Path, look: Any, torch_file: Callable[..., bytes]
) -> None:
    sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
    _legacy(tmp_path, torch_file, ["mp_rank_00"], **sizes, use_distributed_optimizer=True)
    (told,) = look(tmp_path).told("iter_0000050")
    assert told.startswith("missing-shard iter_0000050/mp_rank_00/distrib_optim.pt")


def test_a_legacy_save_without_the_optimizer_is_weights_only(
    tmp_path: Path, look: Any, torch_file: Callable[..., bytes]
) -> None:
    sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
    _legacy(
        tmp_path,
        torch_file,
        ["mp_rank_00"],
        **sizes,
        use_distributed_optimizer=True,
        no_save_optim=True,
    )
    (sighting,) = look(tmp_path).sightings
    assert (sighting.purposes, sighting.findings) == ((Purpose.WEIGHTS,), ())


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"tensor_model_parallel_size": 2},
        {"tensor_model_parallel_size": "2", "pipeline_model_parallel_size": 1},
        {"tensor_model_parallel_size": 10**9, "pipeline_model_parallel_size": 10**9},
    ],
)
def test_a_legacy_set_the_arguments_do_not_tell_is_unproven(
    tmp_path: Path, look: Any, torch_file: Callable[..., bytes], arguments: dict[str, object]
) -> None:
    _legacy(tmp_path, torch_file, ["mp_rank_00"], **arguments)
    assert {f.reason for f in look(tmp_path).sightings[0].findings} == {Reason.UNPROVEN}
