"""DeepSpeed tags: the exact set from the ranks that model states name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import Depth
from ckptgov.testing.builders import Tensor, flip_bit, truncate, write_deepspeed, write_torch_file

Look = Callable[..., Any]

BF16 = {"bf16": {"enabled": True}}
ZERO_0 = {"zero_optimization": {"stage": 0}}
WHOLE = ["zero0", "zero1-bf16", "zero2", "zero3"]


def _states(step: int = 5, dp: int = 2, mp: int = 1, **more: object) -> dict[str, object]:
    return {
        "optimizer": None,
        "global_steps": step,
        "dp_world_size": dp,
        "mp_world_size": mp,
        **more,
    }


@pytest.mark.parametrize("sample", WHOLE)
def test_real_tags_of_every_stage_are_whole(look: Look, samples: Path, sample: str) -> None:
    seen = look(samples / "deepspeed" / sample)
    assert seen.whole == [s.name for s in seen.sightings] != []
    for sighting in seen.sightings:
        assert (sighting.world_size, sighting.reshardable) == (2, False)
        assert sighting.step_kind is StepKind.STEP
        assert f"global_step{sighting.step}" == sighting.name


@pytest.mark.parametrize("sample", WHOLE)
def test_plain_copies_are_still_whole(
    look: Look, samples: Path, tmp_path: Path, sample: str
) -> None:
    copied = shutil.copytree(
        samples / "deepspeed" / sample, tmp_path / "run", copy_function=shutil.copyfile
    )
    assert look(copied).whole == look(samples / "deepspeed" / sample).whole


def test_latest_lies_about_a_tag_whose_rank_died(look: Look, samples: Path) -> None:
    seen = look(samples / "deepspeed-torn/rank1-killed-latest-lies")
    assert seen.whole == ["global_step1"]
    assert seen.told("global_step2") == [
        "torn global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt: is empty (0 bytes)"
    ]
    assert [p.names for p in seen.survey.pointers] == ["global_step2"]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_rank_of_the_set_must_be_here(look: Look, tmp_path: Path, stage: int) -> None:
    write_deepspeed(tmp_path, 5, world_size=4, stage=stage, ranks=[0, 1])
    seen = look(tmp_path)
    parts = 2 if stage == 3 else 1
    assert len(seen.told("global_step5")) == 2 * parts
    assert all(text.endswith("ranks 0,1 of 4 are here") for text in seen.told("global_step5"))
    assert len(seen["global_step5"].expected) == 4 * parts + (stage < 3)
    assert len(seen["global_step5"].shards) == 2 * parts + (stage < 3)


def test_the_half_of_one_node_names_the_file_all_nodes_share(look: Look, tmp_path: Path) -> None:
    write_deepspeed(tmp_path, 5, world_size=4, bf16=True, ranks=[2, 3])
    assert look(tmp_path)["global_step5"].common_file == "mp_rank_00_model_states.pt"


def test_without_model_states_the_set_is_not_known(look: Look, tmp_path: Path) -> None:
    tag = write_deepspeed(tmp_path, 5, world_size=4, ranks=[0, 1])
    (tag / "mp_rank_00_model_states.pt").unlink()
    assert look(tmp_path).told("global_step5") == [
        "missing-shard global_step5: "
        "no model states file that tells the full set: ranks 0,1 of ? are here"
    ]


def test_without_any_optimizer_part_all_are_missing(look: Look, tmp_path: Path) -> None:
    config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    write_torch_file(
        tmp_path / "global_step5/mp_rank_00_model_states.pt", _states(ds_config=config)
    )
    told = look(tmp_path).told("global_step5")
    assert len(told) == 2
    assert "/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt: is missing: rank 0 of 2" in told[0]


@pytest.mark.parametrize("config", [None, {**ZERO_0, **BF16}])
def test_without_parts_and_word_of_them_nothing_is_proven(
    look: Look, tmp_path: Path, config: object
) -> None:
    write_torch_file(
        tmp_path / "global_step5/mp_rank_00_model_states.pt", _states(ds_config=config)
    )
    (told,) = look(tmp_path).told("global_step5")
    assert told.startswith("unproven global_step5: no optimizer part is here, and nothing tells")


def test_global_steps_wins_over_the_name_of_the_tag(look: Look, tmp_path: Path) -> None:
    write_deepspeed(tmp_path, 5, world_size=1, pointer=False).rename(tmp_path / "global_step6")
    seen = look(tmp_path)["global_step6"]
    assert (seen.step, seen.findings) == (5, ())
    assert [(note.kind, note.path) for note in seen.notes] == [("step", "global_step6")]


def test_a_free_text_tag_has_the_step_of_its_states(look: Look, tmp_path: Path) -> None:
    write_deepspeed(tmp_path, 5, world_size=1, pointer=False).rename(tmp_path / "best")
    seen = look(tmp_path)["best"]
    assert (seen.step, seen.step_kind, seen.notes) == (5, StepKind.STEP, ())
    assert (seen.resume.parent, seen.resume.tag, seen.resume.path) == ("", "best", "best")


def test_parts_of_an_older_larger_save_are_extras(look: Look, tmp_path: Path) -> None:
    write_deepspeed(tmp_path, 5, world_size=4)
    write_deepspeed(tmp_path, 5, world_size=2)
    seen = look(tmp_path)["global_step5"]
    assert (seen.findings, len(seen.shards), len(seen.extras)) == ((), 3, 2)


def test_parts_under_two_prefixes_are_of_two_saves(look: Look, tmp_path: Path) -> None:
    write_deepspeed(tmp_path, 5, world_size=2)
    write_deepspeed(tmp_path, 5, world_size=2, bf16=True)
    assert "torn global_step5: optimizer parts under two names (, bf16_): of two saves" in (
        look(tmp_path).told("global_step5")
    )


def test_model_states_of_two_steps_are_found_deep(look: Look, tmp_path: Path) -> None:
    tag = write_deepspeed(tmp_path, 5, world_size=2, stage=3)
    write_torch_file(tag / "zero_pp_rank_1_mp_rank_00_model_states.pt", _states(step=6))
    assert look(tmp_path, depth=Depth.STRUCTURE).whole == ["global_step5"]
    (told,) = look(tmp_path).told("global_step5")
    assert told.endswith("says global_steps 6 where another says 5: parts of two saves")


def test_a_truncated_part_is_torn(look: Look, tmp_path: Path) -> None:
    tag = write_deepspeed(tmp_path, 5, world_size=2)
    truncate(tag / "zero_pp_rank_1_mp_rank_00_optim_states.pt", by_bytes=1)
    (told,) = look(tmp_path, depth=Depth.STRUCTURE).told("global_step5")
    assert told.startswith(f"torn global_step5/{'zero_pp_rank_1_mp_rank_00_optim_states.pt'}: ")


def test_a_flipped_tensor_byte_is_corrupt_when_looked_at_deep(look: Look, tmp_path: Path) -> None:
    tag = write_deepspeed(tmp_path, 5, world_size=1)
    part = tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    flip_bit(part, _payload(part), 0)
    assert look(tmp_path, depth=Depth.STRUCTURE).whole == ["global_step5"]
    (told,) = look(tmp_path).told("global_step5")
    assert told.startswith("corrupt ")
    assert "differs from its CRC" in told


def _payload(path: Path) -> int:
    """An offset inside the first tensor's record, which is aligned to 64 bytes."""
    content = path.read_bytes()
    return -(-(content.index(b"/data/0") + 7) // 64) * 64 + 8


def test_tensor_parallel_ranks_multiply(look: Look, tmp_path: Path) -> None:
    for rank in range(2):
        write_torch_file(
            tmp_path / f"global_step5/mp_rank_{rank:02d}_model_states.pt", _states(dp=1, mp=2)
        )
        write_torch_file(
            tmp_path / f"global_step5/zero_pp_rank_0_mp_rank_{rank:02d}_optim_states.pt"
        )
    assert look(tmp_path)["global_step5"].world_size == 2
    assert look(tmp_path).whole == ["global_step5"]
    (tmp_path / "global_step5/mp_rank_01_model_states.pt").unlink()
    assert len(look(tmp_path).told("global_step5")) == 1


def test_pipeline_ranks_count_even_where_mp_world_size_leaves_them_out(
    look: Look, tmp_path: Path
) -> None:
    dims = {"pp_degree": 2, "tp_degree": 1}
    write_torch_file(
        tmp_path / "global_step5/mp_rank_00_model_states.pt",
        _states(dp=1, checkpoint_parallel_dimensions=dims),
    )
    seen = look(tmp_path)["global_step5"]
    assert seen.world_size == 2
    assert "mp_rank_01_model_states.pt" in seen.expected


def test_zero_0_without_an_optimizer_needs_no_parts(look: Look, tmp_path: Path) -> None:
    write_torch_file(
        tmp_path / "global_step5/mp_rank_00_model_states.pt", _states(ds_config=ZERO_0)
    )
    assert look(tmp_path).whole == ["global_step5"]


def _pipeline(run: Path, step: int, layers: list[int]) -> None:
    tag = run / f"global_step{step}"
    write_torch_file(tag / "mp_rank_00_model_states.pt", _states(step=step, dp=1, ds_config=ZERO_0))
    for layer in layers:
        write_torch_file(tag / f"layer_{layer:02d}-model_00-model_states.pt", Tensor())


def test_pipeline_layers_alone_are_unproven(look: Look, tmp_path: Path) -> None:
    _pipeline(tmp_path, 5, [0, 2, 3])
    (told,) = look(tmp_path).told("global_step5")
    assert told.startswith("unproven global_step5: nothing on disk tells how many pipeline layers")


def test_pipeline_layers_are_compared_with_other_tags(look: Look, tmp_path: Path) -> None:
    _pipeline(tmp_path, 5, [0, 2, 3])
    _pipeline(tmp_path, 6, [0, 2])
    seen = look(tmp_path)
    assert seen.whole == ["global_step5"]
    assert seen.told("global_step6") == [
        "missing-shard global_step6/layer_03-model_00-model_states.pt: "
        "is missing: global_step5 has it"
    ]


def test_a_hole_among_experts_is_missing(look: Look, tmp_path: Path) -> None:
    for step, experts in ((5, [(0, 0), (0, 1), (1, 0), (1, 1)]), (6, [(0, 0), (0, 1), (1, 0)])):
        tag = tmp_path / f"global_step{step}"
        write_torch_file(
            tag / "mp_rank_00_model_states.pt", _states(step=step, dp=1, ds_config=ZERO_0)
        )
        for layer, expert in experts:
            name = f"layer_{layer}_expert_{expert}_mp_rank_00_model_states.pt"
            write_torch_file(tag / name)
    shutil.rmtree(tmp_path / "global_step5")
    assert any("layer_1_expert_1_mp_rank_00" in t for t in look(tmp_path).told("global_step6"))


def test_unbelievable_rank_counts_are_refused(look: Look, tmp_path: Path) -> None:
    write_torch_file(tmp_path / "global_step5/mp_rank_00_model_states.pt", _states(dp=10**9))
    assert "says 1000000000 x 1 ranks: not believable" in look(tmp_path).told("global_step5")[0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("global_step5", "global_step5"),
        ("global_step5\n", "global_step5"),
        ("", None),
        ("global_step9", None),
        ("../global_step5", None),
        ("/abs/global_step5", None),
        ("/global_step5", None),
        ("..", None),
    ],
)
def test_latest_names_a_tag_that_is_here_or_nothing(
    look: Look, tmp_path: Path, text: str, names: str | None
) -> None:
    write_deepspeed(tmp_path, 5, world_size=1)
    (tmp_path / "latest").write_text(text)
    (pointer,) = look(tmp_path).survey.pointers
    assert (pointer.path, pointer.text, pointer.names) == ("latest", text.strip(), names)
