"""How each kind of task is carried out: its payload, the operation, the document it ends with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, structs
from msgspec.structs import replace

from ckptgov.errors import (
    CkptgovError,
    CouldNotLook,
    PartlyDone,
    RefusedBySafety,
    UnknownRun,
    UsageError,
)
from ckptgov.model.answers import VerifyAnswer
from ckptgov.model.cluster import TaskFacts, TaskKind
from ckptgov.model.removal import Went
from ckptgov.model.settings import TierSettings
from ckptgov.model.verbs import end_if
from ckptgov.ops.context import Context
from ckptgov.service.payloads import (
    ApplyPayload,
    Asked,
    FlushPayload,
    PlanPayload,
    ReconcilePayload,
    ScanPayload,
    UndeletePayload,
    VerifyPayload,
    payload_of,
)
from ckptgov.wire import documents
from ckptgov.wire.documents import Document, error_document
from ckptgov.work import addresses

Stop = Callable[[], bool]


class Ended(Struct, frozen=True, kw_only=True):
    """What a task came to: the document its command would have printed, and the error in it."""

    document: Document
    error: CkptgovError | None = None


def failed(error: CkptgovError) -> Ended:
    """An error is an outcome as well."""
    return Ended(document=error_document(error), error=error)


def broke(error: Exception) -> Ended:
    """The same for a bug of ours: it fails its task, never who carries it out."""
    return failed(CkptgovError(f"unexpected {type(error).__name__}: {error}"))


def is_done(task: TaskFacts, error: CkptgovError | None) -> bool:
    """Partly done is done; a verification that found bad bytes did what it is for."""
    if error is None or error.exit_code == 3:
        return True
    return task.task.kind is TaskKind.VERIFY and error.exit_code == 5


class Runner(Protocol):
    """Carries out one task. ``stop`` says that the task is to be given back, or was taken over.

    Raises:
        CkptgovError: nothing was done; Interrupted where ``stop`` said so.
    """

    def __call__(self, context: Context, task: TaskFacts, stop: Stop) -> Ended: ...


def scan(context: Context, task: TaskFacts, stop: Stop) -> Ended:
    """Discover and seal at tiers, or in the places of runs."""
    from ckptgov.ops.scan import scan as scan_

    payload = payload_of(task, ScanPayload)
    runs = payload.runs if payload.runs is not None else _own_run(task)
    if runs is not None:
        directories = [where for run in runs for where in roots_of(context, run)]
    else:
        directories = []
        context.settings = replace(
            context.settings, tiers=only_ingest(context.settings.tiers, payload.tiers)
        )
    answer = scan_(context, directories, node=None)
    return Ended(document=documents.scan(answer), error=answer.error)


def flush(context: Context, task: TaskFacts, stop: Stop) -> Ended:
    """Bring checkpoints over links, or where they were asked for."""
    from ckptgov.ops.flush import FlushRequest
    from ckptgov.ops.flush import flush as flush_
    from ckptgov.wire.movement import flushed

    payload = payload_of(task, FlushPayload)
    run = payload.run or task.task.for_run
    sources = None if payload.sources is None else frozenset(payload.sources)
    request = FlushRequest(run=run, step=payload.step, target=payload.to, sources=sources)
    answer = flush_(context, request, stop=stop)
    end_if(stop)
    return Ended(document=flushed(answer), error=answer.error)


def verify(context: Context, task: TaskFacts, stop: Stop) -> Ended:
    """Compare one run again, or a turn of the rotation at some tiers."""
    from ckptgov.ops.scrub import scrub

    payload = payload_of(task, VerifyPayload)
    run = payload.run or task.task.for_run
    if run is not None:
        answer = _verify_run(context, run, payload)
    else:
        tiers = payload.tiers or tuple(one.name for one in context.settings.tiers)
        answer = scrub(context, tiers, share_s=payload.share_s, stop=stop)
        end_if(stop)
    return Ended(document=documents.verify(answer), error=answer.error)


def _verify_run(context: Context, run: str, payload: VerifyPayload) -> VerifyAnswer:
    from ckptgov.ops.verify import verify as verify_

    asked = context.asked(run)
    if asked is None:
        raise UnknownRun(f"no run {run!r} is registered")
    return verify_(context, asked, level=payload.level, dry_run=False)


def reconcile(context: Context, task: TaskFacts, stop: Stop) -> Ended:
    """Bring the catalog up to what lies at tiers, and clear what dead movers left."""
    from ckptgov.ops.reconcile import reconcile as reconcile_
    from ckptgov.wire.usage import reconciled

    payload = payload_of(task, ReconcilePayload)
    tiers = payload.tiers or None
    answer = reconcile_(
        context,
        tiers=tiers,
        older_than_s=payload.older_than_s,
        staging_older_than_s=payload.staging_older_than_s,
    )
    return Ended(document=reconciled(answer), error=answer.error)


def back_up(context: Context, task: TaskFacts, stop: Stop) -> Ended:
    """A copy of the catalog to the tier that the settings name, and the oldest ones away."""
    from ckptgov.ops.backup import back_up as back_up_
    from ckptgov.ops.backup import told

    service = context.settings.service
    if service.backup_tier is None:
        raise UsageError("no tier is named that keeps copies of the catalog")
    answer = back_up_(context, service.backup_tier, keep=service.backups_kept)
    return Ended(document=told(answer))


def plan(context: Context, task: TaskFacts, stop: Stop) -> Ended:
    """Decide what may go, and store it. The document leaves out what goes: the plan tells."""
    from ckptgov.ops.plan import plan as plan_
    from ckptgov.wire import plans

    payload = payload_of(task, PlanPayload)
    _write_as(context, payload)
    made = plan_(context, run=payload.run or task.task.for_run)
    error = plans.error_of_plan(made)
    document = plans.plan(made, error=error)
    document["left_out"] = {"entries": len(made.plan.entries)}
    del document["entries"]
    # That it has to be approved is said in it; it is made all the same.
    return Ended(document=document, error=None if isinstance(error, RefusedBySafety) else error)


def apply(context: Context, task: TaskFacts, stop: Stop) -> Ended:
    """Carry a plan out, and go on with what was begun before: here, and by asking nodes."""
    from ckptgov.ops.apply import apply as apply_
    from ckptgov.ops.plan_upkeep import newest_to_apply
    from ckptgov.service.node_removals import ask_nodes
    from ckptgov.wire.removal import applied

    payload = payload_of(task, ApplyPayload)
    _write_as(context, payload)
    plan_id = newest_to_apply(context) if payload.is_newest else payload.plan
    answer = apply_(context, plan_id, strict=payload.strict, stop=stop)
    end_if(stop)
    if not isinstance(answer.error, RefusedBySafety):
        ask_nodes(context)
    document = applied(answer)
    if payload.is_newest:  # every few minutes the same, for as long as a grace lasts
        waiting = Went.WAITING.value
        document["steps"] = [one for one in document["steps"] if one["went"] != waiting]
    return Ended(document=document, error=answer.error)


def undelete(context: Context, task: TaskFacts, stop: Stop) -> Ended:
    """Bring back what is on its way out: here, and by asking nodes."""
    from ckptgov.ops.undelete import undelete as undelete_
    from ckptgov.service.node_removals import ask_back
    from ckptgov.wire.removal import undeleted

    payload = payload_of(task, UndeletePayload)
    _write_as(context, payload)
    run = payload.run or task.task.for_run
    if run is None:
        raise UsageError("an undelete names a run")
    ask_back(context, run, payload.step)
    answer = undelete_(context, run, step=payload.step, stop=stop)
    end_if(stop)
    return Ended(document=undeleted(answer), error=answer.error)


def measure(context: Context, task: TaskFacts, stop: Stop) -> Ended:
    """How full every tier is that is seen from here; samples of it are kept."""
    from ckptgov.ops.capacity import keep_samples, tier_facts

    facts = tier_facts(context)
    document: Document = {"samples": [structs.asdict(one) for one in keep_samples(context, facts)]}
    errors = [one.error for one in facts if one.error is not None]
    if not errors:
        return Ended(document=document)
    error = errors[0]
    if len(errors) < len(facts):
        error = PartlyDone(f"{len(errors)} of {len(facts)} tiers do not tell; {error.message}")
    return Ended(document=documents.with_error(document, error), error=error)


RUNNERS: Mapping[TaskKind, Runner] = {
    TaskKind.SCAN: scan,
    TaskKind.FLUSH: flush,
    TaskKind.VERIFY: verify,
    TaskKind.RECONCILE: reconcile,
    TaskKind.BACKUP: back_up,
    TaskKind.PLAN: plan,
    TaskKind.APPLY: apply,
    TaskKind.UNDELETE: undelete,
    TaskKind.CAPACITY: measure,
}
OF_THE_CLUSTER = frozenset({TaskKind.PLAN, TaskKind.APPLY, TaskKind.UNDELETE})
"""Kinds that judge copies wherever they lie. For the others only what is seen from here counts."""


def _own_run(task: TaskFacts) -> tuple[str, ...] | None:
    return (task.task.for_run,) if task.task.for_run is not None else None


def only_ingest(
    tiers: Sequence[TierSettings], names: Sequence[str] | None
) -> tuple[TierSettings, ...]:
    """The tiers, of which only those named are scanned.

    Raises:
        UsageError: one of them is not to be scanned, or not from here.
    """
    if names is None:
        return tuple(tiers)
    for name in names:
        if not any(one.name == name and one.ingest for one in tiers):
            raise UsageError(
                f"tier {name!r} is not scanned from here",
                hint="only tiers declared ingest are, and a node's disk by its own agent",
            )
    return tuple(replace(one, ingest=one.ingest and one.name in names) for one in tiers)


def roots_of(context: Context, run: str) -> list[str]:
    """Where a run lies on scanned tiers that this process sees.

    Raises:
        UnknownRun: no such run is registered.
        CouldNotLook: nowhere of that.
    """
    found = context.catalog.run_by_name(run)
    if found is None:
        raise UnknownRun(f"no run {run!r} is registered", hint="'ckptgov run list' shows the runs")
    places = {one.place: one for one in context.catalog.places()}
    roots = [
        addresses.join(tier.root, root.path)
        for root in context.catalog.roots_of(found.identity.run_id)
        if (place := places.get(root.place)) is not None
        and (tier := context.tier_of(place.root, place.node)) is not None
        and tier.ingest
    ]
    if not roots:
        raise CouldNotLook(f"run {run} lies on no scanned tier that is seen from here")
    return roots


def _write_as(context: Context, asked: Asked) -> None:
    """Let records of what goes, and of what comes back, tell who wanted it."""
    if asked.asked_by is not None:
        context.author = replace(context.author, by=asked.asked_by)
