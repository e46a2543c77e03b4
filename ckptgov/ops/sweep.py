"""Sweep: what movers left behind at one place, judged, and removed where nobody works on it.

Nothing is judged by its looks alone: a delivery belongs to a checkpoint only when the manifest of
that checkpoint names the path. Anything that may be in use is left, however old it is. By age goes
only what is old by its own times, lay unchanged between two looks by the catalog's clock (a time
of its own may have come with it from elsewhere), and where that clock is the one that storage has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import CkptgovError, LeaseLost
from ckptgov.model.usage import Fate, Leftover, LeftoverKind, LeftoverReason
from ckptgov.ops.attribution import RunHere
from ckptgov.ops.context import Context
from ckptgov.ops.copy_lease import arriving, copy_lease
from ckptgov.ops.lying import SeenBook, lying_at
from ckptgov.ops.removal_clock import require_same_time
from ckptgov.storage.contract import PendingDelivery, Storage
from ckptgov.work.owned import STAGING, below, names_in, remove_below
from ckptgov.work.tier import Place

ROUNDS = 3
"""How often a removal is tried while storage still lists what was removed."""

BETWEEN_LOOKS_S = 3 * 86400.0
"""For how long looks must have found a left-over as it is before it goes by age; less where a
shorter age is asked for. What was half delivered and can be gone on with is worth three days."""

_DIGITS = re.compile(r"[0-9a-f]{64}")


class FoundLeftover(Struct, frozen=True, kw_only=True):
    """One leftover as it lies: deliveries, or a staging directory with those in it."""

    kind: LeftoverKind
    path: str
    run: RunHere | None
    content_ids: tuple[str, ...]  # whose it is; several attempts may share a path
    bytes: int
    newest_ns: int
    deliveries: tuple[PendingDelivery, ...]
    directory: str | None = None
    mark: str = ""  # changes with anything about it; set where its age decides

    @property
    def is_held(self) -> bool:
        """Whether storage sees a living process at work on it."""
        return any(one.is_held for one in self.deliveries)

    @property
    def key(self) -> str:
        """What it is remembered by; several deliveries may go to one path."""
        if self.directory is not None:
            return self.directory
        return "\0".join([self.path, *(one.handle for one in self.deliveries)])


class Sweep(Struct, frozen=True, kw_only=True):
    """How one place is swept. ``is_flowing`` tells of a run and its checkpoint's names whether a
    flow of ours brings it here; ``unknown`` as of a run, for the whole place. ``older_than_s`` 0:
    what nobody works on goes at the first look, and no time counts."""

    place: Place
    runs: tuple[RunHere, ...]
    older_than_s: float
    is_flowing: Callable[[str, Collection[str]], bool]
    unknown: str = ""

    @property
    def between_looks_s(self) -> float:
        """For how long what goes by age has been seen as it is."""
        return min(self.older_than_s, BETWEEN_LOOKS_S)


def sweep(context: Context, one: Sweep, *, dry_run: bool) -> tuple[Leftover, ...]:
    """Judge every leftover of the place and remove what is to go.

    Raises:
        CouldNotLook: the place could not be listed; nothing was removed.
        RefusedBySafety: something was to go by age, and the clocks do not tell it; nothing was
            removed.
    """
    now_ns = context.catalog.now_ns()
    # Apart from the book on what is not ours: each forgets what it was not asked about.
    book = SeenBook(context.settings.home, f"{one.place.uuid or ''}.own", now_ns=now_ns)
    found = find(one.place.storage, one.runs)
    judged = [_judged(context, one, each, now_ns=now_ns, book=book) for each in found]
    if not dry_run:
        book.keep()
        _require_same_time(context, one, judged)
        judged = [
            (found, told if told.fate is Fate.KEPT else _removed(context, one, found, told))
            for found, told in judged
        ]
        judged = _looked_again(context, one, judged)
    told = [told for _found, told in judged]
    return tuple(sorted(told, key=lambda each: (each.path, each.kind)))


def _require_same_time(
    context: Context, one: Sweep, judged: Sequence[tuple[FoundLeftover, Leftover]]
) -> None:
    """Left-overs are dated by storage's clock, and judged by the catalog's."""
    by_age = [
        found
        for found, told in judged
        if told.fate is Fate.WOULD_GO and told.reason is LeftoverReason.OLD
    ]
    if not by_age or not one.older_than_s:
        return
    require_same_time(
        one.place.storage,
        next((found.run.sidecar for found in by_age if found.run is not None), ""),
        now_ns=context.catalog.now_ns,
        new_id=context.author.new_id,
        what=f"tier {one.place.tier}",
    )
    context.catalog.tick()  # after it: a time that is wrong is not to be remembered


def find(storage: Storage, runs: Sequence[RunHere]) -> list[FoundLeftover]:
    """Everything left behind; a staging directory counts once, with the deliveries into it."""
    pending = list(storage.pending(""))
    found: list[FoundLeftover] = []
    for run in runs:
        for name in names_in(storage, f"{run.sidecar}/{STAGING}"):
            directory = f"{run.sidecar}/{STAGING}/{name}"
            inside = [one for one in pending if one.path.startswith(f"{directory}/")]
            pending = [one for one in pending if one not in inside]
            found.append(_staged(storage, run, directory, inside))
    return [*found, *(_delivery(runs, one) for one in pending)]


def _staged(
    storage: Storage, run: RunHere, directory: str, inside: Sequence[PendingDelivery]
) -> FoundLeftover:
    lying = below(storage, directory)
    name = directory.rpartition("/")[2]
    return FoundLeftover(
        kind=LeftoverKind.STAGING,
        path=directory,
        run=run,
        content_ids=(f"sha256:{name}",) if _DIGITS.fullmatch(name) else (),
        bytes=lying.bytes + sum(one.bytes for one in inside),
        newest_ns=max([lying.newest_ns, *(one.started_at_ns for one in inside)]),
        deliveries=tuple(inside),
        directory=directory,
    )


def _delivery(runs: Sequence[RunHere], one: PendingDelivery) -> FoundLeftover:
    run = next((run for run in runs if run.has(one.path)), None)
    owners: Sequence[str] = ()
    if run is not None and not run.unknown:
        owners = run.owners(one.path.removeprefix(f"{run.root}/" if run.root else ""))
    return FoundLeftover(
        kind=LeftoverKind.DELIVERY,
        path=one.path,
        run=run,
        content_ids=tuple(owners),
        bytes=one.bytes,
        newest_ns=one.started_at_ns,
        deliveries=(one,),
    )


def _judged(
    context: Context, one: Sweep, found: FoundLeftover, *, now_ns: int, book: SeenBook
) -> tuple[FoundLeftover, Leftover]:
    age_s = max(0.0, (now_ns - found.newest_ns) / 1e9)
    verdict = _verdict(context, one, found)
    if verdict is None:
        found = replace(found, mark=_mark(one.place.storage, found))
        verdict = _verdict_by_age(one, age_s, book.unchanged_s(found.key, found.mark))
    goes, reason, text = verdict
    run = found.run
    content_id = next(iter(found.content_ids), None)
    told = Leftover(
        kind=found.kind,
        path=found.path,
        run=None if run is None else run.run,
        content_id=content_id,
        checkpoint=None if run is None or content_id is None else _name_of(run, content_id),
        bytes=found.bytes,
        age_s=age_s,
        fate=Fate.WOULD_GO if goes else Fate.KEPT,
        reason=reason,
        text=text,
    )
    return found, told


def _name_of(run: RunHere, content_id: str) -> str | None:
    return next(iter(run.names.get(content_id, ())), None)


_Verdict = tuple[bool, LeftoverReason, str]


def _verdict(context: Context, one: Sweep, found: FoundLeftover) -> _Verdict | None:
    """Whether it goes, and why, where its age does not matter.

    What may be in use stays before anything else is asked, and counts as seen anew afterwards.
    """
    run = found.run
    if found.is_held:
        return False, LeftoverReason.HELD, "a living process works on it"
    unknown = one.unknown or (run.unknown if run is not None else "")
    if unknown:
        return False, LeftoverReason.UNKNOWN_RUN_STATE, unknown
    if run is not None and _is_in_flight(context, one, run, found.content_ids):
        return False, LeftoverReason.IN_FLIGHT, "a mover of ours brings it here"
    if run is not None and not run.whole.isdisjoint(found.content_ids):
        return True, LeftoverReason.SUPERFLUOUS, "its checkpoint is whole here"
    return None


def _verdict_by_age(one: Sweep, age_s: float, unchanged_s: float) -> _Verdict:
    wanted_s = one.between_looks_s
    if age_s < one.older_than_s:
        text = f"goes when it is {one.older_than_s / 86400:g} days old"
    elif unchanged_s >= wanted_s:
        return True, LeftoverReason.OLD, f"no sign of life for {age_s / 86400:.1f} days"
    elif unchanged_s:
        text = f"seen unchanged for {unchanged_s / 86400:.1f} days; goes after {wanted_s / 86400:g}"
    else:
        text = f"first seen now; goes at a later look, {wanted_s / 86400:g} days from now"
    return False, LeftoverReason.FRESH, text


def _mark(storage: Storage, found: FoundLeftover) -> str:
    deliveries = sorted(f"{one.handle} {one.bytes} {one.started_at_ns}" for one in found.deliveries)
    lying = None if found.directory is None else lying_at(storage, found.directory)
    return "\0".join([*deliveries, "" if lying is None else lying.mark])


def _is_in_flight(context: Context, one: Sweep, run: RunHere, content_ids: Sequence[str]) -> bool:
    if arriving(context, content_ids, one.place.uuid or ""):
        return True
    return any(one.is_flowing(run.run, run.names.get(each, ())) for each in content_ids)


def _removed(context: Context, one: Sweep, found: FoundLeftover, told: Leftover) -> Leftover:
    """Remove it, keeping movers away meanwhile where it is known whose it is."""
    try:
        with ExitStack() as leases:
            for content_id in found.content_ids:
                leases.enter_context(copy_lease(context, content_id, one.place.uuid or ""))
            if found.mark and _mark(one.place.storage, found) != found.mark:
                reason = LeftoverReason.FRESH
                return replace(told, fate=Fate.KEPT, reason=reason, text="changed just now")
            _remove(one.place.storage, found)
    except LeaseLost as error:
        reason = LeftoverReason.IN_FLIGHT
        return replace(told, fate=Fate.KEPT, reason=reason, text=error.message)
    except CkptgovError as error:
        return replace(told, fate=Fate.STILL_THERE, text=error.message)
    return replace(told, fate=Fate.REMOVED)


def _remove(storage: Storage, found: FoundLeftover) -> None:
    for delivery in found.deliveries:
        storage.forget(delivery)
    if found.directory is not None and (resisted := remove_below(storage, found.directory)):
        raise resisted


def _looked_again(
    context: Context, one: Sweep, judged: Sequence[tuple[FoundLeftover, Leftover]]
) -> list[tuple[FoundLeftover, Leftover]]:
    """Storage has the last word: what it still lists is removed once more, then told."""
    done = list(judged)
    for tries_left in range(ROUNDS - 1, -1, -1):
        gone = [index for index, (_, told) in enumerate(done) if told.fate is Fate.REMOVED]
        listed = _listed(one.place.storage) if gone else frozenset()
        for index in gone:
            found, told = done[index]
            if not _is_still_there(one.place.storage, found, listed):
                continue
            if tries_left:
                # Half gone, it is not what was judged any more.
                done[index] = (found, _removed(context, one, replace(found, mark=""), told))
            else:
                text = f"storage still lists it after {ROUNDS} removals"
                done[index] = (found, replace(told, fate=Fate.STILL_THERE, text=text))
    return done


def _listed(storage: Storage) -> frozenset[tuple[str, str]]:
    return frozenset((one.path, one.handle) for one in storage.pending(""))


def _is_still_there(
    storage: Storage, found: FoundLeftover, listed: frozenset[tuple[str, str]]
) -> bool:
    """By handle: a new delivery to the same path is another one."""
    if any((one.path, one.handle) in listed for one in found.deliveries):
        return True
    return found.directory is not None and _is_there(storage, found.directory)


def _is_there(storage: Storage, directory: str) -> bool:
    parent, _, name = directory.rpartition("/")
    return name in names_in(storage, parent)
