"""What copies come to by place and state, summed by the database."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlacedCopy, PlaceFacts, SealedFacts
from ckptgov.catalog.sums import HeldFacts, LeavingSum, PlacedSum
from ckptgov.model.checkpoint import Evidence, RunIdentity
from ckptgov.model.copies import CopyState
from ckptgov.testing.condemning import doomed, guard

V, C, R = CopyState.VERIFIED, CopyState.CORRUPT, CopyState.REOPENED
HALF = b"\x01"


@pytest.fixture
def held(catalog: Catalog, place: PlaceFacts, sealed: SealedFacts) -> Catalog:
    """Run r1 at a shared place and on two nodes' disks; run r2 without anything."""
    for name, node in (("p1", None), ("n1", "node-1"), ("n2", "node-2")):
        catalog.put_place(replace(place, place=name, node=node, root=f"/{name}"))
    for run_id, name in (("r1", "llm"), ("r2", "other")):
        catalog.put_run(RunIdentity(run_id=run_id, name=name), 7)
    for number, at in enumerate(
        (
            {"p1": (V, None), "n1": (V, None)},
            {"n1": (V, None)},
            {"n1": (V, HALF), "n2": (V, HALF), "p1": (C, None)},
            {"p1": (V, HALF)},
            {"p1": (R, None), "n2": (V, None)},
        )
    ):
        one = replace(
            sealed, content_id=f"c{number}", step=number, bytes=2**61, sealed_at_ns=100 + number
        )
        catalog.put_sealed(one, b"m")
        for where, (state, coverage) in at.items():
            copy = PlacedCopy(
                run_id="r1",
                content_id=one.content_id,
                place=where,
                name=one.name,
                state=state,
                coverage=coverage,
                evidence=Evidence.DIGEST,
                verified_at_ns=9,
            )
            catalog.put_copy(copy, 9)
    return catalog


def test_whole_copies_are_summed_by_place_and_state(held: Catalog) -> None:
    assert held.copy_sums("r1").whole == (
        PlacedSum(place="n1", state=V, copies=2, bytes=2**62),
        PlacedSum(place="n2", state=V, copies=1, bytes=2**61),
        PlacedSum(place="p1", state=C, copies=1, bytes=2**61),
        PlacedSum(place="p1", state=R, copies=1, bytes=2**61),
        PlacedSum(place="p1", state=V, copies=1, bytes=2**61),
    )


def test_parts_come_one_by_one(held: Catalog) -> None:
    parts = held.copy_sums("r1").parts
    assert [(one.content_id, one.place) for one in parts] == [
        ("c2", "n1"),
        ("c2", "n2"),
        ("c3", "p1"),
    ]
    assert parts[0] == HeldFacts(
        content_id="c2", place="n1", state=V, coverage=HALF, bytes=2**61, shard_count=3
    )


def test_undrained_is_what_has_no_whole_verified_copy_on_a_shared_place(held: Catalog) -> None:
    """Neither a part there will do, nor one that is to be compared again."""
    found = [(one.content_id, one.place) for one in held.copy_sums("r1").undrained]
    assert found == [("c1", "n1"), ("c2", "n1"), ("c2", "n2"), ("c3", "p1"), ("c4", "n2")]


def test_the_newest_seal_is_told(held: Catalog) -> None:
    assert held.copy_sums("r1").saved_at_ns == 104
    nothing = held.copy_sums("r2")
    assert (nothing.whole, nothing.parts, nothing.undrained) == ((), (), ())
    assert nothing.saved_at_ns is None


def test_what_is_on_its_way_out_is_summed_by_place_and_state(held: Catalog) -> None:
    assert held.leaving() == ()
    book, free = held.removals, guard(may_be_emptied=True, min_restorable=0)
    goes = [doomed("c0", "n1", bytes=5, files=2), doomed("c0", "p1", bytes=7, files=3)]
    book.condemn("r1", goes, free, plan_id="p")
    book.begin("r1", "c0", "p1", free)
    book.resisted("r1", "c0", "p1", "busy")
    assert held.leaving() == (
        LeavingSum(place="n1", state=CopyState.CONDEMNED, copies=1, bytes=5, files=2, resisting=0),
        LeavingSum(place="p1", state=CopyState.TRASHING, copies=1, bytes=7, files=3, resisting=1),
    )
    book.moved("r1", "c0", "p1", trash=".ckptgov/trash/x")
    assert [one.resisting for one in held.leaving()] == [0, 0]
