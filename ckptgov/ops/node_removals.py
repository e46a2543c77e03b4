"""What the service has begun to remove, carried out on a node's own disks: the agent's part.

Nothing is decided here. What is asked is done by the very steps that remove anything else, against
what stands on the disk: a copy that changed, or was brought there anew, is left alone. Every order
may come again, after a kill in the middle or a lost answer: it goes on, or tells what stands.
"""

from __future__ import annotations

from ckptgov.catalog.facts import RunRootFacts
from ckptgov.errors import CkptgovError, CouldNotLook, Interrupted, StaleState
from ckptgov.model.copies import GONE, TRANSITIONS, CopyState
from ckptgov.model.journal import Undelete
from ckptgov.model.removal import RemovalStep, Went
from ckptgov.model.retention import Removal
from ckptgov.model.verbs import end_if
from ckptgov.ops.context import Context
from ckptgov.ops.node_answers import Did, answer_of, held_copy, known_removal, said_of
from ckptgov.ops.prune import carry_on, words_of
from ckptgov.ops.record import record_look
from ckptgov.ops.removal_root import root_of
from ckptgov.ops.removing import Removing, Stop
from ckptgov.ops.returning import compared, from_trash
from ckptgov.ops.trashed import adopt_trash
from ckptgov.wire.node_removals import (
    Came,
    Order,
    RemoveOutcome,
    RemovePayload,
    What,
    removal_of,
)
from ckptgov.work.look import RunLook
from ckptgov.work.remove import measure
from ckptgov.work.tier import Place

_CAME = {Went.TRASHED: Came.MOVED, Went.PURGED: Came.PURGED, Went.CHANGED: Came.CHANGED}
_MOST_STEPS = 2
"""Moved aside, then purged."""


def remove_ordered(
    context: Context, payload: RemovePayload, *, node: str, stop: Stop
) -> RemoveOutcome:
    """Do what the service asks about copies on this node's disks, one order after the other.

    Raises:
        RefusedBySafety: the clocks do not agree; nothing was touched.
        Interrupted: ``stop`` said so; what was done stays done, and is told the next time.
    """
    with Removing(context, dry_run=False, stop=stop) as removing:
        removed = [one for one in payload.orders if one.what is not What.BACK]
        if removed:
            removing.require_same_time((one.run_id, one.place) for one in removed)
            context.catalog.tick()
        answers = []
        for order in payload.orders:
            end_if(stop)
            answers.append(answer_of(context, order, _did(removing, order, node)))
    return RemoveOutcome(answers=tuple(answers))


def forget_replaced(context: Context) -> None:
    """Let go of removals on disks that were replaced by others: there is nothing left to do."""
    found = context.catalog.removals.removals()
    if not found:
        return
    with Removing(context, dry_run=False, stop=lambda: False) as removing:
        for removal in found:
            if not removing.place_facts(removal.place).is_current:
                carry_on(removing, removal, set())


def _did(removing: Removing, order: Order, node: str) -> Did:
    """Carry one order out. Whatever stands against it is an answer too."""
    try:
        if not _is_current(removing, order, node):
            return Did(came=Came.PURGED, text="the disk it lay on was replaced")
        match order.what:
            case What.BACK:
                return _brought_back(removing, order)
            case What.ASIDE:
                return _removed(removing, order, until=CopyState.TRASHED)
            case What.PURGE:
                return _removed(removing, order, until=CopyState.PURGED)
    except Interrupted:
        raise
    except CkptgovError as error:
        return Did(came=Came.RESISTED, text=error.message)
    except OSError as error:  # a name came or went under our hands
        return Did(came=Came.RESISTED, text=words_of(error, order.name))


def _is_current(removing: Removing, order: Order, node: str) -> bool:
    """Whether the disk is there to be looked at; False: another one has replaced it.

    Raises:
        CouldNotLook: it is none of this node's, or not (or no longer) what stands at its path.
    """
    known = {one.place: one for one in removing.context.catalog.places()}
    facts = known.get(order.place)
    if facts is None or facts.node != node:
        raise CouldNotLook(f"place {order.place} is no disk of node {node}")
    if facts.is_current:
        removing.place(order.place)  # its identity, now
    return facts.is_current


def _removed(removing: Removing, order: Order, *, until: CopyState) -> Did:
    """Move a copy aside, or purge it where that was done before."""
    if _is_back(removing, order):
        return Did(came=Came.BACK, text="it was brought back since")
    try:
        removal = _begun(removing, order, may_begin=until is CopyState.TRASHED)
    except StaleState as error:
        _look(removing, order)
        return Did(came=Came.CHANGED, text=f"{error.message}; it was left alone")
    done = Did(came=Came.PURGED, text="nothing of it lies there")
    for _ in range(_MOST_STEPS):
        if removal is None:
            return done
        if removal.state is until:
            return Did(came=Came.MOVED, bytes=removal.bytes, files=removal.files)
        done = _came(removing, order, carry_on(removing, removal, set()))
        if done.came is not Came.MOVED or until is CopyState.TRASHED:
            return done
        removal = known_removal(removing.context, order)
    return done


