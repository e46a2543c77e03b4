"""DCP directories: the set its index demands, with and without collectives."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import Depth, Reason, ResumeArgs, SeenShard


@pytest.fixture
def run(samples: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(samples / "dcp/fsdp2-4rank", tmp_path / "run"))


@pytest.fixture
def ranks(samples: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(samples / "dcp/no-collectives-2rank", tmp_path / "ranks"))


def test_a_whole_checkpoint_tells_all_that_a_launcher_asks(run: Path, look: Any) -> None:
    (sighting,) = look(run).sightings
    assert (sighting.name, sighting.layout) == ("step_2", "dcp")
    assert (sighting.step, sighting.step_kind) == (2, StepKind.STEP)
    assert sighting.shards[0] == SeenShard(".metadata", 17266, is_marker=True)
    assert [s.path for s in sighting.shards[1:]] == [f"__{rank}_0.distcp" for rank in range(4)]
    assert sighting.bytes == 17266 + 43938 + 53713 + 53397 + 53461
    assert (sighting.world_size, sighting.reshardable) == (4, True)
    assert sighting.resume == ResumeArgs(path="step_2", parent="", step=2, tag="step_2")


def test_a_missing_shard_is_named(run: Path, look: Any) -> None:
    (run / "step_2/__3_0.distcp").unlink()
    looked = look(run)
    assert looked.told("step_2") == [
        "missing-shard step_2/__3_0.distcp: is missing: .metadata names it"
    ]
    assert "__3_0.distcp" in looked["step_2"].expected
    assert "__3_0.distcp" not in {shard.path for shard in looked["step_2"].shards}


@pytest.mark.parametrize(
    ("bytes", "evidence"),
    [
        (0, "is empty (0 bytes)"),
        (43937, "has 43937 of 43938 bytes"),
        (43939, "has 43939 bytes, more than the 43938 it should"),
    ],
)
def test_a_shard_of_another_size_is_torn(run: Path, look: Any, bytes: int, evidence: str) -> None:
    with (run / "step_2/__0_0.distcp").open("r+b") as file:
        file.truncate(bytes)
    assert look(run).told("step_2") == [f"torn step_2/__0_0.distcp: {evidence}"]


def test_a_flipped_byte_is_corrupt_for_a_deep_look_only(run: Path, look: Any) -> None:
    shard = run / "step_2/__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[content.index(b"data/0") + 200] ^= 1
    shard.write_bytes(content)
    assert look(run, depth=Depth.STRUCTURE, born=_no_birth).whole == ["step_2"]
    (told,) = look(run, born=_no_birth).told("step_2")
    assert told == (
        "corrupt step_2/__1_0.distcp: entry at byte 5044: "
        "record archive/data/0 differs from its CRC"
    )


def _no_birth(path: str, stat: Any) -> None:
    return None


def test_files_no_index_names_are_extras_and_never_members(run: Path, look: Any) -> None:
    shutil.copy(run / "step_2/__3_0.distcp", run / "step_2/__7_0.distcp")
    (run / "step_2/notes").mkdir()
    (run / "step_2/notes/readme.txt").write_text("kept")
    (sighting,) = look(run, born=_no_birth).sightings
    assert sighting.findings == ()
    assert sighting.extras == ("__7_0.distcp", "notes/readme.txt")
    assert sighting.world_size == 4


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"\x80\x04}.", "something else than DCP metadata"), (b"\x80", "")],
)
def test_an_index_that_does_not_decode_is_torn(
    run: Path, look: Any, content: bytes, words: str
) -> None:
    (run / "step_2/.metadata").write_bytes(content)
    (finding,) = look(run).sightings[0].findings
    assert (finding.reason, finding.path) == (Reason.TORN, "step_2/.metadata")
    assert words in finding.evidence


def test_a_second_save_that_reached_its_index_is_told(run: Path, look: Any) -> None:
    shutil.copy2(run / "step_2/.metadata", run / "step_2/.metadata.tmp")
    (finding,) = look(run).sightings[0].findings
    assert finding.reason is Reason.BEING_WRITTEN
    assert "a second save" in finding.evidence


def test_a_shard_that_is_a_symlink_is_never_counted(run: Path, look: Any) -> None:
    (run / "step_2/__0_0.distcp").rename(run / "elsewhere")
    (run / "step_2/__0_0.distcp").symlink_to("../elsewhere")
    (sighting,) = look(run).sightings
    (finding,) = sighting.findings
    assert (finding.reason, finding.path) == (Reason.UNPROVEN, "step_2/__0_0.distcp")
    assert "symlink" in finding.evidence
    assert len(sighting.shards) == 4


def test_a_tensor_that_was_not_saved_whole_is_refused(
    tmp_path: Path, look: Any, dcp_index: Any
) -> None:
    dcp_index.tensor("w", rows=8, chunks=[(0, 4)])
    dcp_index.stored("w", "__0_0.distcp", 0, 10)
    (tmp_path / "step_1").mkdir()
    (tmp_path / "step_1/__0_0.distcp").write_bytes(bytes(10))
    (tmp_path / "step_1/.metadata").write_bytes(dcp_index.pickled())
    assert look(tmp_path, depth=Depth.STRUCTURE).told("step_1") == [
        "missing-shard step_1/.metadata: fewer elements of w were saved than it has"
    ]


def test_entries_that_are_no_zips_are_told_as_unverifiable(
    tmp_path: Path, look: Any, dcp_index: Any
) -> None:
    dcp_index.stored("w", "__0_0.distcp", 0, 1000)
    (tmp_path / "step_1").mkdir()
    (tmp_path / "step_1/__0_0.distcp").write_bytes(b"\x28\xb5\x2f\xfd" * 250)
    (tmp_path / "step_1/.metadata").write_bytes(dcp_index.pickled())
    (sighting,) = look(tmp_path).sightings
    assert sighting.findings == ()
    assert [note.kind for note in sighting.notes] == ["unverifiable"]


def test_an_entry_whose_first_bytes_are_damaged_is_corrupt(run: Path, look: Any) -> None:
    shard = run / "step_2/__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[:4] = b"\0\0\0\0"
    shard.write_bytes(content)
    (finding,) = look(run, born=_no_birth).sightings[0].findings
    assert (finding.reason, finding.path) == (Reason.CORRUPT, "step_2/__1_0.distcp")


def test_unfinished_shards_that_are_plainly_cut_are_named(run: Path, look: Any) -> None:
    (run / "step_2/.metadata").unlink()
    with (run / "step_2/__1_0.distcp").open("r+b") as file:
        file.truncate(30_000)
    with (run / "step_2/__2_0.distcp").open("r+b") as file:
        file.truncate(0)
    assert look(run).told("step_2")[1:] == [
        "torn step_2/__1_0.distcp: ends inside an entry (30000 bytes)",
        "torn step_2/__2_0.distcp: is empty (0 bytes)",
    ]


def test_without_collectives_every_rank_has_an_index(ranks: Path, look: Any) -> None:
    (sighting,) = look(ranks).sightings
    assert sighting.findings == ()
    assert [s.path for s in sighting.shards if s.is_marker] == ["__0.metadata", "__1.metadata"]
    assert (sighting.world_size, sighting.reshardable) == (2, False)


def test_without_collectives_a_lost_last_rank_shows_in_the_coverage(ranks: Path, look: Any) -> None:
    (ranks / "step_1/__1.metadata").unlink()
    (ranks / "step_1/__1_0.distcp").unlink()
    told = look(ranks).told("step_1")
    assert told[0] == (
        "missing-shard step_1: 1024 of 2048 elements of model.0.weight were saved: "
        "a rank's files are missing"
    )


def test_without_collectives_a_rank_whose_index_is_missing_is_named(ranks: Path, look: Any) -> None:
    (ranks / "step_1/__0.metadata").unlink()
    (finding, *_) = look(ranks).sightings[0].findings
    assert (finding.reason, finding.path) == (Reason.BEING_WRITTEN, "step_1/__0.metadata")


def test_a_crafted_rank_number_does_not_make_the_look_endless(ranks: Path, look: Any) -> None:
    (ranks / "step_1/__999999999_0.distcp").write_bytes(b"")
    assert look(ranks).whole == []


def test_parts_under_one_step_name_are_not_offered_alone(
    samples: Path, tmp_path: Path, look: Any
) -> None:
    for part in ("model", "optim"):
        shutil.copytree(samples / "dcp/single/step_1", tmp_path / "step_7" / part)
    looked = look(tmp_path)
    assert looked["step_7/model"].step == 7
    assert looked.told("step_7/model") == [
        "unproven step_7/model: one of several parts under one step name (also step_7/optim)"
    ]


def test_one_directory_alone_under_a_step_name_takes_its_step(
    samples: Path, tmp_path: Path, look: Any
) -> None:
    shutil.copytree(samples / "dcp/single/step_1", tmp_path / "step_7" / "model")
    (sighting,) = look(tmp_path).sightings
    assert (sighting.name, sighting.step, sighting.findings) == ("step_7/model", 7, ())
    assert sighting.resume.parent == "step_7"


def test_a_stepless_directory_is_listed_without_a_step(
    samples: Path, tmp_path: Path, look: Any
) -> None:
    shutil.copytree(samples / "dcp/single/step_1", tmp_path / "handpicked")
    (sighting,) = look(tmp_path).sightings
    assert (sighting.step, sighting.step_kind, sighting.findings) == (None, StepKind.NONE, ())
