"""Hugging Face Trainer checkpoints: whole, torn, split over nodes, with engines inside."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.facts import Depth
from ckptgov.model.files import FileStat
from ckptgov.testing.builders import (
    TICK_NS,
    WRITTEN_AT_NS,
    truncate,
    write_dcp,
    write_deepspeed,
    write_hf_trainer,
    write_torch_file,
)

Look = Callable[..., Any]

BOTH = (Purpose.RESUME, Purpose.WEIGHTS)


@pytest.mark.parametrize(("sample", "ranks"), [("ddp2", 2), ("single", 1)])
def test_real_checkpoints_are_whole(look: Look, samples: Path, sample: str, ranks: int) -> None:
    seen = look(samples / "hf-trainer" / sample)["checkpoint-2"]
    assert (seen.findings, seen.notes, seen.extras) == ((), (), ())
    assert (seen.step, seen.step_kind, seen.world_size) == (2, StepKind.STEP, ranks)
    assert (seen.purposes, seen.reshardable) == (BOTH, True)
    assert [shard.path for shard in seen.shards if shard.is_marker] == ["trainer_state.json"]


@pytest.mark.parametrize("sample", ["ddp2", "single"])
def test_plain_copies_are_still_whole(
    look: Look, samples: Path, tmp_path: Path, sample: str
) -> None:
    copied = shutil.copytree(
        samples / "hf-trainer" / sample, tmp_path / "run", copy_function=shutil.copyfile
    )
    assert look(copied).whole == ["checkpoint-2"]


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        ("killed-in-safetensors", "missing-shard checkpoint-2/model.safetensors.index.json: "),
        ("killed-in-safetensors", "missing-shard checkpoint-2/model-00004-of-00004.safetensors: "),
        ("killed-in-safetensors", "being-written checkpoint-2/trainer_state.json: "),
        ("optimizer-truncated", "torn checkpoint-2/optimizer.pt: ends inside a record (21696 "),
        ("optimizer-truncated", "missing-shard checkpoint-2/scheduler.pt: "),
        ("optimizer-truncated", "missing-shard checkpoint-2/rng_state.pth: "),
        ("rank1-rng-zero-bytes", "torn checkpoint-2/rng_state_1.pth: is empty (0 bytes)"),
    ],
)
def test_real_torn_ones_are_refused_with_file_and_evidence(
    look: Look, samples: Path, sample: str, told: str
) -> None:
    seen = look(samples / "hf-trainer-torn" / sample, depth=Depth.STRUCTURE)
    assert any(text.startswith(told) for text in seen.told("checkpoint-2"))


def test_empty_files_under_all_the_right_names_are_each_refused(look: Look, tmp_path: Path) -> None:
    whole = write_hf_trainer(tmp_path / "epoch418", 418, adapter=True)
    for epoch in (420, 422):
        (tmp_path / f"epoch{epoch}").mkdir()
        for file in whole.iterdir():
            (tmp_path / f"epoch{epoch}" / file.name).touch()
    seen = look(tmp_path)
    assert seen.whole == ["epoch418"]
    assert [s.step for s in seen.sightings] == [418, 420, 422]
    told = seen.told("epoch422")
    assert len(told) == len(list(whole.iterdir()))
    assert all(text.endswith(": is empty (0 bytes)") for text in told)


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ("trainer_state.json", "being-written"),
        ("optimizer.pt", "missing-shard"),
        ("scheduler.pt", "missing-shard"),
        ("rng_state_0.pth", "missing-shard"),
        ("model-00002-of-00003.safetensors", "missing-shard"),
        ("model.safetensors.index.json", "missing-shard"),
    ],
)
def test_each_file_that_loading_needs_is_missed(
    look: Look, tmp_path: Path, lost: str, reason: str
) -> None:
    write_hf_trainer(tmp_path / "checkpoint-5", 5, world_size=2, model_shards=3)
    (tmp_path / "checkpoint-5" / lost).unlink()
    seen = look(tmp_path)
    assert any(t.startswith(f"{reason} checkpoint-5/{lost}: ") for t in seen.told("checkpoint-5"))
    assert lost in seen["checkpoint-5"].expected


def test_no_weights_at_all_is_missed(look: Look, tmp_path: Path) -> None:
    write_hf_trainer(tmp_path / "checkpoint-5", 5)
    (tmp_path / "checkpoint-5/model.safetensors").unlink()
    (told,) = look(tmp_path).told("checkpoint-5")
    assert told.startswith("missing-shard checkpoint-5: no model weights are here")


def test_a_gap_among_random_states_is_missing(look: Look, tmp_path: Path) -> None:
    write_hf_trainer(tmp_path / "checkpoint-5", 5, world_size=4, rng_ranks=[0, 1, 3])
    assert look(tmp_path).told("checkpoint-5") == [
        "missing-shard checkpoint-5/rng_state_2.pth: is missing: 3 of at least 4 ranks are here"
    ]


def test_fewer_random_states_than_beside_are_missing(look: Look, tmp_path: Path) -> None:
    write_hf_trainer(tmp_path / "checkpoint-5", 5, world_size=3)
    write_hf_trainer(tmp_path / "checkpoint-6", 6, world_size=3, rng_ranks=[0, 1])
    seen = look(tmp_path)
    assert seen.whole == ["checkpoint-5"]
    assert seen.told("checkpoint-6") == [
        "missing-shard checkpoint-6/rng_state_2.pth: is missing: checkpoint-5 has 3"
    ]


def test_a_run_that_shrank_is_believed_from_its_second_save(look: Look, tmp_path: Path) -> None:
    for step, ranks in ((5, 4), (6, 2), (7, 2)):
        write_hf_trainer(tmp_path / f"checkpoint-{step}", step, world_size=ranks)
    assert look(tmp_path).whole == ["checkpoint-5", "checkpoint-6", "checkpoint-7"]


def test_saving_only_the_model_serves_weights_only(look: Look, tmp_path: Path) -> None:
    directory = write_hf_trainer(tmp_path / "checkpoint-5", 5)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (directory / name).unlink()
    seen = look(tmp_path)["checkpoint-5"]
    assert (seen.findings, seen.purposes) == ((), (Purpose.WEIGHTS,))


def test_another_global_step_than_the_name_says_is_refused(look: Look, tmp_path: Path) -> None:
    write_hf_trainer(tmp_path / "checkpoint-5", 6)
    assert look(tmp_path).told("checkpoint-5") == [
        "torn checkpoint-5/trainer_state.json: says global_step 6, the directory's name says 5"
    ]


def test_a_name_without_a_step_takes_the_states(look: Look, tmp_path: Path) -> None:
    write_hf_trainer(tmp_path / "final", 6)
    write_hf_trainer(tmp_path / "checkpoint-5", 5)
    seen = look(tmp_path)["final"]
    assert (seen.step, seen.step_kind) == (6, StepKind.STEP)


def test_a_cut_state_file_is_refused(look: Look, tmp_path: Path) -> None:
    truncate(write_hf_trainer(tmp_path / "checkpoint-5", 5) / "trainer_state.json", by_bytes=4)
    assert "does not parse as JSON" in look(tmp_path).told("checkpoint-5")[0]


def test_a_state_nested_without_end_is_refused(look: Look, tmp_path: Path) -> None:
    directory = write_hf_trainer(tmp_path / "checkpoint-5", 5)
    (directory / "trainer_state.json").write_text("[" * 200_000)
    assert "does not parse as JSON" in look(tmp_path).told("checkpoint-5")[0]


def test_a_total_size_larger_than_the_tensors_is_torn(look: Look, tmp_path: Path) -> None:
    index = write_hf_trainer(tmp_path / "checkpoint-5", 5, model_shards=2) / (
        "model.safetensors.index.json"
    )
    told = json.loads(index.read_text())
    held = told["metadata"]["total_size"]
    told["metadata"]["total_size"] = held + 4
    index.write_text(json.dumps(told))
    assert look(tmp_path).told("checkpoint-5") == [
        "torn checkpoint-5/model.safetensors.index.json: "
        f"says total_size {held + 4}, but its files hold {held} bytes of tensors"
    ]


def test_a_smaller_total_size_is_only_noted(look: Look, tmp_path: Path) -> None:
    index = write_hf_trainer(tmp_path / "checkpoint-5", 5, model_shards=2) / (
        "model.safetensors.index.json"
    )
    told = json.loads(index.read_text())
    told["metadata"]["total_size"] -= 0.5
    index.write_text(json.dumps(told))
    seen = look(tmp_path)["checkpoint-5"]
    assert (seen.findings, [note.kind for note in seen.notes]) == ((), ["total-size"])


def test_a_shard_without_a_tensor_that_is_mapped_to_it_is_torn(look: Look, tmp_path: Path) -> None:
    directory = write_hf_trainer(tmp_path / "checkpoint-5", 5, model_shards=2)
    shutil.copyfile(
        directory / "model-00001-of-00002.safetensors",
        directory / "model-00002-of-00002.safetensors",
    )
    (told,) = look(tmp_path).told("checkpoint-5")
    assert told.startswith("torn checkpoint-5/model-00002-of-00002.safetensors: does not hold")


def test_metrics_of_the_step_come_as_they_are_spelled(look: Look, tmp_path: Path) -> None:
    directory = write_hf_trainer(tmp_path / "checkpoint-5", 5)
    state = directory / "trainer_state.json"
    state.write_text(
        '{"global_step": 5, "log_history": [{"step": 4, "eval_old": 9.0}, {"step": 5, '
        '"eval_loss": 0.30, "eval_big": 1e-7, "eval_bad": NaN, "eval_n": 3, "loss": 1.0, '
        '"eval_text": "no", "eval_on": true}, 7]}'
    )
    assert look(tmp_path)["checkpoint-5"].metrics == (
        ("eval_bad", "nan"),
        ("eval_big", "1e-7"),
        ("eval_loss", "0.30"),
        ("eval_n", "3"),
    )


@pytest.mark.parametrize(
    ("best", "kinds"),
    [
        ("/old/cluster/run/checkpoint-5", []),
        ("/old/run/checkpoint-3", ["foreign-path"]),
        ("", []),
        (None, []),
    ],
)
def test_a_recorded_best_of_elsewhere_is_noted_and_never_followed(
    look: Look, tmp_path: Path, best: str | None, kinds: list[str]
) -> None:
    for step in (5, 6):
        state = {"best_model_checkpoint": best}
        write_hf_trainer(tmp_path / f"checkpoint-{step}", step, state=state)
    seen = look(tmp_path)["checkpoint-6"]
    assert (seen.findings, [note.kind for note in seen.notes]) == ((), kinds)


def test_the_output_directory_with_final_weights_hides_no_checkpoint(
    look: Look, tmp_path: Path
) -> None:
    write_hf_trainer(tmp_path / "out", 9)
    write_hf_trainer(tmp_path / "out/checkpoint-5", 5)
    assert "out/checkpoint-5" in look(tmp_path).whole


def test_a_save_over_an_older_one_that_died_is_torn(look: Look, tmp_path: Path) -> None:
    directory = write_hf_trainer(tmp_path / "checkpoint-5", 5)
    late_ns = WRITTEN_AT_NS + 3 * TICK_NS
    os.utime(directory / "optimizer.pt", ns=(late_ns, late_ns))

    def born(_path: str, stat: FileStat) -> int:
        return min(stat.mtime_ns, WRITTEN_AT_NS)

    assert look(tmp_path, born=born).told("checkpoint-5") == [
        "torn checkpoint-5/optimizer.pt: written after its marker trainer_state.json (by 0.20 s)"
    ]


def test_random_states_of_other_ranks_may_be_younger_than_the_state(
    look: Look, tmp_path: Path
) -> None:
    directory = write_hf_trainer(tmp_path / "checkpoint-5", 5, world_size=2)
    late_ns = WRITTEN_AT_NS + 3 * TICK_NS
    os.utime(directory / "rng_state_1.pth", ns=(late_ns, late_ns))
    seen = look(tmp_path, born=lambda _path, stat: min(stat.mtime_ns, WRITTEN_AT_NS))
    assert seen.whole == ["checkpoint-5"]


def _with_deepspeed(run: Path, ranks: list[int], *, model: bool = True) -> Path:
    directory = write_hf_trainer(
        run / "checkpoint-2", 2, world_size=4, optimizer=False, rng_ranks=ranks
    )
    write_deepspeed(directory, 2, world_size=4, bf16=True, ranks=ranks)
    if not model:
        (directory / "model.safetensors").unlink()
    return directory


def test_with_deepspeed_inside_all_its_ranks_are_one_whole(look: Look, tmp_path: Path) -> None:
    _with_deepspeed(tmp_path, [0, 1, 2, 3])
    seen = look(tmp_path)["checkpoint-2"]
    assert (seen.findings, seen.world_size, seen.reshardable) == ((), 4, False)
    assert seen.purposes == BOTH


@pytest.mark.parametrize("ranks", [[0, 1], [2, 3]])
def test_a_node_with_half_of_the_ranks_expects_the_others(
    look: Look, tmp_path: Path, ranks: list[int]
) -> None:
    _with_deepspeed(tmp_path, ranks)
    seen = look(tmp_path)
    here = seen["checkpoint-2"]
    others = sorted({0, 1, 2, 3} - set(ranks))
    assert [f.path.rpartition("/")[2] for f in here.findings] == [
        *(f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in others),
        *(f"rng_state_{rank}.pth" for rank in others),
    ]
    assert f"ranks {ranks[0]},{ranks[1]} of 4 are here" in seen.told("checkpoint-2")[0]
    assert len(here.expected) == len(here.shards) + 4
    assert here.common_file == "trainer_state.json"


def test_deepspeed_without_16_bit_weights_serves_resuming_only(look: Look, tmp_path: Path) -> None:
    _with_deepspeed(tmp_path, [0, 1, 2, 3], model=False)
    seen = look(tmp_path)["checkpoint-2"]
    assert (seen.findings, seen.purposes) == ((), (Purpose.RESUME,))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "missing-shard checkpoint-2/latest: is missing: DeepSpeed finds its tag by it"),
        ("", "torn checkpoint-2/latest: is empty (0 bytes)"),
        ("global_step1", "missing-shard checkpoint-2/latest: names global_step1, which is not"),
    ],
)
def test_the_pointer_inside_must_name_the_tag_inside(
    look: Look, tmp_path: Path, text: str | None, told: str
) -> None:
    latest = _with_deepspeed(tmp_path, [0, 1, 2, 3]) / "latest"
    latest.unlink()
    if text is not None:
        latest.write_text(text)
    assert look(tmp_path).told("checkpoint-2")[0].startswith(told)


def _with_fsdp(run: Path) -> Path:
    directory = write_hf_trainer(run / "checkpoint-2", 2, world_size=2, optimizer=False)
    (directory / "model.safetensors").unlink()
    write_dcp(directory / "pytorch_model_fsdp_0")
    write_dcp(directory / "optimizer_0")
    return directory


def test_sharded_fsdp_state_is_two_dcp_directories(look: Look, tmp_path: Path) -> None:
    _with_fsdp(tmp_path)
    seen = look(tmp_path)["checkpoint-2"]
    assert (seen.findings, seen.reshardable, seen.world_size) == ((), True, 2)
    assert "optimizer_0/__1_0.distcp" in seen.expected


@pytest.mark.parametrize("part", ["pytorch_model_fsdp_0", "optimizer_0"])
def test_a_missing_shard_of_either_fsdp_part_is_told(look: Look, tmp_path: Path, part: str) -> None:
    (_with_fsdp(tmp_path) / part / "__1_0.distcp").unlink()
    (told,) = look(tmp_path).told("checkpoint-2")
    assert told.startswith(f"missing-shard checkpoint-2/{part}/__1_0.distcp: ")


def test_fsdp_without_its_optimizer_is_not_whole(look: Look, tmp_path: Path) -> None:
    shutil.rmtree(_with_fsdp(tmp_path) / "optimizer_0")
    assert look(tmp_path).whole == []


def test_full_fsdp_state_is_two_files(look: Look, tmp_path: Path) -> None:
    directory = write_hf_trainer(tmp_path / "checkpoint-2", 2, world_size=2, optimizer=False)
    (directory / "model.safetensors").unlink()
    write_torch_file(directory / "pytorch_model_fsdp.bin")
    assert look(tmp_path).told("checkpoint-2") == [
        "missing-shard checkpoint-2/optimizer.pt: "
        "is missing: resuming would start the optimizer anew"
    ]
    write_torch_file(directory / "optimizer.bin")
    assert look(tmp_path).whole == ["checkpoint-2"]


def test_fsdp_files_by_rank_must_be_contiguous_and_do_not_reshard(
    look: Look, tmp_path: Path
) -> None:
    directory = write_hf_trainer(tmp_path / "checkpoint-2", 2, world_size=2, optimizer=False)
    (directory / "model.safetensors").unlink()
    for rank in range(2):
        write_torch_file(directory / f"pytorch_model_fsdp_0_rank{rank}.bin")
        write_torch_file(directory / f"optimizer_0_rank{rank}.bin")
    seen = look(tmp_path)["checkpoint-2"]
    assert (seen.findings, seen.reshardable, seen.world_size) == ((), False, 2)
    (directory / "optimizer_0_rank1.bin").unlink()
    assert look(tmp_path).told("checkpoint-2") == [
        "missing-shard checkpoint-2/optimizer_0_rank1.bin: "
        "is missing: 1 of at least 2 ranks are here"
    ]


def test_a_staging_directory_is_no_checkpoint(look: Look, tmp_path: Path) -> None:
    write_hf_trainer(tmp_path / "checkpoint-50", 50)
    write_hf_trainer(tmp_path / "tmp-checkpoint-60", 60)
    assert [s.name for s in look(tmp_path).sightings] == ["checkpoint-50"]


def test_a_rank_no_run_ever_had_is_not_believed(look: Look, tmp_path: Path) -> None:
    write_hf_trainer(tmp_path / "checkpoint-5", 5, world_size=2, rng_ranks=[0, 9_999_999])
    (told,) = look(tmp_path).told("checkpoint-5")
    assert told.endswith("2 of at least 10000000 ranks are here: not believable")
