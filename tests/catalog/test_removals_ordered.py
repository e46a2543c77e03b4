"""Removals that a node's catalog takes over from the service: begun elsewhere, carried on here."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckptgov.errors import StaleState
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import Action, Removal

KEY = ("r1", "c10", "n1")
ORDER = Removal(
    run_id="r1",
    content_id="c10",
    place="n1",
    name="step_10",
    action=Action.PRUNE,
    plan_id="sha256:p",
    state=CopyState.TRASHING,
    condemned_at_ns=7,
    due_at_ns=7,
    trash_s=100.0,
    bytes=17,
    files=4,
)


@pytest.fixture
def alone(small):
    """A catalog that knows one node's disk, and one checkpoint there: its newest."""
    small.add(10, "n1")
    return small


def state(small) -> CopyState:
    return next(one.state for one in small.catalog.copies("r1") if one.content_id == "c10")


def test_what_p2_would_hold_back_here_goes_where_another_catalog_has_judged(alone) -> None:
    assert alone.catalog.removals.ordered(ORDER) == ORDER
    assert state(alone) is CopyState.TRASHING
    assert alone.catalog.removals.removals() == (ORDER,)
    alone.catalog.removals.moved(*KEY, trash="t")
    alone.catalog.removals.purged(*KEY)
    assert state(alone) is CopyState.PURGED


def test_again_it_is_as_it_stands(alone) -> None:
    alone.catalog.removals.ordered(ORDER)
    moved = alone.catalog.removals.moved(*KEY, trash="t")
    assert alone.catalog.removals.ordered(ORDER) == moved


def test_what_was_condemned_here_goes_by_the_order(alone) -> None:
    (condemned,) = alone.prune(("c10", "n1"), may_be_emptied=True)
    assert condemned.plan_id == ORDER.plan_id
    assert alone.catalog.removals.ordered(ORDER) == ORDER
    assert state(alone) is CopyState.TRASHING


@pytest.mark.parametrize("gone", [CopyState.LOST, CopyState.PURGED])
def test_what_does_not_stand_there_is_not_begun(alone, gone: CopyState) -> None:
    if gone is CopyState.LOST:
        alone.catalog.transition(*KEY, expected=CopyState.VERIFIED, to=gone, at_ns=1)
    else:
        alone.catalog.removals.ordered(ORDER)
        alone.catalog.removals.purged(*KEY)
    with pytest.raises(StaleState):
        alone.catalog.removals.ordered(ORDER)
    assert state(alone) is gone


def test_an_unknown_copy_is_not_begun(alone) -> None:
    alone.add(20, "s1")
    with pytest.raises(StaleState):
        alone.catalog.removals.ordered(replace(ORDER, content_id="c20"))
