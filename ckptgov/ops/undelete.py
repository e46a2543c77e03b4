"""Undelete: a condemned copy is as it was; one from the trash is back once every byte compared.

What lies in a trash tells all that is needed, so a copy comes back also where the catalog has
forgotten that it went. One that an undelete brought back, and was cut off before it had compared
all of it, is compared by the next.
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
)
from ckptgov.model.copies import CopyState
from ckptgov.model.removal import RemovalStep, UndeleteAnswer, Went
from ckptgov.model.retention import Removal
from ckptgov.model.verbs import never
from ckptgov.ops.context import Context
from ckptgov.ops.flush import run_named
from ckptgov.ops.prune import carry_on, met_another
from ckptgov.ops.removal_root import root_of
from ckptgov.ops.removing import Removing, Stop, moved_by_now
from ckptgov.ops.retention_facts import run_named as run_facts
from ckptgov.ops.returning import compared, from_trash, uncompared
from ckptgov.ops.trashed import trashed
from ckptgov.work.trash import trash_entries


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
    """What the catalog knows to be on its way out, what came back and still counts for nothing,
    then what only a trash tells."""
    run_id = run.identity.run_id
    known = removing.context.catalog.removals.removals(run_id=run_id)
    back = tuple(uncompared(removing, run_id))
    for removal in known:
        yield _Gone(removal=removal, is_known=True)
    for removal in back:
        yield _Gone(removal=removal, is_known=False)
    told = {(one.content_id, one.place) for one in (*known, *back)}
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
        if removal.state is CopyState.REOPENED:
            return removing.step_of(removal, was, _compared_now(removing, removal)), True
        if one.is_known and removal.state is CopyState.TRASHING:  # forward, and then back
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
    match removal.state:
        case CopyState.CONDEMNED:
            return "would be offered again: nothing of it was touched"
        case CopyState.REOPENED:
            return "was brought back before, and would be compared"
        case _:
            return "would be brought back from the trash, and compared"


def _compared_now(removing: Removing, removal: Removal) -> str:
    place = removing.place(removal.place)
    shards = compared(removing, removal, root_of(removing, removal, place), place)
    return f"was brought back before; {shards} shards compared equal"


def _undone(removing: Removing, removal: Removal) -> RemovalStep:
    removing.context.catalog.removals.undo(removal.run_id, removal.content_id, removal.place)
    return removing.step_of(removal, Went.CONDEMNED, "offered again; nothing of it was touched")
