"""``choose``: one line a case, no files."""

from __future__ import annotations

import itertools

import pytest

from ckptgov.model.checkpoint import Evidence, Purpose
from ckptgov.model.facts import Query, Reason
from ckptgov.model.journal import RestoreOutcome
from ckptgov.planning.choose import RunFacts, choose


def pick(checkpoints, history=None, query=None, **options):
    items = tuple(history.items) if history is not None else ()
    facts = RunFacts(checkpoints=tuple(checkpoints), records=items)
    return choose(facts, query or Query(), **options)


def name_of(choice) -> str | None:
    return choice.chosen.name if choice.chosen is not None else None


def reasons_of(choice, name: str) -> set[Reason]:
    return {
        finding.reason
        for verdict in choice.verdicts
        if verdict.checkpoint.name == name
        for finding in verdict.findings
    }


def test_the_highest_step_wins_whatever_the_names_say(checkpoint) -> None:
    steps = [checkpoint(9900), checkpoint(10100), checkpoint(10000), checkpoint(900)]
    assert name_of(pick(steps)) == "step_10100"


def test_the_order_of_the_input_changes_nothing(checkpoint) -> None:
    made = [
        checkpoint(1),
        checkpoint(3, reason=Reason.TORN),
        checkpoint(2),
        checkpoint(None, name="x"),
    ]
    answers = {
        tuple(verdict.checkpoint.name for verdict in pick(order).verdicts)
        for order in itertools.permutations(made)
    }
    assert answers == {("step_3", "step_2", "step_1", "x")}


@pytest.mark.parametrize("reason", [Reason.TORN, Reason.CORRUPT, Reason.REOPENED, Reason.UNPROVEN])
def test_one_with_a_finding_is_passed_over_and_says_why(checkpoint, reason: Reason) -> None:
    choice = pick([checkpoint(1), checkpoint(2, reason=reason)])
    assert name_of(choice) == "step_1"
    assert reasons_of(choice, "step_2") == {reason}


def test_every_one_that_is_passed_over_has_a_reason(checkpoint) -> None:
    choice = pick([checkpoint(None, name="release"), checkpoint(1, reason=Reason.TORN)])
    assert choice.chosen is None
    assert all(verdict.findings for verdict in choice.verdicts)


def test_stepless_ones_are_listed_and_never_latest(checkpoint) -> None:
    choice = pick([checkpoint(None, name="handpicked")])
    assert choice.chosen is None
    assert reasons_of(choice, "handpicked") == {Reason.STEPLESS}


def test_structure_is_not_enough_where_digest_is_asked(checkpoint) -> None:
    query = Query(min_evidence=Evidence.DIGEST)
    choice = pick([checkpoint(1), checkpoint(2, sealed=False)], query=query)
    assert name_of(choice) == "step_1"
    assert reasons_of(choice, "step_2") == {Reason.UNVERIFIED}


def test_weights_do_not_resume_but_serve_as_weights(checkpoint) -> None:
    made = [checkpoint(1), checkpoint(2, purposes=(Purpose.WEIGHTS,))]
    assert name_of(pick(made)) == "step_1"
    assert name_of(pick(made, query=Query(purpose=Purpose.WEIGHTS))) == "step_2"


@pytest.mark.parametrize(
    ("world_size", "reshardable", "asked", "fits"),
    [
        (4, False, 4, True),
        (4, False, 6, False),
        (4, True, 6, True),
        (4, None, 6, False),
        (None, None, 6, True),
        (None, False, 6, False),
        (4, False, None, True),
    ],
)
def test_world_size_fits_or_is_refused(checkpoint, world_size, reshardable, asked, fits) -> None:
    made = [checkpoint(1, world_size=world_size, reshardable=reshardable)]
    choice = pick(made, query=Query(world_size=asked))
    assert (choice.chosen is not None) is fits
    assert fits or reasons_of(choice, "step_1") == {Reason.DOES_NOT_FIT}


def test_a_later_attempt_at_a_step_is_the_one_offered(checkpoint) -> None:
    made = [
        checkpoint(5, name="step_5", content="sha256:a"),
        checkpoint(5, name="attempt-1/step_5", content="sha256:b", attempt=1),
    ]
    assert name_of(pick(made)) == "attempt-1/step_5"


