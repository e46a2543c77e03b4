"""What frameworks left behind under their temporary names: told, and removed only when asked to.

A left-over goes when its writer is surely gone: nothing in it changed for so long, by its own
times and by the catalog's clock between two looks at it (its own times alone prove nothing: a copy
carries those of its original), no process here has a file of it open, and its bytes are of no
sealed checkpoint. Everything else about it keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import CkptgovError
from ckptgov.layouts.names import step_of_name
from ckptgov.layouts.tree import join, split
from ckptgov.model.facts import Survey
from ckptgov.model.pacing import FlowClass
from ckptgov.model.usage import Fate, StagingLeft, StagingReason
from ckptgov.ops.context import Context
from ckptgov.ops.known_bytes import KnownBytes
from ckptgov.ops.lying import Lying, SeenBook, could_not, lying_at, open_files
from ckptgov.ops.moving import moving
from ckptgov.work.owned import remove_below
from ckptgov.work.tier import Place

LEAST_S = 3_600.0
"""No shorter time is accepted: a save of a large checkpoint may stand still for minutes."""


class StagedRun(Struct, frozen=True, kw_only=True):
    """One run at the place, as far as it is surveyed. ``unknown``: why nothing may be judged."""

    run_id: str
    run: str
    root: str
    survey: Survey
    unknown: str = ""


class Foreign(Struct, frozen=True):
    """A temporary name in no run of ours. ``path`` below the tier root."""

    path: str
    layout: str


class StagingSweep(Struct, frozen=True, kw_only=True):
    """How left-overs of one place are judged. ``older_than_s`` None: nothing is removed.

    ``roots`` are those of every run at the place, below its root; ``unknown`` as of a run, for
    the whole place.
    """

    place: Place
    roots: Sequence[str]
    runs: Sequence[StagedRun]
    foreign: Sequence[Foreign]
    book: SeenBook
    now_ns: int
    older_than_s: float | None
    unknown: str = ""
    open_now: Callable[[], Collection[tuple[int, int]]] = open_files


class _Left(Struct, frozen=True, kw_only=True):
    path: str
    layout: str
    run: StagedRun | None
    lying: Lying


def sweep_staging(
    context: Context, sweep: StagingSweep, *, dry_run: bool
) -> tuple[StagingLeft, ...]:
    """Judge every left-over of frameworks at the place, and remove what is to go.

    Raises:
        CouldNotLook: one of them cannot be looked at; nothing was removed.
    """
    found = _found(sweep)
    open_now = frozenset(sweep.open_now()) if sweep.older_than_s is not None else frozenset()
    judged = [(one, _judged(context, sweep, one, open_now)) for one in found]
    if not dry_run:
        judged = [(one, _gone(sweep, one, told)) for one, told in judged]
    return tuple(sorted((told for _one, told in judged), key=lambda each: each.path))


def _found(sweep: StagingSweep) -> list[_Left]:
    named: dict[str, tuple[str, StagedRun | None]] = {
        one.path: (one.layout, None) for one in sweep.foreign
    }
    for run in sweep.runs:
        for one in run.survey.staging:
            named[join(run.root, one.path)] = (one.layout, run)
    found = []
    for path, (layout, whose) in named.items():
        lying = lying_at(sweep.place.storage, path)
        if lying is not None:
            found.append(_Left(path=path, layout=layout, run=whose, lying=lying))
    return found


def _judged(
    context: Context, sweep: StagingSweep, one: _Left, open_now: Collection[tuple[int, int]]
) -> StagingLeft:
    age_s = max(0.0, (sweep.now_ns - one.lying.newest_ns) / 1e9)
    unchanged_s = sweep.book.unchanged_s(one.path, one.lying.mark)
    told = StagingLeft(
        path=one.path,
        run=None if one.run is None else one.run.run,
        layout=one.layout,
        files=len(one.lying.files),
        bytes=one.lying.bytes,
        age_s=age_s,
        unchanged_s=unchanged_s,
        fate=Fate.KEPT,
        reason=StagingReason.UNCHANGED,
    )
    kept = _kept_for(sweep, one, told) or _in_use(one, open_now) or _known(context, sweep, one)
    if kept is not None:
        return replace(told, reason=kept[0], text=kept[1])
    text = f"unchanged for {min(age_s, unchanged_s) / 3600:.0f} h"
    return replace(told, fate=Fate.WOULD_GO, text=text)


_Kept = tuple[StagingReason, str]


def _kept_for(sweep: StagingSweep, one: _Left, told: StagingLeft) -> _Kept | None:
    """Why it stays, as far as no file has to be read."""
    unknown = sweep.unknown or (one.run.unknown if one.run is not None else "")
    if unknown:
        return StagingReason.UNKNOWN_RUN_STATE, unknown
    if one.lying.ours:
        return StagingReason.NOT_ALONE, f"{one.lying.ours} is ckptgov's own"
    if any(root == one.path or root.startswith(f"{one.path}/") for root in sweep.roots):
        return StagingReason.NOT_ALONE, "a run lies in it"
    if _has_another_device(sweep.place, one.lying):
        return StagingReason.NOT_ALONE, "another file system is mounted in it"
    if one.run is None:
        return StagingReason.NO_RUN, "lies in no run that is known here"
    if (name := _checkpoint_around(one)) is not None:
        return StagingReason.INSIDE, f"lies in {name}, whose directory is its trainer's"
    if sweep.older_than_s is None:
        return StagingReason.NOT_ASKED, "'ckptgov reconcile --staging' removes it once it is old"
    wanted = f"goes when nothing changed for {sweep.older_than_s / 3600:g} h"
    if told.age_s < sweep.older_than_s:
        return StagingReason.FRESH, wanted
    if told.unchanged_s < sweep.older_than_s:
        seen = f"seen so for {told.unchanged_s / 3600:.0f} h" if told.unchanged_s else "seen first"
        return StagingReason.SEEN_LATELY, f"{wanted} between two looks; {seen}"
    return None


def _in_use(one: _Left, open_now: Collection[tuple[int, int]]) -> _Kept | None:
    if one.lying.inodes.isdisjoint(open_now):
        return None
    return StagingReason.OPEN, "a process of this host has it open"


def _known(context: Context, sweep: StagingSweep, one: _Left) -> _Kept | None:
    assert one.run is not None
    known = KnownBytes(context, one.run.run_id, one.lying.files)
    if not known.may_be_known:
        return None
    what = f"left-overs of {one.run.run}"
    try:
        with moving(
            context, what=what, flow_class=FlowClass.BACKGROUND, bytes_=one.lying.bytes
        ) as movement:
            told = known.told(movement.reading(sweep.place))
    except (CkptgovError, OSError) as error:
        return StagingReason.KNOWN_BYTES, f"could not be compared: {could_not(error)}"
    return (StagingReason.KNOWN_BYTES, told) if told else None


def _has_another_device(place: Place, lying: Lying) -> bool:
    if not lying.devices:
        return False
    return lying.devices != {place.storage.stat("").device}


def _checkpoint_around(one: _Left) -> str | None:
    """The checkpoint of the run whose directory it lies in; taking a name away there would give
    the directory a new time, which trainers rotate by.

    A directory whose name carries a step is taken for one, whole or not.
    """
    assert one.run is not None
    below = _below_run(one, one.run)
    names = {found.name for found in one.run.survey.found if not found.is_file}
    parts = below.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts))]
    return next(
        (each for each in above if each in names or step_of_name(split(each)[1]) is not None), None
    )


def _below_run(one: _Left, run: StagedRun) -> str:
    return one.path.removeprefix(f"{run.root}/" if run.root else "")


def _gone(sweep: StagingSweep, one: _Left, told: StagingLeft) -> StagingLeft:
    """Remove it, if it is to go and still is what was judged."""
    if told.fate is not Fate.WOULD_GO:
        return told
    storage = sweep.place.storage
    try:
        now = lying_at(storage, one.path)
        if now is not None and now.mark != one.lying.mark:
            return replace(
                told, fate=Fate.KEPT, reason=StagingReason.FRESH, text="changed just now"
            )
        resisted = _remove(sweep, one)
    except (CkptgovError, OSError) as error:
        resisted = error
    if resisted is not None:
        return replace(told, fate=Fate.STILL_THERE, text=could_not(resisted))
    return replace(told, fate=Fate.REMOVED)


def _remove(sweep: StagingSweep, one: _Left) -> CkptgovError | OSError | None:
    storage = sweep.place.storage
    if one.lying.files[:1] == ((one.path, one.lying.bytes),):  # a file of its own
        with suppress(FileNotFoundError):
            storage.remove(one.path)
        return None
    return remove_below(storage, one.path)
