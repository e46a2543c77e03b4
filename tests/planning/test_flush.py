"""What flows over a link, in which order, and why the rest does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckptgov.model.checkpoint import StepKind
from ckptgov.model.copies import LEAVING, CopyState
from ckptgov.model.journal import LineCause, NumberedRecord, Pin, Stamp, Unpin
from ckptgov.model.pacing import FlowClass
from ckptgov.model.settings import Link
from ckptgov.planning.flush import FlushPlan, Why, WhyNot, plan_flush
from ckptgov.planning.flushable import FlushCheckpoint, FlushCopy, RunToFlush, standing_pins
from ckptgov.planning.lines import Line, Lines

HOUR_NS = 3600 * 10**9
LINE_1 = Lines({1: Line(number=1)})
ROLLED_BACK_TO_200 = Lines(
    {
        1: Line(number=1),
        2: Line(number=2, parent=1, base_step=200, cause=LineCause.ROLLBACK),
    }
)
AT_NVME = FlushCopy(tier="nvme", is_shared=False, state=CopyState.VERIFIED)
AT_LUSTRE = FlushCopy(tier="lustre", is_shared=True, state=CopyState.VERIFIED)
AT_S3 = FlushCopy(tier="s3", is_shared=True, state=CopyState.VERIFIED)


def link(**rules: object) -> Link:
    return Link(source="nvme", target="s3", **rules)


def at(copy: FlushCopy, state: CopyState, coverage: bytes | None = None) -> FlushCopy:
    return replace(copy, state=state, coverage=coverage)


def saved(step: int | None, *copies: FlushCopy, **members: object) -> FlushCheckpoint:
    """A checkpoint that lies whole on the nodes' NVMe unless copies are given."""
    attempt = members.get("attempt", 0)
    line = members.get("line", 1)
    standing = {
        "content_id": f"sha256:{step}-{line}-{attempt}",
        "name": f"step-{step}",
        "step": step,
        "step_kind": StepKind.NONE if step is None else StepKind.STEP,
        "line": 1,
        "bytes": 10,
        "shard_count": 4,
        "sealed_at_ns": (step or 0) * 10**9,
        "copies": copies or (AT_NVME,),
    }
    return FlushCheckpoint(**{**standing, **members})


def run(*checkpoints: FlushCheckpoint, name: str = "llm", lines: Lines = LINE_1) -> RunToFlush:
    return RunToFlush(run_id=f"id-{name}", name=name, lines=lines, checkpoints=checkpoints)


def steps(plan: FlushPlan) -> list[int | None]:
    return [one.checkpoint.step for one in plan.items]


def chosen(rules: Link, *checkpoints: FlushCheckpoint, lines: Lines = LINE_1) -> list[int | None]:
    return sorted(steps(plan_flush([run(*checkpoints, lines=lines)], rules)))


def why_not(plan: FlushPlan) -> dict[int | None, WhyNot]:
    return {one.checkpoint.step: one.why_not for one in plan.skips}


HUNDREDS = tuple(saved(step) for step in range(100, 800, 100))