def test_of_equal_ones_the_name_that_says_its_step_is_offered(checkpoint) -> None:
    made = [checkpoint(5, name="last.ckpt"), checkpoint(5, name="epoch=0-step=5.ckpt")]
    assert name_of(pick(made)) == "epoch=0-step=5.ckpt"


class TestRollback:
    def test_higher_steps_of_the_older_line_are_not_offered(self, checkpoint, history) -> None:
        for step in (100, 200, 300):
            history.sealed(step)
        history.rollback(100, line=2)
        choice = pick([checkpoint(step) for step in (100, 200, 300)], history)
        assert name_of(choice) == "step_100"
        assert reasons_of(choice, "step_300") == {Reason.SUPERSEDED}

    def test_a_save_on_the_new_line_is_offered_though_it_is_lower(
        self, checkpoint, history
    ) -> None:
        for step in (100, 300):
            history.sealed(step)
        history.rollback(100, line=2)
        history.sealed(150, line=2)
        choice = pick([checkpoint(100), checkpoint(300), checkpoint(150, line=2)], history)
        assert name_of(choice) == "step_150"

    def test_one_that_arrives_late_on_the_older_line_stays_superseded(
        self, checkpoint, history
    ) -> None:
        history.sealed(100)
        history.rollback(100, line=2)
        history.sealed(400, line=1)
        assert name_of(pick([checkpoint(100), checkpoint(400)], history)) == "step_100"


class TestMarks:
    def test_a_marked_content_is_passed_over_and_lifted_again(self, checkpoint, history) -> None:
        content = history.sealed(2)
        history.bad(content=content)
        made = [checkpoint(1), checkpoint(2)]
        assert name_of(pick(made, history)) == "step_1"
        history.good(content=content)
        assert name_of(pick(made, history)) == "step_2"

    def test_a_range_covers_its_ends_and_nothing_beside(self, checkpoint, history) -> None:
        history.bad(start=2, end=3)
        choice = pick([checkpoint(step) for step in (1, 2, 3, 4)], history)
        passed = [v.checkpoint.step for v in choice.verdicts if not v.is_restorable]
        assert passed == [3, 2]

    def test_the_same_steps_on_a_later_line_are_new(self, checkpoint, history) -> None:
        history.sealed(100)
        history.sealed(200)
        history.bad(start=150)
        history.rollback(100, line=2)
        history.sealed(200, line=2)
        choice = pick([checkpoint(100), checkpoint(200), checkpoint(200, line=2)], history)
        assert (choice.chosen.step, choice.chosen.line) == (200, 2)


class TestOutcomes:
    def test_one_that_failed_to_load_is_stepped_over_with_an_alert(
        self, checkpoint, history
    ) -> None:
        content = history.sealed(2)
        history.outcome(content, RestoreOutcome.LOAD_FAILED)
        choice = pick([checkpoint(1), checkpoint(2)], history)
        assert name_of(choice) == "step_1"
        assert [note.kind for note in choice.notes] == ["alert"]

    @pytest.mark.parametrize("outcome", [RestoreOutcome.STARTED, RestoreOutcome.FAILED_LATER])
    def test_a_crash_loop_for_other_reasons_never_walks_back(
        self, checkpoint, history, outcome: RestoreOutcome
    ) -> None:
        content = history.sealed(2)
        for restart in range(50):
            history.outcome(content, outcome, restart=f"r{restart}")
        assert name_of(pick([checkpoint(1), checkpoint(2)], history)) == "step_2"

    def test_when_many_fail_to_load_the_loader_is_blamed(self, checkpoint, history) -> None:
        made = [checkpoint(step) for step in range(1, 8)]
        for step in range(7, 3, -1):
            history.outcome(history.sealed(step), RestoreOutcome.LOAD_FAILED)
        choice = pick(made, history, step_over_limit=3)
        assert choice.chosen is None
        assert "looks like the loader" in choice.notes[-1].text

    def test_a_verification_after_the_report_clears_corrupt(self, checkpoint, history) -> None:
        content = history.sealed(2)
        history.outcome(content, RestoreOutcome.CORRUPT)
        assert name_of(pick([checkpoint(1), checkpoint(2)], history)) == "step_1"
        later = checkpoint(2, verified_at_ns=10**9)
        assert name_of(pick([checkpoint(1), later], history)) == "step_2"
