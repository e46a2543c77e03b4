"""Lost newest: what was condemned comes back when it has become what a run cannot do without.

While a copy waits for its grace to end, what was to stay instead of it may get lost, turn out to be
corrupt or be marked bad; a restart may begin from it, or somebody may pin it. It is judged as if
it had never been condemned; what would then be protected is verified again from that moment on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptgov.errors import CkptgovError, StaleState
from ckptgov.model.copies import CopyState
from ckptgov.model.removal import RemovalStep, Went
from ckptgov.model.retention import Action, KeepReason, Removal, RunVerdict
from ckptgov.ops.removal_guard import catch_up
from ckptgov.ops.removing import Removing
from ckptgov.ops.retention_facts import RetentionFacts, Wanted
from ckptgov.planning.retention import decide

_CLAIMED = frozenset({KeepReason.PINNED, KeepReason.LEASED, KeepReason.START_POINT})
_PROTECTED = _CLAIMED | {
    KeepReason.NEWEST_RESTORABLE,
    KeepReason.NEWEST_DURABLE,
    KeepReason.FLOOR_RESTORABLE,
}
"""What no rule and no grace outweighs. A rule that keeps it by now does not count: the decision
was right when it was made, and ``undelete`` takes it back."""


_ALONE = "kept: no other whole verified copy of it is left on a shared tier"


class _Undo(Exception):
    """Takes back what was only supposed; never leaves this module."""


def bring_back(removing: Removing) -> Iterator[RemovalStep]:
    """Undo the condemnations that would now be missed; each has its step.

    A run that cannot be judged now keeps what is condemned condemned: nothing of it goes either.
    """
    runs: dict[str, list[Removal]] = {}
    for one in removing.context.catalog.removals.removals(states=(CopyState.CONDEMNED,)):
        runs.setdefault(one.run_id, []).append(one)
    for run_id, condemned in runs.items():
        try:
            missed = _missed(removing, run_id, condemned)
        except CkptgovError as error:
            name = removing.run(run_id).identity.name
            removing.context.talk(f"{name}: what is condemned waits: {error.message}")
            continue
        for removal, why in missed:
            yield from _undo(removing, removal, why)


def _undo(removing: Removing, removal: Removal, why: str) -> Iterator[RemovalStep]:
    if removing.dry_run:
        yield removing.step_of(removal, Went.WOULD, f"would no longer be condemned: {why}")
        return
    try:
        removing.context.catalog.removals.undo(removal.run_id, removal.content_id, removal.place)
    except StaleState:
        return  # it went on, or came back, by another's hand
    text = f"no longer condemned, offered again: {why}"
    yield removing.step_of(removal, Went.PROTECTED, text, bytes_=0, files=0)


def _missed(
    removing: Removing, run_id: str, condemned: Sequence[Removal]
) -> list[tuple[Removal, str]]:
    catch_up(removing.context, removing.run(run_id).identity.name)
    missed = [(one, _ALONE) for one in condemned if _is_alone(removing, one)]
    pruned = [one for one in condemned if one.action is Action.PRUNE]
    if pruned:
        verdict = _as_if_never(removing, run_id, pruned)
        for one in pruned:
            why = _why_missed(removing, verdict, one)
            if why is not None:
                missed.append((one, why))
    return missed


def _is_alone(removing: Removing, removal: Removal) -> bool:
    """Whether an evicted copy is the last whole one: those that were to stay are gone."""
    if removal.action is not Action.EVICT:
        return False
    copies = removing.context.catalog.copies_of(removal.run_id, [removal.content_id])
    return not any(
        one.state is CopyState.VERIFIED
        and one.coverage is None
        and removing.place_facts(one.place).node is None
        for one in copies[removal.content_id]
    )


def _as_if_never(removing: Removing, run_id: str, condemned: Sequence[Removal]) -> RunVerdict:
    """What would be said of the run if these had not been condemned."""
    context, run = removing.context, removing.run(run_id)
    policy = removing.guarded(run_id, is_deletion=False).policy
    now_ns = context.catalog.now_ns()
    facts = RetentionFacts(context, now_ns=now_ns)
    facts.of(run, Wanted())  # looks at every place, before the transaction
    try:
        with context.catalog.transaction():
            for one in condemned:
                context.catalog.removals.undo(one.run_id, one.content_id, one.place)
            supposed = facts.of(run, Wanted())
            raise _Undo
    except _Undo:
        pass
    max_age_s = context.settings.verify_max_age_s
    return decide(supposed, policy, now_ns=now_ns, verify_max_age_s=max_age_s)


def _why_missed(removing: Removing, verdict: RunVerdict, removal: Removal) -> str | None:
    """Why a copy is not to go as a part of its checkpoint; by itself it still may."""
    tier = removing.place_facts(removal.place).tier
    reasons = _CLAIMED if removing.is_deletion(removal.plan_id) else _PROTECTED
    for checkpoint in verdict.checkpoints:
        if checkpoint.content_id != removal.content_id:
            continue
        kept = [
            (at.tier, why.text)
            for at in checkpoint.tiers
            if at.action is None
            for why in at.why
            if why.reason in reasons
        ]
        is_pruned = any(at.tier == tier and at.action is Action.PRUNE for at in checkpoint.tiers)
        if kept and not is_pruned:
            here = (text for each, text in kept if each == tier)
            return next(here, f"{kept[0][1]}; a plan may evict this copy")
    return None