class TestRules:
    @pytest.mark.parametrize(
        ("rules", "flowing"),
        [
            ({"every": 1}, [100, 200, 300, 400, 500, 600, 700]),
            ({"every": 3}, [100, 400, 700]),
            ({"every_steps": 250}, [100, 300, 500]),
            ({"every_steps": 100_000}, [100]),
            ({"every_s": 200.0}, [100, 200, 400, 600]),
            ({"last": 2}, [600, 700]),
            ({"last": 99}, [100, 200, 300, 400, 500, 600, 700]),
            ({"every": 3, "last": 2}, [100, 400, 600, 700]),
            ({}, []),
        ],
    )
    def test_each_rule_takes_its_own(self, rules: dict, flowing: list[int]) -> None:
        assert chosen(link(**rules), *HUNDREDS) == flowing

    def test_a_gap_in_the_steps_gives_the_first_one_above_it(self) -> None:
        saves = [saved(step) for step in (10, 90, 730, 790)]
        assert chosen(link(every_steps=100), *saves) == [10, 730]

    def test_an_interval_gives_one_whatever_the_clock_did(self) -> None:
        saves = [
            saved(1, sealed_at_ns=10 * HOUR_NS + 5),
            saved(2, sealed_at_ns=10 * HOUR_NS + 1),  # the clock was set back in between
            saved(3, sealed_at_ns=10 * HOUR_NS + 9),
            saved(4, sealed_at_ns=500 * HOUR_NS),  # and jumped over many intervals
            saved(5, sealed_at_ns=11 * HOUR_NS - 1),
        ]
        assert chosen(link(every_s=3600.0), *saves) == [1, 4]

    def test_the_first_of_an_interval_that_cannot_be_had_gives_way_to_the_next(self) -> None:
        torn = saved(1, at(AT_NVME, CopyState.CORRUPT))
        assert chosen(link(every_s=3600.0), torn, saved(2), saved(3)) == [2]

    def test_pins_choose_by_name(self) -> None:
        saves = [saved(1, pins=frozenset({"paper"})), saved(2, pins=frozenset({"mine"})), saved(3)]
        assert chosen(link(pins=("paper", "eval")), *saves) == [1]

    def test_every_rule_that_chose_one_is_told(self) -> None:
        rules = link(every=1, every_steps=100, every_s=1.0, last=1, pins=("p",))
        one = saved(100, pins=frozenset({"p"}))
        plan = plan_flush([run(one)], rules, asked=frozenset({one.content_id}))
        assert plan.items[0].whys == tuple(Why)

    def test_what_was_asked_for_flows_over_a_link_without_rules(self) -> None:
        asked = frozenset({HUNDREDS[2].content_id})
        plan = plan_flush([run(*HUNDREDS)], link(), asked=asked)
        assert steps(plan) == [300]
        assert set(why_not(plan).values()) == {WhyNot.NOT_CHOSEN}


class TestWhatWasRotatedAway:
    def test_lost_ones_still_count_so_that_nothing_shifts(self) -> None:
        lost = [saved(step, at(AT_NVME, CopyState.LOST), AT_S3) for step in (100, 200, 300)]
        lost[1] = saved(200, at(AT_NVME, CopyState.LOST))
        lost[2] = saved(300, at(AT_NVME, CopyState.LOST))
        rest = [saved(step) for step in (400, 500, 600)]
        assert chosen(link(every=3), *lost, *rest) == [400]

    def test_one_lost_before_it_was_flushed_gives_way_to_the_next_of_its_stretch(self) -> None:
        lost = saved(100, at(AT_NVME, CopyState.LOST))
        assert chosen(link(every=3), lost, saved(200), saved(300)) == [200]

    def test_one_half_delivered_and_then_lost_gives_way_too(self) -> None:
        half = saved(100, at(AT_NVME, CopyState.LOST), at(AT_S3, CopyState.PARTIAL))
        assert chosen(link(every=3), half, saved(200), saved(300)) == [200]

    @pytest.mark.parametrize("at_source", [CopyState.VERIFIED, CopyState.LOST])
    def test_one_that_retention_removed_from_the_target_is_not_replaced_by_its_neighbour(
        self, at_source: CopyState
    ) -> None:
        pruned = saved(100, at(AT_NVME, at_source), at(AT_S3, CopyState.PURGED))
        plan = plan_flush([run(pruned, saved(200), saved(300))], link(every=3))
        assert steps(plan) == []
        assert why_not(plan)[100] is WhyNot.CONDEMNED

    @pytest.mark.parametrize("state", sorted(LEAVING))
    def test_one_that_can_still_be_undone_there_is_not_sent_even_if_asked_for(
        self, state: CopyState
    ) -> None:
        leaving = saved(100, AT_NVME, at(AT_S3, state), pins=frozenset({"p"}))
        asked = frozenset({leaving.content_id})
        plan = plan_flush([run(leaving)], link(pins=("p",)), asked=asked)
        assert why_not(plan)[100] is WhyNot.CONDEMNED
        assert "undelete" in plan.skips[0].text

    def test_a_pin_brings_it_back(self) -> None:
        pruned = saved(100, AT_NVME, at(AT_S3, CopyState.PURGED), pins=frozenset({"p"}))
        assert chosen(link(pins=("p",)), pruned) == [100]


