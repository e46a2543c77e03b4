"""torch.save files of no framework: what their names prove, and what they do not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.checkpoint import StepKind
from ckptgov.testing.builders import (
    Tensor,
    truncate,
    write_torch_file,
    write_torch_shards,
    write_world_size_set,
)

Look = Callable[..., Any]

UNPROVEN = "nothing on disk tells its full set: declare a rule or commit it"


def test_real_files_per_rank_are_unproven(look: Look, samples: Path) -> None:
    seen = look(samples / "plain-torch-save/4rank")
    for name in ("step_1", "step_2"):
        assert seen.told(name) == [f"unproven {name}: {UNPROVEN}"]
        assert len(seen[name].shards) == 4


def test_a_real_empty_rank_is_torn(look: Look, samples: Path) -> None:
    assert look(samples / "plain-torch-save-torn/rank2-killed").told("step_3") == [
        "torn step_3/rank_2.pt: is empty (0 bytes)",
        f"unproven step_3: {UNPROVEN}",
    ]


def test_a_gap_among_ranks_is_missing(look: Look, samples: Path, tmp_path: Path) -> None:
    run = shutil.copytree(samples / "plain-torch-save/4rank", tmp_path / "run")
    (run / "step_1/rank_1.pt").unlink()
    assert look(run).told("step_1")[0] == (
        "missing-shard step_1/rank_1.pt: is missing: 3 of at least 4 are here"
    )


def test_one_rank_alone_is_no_single_file(look: Look, tmp_path: Path) -> None:
    write_torch_file(tmp_path / "step_1/rank_0.pt")
    assert look(tmp_path).whole == []


class TestNumberedShards:
    @pytest.fixture
    def flat(self, tmp_path: Path) -> Path:
        write_torch_shards(tmp_path, "checkpoint_5_100", range(4))
        return tmp_path

    def test_a_group_is_whole_where_none_beside_it_has_more(self, look: Look, flat: Path) -> None:
        write_torch_shards(flat, "checkpoint_last", range(4))
        seen = look(flat)
        assert seen.whole == ["checkpoint_5_100", "checkpoint_last"]
        one = seen["checkpoint_5_100"]
        assert (one.step, one.step_kind) == (100, StepKind.ORDINAL)
        assert one.shards[0].path == "checkpoint_5_100-shard0.pt"
        assert seen["checkpoint_last"].step_kind is StepKind.NONE

    def test_alone_it_is_unproven(self, look: Look, flat: Path) -> None:
        (told,) = look(flat).told("checkpoint_5_100")
        assert told.startswith("unproven checkpoint_5_100: no other group beside it"), told

    def test_empty_and_cut_shards_are_torn(self, look: Look, flat: Path) -> None:
        shards = write_torch_shards(flat, "checkpoint_last", range(4))
        shards[0].write_bytes(b"")
        truncate(shards[1], by_bytes=90)
        told = look(flat).told("checkpoint_last")
        assert told[0] == "torn checkpoint_last-shard0.pt: is empty (0 bytes)"
        assert told[1].startswith("torn checkpoint_last-shard1.pt: ends inside a record (")
        assert len(told) == 2

    def test_a_temporary_shard_is_none(self, look: Look, flat: Path) -> None:
        write_torch_shards(flat, "checkpoint_5_200", range(3))
        (flat / "checkpoint_5_200-shard2.pt").rename(flat / "checkpoint_5_200-shard2.pt.tmp")
        seen = look(flat)
        assert seen.whole == ["checkpoint_5_100"]
        assert seen.told("checkpoint_5_200") == [
            "missing-shard checkpoint_5_200-shard2.pt: is missing: checkpoint_5_100 has 4",
            "missing-shard checkpoint_5_200-shard3.pt: is missing: checkpoint_5_100 has 4",
            "being-written checkpoint_5_200-shard2.pt.tmp: has a temporary name: never a shard",
        ]

    def test_a_hole_is_missing(self, look: Look, flat: Path) -> None:
        write_torch_shards(flat, "checkpoint_6_200", [0, 1, 3])
        assert look(flat).told("checkpoint_6_200") == [
            "missing-shard checkpoint_6_200-shard2.pt: is missing: a gap"
        ]


class TestWorldSizeInTheName:
    @pytest.fixture
    def actor(self, tmp_path: Path) -> Path:
        actor = tmp_path / "global_step_50/actor"
        for stem in ("model", "optim"):
            write_world_size_set(actor, stem, 4)
        return actor

    def test_all_stems_of_one_size_are_one_checkpoint(
        self, look: Look, tmp_path: Path, actor: Path
    ) -> None:
        seen = look(tmp_path)["global_step_50"]
        assert (seen.findings, seen.step, len(seen.shards)) == ((), 50, 8)
        assert (seen.world_size, seen.reshardable) == (4, False)
        assert seen.found.variant == "world_size_4"

    def test_another_size_there_is_another_candidate(
        self, look: Look, tmp_path: Path, actor: Path
    ) -> None:
        write_world_size_set(actor, "model", 8, ranks=range(4))
        of4, of8 = look(tmp_path).sightings
        assert (of4.name, of4.found.variant, of4.findings) == ("global_step_50", "world_size_4", ())
        assert (of8.name, of8.found.variant, len(of8.findings)) == (
            "global_step_50",
            "world_size_8",
            4,
        )
        assert of8.findings[0].evidence == "is missing: 4 of 8 ranks are here"
        assert len(of8.expected) == 8

    def test_each_rank_of_each_stem_is_needed(
        self, look: Look, tmp_path: Path, actor: Path
    ) -> None:
        (actor / "optim_world_size_4_rank_3.pt").unlink()
        assert look(tmp_path).told("global_step_50") == [
            "missing-shard global_step_50/actor/optim_world_size_4_rank_3.pt: "
            "is missing: 3 of 4 ranks are here"
        ]

    def test_a_cut_rank_is_torn(self, look: Look, tmp_path: Path, actor: Path) -> None:
        truncate(actor / "model_world_size_4_rank_0.pt", by_bytes=2)
        (told,) = look(tmp_path).told("global_step_50")
        assert told.startswith("torn global_step_50/actor/model_world_size_4_rank_0.pt: ")

    def test_a_stem_that_every_other_step_has_is_missing(
        self, look: Look, tmp_path: Path, actor: Path
    ) -> None:
        write_world_size_set(tmp_path / "global_step_60/actor", "model", 4)
        assert look(tmp_path).told("global_step_60") == [
            "missing-shard global_step_60/actor: "
            "no optim_* part is here, and every other step has them"
        ]

    def test_two_models_of_one_step_are_one_checkpoint(
        self, look: Look, tmp_path: Path, actor: Path
    ) -> None:
        write_world_size_set(tmp_path / "global_step_50/critic", "model", 4)
        write_torch_file(tmp_path / "global_step_50/data.pt")
        (only,) = look(tmp_path).sightings
        assert len(only.shards) == 13

    def test_what_lies_beside_belongs_to_the_full_set_of_two(
        self, look: Look, tmp_path: Path, actor: Path
    ) -> None:
        write_world_size_set(actor, "model", 8, ranks=[0])
        write_torch_file(tmp_path / "global_step_50/data.pt")
        sizes = {s.found.variant: len(s.shards) for s in look(tmp_path).sightings}
        assert sizes == {"world_size_4": 9, "world_size_8": 1}

    def test_the_tracker_is_a_pointer(self, look: Look, tmp_path: Path, actor: Path) -> None:
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("50")
        assert "global_step_50" in [p.names for p in look(tmp_path).survey.pointers]

    def test_without_a_step_the_directory_names_it(self, look: Look, tmp_path: Path) -> None:
        write_world_size_set(tmp_path / "final", "model", 2)
        (only,) = look(tmp_path).sightings
        assert (only.name, only.step, only.findings) == ("final", None, ())

    def test_in_the_run_root_the_size_names_it(self, look: Look, tmp_path: Path) -> None:
        write_world_size_set(tmp_path, "model", 2)
        (only,) = look(tmp_path).sightings
        assert (only.name, only.findings) == ("world_size_2", ())

    def test_ranks_no_run_ever_had_are_not_believed(
        self, look: Look, tmp_path: Path, actor: Path
    ) -> None:
        shutil.rmtree(actor)
        write_world_size_set(actor, "model", 999_999, ranks=[0])
        (told,) = look(tmp_path).told("global_step_50")
        assert told.endswith("1 of 999999 ranks are here: not believable")


class TestSingleFiles:
    @pytest.mark.parametrize(
        ("path", "step", "kind"),
        [
            ("best_top10/acc_step_250.pth", 250, StepKind.STEP),
            ("epoch_12.pth", 12, StepKind.ORDINAL),
            ("net300.pt", 300, StepKind.ORDINAL),
            ("step=100-val/loss=0.41.pt", 100, StepKind.STEP),
            ("last.pt", None, StepKind.NONE),
        ],
    )
    def test_the_step_is_in_the_name_or_the_directorys(
        self, look: Look, tmp_path: Path, path: str, step: int | None, kind: StepKind
    ) -> None:
        write_torch_file(tmp_path / path)
        (only,) = look(tmp_path).sightings
        assert (only.name, only.step, only.step_kind) == (path, step, kind)
        assert only.findings == ()
        assert only.found.is_file

    def test_a_cut_file_is_torn(self, look: Look, tmp_path: Path) -> None:
        truncate(write_torch_file(tmp_path / "step_5.pt"), by_bytes=1)
        (told,) = look(tmp_path).told("step_5.pt")
        assert told.startswith("torn step_5.pt: ends inside a record")

    def test_a_file_of_the_format_before_zip_is_unproven(self, look: Look, tmp_path: Path) -> None:
        (tmp_path / "step_5.pt").write_bytes(bytes.fromhex("80028a0a6cfc9c46f9206aa85019") * 9)
        assert look(tmp_path).told("step_5.pt")[0].startswith("unproven step_5.pt: ")

    def test_a_name_that_says_nothing_is_no_checkpoint(self, look: Look, tmp_path: Path) -> None:
        write_torch_file(tmp_path / "features.pt", Tensor())
        assert look(tmp_path).sightings == ()

    def test_alone_where_other_steps_have_more_is_missing(self, look: Look, tmp_path: Path) -> None:
        write_torch_file(tmp_path / "step_5/model.pt")
        write_torch_file(tmp_path / "step_6/model.pt")
        write_torch_file(tmp_path / "step_6/optimizer.pt")
        seen = look(tmp_path)
        assert seen.told("step_5/model.pt") == [
            "missing-shard step_5/model.pt: is alone; step_6 also has optimizer.pt"
        ]
        assert seen.told("step_6") == [f"unproven step_6: {UNPROVEN}"]

    def test_files_with_steps_of_their_own_stay_apart(self, look: Look, tmp_path: Path) -> None:
        for step in (1, 2):
            write_torch_file(tmp_path / f"epoch_3/step_{step}.pt")
        assert look(tmp_path).whole == ["epoch_3/step_1.pt", "epoch_3/step_2.pt"]


def test_numbered_bin_files_of_another_form_are_left_to_a_person(
    look: Look, tmp_path: Path
) -> None:
    for rank in range(2):
        path = tmp_path / f"step_1/shard_{rank}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(range(256)) * 8)
    assert look(tmp_path).survey.found == ()
    write_torch_file(tmp_path / "step_1/shard_2.bin")
    assert [one.name for one in look(tmp_path).survey.found] == ["step_1"]
