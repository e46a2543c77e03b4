from __future__ import annotations

import threading

import pytest
from msgspec import structs

from ckptgov.catalog import copies
from ckptgov.catalog.facts import EventKind, PlacedCopy
from ckptgov.errors import StaleState, UnknownRun
from ckptgov.model.checkpoint import Evidence
from ckptgov.model.copies import REMOVED, TRANSITIONS, CopyState
from ckptgov.model.facts import Finding, Reason

KEY = ("r1", "sha256:c1", "p1")
TORN = Finding(Reason.TORN, "step_100/\udcff", "12 of 17 bytes")


def copy(state: CopyState, **more: object) -> PlacedCopy:
    evidence = Evidence.DIGEST if state is CopyState.VERIFIED else Evidence.NONE
    plain = PlacedCopy(
        run_id="r1",
        content_id="sha256:c1",
        place="p1",
        name="step_100",
        state=state,
        evidence=evidence,
    )
    return structs.replace(plain, **more)


def only(catalog) -> PlacedCopy:
    (found,) = catalog.copies("r1")
    return found


def put(catalog, copy: PlacedCopy) -> None:
    """In any state, also such as nobody may tell of a copy."""
    with catalog._database.write() as connection:
        copies.put_copy(connection, copy, at_ns=10)


def evidence_for(state: CopyState) -> Evidence | None:
    return Evidence.DIGEST if state is CopyState.VERIFIED else None


# Others come about by removals only: test_removals.
OPENLY = [state for state in CopyState if state not in REMOVED]
ALLOWED = [(a, b) for a in CopyState for b in OPENLY if b in TRANSITIONS[a]]
REFUSED = [(a, b) for a in CopyState for b in CopyState if b not in TRANSITIONS[a]]


@pytest.mark.parametrize(("before", "after"), ALLOWED)
def test_an_allowed_change_happens_and_is_told(filled, before, after):
    put(filled, copy(before))
    filled.transition(*KEY, expected=before, to=after, at_ns=20, evidence=evidence_for(after))
    assert only(filled).state is after
    event = filled.events()[-1]
    assert (event.kind, event.at_ns) == (EventKind.COPY_STATE, 20)
    assert (event.run_id, event.content_id, event.place) == KEY
    assert event.detail[:2] == (("from", before.value), ("to", after.value))


@pytest.mark.parametrize(("before", "after"), REFUSED)
def test_any_other_change_is_refused(filled, before, after):
    put(filled, copy(before))
    with pytest.raises(ValueError, match="cannot become"):
        filled.transition(*KEY, expected=before, to=after, at_ns=20, evidence=evidence_for(after))
    assert only(filled).state is before
    assert filled.events()[-1].kind is EventKind.COPY_ADDED


def test_a_change_from_another_state_than_expected_is_stale(filled):
    filled.put_copy(copy(CopyState.LOST), 10)
    with pytest.raises(StaleState, match="no longer"):
        filled.transition(*KEY, expected=CopyState.VERIFIED, to=CopyState.CORRUPT, at_ns=20)
    assert only(filled).state is CopyState.LOST


def test_a_change_of_a_copy_that_is_not_there_is_stale(filled):
    with pytest.raises(StaleState):
        filled.transition(*KEY, expected=CopyState.VERIFIED, to=CopyState.LOST, at_ns=20)


