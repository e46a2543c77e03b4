"""What is read of a run for a plan: lines, metrics, the trainer's own best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptgov.errors import Malformed, StorageError
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.journal import LineCause, Metric, NumberedRecord, Sealed, Stamp
from ckptgov.ops.metrics_of import metrics_of
from ckptgov.ops.recorded_best import recorded_best
from ckptgov.ops.retention_facts import path_of, replaced_at
from ckptgov.planning.lines import Line, Lines
from ckptgov.storage.posix import PosixStorage

ROLLBACK = LineCause.ROLLBACK


def lines(*told: tuple[int, int | None, int | None, int]) -> Lines:
    """(number, parent, base, opened at)."""
    return Lines(
        {
            number: Line(number=number, parent=parent, base_step=base, opened_at_ns=at_ns)
            for number, parent, base, at_ns in told
        }
    )


def test_the_path_bounds_ancestors_by_the_lowest_base_on_the_way() -> None:
    told = lines((1, None, None, 0), (2, 1, 100, 10), (3, 2, 50, 20))
    assert path_of(told) == ((3, None), (2, 50), (1, 50))


def test_the_path_leaves_out_lines_that_the_active_one_does_not_descend_from() -> None:
    told = lines((1, None, None, 0), (2, 1, 100, 10), (3, 1, 200, 20))
    assert path_of(told) == ((3, None), (1, 200))


def test_the_path_includes_what_latest_offers() -> None:
    told = lines((1, None, None, 0), (2, 1, 100, 10), (3, 2, 300, 20), (4, 1, 70, 30))
    path = dict(path_of(told))
    for line in told.by_number:
        for step in (0, 70, 71, 100, 101, 300, 301):
            is_on = line in path and (path[line] is None or step <= path[line])
            assert is_on is told.includes(line, step)


def test_a_line_is_replaced_since_the_last_that_cut_it_off() -> None:
    told = lines((1, None, None, 0), (2, 1, 100, 10), (3, 1, 50, 20))
    assert replaced_at(told) == ((1, 20), (2, 20))


def test_a_line_opened_above_leaves_the_time_of_those_below() -> None:
    told = lines((1, None, None, 0), (2, 1, 100, 10), (3, 2, 500, 20))
    assert replaced_at(told) == ((1, 10), (2, 20))


def stamp(at_ns: int) -> Stamp:
    return Stamp(id=f"{at_ns}", run_id="r", at_ns=at_ns, by="uid:0@a")


def test_a_metric_told_later_stands() -> None:
    sealed = Sealed(
        stamp=stamp(1),
        content_id="c",
        step=1,
        step_kind=StepKind.STEP,
        line=1,
        attempt=0,
        metrics=(("loss", "0.5"), ("acc", "0.1")),
    )
    corrected = Metric(stamp=stamp(2), content_id="c", name="loss", value="nan")
    records = [NumberedRecord(1, sealed), NumberedRecord(2, corrected)]
    assert metrics_of(records) == {"c": {"acc": "0.1", "loss": "nan"}}


@pytest.fixture
def place(tmp_path: Path):
    with PosixStorage(tmp_path) as storage:
        yield storage


def state(tmp_path: Path, text: str) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck/trainer_state.json").write_text(text)


@pytest.mark.parametrize(
    ("best", "name"),
    [
        ("/old/run/checkpoint-200", "checkpoint-200"),
        ("out/checkpoint-200/", "checkpoint-200"),
        ("C:\\runs\\checkpoint-200", "checkpoint-200"),
        ("checkpoint-200", "checkpoint-200"),
        ("/", None),
        ("/old/..", None),
        ("", None),
        (None, None),
        (7, None),
        (["checkpoint-200"], None),
    ],
)
def test_only_the_last_name_of_the_recorded_best_is_read(place, tmp_path, best, name) -> None:
    state(tmp_path, json.dumps({"best_model_checkpoint": best}))
    assert recorded_best(place, "ck") == name


def test_a_state_with_bare_words_for_numbers_is_read(place, tmp_path) -> None:
    state(tmp_path, '{"best_metric": NaN, "best_model_checkpoint": "a/checkpoint-1"}')
    assert recorded_best(place, "ck") == "checkpoint-1"


def test_without_a_state_nothing_is_recorded(place, tmp_path) -> None:
    assert recorded_best(place, "ck") is None


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, "\x00"])
def test_a_state_that_does_not_parse_is_an_error_and_not_none(place, tmp_path, text) -> None:
    state(tmp_path, text)
    with pytest.raises(Malformed, match="trainer_state"):
        recorded_best(place, "ck")


def test_a_symlink_in_the_states_place_is_not_followed(place, tmp_path) -> None:
    state(tmp_path, "{}")
    (tmp_path / "elsewhere.json").write_text('{"best_model_checkpoint": "a/b"}')
    (tmp_path / "ck/trainer_state.json").unlink()
    (tmp_path / "ck/trainer_state.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(StorageError):
        recorded_best(place, "ck")
