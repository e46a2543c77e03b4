"""Nodes: who was heard of when, and what was said of them."""

from __future__ import annotations

import pytest
from msgspec import structs

from ckptgov.catalog.facts import EventKind
from ckptgov.catalog.nodes import SILENCE_NS
from ckptgov.errors import UsageError
from ckptgov.model.cluster import NodeBeat, NodeState

BEAT = NodeBeat(node="n1", boot="b1", version="1.0", peer_url="http://n1:7000")


@pytest.fixture
def nodes(catalog):
    return catalog.nodes


def test_a_first_beat_makes_an_active_node_that_is_told_of(catalog, nodes, clock) -> None:
    known = nodes.beat(BEAT)
    assert (known.node, known.state, known.boot) == ("n1", NodeState.ACTIVE, "b1")
    assert (known.version, known.peer_url) == ("1.0", "http://n1:7000")
    assert (known.first_seen_at_ns, known.beat_at_ns) == (clock.at_ns, clock.at_ns)
    assert nodes.node("n1") == known
    assert catalog.events()[-1].kind is EventKind.NODE_ADDED


def test_a_node_that_was_never_heard_of_is_unknown(nodes) -> None:
    assert nodes.node("n9") is None
    with pytest.raises(UsageError, match="never heard of"):
        nodes.set_state("n9", NodeState.DEAD, reason="")


def test_an_ordinary_beat_moves_its_time_and_nothing_else(catalog, nodes, clock) -> None:
    first = nodes.beat(BEAT)
    seq = catalog.change_seq()
    clock.at_ns += SILENCE_NS - 1
    assert nodes.beat(BEAT) == structs.replace(first, beat_at_ns=clock.at_ns)
    assert catalog.change_seq() == seq


@pytest.mark.parametrize(
    "change", [{"boot": "b2"}, {"version": "1.1"}, {"peer_url": None}, {"peer_url": "http://x"}]
)
def test_a_beat_that_tells_something_new_is_a_change(catalog, nodes, clock, change) -> None:
    nodes.beat(BEAT)
    seq = catalog.change_seq()
    clock.at_ns += 1
    known = nodes.beat(structs.replace(BEAT, **change))
    assert all(getattr(known, name) == value for name, value in change.items())
    assert known.beat_at_ns == clock.at_ns
    assert [one.run_id for one in catalog.changes(seq)] == [None]


def test_a_node_that_is_heard_again_after_a_silence_is_a_change(catalog, nodes, clock) -> None:
    nodes.beat(BEAT)
    seq = catalog.change_seq()
    clock.at_ns += SILENCE_NS
    nodes.beat(BEAT)
    assert catalog.change_seq() > seq


def test_a_beat_from_before_a_clock_was_set_back_does_not_stay(nodes, clock) -> None:
    clock.at_ns = 10**18
    nodes.beat(BEAT)
    clock.at_ns = 10**17
    assert nodes.beat(BEAT).beat_at_ns == 10**17


@pytest.mark.parametrize("state", [NodeState.CORDONED, NodeState.DRAINED])
def test_what_was_said_of_a_node_stays_while_it_beats(nodes, state) -> None:
    nodes.beat(BEAT)
    nodes.set_state("n1", state, reason="disk")
    known = nodes.beat(structs.replace(BEAT, boot="b2"))
    assert (known.state, known.reason, known.boot) == (state, "disk", "b2")


def test_a_dead_node_that_beats_is_active_again(catalog, nodes) -> None:
    nodes.beat(BEAT)
    nodes.set_state("n1", NodeState.DEAD, reason="no answer")
    seq = catalog.change_seq()
    known = nodes.beat(BEAT)
    assert (known.state, known.reason) == (NodeState.ACTIVE, "")
    assert catalog.change_seq() > seq


def test_each_new_state_is_told_once_with_its_reason(catalog, nodes) -> None:
    nodes.beat(BEAT)
    told = len(catalog.events())
    for _ in range(2):
        nodes.set_state("n1", NodeState.DEAD, reason="no answer")
    (event,) = catalog.events()[told:]
    assert event.kind is EventKind.NODE_STATE
    assert dict(event.detail) == {"node": "n1", "state": "dead", "reason": "no answer"}


def test_nodes_come_by_name_and_outlive_a_rebuild(catalog, nodes) -> None:
    for name in ("n2", "n\udcff", "N3"):
        nodes.beat(structs.replace(BEAT, node=name))
    catalog.wipe_facts()
    assert [one.node for one in nodes.nodes()] == ["N3", "n2", "n\udcff"]


def test_a_beat_can_be_part_of_a_transaction(catalog, nodes, undone) -> None:
    undone(catalog, lambda: nodes.beat(BEAT))
    assert nodes.nodes() == ()
