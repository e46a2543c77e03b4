"""P2 inside the transaction: what may never go, whoever decided that it should."""

from __future__ import annotations

import pytest

from ckptgov.errors import RefusedBySafety
from ckptgov.model.checkpoint import Evidence, Purpose
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import Action

S = 10**9
LATELY_NS = 10 * 24 * 3600 * S  # when copies were compared
WITHIN_REACH = frozenset({"s1", "n1", "n2"})


@pytest.fixture
def three(small):
    """Steps 10, 20 and 30, each whole on one shared tier."""
    for step in (10, 20, 30):
        small.add(step, "s1")
    return small


def test_what_is_neither_newest_nor_needed_may_go(three) -> None:
    gone = three.prune(("c10", "s1"), ("c20", "s1"))
    assert [(one.content_id, one.name, one.state) for one in gone] == [
        ("c10", "step_10", CopyState.CONDEMNED),
        ("c20", "step_20", CopyState.CONDEMNED),
    ]
    assert three.states()[("c30", "s1")] is CopyState.VERIFIED


@pytest.mark.parametrize("purpose", Purpose)
def test_the_newest_restorable_one_stays(small, purpose) -> None:
    small.add(10, "n1", purposes=(purpose,))
    small.add(20, "n1", purposes=(purpose,))
    with pytest.raises(RefusedBySafety, match=rf"step_20 is the newest restorable .*{purpose}"):
        small.prune(("c20", "n1"))


def test_the_newest_one_good_for_weights_stays_where_a_newer_is_only_good_to_resume(small) -> None:
    small.add(10, "s1")
    small.add(20, "s1", purposes=(Purpose.RESUME,))
    with pytest.raises(
        RefusedBySafety, match="step_10 is the newest restorable checkpoint for wei"
    ):
        small.prune(("c10", "s1"))


def test_the_newest_restorable_one_stays_though_it_cannot_be_reached_now(small) -> None:
    small.add(10, "n1")
    small.add(20, "n2")
    with pytest.raises(RefusedBySafety, match="step_20 is the newest restorable checkpoint"):
        small.prune(("c20", "n2"), reachable=frozenset({"n1"}))


def test_the_newest_one_within_reach_stays_while_a_newer_is_out_of_it(three) -> None:
    three.copy("c30", "s2")
    three.change("c30", "s1", CopyState.LOST)
    with pytest.raises(
        RefusedBySafety, match="step_20 is the newest restorable checkpoint for resume within"
    ):
        three.prune(("c20", "s1"), reachable=WITHIN_REACH)
    assert three.prune(("c20", "s1"))


def test_the_newest_durable_one_stays_while_newer_ones_lie_on_nodes_only(small) -> None:
    small.add(10, "s1", "n1")
    small.add(20, "n1")
    with pytest.raises(RefusedBySafety, match="step_10 is the newest durable checkpoint"):
        small.prune(("c10", "s1"), ("c10", "n1"))
    small.copy("c20", "s1")
    assert small.prune(("c10", "s1"), ("c10", "n1"))


def test_the_newest_durable_one_within_reach_stays(small) -> None:
    small.add(10, "s1")
    small.add(20, "s2", "n1")
    with pytest.raises(
        RefusedBySafety, match="step_10 is the newest durable checkpoint for resume within"
    ):
        small.prune(("c10", "s1"), reachable=WITHIN_REACH)
    assert small.prune(("c10", "s1"))


def test_what_is_marked_bad_counts_for_nothing_and_may_go(three) -> None:
    with pytest.raises(RefusedBySafety, match="step_20 is the newest"):
        three.prune(("c20", "s1"), without=frozenset({"c30"}))
    assert three.prune(("c30", "s1"), without=frozenset({"c30"}))


