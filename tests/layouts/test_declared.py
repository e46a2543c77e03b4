"""Declared rules: a person says which files make a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.layouts.base import LookSettings, Tree
from ckptgov.layouts.declared import DeclaredLayout
from ckptgov.model.checkpoint import Expect, StepKind
from ckptgov.model.facts import Depth
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.builders import truncate, write_safetensors, write_torch_file

Look = Callable[..., Any]

RANKS = Expect(glob="step_*/rank_*.pt", count=4)


def _ranks(run: Path, step: int, ranks: int = 4) -> Path:
    for rank in range(ranks):
        write_torch_file(run / f"step_{step}/rank_{rank}.pt")
    return run / f"step_{step}"


def test_a_rule_makes_real_files_per_rank_whole(look: Look, samples: Path) -> None:
    seen = look(samples / "plain-torch-save/4rank", rules=(RANKS,))
    assert seen.whole == ["step_1", "step_2"]
    one = seen["step_1"]
    assert (one.layout, one.step, one.step_kind, len(one.shards)) == (
        "declared",
        1,
        StepKind.STEP,
        4,
    )


def test_a_rule_still_refuses_real_torn_ones(look: Look, samples: Path) -> None:
    seen = look(samples / "plain-torch-save-torn/rank2-killed", rules=(RANKS,))
    assert seen.told("step_3") == [
        "torn step_3/rank_2.pt: is empty (0 bytes)",
        "missing-shard step_3: 3 of 4 files that match step_*/rank_*.pt are here",
    ]


@pytest.mark.parametrize(
    ("have", "told"),
    [
        (3, "missing-shard step_1: 3 of 4 files that match step_*/rank_*.pt are here"),
        (5, "torn step_1: 5 files match step_*/rank_*.pt, and the rule says 4"),
    ],
)
def test_the_count_is_exact(look: Look, tmp_path: Path, have: int, told: str) -> None:
    _ranks(tmp_path, 1, have)
    assert look(tmp_path, rules=(RANKS,)).told("step_1") == [told]


def test_a_cut_shard_is_torn(look: Look, tmp_path: Path) -> None:
    truncate(_ranks(tmp_path, 1) / "rank_2.pt", by_bytes=3)
    (told,) = look(tmp_path, rules=(RANKS,)).told("step_1")
    assert told.startswith("torn step_1/rank_2.pt: ends inside a record")


def test_the_marker_must_lie_beside_the_files(look: Look, tmp_path: Path) -> None:
    directory = _ranks(tmp_path, 1)
    rules = (Expect(glob="step_*/rank_*.pt", marker="DONE"),)
    (told,) = look(tmp_path, rules=rules).told("step_1")
    assert told.startswith("being-written step_1/DONE: ")
    (directory / "DONE").touch()
    seen = look(tmp_path, rules=rules)["step_1"]
    assert seen.findings == ()
    assert [shard.path for shard in seen.shards if shard.is_marker] == ["DONE"]


def test_a_rule_with_neither_count_nor_marker_proves_nothing(look: Look, tmp_path: Path) -> None:
    _ranks(tmp_path, 1)
    (told,) = look(tmp_path, rules=(Expect(glob="step_*/*.pt"),)).told("step_1")
    assert told.startswith("unproven step_1: the declared rule has neither count nor marker")


@pytest.mark.parametrize(
    ("glob", "matches"),
    [
        ("step_*/*.pt", 0),
        ("step_*/**/*.pt", 2),
        ("**/*.pt", 2),
        ("step_*/part/*.pt", 2),
        ("step_*/part/[ab].pt", 2),
        ("step_*/part/[!a].pt", 1),
        ("step_*/part/?.pt", 2),
        ("step_*/part/**", 2),
        ("other/**/*.pt", 0),
    ],
)
def test_globs_cross_directories_only_with_two_stars(
    look: Look, tmp_path: Path, glob: str, matches: int
) -> None:
    for name in "ab":
        write_torch_file(tmp_path / f"step_1/part/{name}.pt")
    seen = look(tmp_path, rules=(Expect(glob=glob, count=2),))
    declared = [s for s in seen.sightings if s.layout == "declared"]
    assert sum(len(s.shards) for s in declared) == matches
    assert all(s.name == "step_1" for s in declared)


def test_files_with_the_step_in_their_own_names_are_grouped(look: Look, tmp_path: Path) -> None:
    for step in (1, 2):
        for rank in range(2):
            write_torch_file(tmp_path / f"ckpt/iter_{step}_of_{rank}.pt")
    seen = look(tmp_path, rules=(Expect(glob="ckpt/iter_*.pt", count=2),))
    assert seen.whole == ["ckpt/iter_1", "ckpt/iter_2"]
    assert [s.step for s in seen.sightings] == [1, 2]
    assert [shard.path for shard in seen["ckpt/iter_2"].shards] == [
        "iter_2_of_0.pt",
        "iter_2_of_1.pt",
    ]


def test_the_rules_own_expression_tells_the_step(look: Look, tmp_path: Path) -> None:
    for number in (7, 8):
        write_torch_file(tmp_path / f"save{number}x/weights.pt")
    rule = Expect(glob="save*/*.pt", count=1, step=r"save(\d+)x/")
    seen = look(tmp_path, rules=(rule,))
    assert [(s.name, s.step) for s in seen.sightings] == [("save7x", 7), ("save8x", 8)]


def test_files_without_any_step_are_one_checkpoint_per_directory(
    look: Look, tmp_path: Path
) -> None:
    for name in "ab":
        write_safetensors(tmp_path / f"final/{name}.safetensors")
    seen = look(tmp_path, rules=(Expect(glob="final/*", count=2),))
    assert (seen.whole, seen["final"].step_kind) == (["final"], StepKind.NONE)


def test_other_files_there_are_extras(look: Look, tmp_path: Path) -> None:
    (_ranks(tmp_path, 1) / "log.txt").write_text("x")
    assert look(tmp_path, rules=(RANKS,))["step_1"].extras == ("log.txt",)


def test_what_no_rule_matches_is_left_to_the_layouts(look: Look, tmp_path: Path) -> None:
    _ranks(tmp_path, 1)
    write_torch_file(tmp_path / "other/epoch_2.pth")
    layouts = {s.name: s.layout for s in look(tmp_path, rules=(RANKS,)).sightings}
    assert layouts == {"step_1": "declared", "other/epoch_2.pth": "torch"}


def test_formats_nobody_can_check_are_noted(look: Look, tmp_path: Path) -> None:
    (tmp_path / "step_1").mkdir()
    (tmp_path / "step_1/a.bin").write_bytes(b"raw numbers, no zip")
    (tmp_path / "step_1/b.pt").write_bytes(bytes.fromhex("80028a0a6cfc9c46f9206aa85019") * 9)
    seen = look(tmp_path, rules=(Expect(glob="step_*/*", count=2),))["step_1"]
    assert (seen.findings, [note.kind for note in seen.notes]) == ((), ["unverifiable"] * 2)


def test_zeros_where_a_file_should_be_are_torn(look: Look, tmp_path: Path) -> None:
    (tmp_path / "step_1").mkdir()
    (tmp_path / "step_1/a.bin").write_bytes(bytes(4096))
    (told,) = look(tmp_path, rules=(Expect(glob="step_*/*", count=1),)).told("step_1")
    assert told.startswith("torn step_1/a.bin: starts with zeros")


def test_a_layout_can_be_made_of_one_rule(tmp_path: Path) -> None:
    _ranks(tmp_path, 1)
    layout = DeclaredLayout((RANKS,))
    storage = PosixStorage(tmp_path)
    with Tree(storage, "", LookSettings(now_ns=0)) as tree:
        claim = layout.find(tree, "step_1")
        assert claim is not None
        assert layout.examine(tree, claim.found[0], Depth.DEEP).findings == ()
        assert layout.find(tree, "") is None
    storage.close()
