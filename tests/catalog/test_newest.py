"""What ``latest`` asks costs the same however many checkpoints a run has."""

from __future__ import annotations

import pytest
from msgspec import structs
from sqlalchemy import event

from ckptgov.catalog import checkpoints, copies
from ckptgov.catalog.facts import PlacedCopy, RecordFacts
from ckptgov.model.copies import CopyState
from ckptgov.model.journal import KIND_OF

RECORD = RecordFacts(run_id="r1", record_id="", number=0, kind="", at_ns=5, raw=b"{}")


@pytest.fixture
def seal(filled, sealed):
    def put(content_id: str, step: int | None, line: int = 1, attempt: int = 0) -> None:
        fields = {"content_id": content_id, "step": step, "line": line, "attempt": attempt}
        filled.put_sealed(structs.replace(sealed, **fields), b"m")

    return put


@pytest.fixture
def paged(filled):
    """Everything of the run, page by page."""

    def pages(limit: int) -> list[list[str]]:
        found = []
        before = None
        while page := filled.newest("r1", before=before, limit=limit):
            found.append([one.content_id for one in page])
            before = checkpoints.age(page[-1])
        return found

    return pages


def test_the_highest_step_line_and_attempt_come_first_and_stepless_last(seal, filled) -> None:
    for content_id, step, line, attempt in (
        ("a", 9, 1, 0),
        ("b", 100, 2, 0),
        ("c", 100, 1, 1),
        ("d", None, 3, 0),
        ("e", 0, 1, 0),
    ):
        seal(content_id, step, line, attempt)
    found = filled.newest("r1", before=None, limit=10)
    assert [one.content_id for one in found] == ["b", "c", "sha256:c1", "a", "e", "d"]
    assert filled.newest("r2", before=None, limit=10) == ()
    assert filled.newest("r1", before=None, limit=0) == ()


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_hold_everything_once(seal, paged, limit) -> None:
    for step in (7, 8, None, 9):
        for attempt in range(3):
            seal(f"{step}.{attempt}", step, attempt=attempt)
    found = [one for page in paged(limit) for one in page]
    assert len(found) == len(set(found)) == 13
    assert found[:2] == ["sha256:c1", "9.2"]
    assert found[-1] == "None.0"


def test_those_equal_in_all_three_are_on_one_page(seal, paged) -> None:
    for content_id in "abc":
        seal(content_id, None)
    assert paged(2) == [["sha256:c1", "c", "b", "a"]]
    assert paged(1) == [["sha256:c1"], ["c", "b", "a"]]


def test_copies_are_given_by_checkpoint_also_where_there_is_none(seal, filled, place) -> None:
    seal("b", 5)
    filled.put_place(structs.replace(place, place="p2", root="/other"))
    plain = PlacedCopy(
        run_id="r1", content_id="sha256:c1", place="p2", name="x", state=CopyState.LOST
    )
    for at in ("p2", "p1"):
        filled.put_copy(structs.replace(plain, place=at), 9)
    found = filled.copies_of("r1", ["b", "sha256:c1", "b"])
    assert {key: [one.place for one in each] for key, each in found.items()} == {
        "b": [],
        "sha256:c1": ["p1", "p2"],
    }
    assert filled.copies_of("r1", []) == {}


def test_many_copies_are_asked_for_in_pieces(seal, filled, monkeypatch) -> None:
    monkeypatch.setattr(copies, "_MOST_AT_ONCE", 2)
    for number in range(5):
        seal(str(number), number)
        one = PlacedCopy(
            run_id="r1", content_id=str(number), place="p1", name="x", state=CopyState.LOST
        )
        filled.put_copy(one, 9)
    found = filled.copies_of("r1", [str(number) for number in range(5)])
    assert all(len(each) == 1 for each in found.values())


def test_every_record_binds_but_what_is_sealed_and_measured(filled) -> None:
    kinds = sorted(KIND_OF.values())
    filled.put_records(
        [
            structs.replace(RECORD, record_id=kind, kind=kind, number=number)
            for number, kind in enumerate(kinds)
        ]
    )
    found = [one.kind for one in filled.binding_records("r1")]
    assert found == [kind for kind in kinds if kind not in ("sealed", "metric")]
    assert len(filled.records("r1")) == len(kinds)


QUESTIONS = {
    "newest": (lambda c: c.newest("r1", before=None, limit=1), "newest_checkpoints"),
    "page behind": (lambda c: c.newest("r1", before=(99, 1, 0), limit=1), "newest_checkpoints"),
    "binding records": (lambda c: c.binding_records("r1"), "binding_records"),
    "copies of some": (lambda c: c.copies_of("r1", ["a", "b"]), "copies"),
    "changes": (lambda c: c.changes(1), "changes"),
    "newest change": (lambda c: c.change_seq(), "changes"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_answer_is_found_in_an_index_in_its_order(filled, engine, question) -> None:
    """So it costs the same with 10^6 checkpoints: none is scanned, and nothing is sorted."""
    ask, index = QUESTIONS[question]
    plan = plan_of(filled._database, lambda: ask(filled))
    assert index in plan
    for unwanted in ("SCAN", "TEMP B-TREE", "Sort", "Seq Scan"):
        assert unwanted not in plan


def plan_of(database, ask) -> str:
    """How the engine goes about the first question that ``ask`` puts to it."""
    asked: list[tuple[str, object]] = []

    def note(connection, cursor, statement, values, context, is_many) -> None:
        if statement.startswith("SELECT"):
            asked.append((statement, values))

    event.listen(database._reader, "before_cursor_execute", note)
    ask()
    event.remove(database._reader, "before_cursor_execute", note)
    statement, values = asked[0]
    with database.read() as connection:
        if connection.dialect.name == "postgresql":
            # Tables are small here: what matters is what it can do, not what it would choose.
            for way in ("seqscan", "bitmapscan", "sort"):
                connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")
            explain = "EXPLAIN"
        else:
            explain = "EXPLAIN QUERY PLAN"
        rows = connection.exec_driver_sql(f"{explain} {statement}", values).all()
    return "\n".join(row[-1] for row in rows)
