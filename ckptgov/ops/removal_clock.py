"""Whether the time that removals are decided by is the time that storage lives in.

Grace and trash times run on the catalog's clock, and by it what was left behind is old. Where it
jumped, or storage stamps another time than it tells, nobody knows how long anything was condemned
or lay there, and nothing is removed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from statistics import median

from ckptgov.errors import CkptgovError, RefusedBySafety, StorageError
from ckptgov.layouts.tree import join
from ckptgov.storage.contract import TEMP_PREFIX, Storage

MOST_APART_NS = 300 * 10**9
"""How far the two clocks may be apart."""

PROBES = 3
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def require_same_time(
    storage: Storage,
    directory: str,
    *,
    now_ns: Callable[[], int],
    new_id: Callable[[], str],
    what: str,
) -> None:
    """Refuse where a file written just now in ``directory`` (``""``: the tier's root) bears
    another time than the catalog.

    The median of three probes decides: stores may give an old time once. A full tier on which not
    even an empty file can be made says nothing, and is not refused: clearing it is what is wanted.

    Raises:
        RefusedBySafety: the clocks are too far apart.
        StorageError: nothing can be written there for another reason.
    """
    apart = [_apart_ns(storage, directory, now_ns=now_ns, new_id=new_id) for _ in range(PROBES)]
    told = [one for one in apart if one is not None]
    if not told:
        return
    apart_ns = int(median(told))
    if abs(apart_ns) <= MOST_APART_NS:
        return
    way = "behind" if apart_ns > 0 else "ahead of"
    raise RefusedBySafety(
        f"{what}: the catalog's clock is {abs(apart_ns) / 60e9:.0f} min {way} the time that "
        "storage stamps; nothing was removed",
        hint="set the clock that is wrong; what is condemned waits, and can be undone meanwhile",
    )


def _apart_ns(
    storage: Storage, directory: str, *, now_ns: Callable[[], int], new_id: Callable[[], str]
) -> int | None:
    """How far storage is ahead; None where there is no room even for an empty file.

    The time within the call is in favour of both being equal.
    """
    path = join(directory, f"{TEMP_PREFIX}clock-{new_id()}")
    before_ns = now_ns()
    try:
        storage.publish(path, [])
        stamped_ns = storage.stat(path).mtime_ns
    except StorageError as error:
        if getattr(error.__cause__, "errno", None) in _FULL:
            return None
        raise
    finally:
        with suppress(CkptgovError, FileNotFoundError):
            storage.remove(path)
    after_ns = now_ns()
    if before_ns <= stamped_ns <= after_ns:
        return 0
    return stamped_ns - after_ns if stamped_ns > after_ns else stamped_ns - before_ns
