"""Joining places: copies of one content are one checkpoint; halves only when proven one save."""

from __future__ import annotations

from msgspec.structs import replace

from ckptgov.layouts.base import resume_args
from ckptgov.model.checkpoint import Evidence, StepKind
from ckptgov.model.facts import Finding, Found, Reason, SeenShard, Sighting
from ckptgov.planning.merge import Half, absent_everywhere, join_places, prove_one_save


def half(
    node: str, paths: tuple[str, ...], *, common: str | None = "d", at: int = 0, size: int = 1
):
    found = Found(name="checkpoint-2", layout="hf-trainer", step=2, step_kind=StepKind.STEP)
    return Half(
        place=node,
        node=node,
        common_digest=common,
        sighting=Sighting(
            found=found,
            step=2,
            step_kind=StepKind.STEP,
            shards=tuple(SeenShard(path, size) for path in paths),
            expected=("a", "b", "c"),
            resume=resume_args(found, step=2, tag=""),
            newest_mtime_ns=at,
        ),
    )


def test_halves_with_one_common_file_and_near_times_are_one_save() -> None:
    assert prove_one_save([half("n0", ("a",)), half("n1", ("b",), at=5)], window_ns=10) is None


def test_a_missing_or_different_common_file_or_a_wide_gap_proves_nothing() -> None:
    first = half("n0", ("a",))
    for other in (
        half("n1", ("b",), common=None),
        half("n1", ("b",), common="x"),
        half("n1", ("b",), at=11),
        half("n1", ("a",), size=2),
    ):
        doubt = prove_one_save([first, other], window_ns=10)
        assert doubt is not None
        assert doubt.startswith("not proven one save")


def test_what_no_node_holds_is_named() -> None:
    assert absent_everywhere([half("n0", ("a",)), half("n1", ("b",))]) == ["c"]


def part(checkpoint, place: str, held: tuple[str, ...], missing: tuple[str, ...]):
    one = checkpoint(2, content="sha256:x")
    copy = replace(one.copies[0], place=place, shards=held)
    findings = tuple(
        Finding(Reason.MISSING_SHARD, f"step_2/{path}", "elsewhere") for path in missing
    )
    return replace(one, copies=(copy,), findings=findings, evidence=Evidence.NONE)


def test_verified_parts_that_cover_all_shards_are_whole(checkpoint) -> None:
    places = [[part(checkpoint, "p0", ("a",), ("b",))], [part(checkpoint, "p1", ("b",), ("a",))]]
    (joined,) = join_places(places)
    assert not joined.findings
    assert joined.evidence is Evidence.DIGEST
    assert len(joined.copies) == 2


def test_a_part_that_was_not_verified_covers_nothing(checkpoint) -> None:
    weak = part(checkpoint, "p1", ("b",), ("a",))
    weak = replace(weak, copies=(replace(weak.copies[0], evidence=Evidence.NONE),))
    (joined,) = join_places([[part(checkpoint, "p0", ("a",), ("b",))], [weak]])
    assert [finding.path for finding in joined.findings] == ["step_2/b"]


def test_a_whole_copy_outweighs_a_broken_one(checkpoint) -> None:
    whole = checkpoint(2, content="sha256:x")
    broken = checkpoint(2, content="sha256:x", reason=Reason.CORRUPT)
    (joined,) = join_places([[broken], [whole]])
    assert not joined.findings
    assert len(joined.copies) == 2