def test_of_racing_changes_one_wins(filled, open_catalog):
    filled.put_copy(copy(CopyState.VERIFIED), 10)
    gate = threading.Barrier(8)
    results: list[str] = []

    def racer(catalog, to: CopyState) -> None:
        gate.wait()
        try:
            catalog.transition(*KEY, expected=CopyState.VERIFIED, to=to, at_ns=20)
            results.append(to.value)
        except StaleState:
            results.append("stale")

    wishes = [CopyState.PARTIAL, CopyState.REOPENED, CopyState.LOST, CopyState.CORRUPT] * 2
    # Half of them share a catalog object, half have one of their own.
    catalogs = [filled] * 4 + [open_catalog() for _ in range(4)]
    threads = [
        threading.Thread(target=racer, args=pair) for pair in zip(catalogs, wishes, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("stale") == 7
    assert only(filled).state.value in results
    assert [event.kind for event in filled.events()].count(EventKind.COPY_STATE) == 1


def test_a_copy_comes_back_as_it_was_put(filled):
    whole = copy(
        CopyState.PARTIAL,
        name="odd/\udcff",
        coverage=b"\x05",
        evidence=Evidence.DIGEST,
        verified_at_ns=9,
        findings=(TORN,),
    )
    filled.put_copy(whole, 10)
    assert only(filled) == whole


def test_a_second_copy_at_one_place_is_refused(filled):
    filled.put_copy(copy(CopyState.LOST), 10)
    with pytest.raises(FileExistsError):
        filled.put_copy(copy(CopyState.VERIFIED), 11)
    assert only(filled).state is CopyState.LOST


def test_a_copy_of_an_unknown_checkpoint_or_place_is_refused(filled):
    with pytest.raises(UnknownRun):
        filled.put_copy(copy(CopyState.LOST, content_id="sha256:c2"), 10)
    with pytest.raises(UnknownRun):
        filled.put_copy(copy(CopyState.LOST, place="p2"), 10)


@pytest.mark.parametrize("evidence", [None, Evidence.NONE])
def test_nothing_is_verified_without_evidence(filled, evidence):
    filled.put_copy(copy(CopyState.REOPENED), 10)
    with pytest.raises(ValueError, match="needs its evidence"):
        filled.transition(
            *KEY,
            expected=CopyState.REOPENED,
            to=CopyState.VERIFIED,
            at_ns=20,
            evidence=evidence,
        )
    with pytest.raises(ValueError, match="needs its evidence"):
        filled.put_copy(copy(CopyState.VERIFIED, place="p1", evidence=Evidence.NONE), 10)
    assert only(filled).state is CopyState.REOPENED


def test_a_verdict_has_its_time_and_clears_the_findings(filled):
    filled.put_copy(copy(CopyState.REOPENED, verified_at_ns=5, findings=(TORN,)), 10)
    filled.transition(
        *KEY,
        expected=CopyState.REOPENED,
        to=CopyState.VERIFIED,
        at_ns=20,
        evidence=Evidence.DIGEST,
        coverage=None,
    )
    assert only(filled) == copy(CopyState.VERIFIED, verified_at_ns=20)


def test_an_unreadable_copy_keeps_its_last_verdict_and_date(filled):
    filled.put_copy(copy(CopyState.VERIFIED, verified_at_ns=5, coverage=b"\x01"), 10)
    unreadable = Finding(Reason.UNREADABLE, "step_100/a", "Input/output error")
    filled.transition(
        *KEY,
        expected=CopyState.VERIFIED,
        to=CopyState.UNREADABLE,
        at_ns=20,
        findings=[unreadable],
        name="moved",
    )
    assert only(filled) == copy(
        CopyState.UNREADABLE,
        evidence=Evidence.DIGEST,
        verified_at_ns=5,
        coverage=b"\x01",
        findings=(unreadable,),
        name="moved",
    )


def test_a_confirmed_copy_has_a_new_date_in_the_same_state(filled):
    filled.put_copy(copy(CopyState.VERIFIED, verified_at_ns=5), 10)
    filled.confirm(*KEY, expected=CopyState.VERIFIED, at_ns=20, evidence=Evidence.DIGEST)
    assert only(filled) == copy(CopyState.VERIFIED, verified_at_ns=20)
    assert filled.events()[-1].kind is EventKind.COPY_CONFIRMED


def test_a_part_can_grow(filled):
    filled.put_copy(copy(CopyState.PARTIAL, coverage=b"\x01"), 10)
    filled.confirm(
        *KEY, expected=CopyState.PARTIAL, at_ns=20, evidence=Evidence.DIGEST, coverage=b"\x03"
    )
    assert only(filled).coverage == b"\x03"


def test_a_copy_in_another_state_is_not_confirmed(filled):
    filled.put_copy(copy(CopyState.CORRUPT), 10)
    with pytest.raises(StaleState):
        filled.confirm(*KEY, expected=CopyState.VERIFIED, at_ns=20, evidence=Evidence.DIGEST)
