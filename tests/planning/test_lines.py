"""Lines read from a journal, and the line a new save belongs to."""

from __future__ import annotations

from ckptgov.model.checkpoint import StepKind
from ckptgov.model.journal import LineCause
from ckptgov.planning.lines import NewSave, attempt_of, line_for_save, ordered, read_lines


def save(
    step: int, *, oldest: int, newest: int | None = None, carried: bool = False, content="new"
):
    return NewSave(
        content_id=content,
        step=step,
        step_kind=StepKind.STEP,
        oldest_mtime_ns=oldest,
        newest_mtime_ns=oldest if newest is None else newest,
        is_carried=carried,
    )


def placed(one: NewSave, history, *, seen: int = 10**9, earlier=None):
    known = {item.record.stamp.id for item in history.items} if earlier is None else earlier
    return line_for_save(
        one, ordered(history.items), earlier=known, first_seen_at_ns=seen, margin_ns=0
    )


def test_a_run_without_records_has_one_line(history) -> None:
    assert read_lines(history.items).active.number == 1


def test_a_rollback_starts_from_the_line_that_holds_its_step(history) -> None:
    history.sealed(100)
    history.sealed(300)
    history.line(2, 1, 100, LineCause.LOWER_STEP)
    history.sealed(150, line=2)
    history.rollback(300, line=3)
    lines = read_lines(history.items)
    assert lines.active.parent == 1
    assert lines.includes(1, 300)
    assert not lines.includes(2, 150)


def test_ancestors_count_up_to_their_base_only(history) -> None:
    history.sealed(100)
    history.rollback(100, line=2)
    history.sealed(200, line=2)
    history.rollback(200, line=3)
    lines = read_lines(history.items)
    assert lines.includes(1, 100)
    assert not lines.includes(1, 150)
    assert lines.includes(2, 200)
    assert not lines.includes(2, 201)


def test_two_racing_rollbacks_of_one_number_leave_the_lower_base(history) -> None:
    history.sealed(50)
    history.sealed(100)
    history.rollback(100, line=2)
    history.rollback(50, line=2)
    assert read_lines(history.items).active.base_step == 50


def test_a_line_that_names_itself_its_parent_does_not_loop(history) -> None:
    history.line(2, 2, 10, LineCause.DECISION)
    lines = read_lines(history.items)
    assert lines.active.parent == 1
    assert not lines.includes(7, 5)


def test_a_save_above_all_others_stays_on_the_active_line(history) -> None:
    history.sealed(100)
    assert placed(save(200, oldest=10**8), history) == (1, None)


def test_a_lower_step_written_after_a_higher_was_sealed_opens_a_line(history) -> None:
    history.sealed(100)
    history.sealed(300)
    line, opening = placed(save(150, oldest=10**8), history)
    assert line == 2
    assert (opening.parent, opening.base_step, opening.cause) == (1, 100, LineCause.LOWER_STEP)


def test_a_lower_step_of_the_same_pass_opens_none(history) -> None:
    history.sealed(300)
    assert placed(save(150, oldest=10**8), history, earlier=set()) == (1, None)


def test_one_that_was_sighted_before_the_higher_was_sealed_opens_none(history) -> None:
    history.sealed(300)
    assert placed(save(150, oldest=10**8), history, seen=500) == (1, None)


def test_times_that_prove_nothing_open_none(history) -> None:
    history.sealed(300)
    assert placed(save(150, oldest=10), history) == (1, None)  # older than the higher one
    assert placed(save(150, oldest=10**8, carried=True), history) == (1, None)
    future = save(150, oldest=10**8, newest=10**12)
    assert placed(future, history) == (1, None)


def test_a_copy_of_a_known_content_keeps_its_line(history) -> None:
    content = history.sealed(100)
    history.sealed(300)
    assert placed(save(100, oldest=10**8, content=content), history) == (1, None)


def test_a_restart_decision_for_a_lower_step_opens_a_line_with_the_next_save(history) -> None:
    low = history.sealed(100)
    history.sealed(300)
    history.restart(low)
    line, opening = placed(save(150, oldest=10**8), history, earlier=set())
    assert line == 2
    assert opening.cause is LineCause.DECISION


def test_an_unsealed_save_older_than_a_rollback_belongs_to_the_older_line(history) -> None:
    history.sealed(100)
    history.rollback(100, line=2)
    lines = read_lines(history.items)
    assert lines.line_of_unsealed(400, newest_mtime_ns=1) == 1
    assert lines.line_of_unsealed(110, newest_mtime_ns=10**9) == 2


def test_attempts_count_other_contents_of_one_step(history) -> None:
    first = history.sealed(100, content="sha256:a")
    assert attempt_of(history.items, content_id=first, step=100, line=1) == 0
    assert attempt_of(history.items, content_id="sha256:b", step=100, line=1) == 1


def test_a_record_merged_from_two_places_counts_once(history) -> None:
    history.sealed(100)
    assert len(ordered([*history.items, *history.items])) == 1


def test_saving_the_same_step_again_is_another_attempt_and_no_line(history) -> None:
    history.sealed(300)
    assert placed(save(300, oldest=10**8), history) == (1, None)
