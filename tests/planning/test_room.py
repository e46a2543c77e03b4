"""Room at a tier: the smaller of free space and quota, less what is spoken for."""

from __future__ import annotations

import pytest

from ckptgov.planning.room import Bound, Debris, Room, refusal, room_for


def room(needed: int = 50, **figures: int | None) -> Room:
    standing = {"free_bytes": None, "quota_bytes": None, "used_bytes": 0}
    return room_for(needed, **{**standing, **figures})


@pytest.mark.parametrize(
    ("figures", "left", "bound"),
    [
        ({}, None, Bound.NOTHING),
        ({"free_bytes": 70}, 70, Bound.FREE_SPACE),
        ({"quota_bytes": 100, "used_bytes": 40}, 60, Bound.QUOTA),
        ({"free_bytes": 1000, "quota_bytes": 100, "used_bytes": 40}, 60, Bound.QUOTA),
        ({"free_bytes": 10, "quota_bytes": 100, "used_bytes": 40}, 10, Bound.FREE_SPACE),
        ({"quota_bytes": 100, "used_bytes": 40, "debris_bytes": 25}, 35, Bound.QUOTA),
        ({"free_bytes": 70, "debris_bytes": 25}, 70, Bound.FREE_SPACE),
        ({"free_bytes": 70, "reserved_bytes": 30}, 40, Bound.FREE_SPACE),
        ({"quota_bytes": 100, "used_bytes": 140}, -40, Bound.QUOTA),
    ],
)
def test_the_smaller_room_decides(figures: dict, left: int | None, bound: Bound) -> None:
    verdict = room(**figures)
    assert (verdict.room_bytes, verdict.bound) == (left, bound)


def test_exactly_what_is_left_fits_and_one_byte_more_does_not() -> None:
    assert room(60, quota_bytes=100, used_bytes=40).fits
    assert not room(61, quota_bytes=100, used_bytes=40).fits


def test_without_a_limit_everything_fits() -> None:
    assert room(10**18).fits


def test_a_quota_refuses_though_the_disk_looks_half_empty() -> None:
    """Two checkpoints of 300, a torn third of 150; a limit that one more exceeds."""
    verdict = room(300, free_bytes=10**6, quota_bytes=1000, used_bytes=600, debris_bytes=150)
    assert not verdict.fits
    assert verdict.bound is Bound.QUOTA
    assert verdict.fits_without_debris


def test_left_overs_do_not_help_where_still_more_is_missing() -> None:
    verdict = room(300, quota_bytes=700, used_bytes=600, debris_bytes=50)
    assert not verdict.fits_without_debris


def test_the_refusal_names_tier_need_room_and_what_could_go() -> None:
    verdict = room(
        300, free_bytes=10**6, quota_bytes=1000, used_bytes=600, debris_bytes=150, reserved_bytes=7
    )
    error = refusal("lustre", verdict, [Debris(path="run/step-250", bytes=150)])
    assert error.exit_code == 10
    for text in ("lustre", "300 bytes", "quota", "243", "7 bytes", "nothing was written"):
        assert text in error.message
    assert error.hint is not None
    for text in ("run/step-250 (150 bytes)", "enough", "reconcile"):
        assert text in error.hint


def test_the_refusal_does_not_promise_what_left_overs_cannot_give() -> None:
    verdict = room(300, free_bytes=100, debris_bytes=50)
    error = refusal("lustre", verdict, [Debris(path=f"d{n}", bytes=n) for n in range(9)])
    assert "file system" in error.message
    assert error.hint is not None
    assert "not enough" in error.hint
    assert "d8 (8 bytes), d7" in error.hint
    assert "4 more" in error.hint


def test_without_left_overs_the_hint_is_to_make_room() -> None:
    assert "raise the tier's quota" in (refusal("s3", room(quota_bytes=1)).hint or "")