class TestNeverByThemselves:
    @pytest.mark.parametrize(
        ("one", "reason"),
        [
            (saved(300, mark="marked bad by uid:1@n: loss spike"), WhyNot.BAD),
            (saved(300, at(AT_NVME, CopyState.CORRUPT)), WhyNot.NOT_RESTORABLE),
            (saved(300, at(AT_NVME, CopyState.REOPENED)), WhyNot.NOT_RESTORABLE),
            (saved(300, at(AT_NVME, CopyState.LOST)), WhyNot.NOT_RESTORABLE),
            (saved(300, AT_LUSTRE), WhyNot.NOT_RESTORABLE),
            (saved(300, at(AT_NVME, CopyState.CONDEMNED)), WhyNot.CONDEMNED),
            (saved(300, AT_NVME, at(AT_S3, CopyState.CONDEMNED)), WhyNot.CONDEMNED),
            (saved(300, AT_NVME, at(AT_S3, CopyState.REOPENED)), WhyNot.UNVERIFIED_THERE),
            (saved(300, AT_NVME, AT_S3), WhyNot.ALREADY_THERE),
            (saved(300, is_arriving=True), WhyNot.BEING_DELIVERED),
            (saved(None), WhyNot.STEPLESS),
        ],
    )
    def test_a_rule_that_would_take_all_leaves_it(
        self, one: FlushCheckpoint, reason: WhyNot
    ) -> None:
        plan = plan_flush([run(one, saved(200))], link(every=1, last=9))
        assert steps(plan) == [200]
        assert why_not(plan) == {one.step: reason}
        assert plan.skips[0].text

    @pytest.mark.parametrize("pins", [frozenset(), frozenset({"p"})])
    def test_an_older_lines_steps_above_the_base_stay(self, pins: frozenset[str]) -> None:
        saves = [saved(100), saved(200), saved(300, pins=pins), saved(250, line=2)]
        plan = plan_flush([run(*saves, lines=ROLLED_BACK_TO_200)], link(every=1, pins=("p",)))
        assert sorted(steps(plan)) == [100, 200, 250]
        assert why_not(plan) == {300: WhyNot.OLDER_LINE}

    def test_a_pinned_bad_one_stays_and_a_pinned_stepless_one_flows(self) -> None:
        bad = saved(1, mark="bad", pins=frozenset({"p"}))
        release = saved(None, pins=frozenset({"p"}))
        assert chosen(link(pins=("p",)), bad, release) == [None]

    @pytest.mark.parametrize(
        "one",
        [
            saved(300, mark="bad"),
            saved(None),
            saved(300, AT_NVME, at(AT_S3, CopyState.PURGED)),
            saved(300, AT_NVME, at(AT_S3, CopyState.UNREADABLE)),
        ],
    )
    def test_a_person_may_ask_for_it(self, one: FlushCheckpoint) -> None:
        plan = plan_flush([run(one)], link(), asked=frozenset({one.content_id}))
        assert [item.whys for item in plan.items] == [(Why.ASKED,)]

    @pytest.mark.parametrize("state", [CopyState.CORRUPT, CopyState.REOPENED, CopyState.LOST])
    def test_but_not_for_what_is_not_restorable_at_the_source(self, state: CopyState) -> None:
        one = saved(300, at(AT_NVME, state))
        plan = plan_flush([run(one)], link(), asked=frozenset({one.content_id}))
        assert why_not(plan) == {300: WhyNot.NOT_RESTORABLE}

    @pytest.mark.parametrize("state", [CopyState.CORRUPT, CopyState.LOST])
    def test_a_corrupt_or_lost_copy_at_the_target_is_delivered_again(
        self, state: CopyState
    ) -> None:
        assert chosen(link(every=1), saved(300, AT_NVME, at(AT_S3, state))) == [300]


class TestAttempts:
    def test_the_newest_attempt_at_a_step_flows(self) -> None:
        plan = plan_flush([run(saved(100), saved(100, attempt=1))], link(every=1))
        assert [one.checkpoint.attempt for one in plan.items] == [1]
        assert [one.why_not for one in plan.skips] == [WhyNot.SUPERSEDED]

    def test_an_older_attempt_flows_where_the_newer_one_is_bad(self) -> None:
        plan = plan_flush([run(saved(100), saved(100, attempt=1, mark="bad"))], link(every=1))
        assert [one.checkpoint.attempt for one in plan.items] == [0]

    def test_attempts_at_one_step_count_once(self) -> None:
        saves = [saved(100), saved(100, attempt=1), saved(200), saved(300)]
        assert chosen(link(every=2), *saves) == [100, 300]


