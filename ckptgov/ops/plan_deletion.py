"""The plan of a person who wants a whole retired run gone."""

from __future__ import annotations

from collections.abc import Iterator

from ckptgov.errors import CouldNotLook, RefusedBySafety, UsageError
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import (
    Action,
    CheckpointToKeep,
    CopyToKeep,
    DropReason,
    Plan,
    PlanEntry,
    RunToKeep,
    Why,
)
from ckptgov.ops.context import Context
from ckptgov.ops.plan_measure import Measured
from ckptgov.ops.retention_facts import RetentionFacts, Wanted, run_named
from ckptgov.planning.retention_plan import with_id

_WHY = (Why(DropReason.RUN_DELETED, "goes: a person deletes the run"),)


class Deletion:
    """What goes of the run, and (checkpoint, why) of what does not."""

    def __init__(self, plan: Plan, stays: tuple[tuple[str, str], ...]) -> None:
        self.plan = plan
        self.stays = stays


def deletion_of(context: Context, run: str, *, confirm: str) -> Deletion:
    """Every verified copy of a retired run, but of what is pinned, leased or being moved.

    Raises:
        UsageError: ``confirm`` is not the run's name.
        RefusedBySafety: the run is not retired, or the catalog's clock went back.
        UnknownRun, CouldNotLook: nothing can be told of it.
    """
    if confirm != run:
        raise UsageError(
            f"run {run} is deleted only if its name is repeated", hint=f"--confirm {run}"
        )
    catalog = context.catalog
    now_ns, change_seq = catalog.tick(), catalog.change_seq()
    measured = Measured(context)
    facts = RetentionFacts(context, now_ns=now_ns)
    while True:
        found = measured.corrected(facts.of(run_named(context, run), Wanted()))
        if found.retired_at_ns is None:
            raise RefusedBySafety(
                f"run {run} is not retired", hint=f"'ckptgov run retire {run}' comes first"
            )
        entries = tuple(_entries(found))
        if measured.measure(entries):
            break
        if measured.failures:
            raise CouldNotLook(f"run {run}: {measured.failures[found.run_id]}")
    entries = tuple(sorted(measured.freed(entries), key=_order))
    plan = Plan(
        plan_id="",
        now_ns=now_ns,
        change_seq=change_seq,
        policies=(),
        entries=entries,
        runs=1,
        checkpoints=len(found.checkpoints),
    )
    return Deletion(with_id(plan), tuple(_stays(found)))


def _entries(run: RunToKeep) -> Iterator[PlanEntry]:
    for one in run.checkpoints:
        if _claimed(one) is not None:
            continue
        for copy in one.copies:
            if _withheld(copy) is None:
                yield PlanEntry(
                    run_id=run.run_id,
                    run=run.name,
                    content_id=one.content_id,
                    checkpoint=one.name,
                    step=one.step,
                    place=copy.place,
                    tier=copy.tier,
                    node=copy.node,
                    action=Action.PRUNE,
                    why=_WHY,
                    bytes=copy.bytes,
                    files=copy.files,
                    size_bytes=copy.bytes,
                )


def _stays(run: RunToKeep) -> Iterator[tuple[str, str]]:
    for one in run.checkpoints:
        claimed = _claimed(one)
        if claimed is not None:
            yield one.name, claimed
            continue
        for copy in one.copies:
            withheld = _withheld(copy)
            if withheld is not None:
                yield one.name, f"its copy on {copy.tier} stays: {withheld}"


def _claimed(one: CheckpointToKeep) -> str | None:
    """Why a checkpoint stays, at every place; None: it goes."""
    if one.pins:
        return f"it is pinned as {', '.join(sorted(one.pins))}"
    if one.leases:
        return f"it is in use by {', '.join(sorted(one.leases))}"
    if one.is_start_point:
        return "a restart began from it, and nothing newer is durable"
    return None


def _withheld(copy: CopyToKeep) -> str | None:
    """Why one copy cannot go; None: it can."""
    if copy.state is not CopyState.VERIFIED:
        return f"it is {copy.state.value}, not verified: 'ckptgov verify' first"
    if not copy.is_reachable:
        return "it cannot be reached now"
    return None if copy.is_governed else "another catalog governs the tier"


def _order(one: PlanEntry) -> tuple[int, str, str, str]:
    return -(one.step if one.step is not None else -1), one.content_id, one.tier, one.place
