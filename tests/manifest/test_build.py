from __future__ import annotations

from itertools import permutations

import pytest
from msgspec.structs import replace

from ckptgov.errors import NoneRestorable, VerificationFailed
from ckptgov.manifest.build import merge_parts
from ckptgov.manifest.forms.manifests import encode_manifest
from ckptgov.model.checkpoint import Part, Purpose, Shard, StepKind

COMMON = Shard(".metadata", 5, f"xxh3_128:{'c' * 32}")


def part(rank: int, *, shards: tuple[Shard, ...] | None = None) -> Part:
    own = Shard(f"__{rank}_0.distcp", 10 + rank, f"xxh3_128:{rank:032x}")
    return Part(
        name="step_100",
        step=100,
        step_kind=StepKind.STEP,
        layout="dcp",
        world_size=3,
        purposes=(Purpose.RESUME, Purpose.WEIGHTS),
        save_id="one-save",
        rank=rank,
        expected_parts=3,
        shards=shards or (COMMON, own),
    )


PARTS = (part(0), part(1), part(2))


def test_parts_in_any_order_give_equal_bytes() -> None:
    merged = {
        encode_manifest(merge_parts(order, expected_paths=None)) for order in permutations(PARTS)
    }
    assert len(merged) == 1


def test_a_file_that_all_hold_comes_once_and_the_same_part_twice_counts_once() -> None:
    manifest = merge_parts([*PARTS, PARTS[0]], expected_paths=["__2_0.distcp", ".metadata"])
    assert [shard.path for shard in manifest.shards] == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "__2_0.distcp",
    ]
    assert (manifest.step, manifest.world_size) == (100, 3)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"name": "step_200"}, "name"),
        ({"step": 200}, "step"),
        ({"step_kind": StepKind.ORDINAL}, "step"),
        ({"layout": "hf"}, "layout"),
        ({"purposes": (Purpose.WEIGHTS,)}, "purpose"),
        ({"world_size": 4}, "world size"),
        ({"save_id": "another"}, "save id"),
        ({"expected_parts": 4}, "number of parts"),
    ],
)
def test_parts_that_disagree_are_not_proven_one_save(change: dict[str, object], what: str) -> None:
    other = replace(PARTS[2], **change)  # type: ignore[arg-type]
    with pytest.raises(NoneRestorable, match=f"not proven one save: .* {what}"):
        merge_parts([*PARTS[:2], other], expected_paths=None)


def test_parts_that_do_not_tell_a_world_size_agree_with_those_that_do() -> None:
    silent = replace(PARTS[0], world_size=None, save_id=None)
    assert merge_parts([silent, *PARTS[1:]], expected_paths=None).world_size == 3


def test_a_missing_part_is_named_by_number() -> None:
    with pytest.raises(NoneRestorable, match="2 of 3 parts are there"):
        merge_parts(PARTS[:2], expected_paths=None)


def test_no_part_at_all_makes_no_manifest() -> None:
    with pytest.raises(NoneRestorable, match="no part"):
        merge_parts([], expected_paths=None)


def test_a_missing_shard_is_named() -> None:
    with pytest.raises(NoneRestorable, match=r"missing shard '__3_0.distcp' and 1 more") as caught:
        merge_parts(PARTS, expected_paths={"__3_0.distcp", "__4_0.distcp", ".metadata"})
    assert not isinstance(caught.value, VerificationFailed)


@pytest.mark.parametrize(
    "claim", [replace(COMMON, bytes=6), replace(COMMON, digest=f"xxh3_128:{'d' * 32}")]
)
def test_two_parts_that_claim_one_path_differently_do_not_merge(claim: Shard) -> None:
    other = replace(PARTS[2], shards=(claim,))
    with pytest.raises(VerificationFailed, match=r"differ in shard '.metadata'"):
        merge_parts([*PARTS[:2], other], expected_paths=None)


def test_one_rank_twice_with_other_shards_does_not_merge() -> None:
    other = replace(PARTS[2], shards=(COMMON,))
    with pytest.raises(VerificationFailed, match="two parts of 2 hold different shards"):
        merge_parts([*PARTS, other], expected_paths=None)
