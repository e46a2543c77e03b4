"""Undelete: a condemned copy is as it was; one from the trash is back once every byte compared.

What lies in a trash tells all that is needed, so a copy comes back also where the catalog has
forgotten that it went.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ckptgov.catalog.facts import RunFacts, RunRootFacts
from ckptgov.errors import (
    CkptgovError,
    LeaseLost,
    NoneRestorable,
    PartlyDone,
    StorageError,
    VerificationFailed,
)
from ckptgov.model.checkpoint import VerifyLevel
from ckptgov.model.copies import CopyState
from ckptgov.model.journal import Undelete
from ckptgov.model.pacing import FlowClass
from ckptgov.model.removal import RemovalStep, UndeleteAnswer, Went
from ckptgov.model.retention import Removal
from ckptgov.model.verbs import never
from ckptgov.ops.context import Context
from ckptgov.ops.copy_lease import copy_lease
from ckptgov.ops.flush import run_named
from ckptgov.ops.moving import paced_reading
from ckptgov.ops.prune import carry_on, met_another, root_of
from ckptgov.ops.record import record_look
from ckptgov.ops.removing import Removing, Stop, moved_by_now, write_record
from ckptgov.ops.retention_facts import run_named as run_facts
from ckptgov.ops.standing_run import standing_run
from ckptgov.ops.trashed import trashed
from ckptgov.work.remove import put_back
from ckptgov.work.seal import SealSettings
from ckptgov.work.tier import Place
from ckptgov.work.trash import trash_entries
from ckptgov.work.verify import verify_sealed


class _Gone(Struct, frozen=True, kw_only=True):
    """A copy that may come back. ``is_known``: the catalog has its removal."""

    removal: Removal
    is_known: bool


def undelete(
    context: Context,
    target: str,
    *,
    step: int | None = None,
    dry_run: bool = False,
    stop: Stop = never,
) -> UndeleteAnswer:
    """Bring back what is condemned or in the trash, of a run or of one of its steps.

    What lies in the trash of a disk that only its node sees waits for that node's agent.

    Raises:
        UnknownRun: no such run. NoneRestorable: nothing of it is condemned or in the trash.
    """
    run = run_facts(context, run_named(context, target))
    with Removing(context, dry_run=dry_run, stop=stop) as removing:
        gone = [one for one in _gone(removing, run) if _has_step(context, one.removal, step)]
        if not gone:
            what = run.identity.name if step is None else f"step {step} of {run.identity.name}"
            error = next((one for one in removing.errors), None)
            raise error or NoneRestorable(
                f"nothing of {what} is condemned or in the trash",
                hint="what was purged is gone; 'ckptgov list' shows what there is",
            )
        steps: list[RemovalStep] = []
        restored: list[Removal] = []
        for one in gone:
            told, is_back = _brought_back(removing, one)
            steps.append(told)
            if is_back:
                restored.append(one.removal)
        return UndeleteAnswer(
            steps=tuple(steps),
            restored=tuple(restored),
            is_dry_run=dry_run,
            error=_error_of(removing, steps, restored),
        )


def _error_of(
    removing: Removing, steps: list[RemovalStep], restored: list[Removal]
) -> CkptgovError | None:
    back = {(one.content_id, one.place) for one in restored}
    left = [
        one
        for one in steps
        if (one.content_id, one.place) not in back and removing.is_here(one.place)
    ]
    if removing.dry_run or (not left and not removing.errors):
        return None
    first = removing.errors[0] if removing.errors else StorageError(left[0].text)
    if not restored:
        return first
    return PartlyDone(
        f"{len(restored)} of {len(steps)} came back; first that did not: {first.message}",
        hint=first.hint,
    )


def _has_step(context: Context, removal: Removal, step: int | None) -> bool:
    if step is None:
        return True
    sealed = context.catalog.sealed_of(removal.run_id, [removal.content_id])
    known = sealed.get(removal.content_id)
    return known is not None and known.step == step


def _gone(removing: Removing, run: RunFacts) -> Iterator[_Gone]:
    """What the catalog knows to be on its way out, then what only a trash tells."""
    run_id = run.identity.run_id
    known = removing.context.catalog.removals.removals(run_id=run_id)
    for removal in known:
        yield _Gone(removal=removal, is_known=True)
    told = {(one.content_id, one.place) for one in known}
    for root in removing.context.catalog.roots_of(run_id):
        if not removing.is_here(root.place) or not removing.place_facts(root.place).is_current:
            continue
        try:
            found = list(_in_trash(removing, root))
        except CkptgovError as error:
            removing.errors.append(error)
            continue
        for one in found:
            key = (one.content_id, one.place)
            if key not in told:
                told.add(key)
                yield _Gone(removal=one, is_known=False)


def _in_trash(removing: Removing, root: RunRootFacts) -> Iterator[Removal]:
    """What lies in the trash of one run root, the newest entry of each first."""
    place = removing.place(root.place)
    entries = [one for one in trash_entries(removing.store(root, place)) if one.manifest]
    if entries:
        look = removing.look(root, place)
        for entry in sorted(entries, key=lambda one: one.trash, reverse=True):
            removal = trashed(removing.context, look, entry, root)
            if removal is not None:
                yield removal


def _brought_back(removing: Removing, one: _Gone) -> tuple[RemovalStep, bool]:
    """Bring one back; what is told of it, and whether it came."""
    removal = one.removal
    was = Went.CONDEMNED if removal.state is CopyState.CONDEMNED else Went.TRASHED
    try:
        if removing.dry_run:
            return removing.step_of(removal, Went.WOULD, _would(removal)), False
        if removal.state is CopyState.CONDEMNED:
            return _undone(removing, removal), True
        if not removing.is_here(removal.place):
            words = f"waits for the agent of node {removing.place_facts(removal.place).node}"
            return removing.step_of(removal, Went.WAITING, words), False
        if removal.state is CopyState.TRASHING:  # from there only forward, and then back
            step = carry_on(removing, removal, set())
            if step.went is not Went.TRASHED:
                return step, False
            removal = moved_by_now(removing.context, removal)
        text = from_trash(removing, one.is_known, removal)
        return removing.step_of(removal, was, text), True
    except LeaseLost as error:  # or a state that another process changed
        removing.errors.append(error)
        return removing.step_of(removal, Went.WAITING, error.message), False
    except CkptgovError as error:
        removing.errors.append(error)
        return removing.step_of(removal, Went.RESISTED, error.message), False
    except OSError as error:
        return met_another(removing, removal, error), False


def _would(removal: Removal) -> str:
    if removal.state is CopyState.CONDEMNED:
        return "would be offered again: nothing of it was touched"
    return "would be brought back from the trash, and compared"


def _undone(removing: Removing, removal: Removal) -> RemovalStep:
    removing.context.catalog.removals.undo(removal.run_id, removal.content_id, removal.place)
    return removing.step_of(removal, Went.CONDEMNED, "offered again; nothing of it was touched")


def from_trash(removing: Removing, is_known: bool, removal: Removal) -> str:
    """Files, manifest, record, state; then every byte is compared.

    Raises:
        VerificationFailed: it came back, and is not what its manifest says: it is not offered.
    """
    context = removing.context
    place = removing.place(removal.place)
    root = root_of(removing, removal, place)
    with copy_lease(context, removal.content_id, removal.place):
        with removing.paced(place, f"undelete {removal.name}") as paced:
            name = put_back(paced, removing.store(root, place), removal.trash)
        run = standing_run(context, removing.run(removal.run_id).identity.name, node=None)
        record = Undelete(
            stamp=context.author.stamp(removal.run_id, reason="brought back from the trash"),
            content_id=removal.content_id,
            place=removal.place,
            plan_id=removal.plan_id or None,
        )
        write_record(context, run, record, removing.store(root, place))
        if is_known:
            context.catalog.removals.undo(removal.run_id, removal.content_id, removal.place)
    shards = compared(removing, removal, root, place)
    return f"brought back to {name}; {shards} shards compared equal"


def compared(removing: Removing, removal: Removal, root: RunRootFacts, place: Place) -> int:
    """Compare what was brought back by digest, and let the catalog know; how many shards it has.

    Raises:
        VerificationFailed: it is not what its manifest says: it is not offered.
    """
    context = removing.context
    removing.close()  # what the look knew is over
    look = removing.look(root, place)
    copy = next(
        one
        for stored in look.stored
        if (one := look.sealed(stored)) is not None
        and one.manifest.content_id == removal.content_id
    )
    settings = SealSettings(threads=context.settings.digest_threads, progress=context.progress)
    what = f"verify {removal.name}"
    with paced_reading(context, [look], what=what, flow_class=FlowClass.BACKGROUND):
        outcome = verify_sealed(
            look, copy, level=VerifyLevel.DIGEST, clock=context.author.clock, settings=settings
        )
    look.refresh()
    at_ns = context.author.clock.now_ns()
    record_look(context.catalog, look, removal.run_id, at_ns=at_ns, sightings=None)
    if outcome.findings:
        first = outcome.findings[0]
        raise VerificationFailed(
            f"{first.path}: {first.evidence} ({first.reason.value}); it came back, and is not "
            "offered"
        )
    return len(outcome.held)
