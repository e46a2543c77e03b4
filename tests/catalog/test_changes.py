"""Whatever can change an answer about a run is told in the transaction that changes it."""

from __future__ import annotations

import pytest
from msgspec import structs

from ckptgov.catalog import changes
from ckptgov.catalog.facts import PlacedCopy, RecordFacts, RunRootFacts
from ckptgov.model.checkpoint import Evidence, RunIdentity, StepKind
from ckptgov.model.cluster import PartFacts
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Found, ResumeArgs, SeenShard, Sighting

COPY = PlacedCopy(
    run_id="r1",
    content_id="sha256:c1",
    place="p1",
    name="step_100",
    state=CopyState.VERIFIED,
    evidence=Evidence.DIGEST,
)
RECORD = RecordFacts(run_id="r1", record_id="i1", number=1, kind="pin", at_ns=5, raw=b"{}")
ROOT = RunRootFacts(run_id="r1", place="p1", path="a", sidecar="a/.ckptgov")
SIGHTING = Sighting(
    found=Found(name="a", layout="dcp", step=1, step_kind=StepKind.STEP),
    step=1,
    step_kind=StepKind.STEP,
    shards=(SeenShard("x", 5),),
    expected=("x",),
    resume=ResumeArgs(path="a", parent="", step=1, tag="a"),
    newest_mtime_ns=7,
)
PART = PartFacts(run_id="r1", name="a", place="p1", told=b"{}")


def to_lost(catalog) -> None:
    catalog.transition(
        "r1", "sha256:c1", "p1", expected=CopyState.VERIFIED, to=CopyState.LOST, at_ns=9
    )


def confirm(catalog) -> None:
    catalog.confirm(
        "r1",
        "sha256:c1",
        "p1",
        expected=CopyState.VERIFIED,
        at_ns=9,
        evidence=Evidence.DIGEST,
    )


OF_THE_RUN = {
    "sealed": lambda c, sealed: c.put_sealed(structs.replace(sealed, content_id="c2"), b"m"),
    "copy added": lambda c, sealed: c.put_copy(structs.replace(COPY, place="p2"), 9),
    "copy changed": lambda c, sealed: to_lost(c),
    "copy confirmed": lambda c, sealed: confirm(c),
    "sighted": lambda c, sealed: c.put_sightings("r1", "p1", [SIGHTING], 9),
    "recorded": lambda c, sealed: c.put_records([structs.replace(RECORD, record_id="i2")]),
    "rooted": lambda c, sealed: c.put_run_root(ROOT),
    "decided": lambda c, sealed: c.decide("r1", "id", 1, None, True),
    "part posted": lambda c, sealed: c.put_part(PART),
}


@pytest.fixture
def ready(filled, place):
    filled.put_place(structs.replace(place, place="p2", root="/other"))
    filled.put_copy(COPY, 8)
    filled.put_records([RECORD])
    return filled


@pytest.mark.parametrize("what", OF_THE_RUN)
def test_what_changes_a_run_is_told_of_that_run(ready, sealed, what) -> None:
    seq = ready.change_seq()
    OF_THE_RUN[what](ready, sealed)
    (change,) = ready.changes(seq)
    assert change.run_id == "r1"
    assert change.seq == ready.change_seq() > seq


@pytest.mark.parametrize("what", OF_THE_RUN)
def test_what_is_undone_was_never_told(ready, sealed, what, undone) -> None:
    seq = ready.change_seq()
    undone(ready, lambda: OF_THE_RUN[what](ready, sealed))
    assert ready.changes(seq) == ()


def test_what_changes_nothing_is_not_told(ready, sealed) -> None:
    ready.put_run_root(ROOT)
    ready.put_sightings("r1", "p1", [SIGHTING], 9)
    ready.decide("r1", "id", 1, None, True)
    seq = ready.change_seq()
    ready.put_run_root(ROOT)
    ready.put_sightings("r1", "p1", [SIGHTING], 10)
    ready.put_sightings("r1", "p2", [], 10)
    ready.put_sealed(sealed, b"m")
    ready.put_records([RECORD])
    ready.decide("r1", "id", 1, "sha256:c1", False)
    ready.drop_parts("r1", "a")
    ready.put_abilities("p1", "{}", 9)
    assert ready.changes(seq) == ()


@pytest.mark.parametrize(
    "other", [{"newest_mtime_ns": 8}, {"shards": (SeenShard("x", 6),)}, {"step": 2}]
)
def test_another_look_that_found_something_else_is_told(ready, other) -> None:
    ready.put_sightings("r1", "p1", [SIGHTING], 9)
    seq = ready.change_seq()
    ready.put_sightings("r1", "p1", [structs.replace(SIGHTING, **other)], 10)
    assert [one.run_id for one in ready.changes(seq)] == ["r1"]
    seq = ready.change_seq()
    ready.put_sightings("r1", "p1", [], 11)
    assert [one.run_id for one in ready.changes(seq)] == ["r1"]


def test_what_concerns_every_run_is_told_of_none(ready, place) -> None:
    for change in (
        lambda: ready.put_place(structs.replace(place, source="other")),
        lambda: ready.adopt_identity("u", 7),
        ready.wipe_facts,
    ):
        seq = ready.change_seq()
        change()
        assert [one.run_id for one in ready.changes(seq)] == [None]


def test_each_run_is_told_once_with_its_newest_change(ready) -> None:
    ready.put_run(RunIdentity(run_id="r2", name="other"), 9)
    seq = ready.change_seq()
    for run_id in ("r1", "r2", "r1"):
        ready.put_part(structs.replace(PART, run_id=run_id))
    assert [(one.seq, one.run_id) for one in ready.changes(seq)] == [
        (seq + 2, "r2"),
        (seq + 3, "r1"),
    ]
    assert [one.run_id for one in ready.changes(seq + 2)] == ["r1"]
    assert ready.changes(seq + 3) == ()


def test_no_more_is_told_at_once_than_a_reader_wants(ready, monkeypatch) -> None:
    seq = ready.change_seq()
    for number in range(5):
        ready.put_part(structs.replace(PART, run_id=f"x{number}"))
    assert changes.MOST_CHANGES == 10_000
    monkeypatch.setattr(changes, "_CHANGES", changes._CHANGES.limit(2))
    some = ready.changes(seq)
    assert [one.run_id for one in some] == ["x0", "x1"]
    assert [one.run_id for one in ready.changes(some[-1].seq)] == ["x2", "x3"]


def test_parts_come_by_save_and_place_and_are_dropped_by_save(catalog, clock) -> None:
    for name, place in (("b", "p2"), ("b", "p1"), ("a\udcff", "p1")):
        catalog.put_part(PartFacts(run_id="r1", name=name, place=place, told=b"\xff"))
    clock.at_ns += 1
    catalog.put_part(PartFacts(run_id="r1", name="b", place="p1", told=b"new"))
    assert [(one.place, one.told, one.posted_at_ns) for one in catalog.parts("r1", "b")] == [
        ("p1", b"new", clock.at_ns),
        ("p2", b"\xff", clock.at_ns - 1),
    ]
    assert [one.name for one in catalog.parts_of("r1")] == ["a\udcff", "b", "b"]
    catalog.drop_parts("r1", "b")
    assert [one.name for one in catalog.parts_of("r1")] == ["a\udcff"]
    assert catalog.parts_of("r2") == ()
