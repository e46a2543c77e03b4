"""The rotation of verification: every byte is read within the maximum age, no turn reads all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckptgov.ops.scrub import Standing, due

DAY_S = 86400.0
WEEK_NS = int(7 * DAY_S * 1e9)


def copy(number: int, *, size: int = 100, verified_at_ns: int = 0) -> Standing:
    return Standing(
        run="llama",
        run_id="r",
        content_id=f"{number:04}",
        place="p",
        bytes=size,
        verified_at_ns=verified_at_ns,
    )


def ids(found: tuple[Standing, ...]) -> list[str]:
    return [one.content_id for one in found]


def test_a_turn_takes_its_share_oldest_first() -> None:
    now_ns = WEEK_NS
    copies = [copy(one, verified_at_ns=now_ns - one) for one in range(14)]
    taken = due(copies, now_ns=now_ns, max_age_s=7 * DAY_S, share_s=DAY_S)
    assert ids(taken) == ["0013", "0012"]


def test_what_would_be_too_old_before_the_next_turns_is_taken_whatever_the_share() -> None:
    old_ns = 2 * WEEK_NS - int(5.5 * DAY_S * 1e9)
    copies = [copy(one, verified_at_ns=old_ns) for one in range(14)]
    taken = due(copies, now_ns=2 * WEEK_NS, max_age_s=7 * DAY_S, share_s=DAY_S)
    assert len(taken) == 14


def test_a_copy_never_compared_comes_first() -> None:
    copies = [copy(1, verified_at_ns=WEEK_NS), copy(2)]
    assert ids(due(copies, now_ns=WEEK_NS, max_age_s=7 * DAY_S, share_s=1.0)) == ["0002"]


def test_the_order_does_not_depend_on_who_asks() -> None:
    copies = [copy(one) for one in range(6)]
    first = due(copies, now_ns=1, max_age_s=7 * DAY_S, share_s=DAY_S)
    assert first == due(copies[::-1], now_ns=1, max_age_s=7 * DAY_S, share_s=DAY_S)


def test_nothing_is_due_where_nothing_lies() -> None:
    assert due([], now_ns=1, max_age_s=7 * DAY_S, share_s=DAY_S) == ()


@given(
    sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=40),
    share_s=st.sampled_from([3600.0, 43200.0, DAY_S, 2 * DAY_S]),
)
def test_no_byte_is_ever_older_than_the_maximum_age(sizes: list[int], share_s: float) -> None:
    """Turns come as often as they say; verifying takes no time, and one turn is missed at once."""
    now_ns = WEEK_NS
    copies = {one: copy(one, size=size, verified_at_ns=now_ns) for one, size in enumerate(sizes)}
    for turn in range(int(3 * 7 * DAY_S / share_s)):
        now_ns += int(share_s * 1e9)
        if turn % 5 == 3:
            continue  # the leader was away
        for one in due(copies.values(), now_ns=now_ns, max_age_s=7 * DAY_S, share_s=share_s):
            copies[int(one.content_id)] = replace(one, verified_at_ns=now_ns)
        oldest_ns = min(one.verified_at_ns for one in copies.values())
        assert now_ns - oldest_ns <= WEEK_NS