def test_of_what_was_reported_corrupt_only_copies_that_were_compared_since_count(small) -> None:
    reported = (("c20", LATELY_NS + 1),)
    small.add(10, "s1")
    small.add(20, "s1", "n1")
    with pytest.raises(RefusedBySafety, match="step_10 is the newest"):
        small.prune(("c10", "s1"), doubted=reported)
    small.copy("c20", "s2", verified_at_ns=LATELY_NS + 2)
    assert small.prune(("c10", "s1"), doubted=reported)
    with pytest.raises(RefusedBySafety, match="step_20 would be left without a whole verified"):
        small.evict(("c20", "s2"), doubted=reported)
    assert small.evict(("c20", "s1"), doubted=reported)


def test_what_another_line_has_replaced_counts_for_nothing_and_may_go(three) -> None:
    path = ((2, None), (1, 10))
    with pytest.raises(RefusedBySafety, match="step_10 is the newest"):
        three.prune(("c10", "s1"), path=path)
    three.add(15, "s1", line=2)
    assert three.prune(("c10", "s1"), ("c20", "s1"), ("c30", "s1"), path=path)


def test_of_equal_steps_the_newer_line_and_attempt_is_the_newest(small) -> None:
    path = ((2, None), (1, 10))
    for line, attempt in ((1, 0), (1, 1), (2, 0)):
        small.add(10, "s1", content_id=f"c{line}.{attempt}", line=line, attempt=attempt)
    assert small.prune(("c1.0", "s1"), path=path)
    with pytest.raises(RefusedBySafety, match="newest"):
        small.prune(("c2.0", "s1"), path=path)
    assert small.prune(("c1.1", "s1"), path=path)


def test_a_checkpoint_without_a_step_is_never_the_newest(small) -> None:
    small.add(10, "s1")
    small.add(None, "s1", content_id="final")
    with pytest.raises(RefusedBySafety, match="step_10 is the newest"):
        small.prune(("c10", "s1"))
    small.change("c10", "s1", CopyState.CORRUPT)
    assert small.prune(("final", "s1"))


@pytest.mark.parametrize(
    ("state", "evidence"),
    [
        (CopyState.REOPENED, Evidence.DIGEST),
        (CopyState.CORRUPT, Evidence.DIGEST),
        (CopyState.LOST, Evidence.DIGEST),
        (CopyState.VERIFIED, Evidence.STRUCTURE),
    ],
)
def test_only_copies_verified_by_digest_count(small, state, evidence) -> None:
    small.add(10, "s1")
    small.add(20, "s1", state=state, evidence=evidence)
    with pytest.raises(RefusedBySafety, match="step_10 is the newest"):
        small.prune(("c10", "s1"))


def test_what_is_condemned_already_does_not_count(three) -> None:
    three.prune(("c10", "s1"), ("c20", "s1"))
    three.change("c30", "s1", CopyState.CORRUPT)
    three.add(5, "s1")
    with pytest.raises(RefusedBySafety, match="step_5 is the newest"):
        three.prune(("c5", "s1"))


def test_parts_that_cover_all_shards_between_them_are_one_checkpoint(small) -> None:
    small.add(10, ("n1", "01"), ("n2", "23"))
    small.add(20, ("n1", "01"), ("n2", "123"))
    small.add(30, ("n1", "01"), ("n2", "3"))
    with pytest.raises(RefusedBySafety, match="step_20 is the newest restorable checkpoint"):
        small.prune(("c20", "n1"), ("c20", "n2"))
    with pytest.raises(RefusedBySafety, match="step_20 is the newest restorable checkpoint"):
        small.prune(("c20", "n1"))
    assert small.prune(("c10", "n1"), ("c10", "n2"), ("c30", "n1"), ("c30", "n2"))


def test_as_many_remain_restorable_as_have_to(three) -> None:
    with pytest.raises(RefusedBySafety, match="1 restorable would remain of 3"):
        three.prune(("c10", "s1"), ("c20", "s1"), min_restorable=2)
    assert three.prune(("c10", "s1"), min_restorable=2)


def test_where_there_are_fewer_than_have_to_remain_none_goes(three) -> None:
    with pytest.raises(RefusedBySafety, match="2 restorable would remain of 3, and at least 9"):
        three.prune(("c10", "s1"), min_restorable=9)
    three.change("c20", "s1", CopyState.CORRUPT)
    three.add(5, "s1", purposes=(Purpose.WEIGHTS,))
    assert three.prune(("c5", "s1"), min_restorable=9)  # it is none of them


