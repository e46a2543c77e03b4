"""The launcher's short way says what the catalog says, or stands aside."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from msgspec import structs

from ckptgov.catalog.facts import RunRootFacts
from ckptgov.catalog.peek import Peek
from ckptgov.errors import StorageError
from ckptgov.model.checkpoint import Expect, RunIdentity, StepKind
from ckptgov.model.facts import Finding, Found, Note, Reason, ResumeArgs, Sighting

ODD = "r\udcffn/st\u00e4p"


def sighting(name: str, step: int | None) -> Sighting:
    return Sighting(
        found=Found(name=name, layout="dcp", step=step, step_kind=StepKind.STEP, variant="v"),
        step=step,
        step_kind=StepKind.STEP,
        shards=(),
        expected=(),
        findings=(Finding(Reason.TORN, f"{name}/x", "is empty (0 bytes)"),),
        notes=(Note("kind", name, "text"),),
        resume=ResumeArgs(path=name, parent="", step=step, tag=name),
        newest_mtime_ns=7,
    )


@pytest.fixture
def filled(catalog, place):
    catalog.put_place(place)
    catalog.put_place(
        structs.replace(place, place="p2", root="/nvme\udcfe", tier="nvme", node="n7")
    )
    catalog.put_place(structs.replace(place, place="p3", source="other"))
    expect = Expect(glob="step_*/r_*.pt", count=4)
    catalog.put_run(RunIdentity(run_id="r1", name=ODD, expect=expect), 9)
    for at, path in (("p1", "b\udcff"), ("p2", "a")):
        catalog.put_run_root(RunRootFacts(run_id="r1", place=at, path=path, sidecar=f"{path}/s"))
    seen = [sighting("step_1\udcff", 10**30), sighting("x", None)]
    catalog.put_sightings("r1", "p1", seen, 50)
    return catalog


def test_every_answer_is_the_catalogs(filled, path: str) -> None:
    with Peek.open(path) as peek:
        assert peek.run_by_name(ODD) == filled.run_by_name(ODD) is not None
        assert peek.run_by_name("unknown") is None
        assert peek.places() == filled.places()
        assert peek.roots_of("r1") == filled.roots_of("r1")
        assert peek.sightings("r1") == filled.sightings("r1")
        for one in filled.places():
            assert peek.place_by_root(one.root, node=one.node) == filled.place_by_root(
                one.root, node=one.node
            )


def test_it_sees_what_is_committed_after_it_was_opened(filled, path: str, place) -> None:
    with Peek.open(path) as peek:
        filled.put_place(structs.replace(place, place="p9", root="/new"))
        assert peek.places() == filled.places()


def test_it_stands_aside_for_another_version_a_damaged_or_an_absent_file(
    filled, path: str, tmp_path: Path
) -> None:
    filled.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
    connection.close()
    (tmp_path / "damaged").write_bytes(b"no database" * 100)
    for file in (path, str(tmp_path / "damaged"), str(tmp_path / "absent")):
        assert Peek.open(file) is None
    assert not (tmp_path / "absent").exists()


def test_it_can_change_nothing(filled, path: str) -> None:
    with Peek.open(path) as peek, pytest.raises(StorageError):
        peek._select("DELETE FROM runs")
