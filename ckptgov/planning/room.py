"""Whether a tier has room for what is about to be written: figures in, a verdict out.

Retention decides what may go; here nothing is removed to make room. A flush that does not fit is
refused before its first byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from ckptgov.errors import OverCapacity


class Bound(StrEnum):
    """What limits the room."""

    NOTHING = "nothing"  # neither a quota nor a file system that tells its free space
    FREE_SPACE = "free-space"
    QUOTA = "quota"


class Debris(Struct, frozen=True, kw_only=True):
    """Left-over bytes that take room at the tier; ``path`` below its root."""

    path: str
    bytes: int


class Room(Struct, frozen=True, kw_only=True):
    """The verdict. ``room_bytes`` is None where nothing limits, negative beyond the limit.

    ``debris_bytes`` is what the left-overs take: with them gone so much more would fit.
    """

    needed_bytes: int
    room_bytes: int | None
    bound: Bound
    reserved_bytes: int = 0
    debris_bytes: int = 0

    @property
    def fits(self) -> bool:
        """Whether what is needed may be written now."""
        return self.room_bytes is None or self.needed_bytes <= self.room_bytes

    @property
    def fits_without_debris(self) -> bool:
        """Whether it would fit once the left-overs are gone."""
        return self.room_bytes is None or (self.needed_bytes <= self.room_bytes + self.debris_bytes)


def room_for(
    needed_bytes: int,
    *,
    free_bytes: int | None,
    quota_bytes: int | None,
    used_bytes: int,
    reserved_bytes: int = 0,
    debris_bytes: int = 0,
) -> Room:
    """Whether ``needed_bytes`` fit: into the free space and into what the quota leaves.

    ``free_bytes`` is what the file system says a writer may still take, None where it tells
    nothing (object stores); what lies there in any form is off it already. A quota is often not
    shown there, so both count and the smaller room decides. ``used_bytes`` is what lies there
    under the quota, ``debris_bytes`` what lies there besides (left-overs of failed saves, pending
    uploads). ``reserved_bytes`` is what flows under way have yet to write.
    """
    rooms: list[tuple[int, Bound]] = []
    if quota_bytes is not None:
        rooms.append((quota_bytes - used_bytes - debris_bytes, Bound.QUOTA))
    if free_bytes is not None:
        rooms.append((free_bytes, Bound.FREE_SPACE))
    left, bound = min(rooms, default=(None, Bound.NOTHING))
    return Room(
        needed_bytes=needed_bytes,
        room_bytes=None if left is None else left - reserved_bytes,
        bound=bound,
        reserved_bytes=reserved_bytes,
        debris_bytes=debris_bytes,
    )


def refusal(tier: str, room: Room, debris: Sequence[Debris] = ()) -> OverCapacity:
    """The error that refuses to write to ``tier``: what is needed, what is there, what could go."""
    limit = "its quota leaves" if room.bound is Bound.QUOTA else "its file system has free"
    reserved = (
        f" besides {room.reserved_bytes} bytes that flows under way have yet to write"
        if room.reserved_bytes
        else ""
    )
    return OverCapacity(
        f"tier {tier}: {room.needed_bytes} bytes are needed, {limit} {max(0, room.room_bytes or 0)}"
        f"{reserved}; nothing was written",
        hint=_what_could_go(room, debris),
    )


def _what_could_go(room: Room, debris: Sequence[Debris]) -> str:
    if not debris:
        return "free space there, or raise the tier's quota"
    largest = sorted(debris, key=lambda one: (-one.bytes, one.path))
    named = ", ".join(f"{one.path} ({one.bytes} bytes)" for one in largest[:5])
    more = f" and {len(largest) - 5} more" if len(largest) > 5 else ""
    enough = "enough" if room.fits_without_debris else "not enough"
    return (
        f"left-overs take {sum(one.bytes for one in debris)} bytes, {enough} to make it fit: "
        f"{named}{more}; 'ckptgov reconcile' removes abandoned deliveries"
    )