def test_as_many_remain_within_reach_as_have_to(three) -> None:
    three.add(25, "s2")
    with pytest.raises(RefusedBySafety, match="1 restorable within reach would remain of 3"):
        three.prune(("c10", "s1"), ("c20", "s1"), min_restorable=2, reachable=WITHIN_REACH)


def test_attempts_of_one_step_are_one_that_remains(small) -> None:
    small.add(10, "s1")
    small.add(20, "s1")
    small.add(20, "s1", content_id="again", attempt=1)
    with pytest.raises(RefusedBySafety, match="1 restorable would remain of 2"):
        small.prune(("c10", "s1"), min_restorable=2)
    assert small.prune(("c20", "s1"), min_restorable=2)


def test_what_is_pinned_may_lose_a_copy_it_does_not_need_and_no_more(three) -> None:
    three.copy("c10", "n1")
    pin = (("c10", "pinned as 'paper'"),)
    with pytest.raises(RefusedBySafety, match="step_10 is kept: pinned as 'paper'"):
        three.prune(("c10", "s1"), ("c10", "n1"), protected=pin)
    assert three.evict(("c10", "n1"), protected=pin)
    with pytest.raises(RefusedBySafety, match="without a whole verified copy"):
        three.evict(("c10", "s1"), protected=pin)


def test_a_claimed_checkpoint_loses_no_copy(three, clock) -> None:
    three.copy("c10", "n1")
    three.catalog.claims.take("r1", "c10", owner="eval", reason="scoring", ttl_s=5)
    for going in (three.prune, three.evict):
        with pytest.raises(RefusedBySafety, match="step_10 is in use by eval: scoring"):
            going(("c10", "n1"))
    assert three.prune(("c20", "s1"))


def test_a_claim_that_ended_is_honoured_for_as_long_again(three, clock) -> None:
    three.catalog.claims.take("r1", "c10", owner="eval", reason="scoring", ttl_s=5)
    clock.at_ns += 10 * S - 1
    assert three.catalog.claims.claims() == ()
    with pytest.raises(RefusedBySafety, match="in use"):
        three.prune(("c10", "s1"))
    clock.at_ns += 1
    assert three.prune(("c10", "s1"))


def test_a_claim_of_another_run_on_equal_bytes_holds_nothing_back(three, sealed) -> None:
    from msgspec import structs

    from ckptgov.model.checkpoint import RunIdentity

    three.catalog.put_run(RunIdentity(run_id="r2", name="other"), 6)
    three.catalog.put_sealed(structs.replace(sealed, run_id="r2", content_id="c10"), b"{}")
    three.catalog.claims.take("r2", "c10", owner="eval", reason="", ttl_s=5)
    assert three.prune(("c10", "s1"))


def test_a_checkpoint_that_a_mover_delivers_loses_no_copy(three, clock) -> None:
    three.copy("c10", "n1")
    three.catalog.take_copy_lease("c10", "s2", holder="mover", ttl_ns=5)
    for going in (three.prune, three.evict):
        with pytest.raises(RefusedBySafety, match="step_10 is being copied by mover"):
            going(("c10", "n1"))
    clock.at_ns += 5
    assert three.evict(("c10", "n1"))