class TestSuperseding:
    def test_a_newer_one_takes_the_place_of_one_not_begun(self) -> None:
        plan = plan_flush([run(saved(100), saved(200))], link(last=1))
        assert steps(plan) == [200]
        assert why_not(plan) == {100: WhyNot.SUPERSEDED}

    @pytest.mark.parametrize(
        "half", [saved(100, is_begun=True), saved(100, AT_NVME, at(AT_S3, CopyState.PARTIAL))]
    )
    def test_one_half_delivered_is_finished_first(self, half: FlushCheckpoint) -> None:
        assert steps(plan_flush([run(half, saved(200))], link(last=1))) == [100, 200]

    def test_one_that_another_rule_chose_stays(self) -> None:
        assert chosen(link(last=1, every_steps=1000), saved(100), saved(200)) == [100, 200]


class TestNodes:
    HALF_A = FlushCopy(tier="nvme", is_shared=False, state=CopyState.VERIFIED, coverage=b"\x05")
    HALF_B = FlushCopy(tier="nvme", is_shared=False, state=CopyState.VERIFIED, coverage=b"\x0a")

    def test_shards_on_several_nodes_make_it_whole(self) -> None:
        plan = plan_flush([run(saved(100, self.HALF_A, self.HALF_B))], link(every=1))
        assert [one.is_spread for one in plan.items] == [True]

    def test_a_missing_shard_does_not(self) -> None:
        torn = saved(100, self.HALF_A, at(self.HALF_B, CopyState.VERIFIED, b"\x02"))
        assert why_not(plan_flush([run(torn)], link(every=1))) == {100: WhyNot.NOT_RESTORABLE}

    def test_an_unverified_half_does_not(self) -> None:
        torn = saved(100, self.HALF_A, at(self.HALF_B, CopyState.REOPENED, b"\x0a"))
        assert why_not(plan_flush([run(torn)], link(every=1))) == {100: WhyNot.NOT_RESTORABLE}

    def test_one_node_sends_its_shards_while_another_sends_its_own(self) -> None:
        one = saved(100, self.HALF_A, self.HALF_B, is_arriving=True)
        assert chosen(link(every=1), one) == [100]

    def test_half_of_it_at_the_target_is_not_there(self) -> None:
        half = at(AT_S3, CopyState.VERIFIED, b"\x07")
        assert chosen(link(every=1), saved(100, AT_NVME, half)) == [100]


class TestOrder:
    def test_what_no_shared_tier_holds_goes_before_replicas(self) -> None:
        plan = plan_flush(
            [run(saved(100), saved(200, AT_NVME, AT_LUSTRE), saved(50))], link(every=1)
        )
        assert steps(plan) == [100, 50, 200]
        classes = [one.flow_class for one in plan.items]
        assert classes == [FlowClass.DURABLE, FlowClass.DURABLE, FlowClass.REPLICATE]

    def test_a_copy_on_a_shared_tier_counts_only_when_whole_and_verified(self) -> None:
        shaky = [at(AT_LUSTRE, CopyState.REOPENED), at(AT_LUSTRE, CopyState.VERIFIED, b"\x03")]
        plan = plan_flush([run(*(saved(1 + n, AT_NVME, shaky[n]) for n in (0, 1)))], link(every=1))
        assert {one.flow_class for one in plan.items} == {FlowClass.DURABLE}

    def test_what_was_begun_is_finished_before_a_newer_one(self) -> None:
        plan = plan_flush([run(saved(100, is_begun=True), saved(200))], link(every=1))
        assert steps(plan) == [100, 200]

    def test_every_runs_newest_goes_before_the_backlog_of_any(self) -> None:
        backlog = run(*(saved(step, content_id=f"a{step}") for step in (1, 2, 3)), name="a")
        single = run(saved(1, content_id="b1"), name="b")
        plan = plan_flush([backlog, single], link(every=1))
        order = [(one.run, one.checkpoint.step) for one in plan.items]
        assert order == [("a", 3), ("b", 1), ("a", 2), ("a", 1)]

    def test_no_two_checkpoints_share_an_order(self) -> None:
        runs = [run(*HUNDREDS, name=name) for name in ("a", "b", "c")]
        orders = [one.order for one in plan_flush(runs, link(every=1)).items]
        assert len(set(orders)) == len(orders)