def _came(removing: Removing, order: Order, step: RemovalStep) -> Did:
    """The answer that a step comes to.

    Raises:
        Interrupted: it stopped half-way because it was told to.
    """
    if step.went is Went.WAITING:
        end_if(removing.stop)
    if step.went is Went.CHANGED:  # what stands there instead counts from now on
        _look(removing, order)
    return Did(
        came=_CAME.get(step.went, Came.RESISTED), text=step.text, bytes=step.bytes, files=step.files
    )


def _begun(removing: Removing, order: Order, *, may_begin: bool) -> Removal | None:
    """The removal as this node's catalog has it; None: nothing stands, or lies in the trash.

    Where the catalog knows of none, it may have lost it, and the disk is asked.

    Raises:
        StaleState: what stands there is not what was verified; nothing was begun.
    """
    known = known_removal(removing.context, order)
    if known is None and not (may_begin and _is_sealed(removing, order)):
        look, root = _look(removing, order)
        adopt_trash(removing.context, look, root)
        known = known_removal(removing.context, order)
    if may_begin and known is None and _is_sealed(removing, order):
        place, root = _at(removing, order)
        measure(place, removing.look(root, place), order.content_id)
        asked = removal_of(order, CopyState.TRASHING)
        known = removing.context.catalog.removals.ordered(asked)
    return known


def _is_sealed(removing: Removing, order: Order) -> bool:
    """Whether it stands, by the catalog and by its manifest. One without it is lost."""
    held = held_copy(removing.context, order)
    if held is None or held.state in GONE:
        return False
    place, root = _at(removing, order)
    if removing.store(root, place).manifests_of(order.content_id):
        return True
    if CopyState.LOST in TRANSITIONS[held.state]:
        removing.context.catalog.transition(
            order.run_id,
            order.content_id,
            order.place,
            expected=held.state,
            to=CopyState.LOST,
            at_ns=removing.context.author.clock.now_ns(),
        )
    return False


def _stands(context: Context, order: Order) -> bool:
    held = held_copy(context, order)
    return held is not None and held.state not in GONE


def _at(removing: Removing, order: Order) -> tuple[Place, RunRootFacts]:
    place = removing.place(order.place)
    return place, root_of(removing, removal_of(order, CopyState.TRASHING), place)


def _look(removing: Removing, order: Order) -> tuple[RunLook, RunRootFacts]:
    """Look at the run root anew, and let the catalog know what stands there."""
    place, root = _at(removing, order)
    removing.close()
    look = removing.look(root, place)
    at_ns = removing.context.author.clock.now_ns()
    record_look(removing.context.catalog, look, order.run_id, at_ns=at_ns, sightings=None)
    return look, root


def _brought_back(removing: Removing, order: Order) -> Did:
    """Put a copy back from the trash and compare it; or tell that it stands."""
    removal = known_removal(removing.context, order)
    if removal is None and not _stands(removing.context, order):
        look, root = _look(removing, order)
        adopt_trash(removing.context, look, root)
        removal = known_removal(removing.context, order)
    if removal is not None and removal.state is CopyState.TRASHING:  # only forward, then back
        did = _came(removing, order, carry_on(removing, removal, set()))
        if did.came is not Came.MOVED:
            return did
        removal = known_removal(removing.context, order)
    try:
        return Did(came=Came.BACK, text=_compared(removing, order, removal))
    except Interrupted:
        raise
    except CkptgovError as error:
        if not _stands(removing.context, order):
            raise
        return Did(came=Came.BACK, text=error.message)  # it came back, and is not what it was


def _compared(removing: Removing, order: Order, removal: Removal | None) -> str:
    """What came of bringing it back, or of comparing what was brought back before.

    Raises:
        StaleState: nothing of it is left. StorageError: as ``put_back``.
        VerificationFailed: it came back, and is not what its manifest says.
    """
    if removal is not None:
        return from_trash(removing, True, removal)
    held = held_copy(removing.context, order)
    if held is None or held.state in GONE:
        raise StaleState(f"{order.name}: nothing that could be put back lies there")
    if held.state is not CopyState.VERIFIED:
        place, root = _at(removing, order)
        compared(removing, removal_of(order, CopyState.TRASHED), root, place)
    return "it lies where it was"


def _is_back(removing: Removing, order: Order) -> bool:
    """Whether it was brought back after this order's removal was decided: by hand, or for a
    service that has forgotten it since."""
    if not _stands(removing.context, order):
        return False
    said = [one.record for one in said_of(removing.context, order)]
    last = said[-1] if said else None
    return isinstance(last, Undelete) and last.stamp.at_ns > order.condemned_at_ns