class TestEvict:
    """The checkpoint stays: then enough of it has to."""

    def test_a_copy_goes_while_a_durable_one_remains(self, small) -> None:
        small.add(10, "s1", "n1")
        assert [one.action for one in small.evict(("c10", "n1"))] == [Action.EVICT]

    def test_the_last_copy_stays(self, three) -> None:
        with pytest.raises(RefusedBySafety, match="step_10 would be left without a whole verified"):
            three.evict(("c10", "s1"))

    def test_two_copies_do_not_go_as_each_others_remainder(self, three) -> None:
        three.copy("c10", "s2")
        with pytest.raises(RefusedBySafety, match="without a whole verified copy"):
            three.evict(("c10", "s1"), ("c10", "s2"))

    def test_a_part_is_no_whole_copy(self, three) -> None:
        three.copy("c10", "s2", shards="012")
        with pytest.raises(RefusedBySafety, match="without a whole verified copy"):
            three.evict(("c10", "s1"))

    def test_a_copy_out_of_reach_is_none_to_rely_on(self, three) -> None:
        three.copy("c10", "s2")
        with pytest.raises(RefusedBySafety, match="without a whole verified copy"):
            three.evict(("c10", "s1"), reachable=WITHIN_REACH)

    def test_a_copy_on_a_node_alone_is_not_durable(self, small) -> None:
        small.add(10, "n1", "n2")
        with pytest.raises(RefusedBySafety, match="fewer than 1 verified on shared tiers"):
            small.evict(("c10", "n1"))

    def test_of_shared_copies_as_many_remain_as_have_to(self, three) -> None:
        three.copy("c10", "s2")
        with pytest.raises(RefusedBySafety, match="fewer than 2 verified on shared tiers"):
            three.evict(("c10", "s1"), min_durable_copies=2)
        assert three.evict(("c10", "s1"), min_durable_copies=1)

    def test_a_nodes_copy_goes_though_there_were_never_enough_shared_ones(self, three) -> None:
        three.copy("c10", "n1")
        assert three.evict(("c10", "n1"), min_durable_copies=2)

    def test_parts_on_shared_tiers_are_one_durable_copy_together(self, small) -> None:
        small.add(10, ("s1", "01"), ("s2", "23"), "n1")
        assert small.evict(("c10", "n1"))
        small.copy("c10", "n2")
        with pytest.raises(RefusedBySafety, match="fewer than 1 verified on shared"):
            small.evict(("c10", "s1"))

    def test_what_remains_was_compared_lately(self, three, clock) -> None:
        three.copy("c10", "n1")
        since = {"compared_since_ns": three.catalog.copies("r1")[0].verified_at_ns + 1}
        with pytest.raises(RefusedBySafety, match="left of step_10 was not compared lately"):
            three.evict(("c10", "n1"), **since)
        three.catalog.confirm(
            "r1",
            "c10",
            "s1",
            expected=CopyState.VERIFIED,
            at_ns=clock.at_ns,
            evidence=Evidence.DIGEST,
        )
        assert three.evict(("c10", "n1"), **since)

    def test_a_copy_of_which_nobody_knows_when_it_was_compared_is_old(self, small) -> None:
        small.add(10, "s1", verified_at_ns=None)
        small.copy("c10", "n1")
        with pytest.raises(RefusedBySafety, match="not compared lately"):
            small.evict(("c10", "n1"), compared_since_ns=1)


class TestMayBeEmptied:
    """A run that is over may lose its last checkpoint, where that was said."""

    def test_all_of_it_goes(self, three) -> None:
        all_three = [(f"c{step}", "s1") for step in (10, 20, 30)]
        assert len(three.prune(*all_three, min_restorable=3, may_be_emptied=True)) == 3

    def test_pins_claims_and_movers_hold_all_the_same(self, three) -> None:
        three.catalog.claims.take("r1", "c20", owner="eval", reason="", ttl_s=5)
        three.catalog.take_copy_lease("c30", "s2", holder="mover", ttl_ns=5)
        with pytest.raises(RefusedBySafety, match="step_10 is kept"):
            three.prune(("c10", "s1"), protected=(("c10", "pinned"),), may_be_emptied=True)
        for content_id in ("c20", "c30"):
            with pytest.raises(RefusedBySafety):
                three.prune((content_id, "s1"), may_be_emptied=True)

    def test_what_is_said_to_stay_has_to_stay(self, three) -> None:
        with pytest.raises(RefusedBySafety, match="without a whole verified copy"):
            three.evict(("c10", "s1"), may_be_emptied=True)