class TestPins:
    @staticmethod
    def records(*facts: Pin | Unpin) -> list[NumberedRecord]:
        return [NumberedRecord(number, one) for number, one in enumerate(facts, 1)]

    @staticmethod
    def stamp(number: int) -> Stamp:
        return Stamp(id=f"id-{number}", run_id="r", at_ns=number, by="uid:1@n")

    def test_a_pin_stands_until_it_is_lifted_or_its_time_is_over(self) -> None:
        records = self.records(
            Pin(stamp=self.stamp(1), content_id="c1", pin_name="paper"),
            Pin(stamp=self.stamp(2), content_id="c1", pin_name="eval", until_ns=100),
            Pin(stamp=self.stamp(3), content_id="c2", pin_name="paper"),
            Unpin(stamp=self.stamp(4), content_id="c2", pin_name="paper"),
        )
        assert standing_pins(records, now_ns=99) == {"c1": frozenset({"paper", "eval"})}
        assert standing_pins(records, now_ns=100) == {"c1": frozenset({"paper"})}


STATES = st.sampled_from([CopyState.VERIFIED, *CopyState])


@st.composite
def histories(draw: Callable) -> tuple[FlushCheckpoint, ...]:
    """A run of some steps, with copies in any state and clocks that jump."""
    numbers = draw(st.lists(st.integers(0, 40), unique=True, max_size=12))
    found = []
    for step in numbers:
        copies = tuple(
            FlushCopy(tier=tier, is_shared=tier != "nvme", state=draw(STATES))
            for tier in draw(st.lists(st.sampled_from(["nvme", "lustre", "s3"]), unique=True))
        )
        found.append(
            saved(
                step,
                sealed_at_ns=draw(st.integers(0, 40)) * 10**9,
                copies=copies,
                mark=draw(st.none() | st.just("bad")),
                is_begun=draw(st.booleans()),
                is_arriving=draw(st.booleans()),
                pins=frozenset(draw(st.lists(st.sampled_from(["p", "q"]), max_size=1))),
            )
        )
    return tuple(found)


RULES = st.fixed_dictionaries(
    {},
    optional={
        "every": st.integers(1, 5),
        "every_steps": st.integers(1, 15),
        "every_s": st.floats(0.5, 15.0),
        "last": st.integers(1, 5),
        "pins": st.just(("p",)),
    },
)


def ids(plan: FlushPlan) -> set[str]:
    return {one.checkpoint.content_id for one in plan.items}


class TestWhateverComes:
    @given(older=histories(), newer=histories(), rules=RULES)
    def test_newer_checkpoints_never_change_the_choice_among_older_ones(
        self, older: Iterable[FlushCheckpoint], newer: Iterable[FlushCheckpoint], rules: dict
    ) -> None:
        rules.pop("last", None)
        later = [
            replace(one, step=(one.step or 0) + 41, content_id=f"late-{one.content_id}")
            for one in newer
        ]
        before = ids(plan_flush([run(*older)], link(**rules)))
        after = ids(plan_flush([run(*older, *later)], link(**rules)))
        assert before == after & {one.content_id for one in older}

    @given(saves=histories(), rules=RULES, seed=st.randoms())
    def test_the_order_of_the_input_is_no_matter(
        self, saves: tuple[FlushCheckpoint, ...], rules: dict, seed: object
    ) -> None:
        shuffled = list(saves)
        seed.shuffle(shuffled)
        one, other = run(*saves), run(*shuffled)
        assert plan_flush([one], link(**rules)) == plan_flush([other], link(**rules))

    @given(saves=histories(), rules=RULES, more=RULES)
    def test_adding_a_rule_never_takes_one_out(
        self, saves: tuple[FlushCheckpoint, ...], rules: dict, more: dict
    ) -> None:
        fewer = ids(plan_flush([run(*saves)], link(**rules)))
        assert fewer <= ids(plan_flush([run(*saves)], link(**{**more, **rules})))

    @given(saves=histories(), rules=RULES)
    def test_everything_flows_or_has_a_reason_not_to(
        self, saves: tuple[FlushCheckpoint, ...], rules: dict
    ) -> None:
        plan = plan_flush([run(*saves)], link(**rules))
        skipped = {one.checkpoint.content_id for one in plan.skips}
        assert ids(plan) | skipped == {one.content_id for one in saves}
        assert not ids(plan) & skipped
        assert all(one.whys for one in plan.items)
