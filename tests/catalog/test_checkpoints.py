from __future__ import annotations

import sqlite3

import pytest
from msgspec import structs

from ckptgov.catalog import checkpoints
from ckptgov.catalog.facts import EventKind
from ckptgov.errors import StorageError, UnknownRun, UsageError
from ckptgov.model.checkpoint import RunIdentity, StepKind
from ckptgov.model.facts import Finding, Found, Note, Reason, ResumeArgs, SeenShard, Sighting


def sighting(name: str, *, step: int | None = 1, variant: str = "", **more: object) -> Sighting:
    found = Found(name=name, layout="dcp", step=step, step_kind=StepKind.STEP, variant=variant)
    return structs.replace(
        Sighting(
            found=found,
            step=step,
            step_kind=StepKind.STEP,
            shards=(SeenShard("a", 5), SeenShard("b", 6)),
            expected=("a", "b", "c"),
            findings=(Finding(Reason.MISSING_SHARD, f"{name}/c", "not there"),),
            notes=(Note("pointer", "latest", "says step 2"),),
            resume=ResumeArgs(path=name, parent="", step=step, tag=name),
            newest_mtime_ns=77,
        ),
        **more,
    )


def test_a_sealed_checkpoint_comes_back_as_it_was_put(filled, sealed):
    assert filled.checkpoints("r1") == (sealed,)
    assert filled.manifest_bytes("r1", sealed.content_id) == b'{"manifest":1}\n'


def test_sealing_twice_is_one_checkpoint_and_the_first_stands(filled, sealed):
    again = structs.replace(sealed, line=9, sealed_at_ns=99)
    assert filled.put_sealed(again, b"other bytes") is False
    assert filled.checkpoints("r1") == (sealed,)
    assert filled.manifest_bytes("r1", sealed.content_id) == b'{"manifest":1}\n'
    assert [event.kind for event in filled.events()].count(EventKind.SEALED) == 1


def test_checkpoints_come_by_step_and_attempt(filled, sealed):
    for content_id, step, attempt in (("c", 100, 1), ("d", 9, 0), ("e", None, 0)):
        filled.put_sealed(
            structs.replace(sealed, content_id=content_id, step=step, attempt=attempt), b"m"
        )
    order = [each.content_id for each in filled.checkpoints("r1")]
    assert order == ["e", "d", "sha256:c1", "c"]


def test_one_content_may_be_sealed_in_two_runs(filled, sealed):
    filled.put_run(RunIdentity(run_id="r2", name="other"), 6)
    assert filled.put_sealed(structs.replace(sealed, run_id="r2"), b"m")
    assert len(filled.checkpoints("r1")) == len(filled.checkpoints("r2")) == 1


def test_a_manifest_that_was_never_sealed_is_absent(filled):
    with pytest.raises(FileNotFoundError):
        filled.manifest_bytes("r1", "sha256:other")


@pytest.mark.parametrize("packed", [b"garbage", b"", b"\x28\xb5\x2f\xfd"])
def test_a_damaged_manifest_is_an_error_not_other_bytes(filled, sealed, path, packed):
    filled.close()
    other = sqlite3.connect(path)
    other.execute("UPDATE manifests SET packed = ?", (packed,))
    other.commit()
    other.close()
    with pytest.raises(StorageError) as caught:
        filled.manifest_bytes("r1", sealed.content_id)
    assert caught.value.hint == "ckptgov catalog rebuild"


def test_a_manifest_larger_than_one_may_be_is_not_unpacked(filled, sealed, monkeypatch):
    monkeypatch.setattr(checkpoints, "MAX_MANIFEST_BYTES", 14)
    with pytest.raises(StorageError, match="larger than"):
        filled.manifest_bytes("r1", sealed.content_id)


def test_a_checkpoint_of_an_unknown_run_is_refused(catalog, sealed):
    with pytest.raises(UnknownRun):
        catalog.put_sealed(sealed, b"m")


def test_a_step_too_large_for_the_database_is_refused_when_sealing(filled, sealed):
    with pytest.raises(UsageError):
        filled.put_sealed(structs.replace(sealed, content_id="c", step=10**20), b"m")
    assert len(filled.checkpoints("r1")) == 1


def test_a_sighting_comes_back_with_its_findings(filled):
    filled.put_sightings("r1", "p1", [sighting("step_1\udcff", step=10**30)], 50)
    (seen,) = filled.sightings("r1")
    assert (seen.name, seen.step, seen.bytes) == ("step_1\udcff", 10**30, 11)
    assert seen.findings == (Finding(Reason.MISSING_SHARD, "step_1\udcff/c", "not there"),)
    assert seen.notes == (Note("pointer", "latest", "says step 2"),)
    assert (seen.first_seen_at_ns, seen.last_seen_at_ns, seen.newest_mtime_ns) == (50, 50, 77)


def test_a_look_replaces_the_one_before_and_keeps_first_sightings(filled):
    filled.put_sightings("r1", "p1", [sighting("a"), sighting("b"), sighting("b", variant="v")], 50)
    filled.put_sightings("r1", "p1", [sighting("b"), sighting("c")], 60)
    seen = [(s.name, s.first_seen_at_ns, s.last_seen_at_ns) for s in filled.sightings("r1")]
    assert seen == [("b", 50, 60), ("c", 60, 60)]


def test_a_look_at_one_place_leaves_the_others_alone(filled, place):
    filled.put_place(structs.replace(place, place="p2", root="/other"))
    filled.put_sightings("r1", "p1", [sighting("a")], 50)
    filled.put_sightings("r1", "p2", [sighting("a")], 60)
    filled.put_sightings("r1", "p1", [], 70)
    assert [(s.place, s.first_seen_at_ns) for s in filled.sightings("r1")] == [("p2", 60)]


def test_a_failed_look_keeps_the_sightings_it_would_have_replaced(filled):
    filled.put_sightings("r1", "p1", [sighting("a")], 50)
    with pytest.raises(UsageError):
        filled.put_sightings("r1", "p1", [sighting("b", newest_mtime_ns=2**63)], 60)
    assert [s.name for s in filled.sightings("r1")] == ["a"]


def test_an_unreadable_row_is_an_error_with_the_way_out(filled, path):
    filled.put_sightings("r1", "p1", [sighting("a")], 50)
    filled.close()
    other = sqlite3.connect(path)
    other.execute('UPDATE sightings SET findings = \'[["no-such-reason", "", ""]]\'')
    other.commit()
    other.close()
    with pytest.raises(StorageError) as caught:
        filled.sightings("r1")
    assert caught.value.hint == "ckptgov catalog rebuild"
