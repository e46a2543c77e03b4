"""Going on with removals: what is condemned and due is moved aside, what lay there long is purged.

Storage is touched while no transaction is open and nothing of the catalog is held. Every step can
be done again: a process that was killed, or stopped for hours, leaves what the next one goes on
from. What one step does is written down by compare-and-set, so that of several at work one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b

from ckptgov.errors import (
    CkptgovError,
    Interrupted,
    LeaseLost,
    RefusedBySafety,
    StaleState,
    StorageError,
)
from ckptgov.model.checkpoint import digits_of
from ckptgov.model.copies import CopyState
from ckptgov.model.removal import RemovalStep, Went
from ckptgov.model.retention import Action, Removal
from ckptgov.ops.copy_lease import copy_lease
from ckptgov.ops.record import record_look
from ckptgov.ops.relied_on import guarded_by_sight
from ckptgov.ops.removal_guard import catch_up, looked_around
from ckptgov.ops.removal_root import root_of
from ckptgov.ops.removing import Removing, Stop, bury, require_same
from ckptgov.ops.resisting import Resisting
from ckptgov.ops.returning import from_trash
from ckptgov.work.look import RunLook
from ckptgov.work.remove import Trashed, is_coming_back, measure, move_aside, purge
from ckptgov.work.tier import Place
from ckptgov.work.trash import entry_paths, has_files, name_mark

_STATES = (CopyState.TRASHED, CopyState.TRASHING, CopyState.CONDEMNED)
"""What frees room soonest goes first."""
_ANOTHER = "another process is at work on it"


def key_of(step: RemovalStep) -> tuple[str, str, str]:
    """Which copy a step is about: run, content id, place."""
    return step.run, step.content_id, step.place


def go_on(removing: Removing, *, without: frozenset[tuple[str, str, str]]) -> Iterator[RemovalStep]:
    """Every removal as far as it can go now; ``without``: those told of already.

    A place where most of them resist is left alone for this time.
    """
    now_ns = removing.context.catalog.now_ns()
    caught_up: set[str] = set()
    resisting = Resisting()
    for removal in in_order(removing.context.catalog.removals.removals(states=_STATES), now_ns):
        name = removing.run(removal.run_id).identity.name
        if (name, removal.content_id, removal.place) in without:
            continue
        if (why := _why_not_yet(removing, removal, now_ns)) is not None:
            yield removing.step_of(removal, Went.WAITING, why, due_at_ns=removal.due_at_ns)
        elif removing.stop():
            yield removing.step_of(removal, Went.WAITING, "told to stop")
        elif removing.dry_run:
            yield removing.step_of(removal, Went.WOULD, _would(removal))
        elif (error := resisting.why_not(removal.place)) is not None:
            removing.errors.append(error)
            why = f"not tried this time, most before it at its place resisted: {error.message}"
            yield removing.step_of(removal, Went.RESISTED, why, bytes_=0, files=0)
        else:
            step = carry_on(removing, removal, caught_up)
            resisting.note(step, removing.errors)
            yield step


def in_order(removals: Iterable[Removal], now_ns: int) -> list[Removal]:
    """As they are gone on with: purges first, then half-moved ones; the longest due first.

    What resisted the last time comes after what did not, in another order each time: so nothing
    that resists for good keeps others from their turn for good.
    """
    return sorted(
        removals,
        key=lambda one: (
            _turn(one, now_ns) if one.error else b"",
            _STATES.index(one.state),
            one.due_at_ns,
            one.run_id,
            one.place,
            one.content_id,
        ),
    )


def _turn(removal: Removal, now_ns: int) -> bytes:
    """Never empty, and by chance; the same for all who ask at one moment."""
    key = f"{now_ns}/{removal.run_id}/{removal.place}/{removal.content_id}"
    return blake2b(key.encode(), digest_size=8).digest()


def _why_not_yet(removing: Removing, removal: Removal, now_ns: int) -> str | None:
    facts = removing.place_facts(removal.place)
    if removal.state is not CopyState.TRASHING and removal.due_at_ns > now_ns:
        is_condemned = removal.state is CopyState.CONDEMNED
        return "condemned; its grace is not over" if is_condemned else "in the trash; not yet due"
    if not removing.is_here(removal.place) and facts.is_current:
        return f"due, and waits for the agent of node {facts.node}"
    return None


def _would(removal: Removal) -> str:
    match removal.state:
        case CopyState.TRASHED:
            return "would be purged: its time in the trash is over"
        case CopyState.TRASHING:
            return "would be moved to the trash: that was begun before"
        case _:
            return "would be moved to the trash: its grace is over"


def carry_on(removing: Removing, removal: Removal, caught_up: set[str]) -> RemovalStep:
    """One removal, as far as it can go now. What resists is noted and told, not raised."""
    return as_step(removing, removal, lambda: _carried_on(removing, removal, caught_up))


def as_step(removing: Removing, removal: Removal, work: Callable[[], RemovalStep]) -> RemovalStep:
    """What work at a removal comes to. What resists is noted and told, not raised."""
    try:
        return work()
    except LeaseLost:  # or a state that another one changed: whoever did it goes on
        return removing.step_of(removal, Went.WAITING, _ANOTHER)
    except Interrupted:  # told to, or because another process took its lease over
        text = "told to stop" if removing.stop() else _ANOTHER
        return removing.step_of(removal, Went.WAITING, text)
    except RefusedBySafety as error:
        return removing.step_of(removal, Went.PROTECTED, error.message, bytes_=0, files=0)
    except CkptgovError as error:
        return _resisted(removing, removal, error)
    except OSError as error:
        return met_another(removing, removal, error)


def _carried_on(removing: Removing, removal: Removal, caught_up: set[str]) -> RemovalStep:
    if not removing.place_facts(removal.place).is_current:
        return _forget(removing, removal)
    if removal.state is CopyState.TRASHED:
        return purge_unless_coming_back(removing, removal, "its time in the trash is over")
    with _at(removing, removal) as (place, look):
        if removal.state is CopyState.CONDEMNED:
            begun = _begin(removing, removal, look, caught_up)
            if isinstance(begun, RemovalStep):
                return begun
            removal = begun
        with copy_lease(removing.context, removal.content_id, removal.place) as lease:
            require_same(removing.context, removal)
            stop = lease.or_stop(removing.stop)
            return _move(removing, removal, place, look, stop=stop)


def met_another(removing: Removing, removal: Removal, error: OSError) -> RemovalStep:
    """A name came or went under our hands: by another one at this very removal, or by a stranger.

    ``error`` is one of the built-ins that mean just that.
    """
    try:
        require_same(removing.context, removal)
    except CkptgovError:
        return removing.step_of(removal, Went.WAITING, _ANOTHER)
    return _resisted(removing, removal, StorageError(words_of(error, removal.name)))


def words_of(error: OSError, name: str) -> str:
    """What came or went under our hands."""
    return f"{error.filename or name}: {error.strerror or 'changed meanwhile'}"


def _resisted(removing: Removing, removal: Removal, error: CkptgovError) -> RemovalStep:
    """Note that storage did not let go of a copy."""
    removing.errors.append(error)
    with suppress(CkptgovError):
        removing.context.catalog.removals.resisted(
            removal.run_id, removal.content_id, removal.place, error.message
        )
    return removing.step_of(removal, Went.RESISTED, error.message, bytes_=0, files=0)


def _forget(removing: Removing, removal: Removal) -> RemovalStep:
    """The disk it lay on was replaced by another: there is nothing to remove any more."""
    catalog = removing.context.catalog
    if removal.state is CopyState.CONDEMNED:
        catalog.transition(
            removal.run_id,
            removal.content_id,
            removal.place,
            expected=CopyState.CONDEMNED,
            to=CopyState.LOST,
            at_ns=removing.context.author.clock.now_ns(),
        )
    else:
        catalog.removals.purged(removal.run_id, removal.content_id, removal.place)
    text = "the disk it lay on was replaced; nothing was touched"
    return removing.step_of(removal, Went.PURGED, text, bytes_=0, files=0)


def purge_unless_coming_back(removing: Removing, removal: Removal, why: str) -> RemovalStep:
    """Purge what lies in the trash; where an undelete of it was cut off, end that instead.

    Raises:
        LeaseLost: another living process is at it. StaleState: it went on with it.
        VerificationFailed: it came back, and is not what its manifest says: it is not offered.
        StorageError: storage failed.
    """
    with copy_lease(removing.context, removal.content_id, removal.place) as lease:
        require_same(removing.context, removal)
        place = removing.place(removal.place)
        store = removing.store(root_of(removing, removal, place), place)
        if not is_coming_back(place, store, removal.trash):
            return _purge_now(removing, removal, why, stop=lease.or_stop(removing.stop))
    text = f"an undelete of it was cut off, and is done now: {from_trash(removing, True, removal)}"
    return removing.step_of(removal, Went.CHANGED, text, bytes_=0, files=0)


def _begin(
    removing: Removing, removal: Removal, look: RunLook, caught_up: set[str]
) -> Removal | RemovalStep:
    """From deciding to doing, unless something speaks against it by now."""
    try:
        measure(look.place, look, removal.content_id)
    except StaleState as error:
        return came_back_changed(removing, removal, look, error)
    return begin(removing, removal, caught_up)


def begin(removing: Removing, removal: Removal, caught_up: set[str]) -> Removal:
    """Go on from deciding to doing in the catalog, from the facts of now, wherever the copy lies.

    Raises:
        RefusedBySafety: P2 forbids it by now. StaleState: another process went on with it.
        CouldNotLook: what must stay is not known.
    """
    context, name = removing.context, removing.run(removal.run_id).identity.name
    if name not in caught_up:
        catch_up(context, name)
        caught_up.add(name)
    seen = looked_around(context, name)
    guarded = removing.guarded(removal.run_id, is_deletion=removing.is_deletion(removal.plan_id))
    key = (removal.run_id, removal.content_id, removal.place)
    return guarded_by_sight(
        removing,
        guarded,
        seen,
        [removal],
        lambda guard: context.catalog.removals.begin(*key, guard),
    )


def came_back_changed(
    removing: Removing, removal: Removal, look: RunLook, error: StaleState
) -> RemovalStep:
    """What was condemned is not what lies there now: the decision is undone, nothing is touched."""
    context = removing.context
    require_same(context, removal)  # it changed because another process has moved it
    context.catalog.removals.undo(removal.run_id, removal.content_id, removal.place)
    look.refresh()
    at_ns = context.author.clock.now_ns()
    record_look(context.catalog, look, removal.run_id, at_ns=at_ns, sightings=None)
    text = f"{error.message}; it is no longer condemned"
    return removing.step_of(removal, Went.CHANGED, text, bytes_=0, files=0)


def _move(
    removing: Removing, removal: Removal, place: Place, look: RunLook, *, stop: Stop
) -> RemovalStep:
    """Move a copy aside, or the rest of it; one that others keep is purged at once."""
    catalog = removing.context.catalog
    try:
        trashed = move_aside(
            place,
            look,
            removal.content_id,
            now_ns=catalog.now_ns(),
            tombstone=lambda: bury(removing, removal, look),
            still=lambda: require_same(removing.context, removal),
            stop=stop,
        )
    except StaleState as error:
        require_same(removing.context, removal)  # or it is another one's by now
        return _left_alone(removing, removal, error)
    if trashed.left:
        return _resisted(removing, removal, _still_there(trashed.left))
    moved = catalog.removals.moved(
        removal.run_id, removal.content_id, removal.place, trash=trashed.trash
    )
    if skips_trash(moved, trashed):
        is_evicted = moved.action is Action.EVICT
        why = "other copies of it stay" if is_evicted else "its policy keeps no trash"
        return _purge_now(removing, moved, why, stop=stop)
    text = "; ".join((f"moved to {trashed.trash}", *_beside(trashed)))
    return removing.step_of(
        moved,
        Went.TRASHED,
        text,
        bytes_=trashed.moved_bytes,
        files=trashed.moved_files,
        due_at_ns=moved.due_at_ns,
    )


def skips_trash(removal: Removal, trashed: Trashed) -> bool:
    """Whether nothing lies in the trash that is nowhere else."""
    return removal.trash_s <= 0 or (removal.action is Action.EVICT and not trashed.extras)


def _beside(trashed: Trashed) -> Iterator[str]:
    """What else came of the move."""
    if trashed.extras:
        count = len(trashed.extras)
        yield f"with {count} file{'s' if count != 1 else ''} beside it, first {trashed.extras[0]}"
    for link in trashed.dangling:
        yield f"{link} leads nowhere now"
    if trashed.note:
        yield trashed.note


def _left_alone(removing: Removing, removal: Removal, error: StaleState) -> RemovalStep:
    """Another thing has its place by now: it is left alone, and the removal is over."""
    with suppress(CkptgovError):  # else a later trash of this checkpoint lies beside it
        _drop_empty_entries(removing, removal)
    removing.context.catalog.removals.purged(removal.run_id, removal.content_id, removal.place)
    text = f"{error.message}; it was left alone"
    return removing.step_of(removal, Went.CHANGED, text, bytes_=0, files=0)


def _drop_empty_entries(removing: Removing, removal: Removal) -> None:
    """Entries that were made for it, and got no file of it."""
    place = removing.place(removal.place)
    store = removing.store(root_of(removing, removal, place), place)
    begin = f"{digits_of(removal.content_id)[:16]}.{name_mark(removal.name)}"
    for path in entry_paths(store, begin):
        if not has_files(store, path):
            purge(place, store, removal.content_id, path)


def _purge_now(removing: Removing, removal: Removal, why: str, *, stop: Stop) -> RemovalStep:
    """Remove what lies in the trash for good."""
    place = removing.place(removal.place)
    store = removing.store(root_of(removing, removal, place), place)
    with removing.paced(place, f"purge {removal.name}") as paced:
        purged = purge(paced, store, removal.content_id, removal.trash, stop=stop)
    if purged.left:
        return _resisted(removing, removal, _still_there(purged.left))
    removing.context.catalog.removals.purged(removal.run_id, removal.content_id, removal.place)
    return removing.step_of(
        removal, Went.PURGED, f"purged: {why}", bytes_=purged.bytes, files=purged.files
    )


def _still_there(left: tuple[str, ...]) -> StorageError:
    more = f", and {len(left) - 1} more" if len(left) > 1 else ""
    return StorageError(f"{left[0]} did not go{more}; it is tried again")


@contextmanager
def _at(removing: Removing, removal: Removal) -> Iterator[tuple[Place, RunLook]]:
    """The place of a removal, paced, and a look at the run root that holds it."""
    place = removing.place(removal.place)
    look = removing.look(root_of(removing, removal, place), place)
    with removing.paced(place, f"remove {removal.name}") as paced:
        yield paced, look
