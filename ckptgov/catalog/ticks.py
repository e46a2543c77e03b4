"""The latest time that a removal was decided by, so that a clock that went back is noticed."""

from __future__ import annotations

from sqlalchemy import Connection, select
from sqlmodel import col

from ckptgov.catalog.dialect import put
from ckptgov.catalog.removal_tables import TickRow
from ckptgov.errors import RefusedBySafety

MOST_BACK_S = 300

_TICK = select(col(TickRow.at_ns))
_ONLY = 1


def tick(connection: Connection, now_ns: int) -> None:
    """Remember the time it is.

    Raises:
        RefusedBySafety: it was more than 5 min later before.
    """
    latest_ns = connection.execute(_TICK).scalar_one_or_none() or now_ns
    back_s = (latest_ns - now_ns) / 1e9
    if back_s > MOST_BACK_S:
        raise RefusedBySafety(
            f"the catalog's clock went back by {back_s:.0f} s: grace and trash times cannot be "
            "told by it",
            hint="set the clock right; if it is right now and was ahead before, wait as long, or "
            "run 'ckptgov catalog rebuild'",
        )
    # Never back: it would follow a clock that loses 5 min at a time.
    put(connection, TickRow, {"only": _ONLY}, {"at_ns": max(latest_ns, now_ns)})