def test_whatever_forbids_it_is_told_and_much_of_it_is_counted(small) -> None:
    for step in range(10):
        small.add(step, "s1")
    pins = tuple((f"c{step}", f"pin {step}") for step in range(10))
    with pytest.raises(RefusedBySafety) as caught:
        small.prune(*((f"c{step}", "s1") for step in range(10)), protected=pins)
    assert "step_0 is kept: pin 0; step_1 is kept: pin 1" in caught.value.message
    assert "more reasons" in caught.value.message
    assert "plan again" in (caught.value.hint or "")


class TestBegin:
    """Asked again when it is done: would what is condemned be missed by now?"""

    def test_what_nobody_misses_is_moved(self, three, clock) -> None:
        three.prune(("c10", "s1"))
        clock.at_ns += 10 * S
        begun = three.catalog.removals.begin("r1", "c10", "s1", three.guard())
        assert begun.state is three.states()[("c10", "s1")] is CopyState.TRASHING

    def test_it_waits_for_its_grace(self, three, clock) -> None:
        three.prune(("c10", "s1"))
        clock.at_ns += 10 * S - 1
        with pytest.raises(RefusedBySafety, match="may still be brought back"):
            three.catalog.removals.begin("r1", "c10", "s1", three.guard())
        assert three.states()[("c10", "s1")] is CopyState.CONDEMNED

    def test_it_stays_where_everything_newer_was_lost(self, three, clock) -> None:
        three.prune(("c10", "s1"), ("c20", "s1"))
        clock.at_ns += 10 * S
        three.change("c30", "s1", CopyState.CORRUPT)
        for content_id in ("c10", "c20"):
            with pytest.raises(RefusedBySafety, match="is the newest restorable checkpoint"):
                three.catalog.removals.begin("r1", content_id, "s1", three.guard())

    def test_parts_condemned_together_are_missed_together(self, small, clock) -> None:
        small.add(10, ("n1", "01"), ("n2", "23"))
        small.add(20, "n1")
        small.prune(("c10", "n1"), ("c10", "n2"))
        clock.at_ns += 10 * S
        small.change("c20", "n1", CopyState.LOST)
        for place in ("n1", "n2"):
            with pytest.raises(RefusedBySafety, match="is the newest restorable checkpoint"):
                small.catalog.removals.begin("r1", "c10", place, small.guard())

    def test_the_second_part_follows_the_first(self, small, clock) -> None:
        small.add(10, ("n1", "01"), ("n2", "23"))
        small.add(20, "n1")
        small.prune(("c10", "n1"), ("c10", "n2"))
        clock.at_ns += 10 * S
        for place in ("n1", "n2"):
            assert small.catalog.removals.begin("r1", "c10", place, small.guard())

    def test_a_claim_or_a_pin_of_meanwhile_holds_it(self, three, clock) -> None:
        three.prune(("c10", "s1"), ("c20", "s1"))
        clock.at_ns += 10 * S
        three.catalog.claims.take("r1", "c10", owner="eval", reason="", ttl_s=5)
        with pytest.raises(RefusedBySafety, match="in use"):
            three.catalog.removals.begin("r1", "c10", "s1", three.guard())
        pinned = three.guard(protected=(("c20", "pinned"),))
        with pytest.raises(RefusedBySafety, match="is kept: pinned"):
            three.catalog.removals.begin("r1", "c20", "s1", pinned)

    def test_a_floor_that_was_raised_meanwhile_holds_it(self, three, clock) -> None:
        three.prune(("c10", "s1"))
        clock.at_ns += 10 * S
        with pytest.raises(RefusedBySafety, match="2 restorable would remain of 3"):
            three.catalog.removals.begin("r1", "c10", "s1", three.guard(min_restorable=3))

    def test_an_evicted_copy_stays_where_the_other_one_was_lost(self, three, clock) -> None:
        three.copy("c10", "n1")
        three.evict(("c10", "n1"))
        clock.at_ns += 10 * S
        three.change("c10", "s1", CopyState.REOPENED)
        with pytest.raises(RefusedBySafety, match="without a whole verified copy"):
            three.catalog.removals.begin("r1", "c10", "n1", three.guard())
