"""What is counted, or read of some checkpoints, without reading all of a run."""

from __future__ import annotations

import pytest
from msgspec import structs

from ckptgov.catalog.facts import RunRootFacts
from ckptgov.model.checkpoint import RunIdentity


@pytest.fixture
def two(filled, sealed):
    """Run r1 with three checkpoints, run r2 with none."""
    for number in (1, 2):
        one = structs.replace(sealed, content_id=f"c{number}", bytes=2**40, step=number)
        filled.put_sealed(one, b"m")
    filled.put_run(RunIdentity(run_id="r2", name="other"), 7)
    return filled


def test_checkpoints_and_their_bytes_are_counted_by_run(two, sealed) -> None:
    assert two.totals() == {"r1": (3, 2**41 + sealed.bytes)}
    assert two.totals("r1") == two.totals()
    assert two.totals("r2") == {}


def test_some_checkpoints_are_read_by_their_content(two) -> None:
    many = [f"none{number}" for number in range(1200)]
    found = two.sealed_of("r1", ["c2", *many, "c1"])
    assert sorted(found) == ["c1", "c2"]
    assert found["c2"].step == 2
    assert two.sealed_of("r2", ["c1"]) == {}
    assert two.sealed_of("r1", []) == {}


def test_the_roots_of_every_run_come_at_once(two, place) -> None:
    two.put_run_root(RunRootFacts(run_id="r2", place=place.place, path="b", sidecar="b/.ckptgov"))
    assert two.roots() == (*two.roots_of("r1"), *two.roots_of("r2"))
