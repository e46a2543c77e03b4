from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptgov.storage._covered import Covered

SIZE = 40


@given(st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE))))
def test_the_first_gap_is_the_first_byte_that_was_not_added(pieces: list[tuple[int, int]]) -> None:
    covered, bytes_ = Covered(), set()
    for begin, end in pieces:
        covered.add(begin, end)
        bytes_.update(range(begin, end))
    expected = next((at for at in range(SIZE) if at not in bytes_), None)
    assert covered.first_gap(SIZE) == expected


def test_pieces_that_touch_are_one_interval() -> None:
    covered = Covered()
    for begin in (20, 0, 10):
        covered.add(begin, begin + 10)
    assert (covered._begins, covered._ends) == ([0], [30])


def test_an_empty_file_has_no_gap() -> None:
    assert Covered().first_gap(0) is None
