"""What is said of a run: restarts and what came of them, bad marks, rollbacks, claims, commits."""

from __future__ import annotations

from ckptgov.catalog.facts import RunFacts
from ckptgov.errors import Malformed, NotAllowed, UsageError
from ckptgov.model.access import Right
from ckptgov.model.facts import Query
from ckptgov.model.settings import Scope
from ckptgov.ops import restarts, standing_history
from ckptgov.ops.commit import commit as seal_one
from ckptgov.ops.context import Context
from ckptgov.ops.parts import put_part
from ckptgov.service import schemas
from ckptgov.service.below import address_of, tier_named
from ckptgov.service.calls import AnyEndpoint, Call, Cost, Reply, document, recorded, tell
from ckptgov.service.refusals import status_of
from ckptgov.wire import documents, requests
from ckptgov.wire.parts import decode_part, encode_part_answer
from ckptgov.wire.strict import MAX_MESSAGE_BYTES


def restart(call: Call[requests.Query, requests.AskRestart]) -> Reply:
    """The checkpoint of one restart, the same for all its ranks."""
    told, run = call.body, call.run()
    call.answers.questions.note(run.identity.run_id)
    asked = restarts.AskedRestart(
        run=run.identity.name,
        restart_id=told.restart_id,
        query=Query(purpose=told.purpose, world_size=told.world_size),
        node=told.node,
        place=told.place,
        allow_fresh=told.allow_fresh,
    )
    answer = call.restarts.decide(asked, by=call.caller.name)
    shown = documents.latest(answer)
    if answer.restart is not None:
        # Also of a fresh start, which is told as "there never was one": this says it was decided.
        shown["restart"] = {
            "restart_id": answer.restart.restart_id,
            "epoch": answer.restart.epoch,
            "decided_here": answer.restart.decided_here,
        }
    return document(shown, 200 if answer.error is None else status_of(answer.error))


def outcome(call: Call[requests.Query, requests.TellOutcome]) -> Reply:
    """What became of the start that a restart id was given."""
    told, run = call.body, call.run()
    with call.context() as context:
        record = restarts.report(
            context,
            run.identity.name,
            restart_id=told.restart_id,
            outcome=told.outcome,
            epoch=told.epoch,
            reason=told.reason,
            dry_run=told.dry_run,
        )
    return recorded(record, dry_run=told.dry_run)


def mark_bad(call: Call[requests.Query, requests.MarkBad]) -> Reply:
    """A checkpoint, or a range of steps, that must not be offered (or may be again)."""
    told, run = call.body, call.run()
    steps = standing_history.Steps(
        step=told.step, from_step=told.from_step, until_step=told.until_step
    )
    with call.context() as context:
        record = standing_history.mark_bad(
            context,
            run.identity.name,
            steps,
            reason=told.reason,
            undo=told.undo,
            dry_run=told.dry_run,
        )
    return recorded(record, dry_run=told.dry_run)


def rollback(call: Call[requests.Query, requests.RollBack]) -> Reply:
    """Continue the run from a step: higher ones saved until now are never offered again."""
    told, run = call.body, call.run()
    with call.context() as context:
        record = standing_history.rollback(
            context,
            run.identity.name,
            to_step=told.to_step,
            reason=told.reason,
            dry_run=told.dry_run,
        )
    return recorded(record, dry_run=told.dry_run)


def claim(call: Call[requests.Query, requests.Hold]) -> Reply:
    """A named claim on one checkpoint that ends by itself; or its end before that."""
    told, run = call.body, call.run()
    if (told.ttl_s is None) is not told.release:
        raise UsageError("a claim says for how long ('ttl_s'), or that it ends ('release')")
    wanted = standing_history.Claim(
        name=told.name, step=told.step, content_id=told.content_id, ttl_s=told.ttl_s
    )
    with call.context() as context:
        record = standing_history.claim(
            context, run.identity.name, wanted, reason=told.reason, dry_run=told.dry_run
        )
    return recorded(record, dry_run=told.dry_run)


def part(call: Call[requests.Query, requests.Body]) -> Reply:
    """One node's part of a save; the last one seals it."""
    run = call.run()
    try:
        told = decode_part(requests.check_no_nul(call.raw))
        with call.context() as context:
            answer = put_part(context, run.identity.name, told, node=call.caller.node)
    except Malformed as error:  # of the request, not of a file of ours
        raise UsageError(error.message, hint=error.hint) from error
    return Reply(status=200, body=encode_part_answer(answer))


def commit(call: Call[requests.Query, requests.Commit]) -> Reply:
    """Seal one checkpoint that its writer knows to be complete."""
    told, run = call.body, call.run()
    metrics = _metrics(told.metrics)
    with call.context() as context:
        address = address_of(context, told.tier, told.path)
        _check_within(call, context, run)
        tier = tier_named(context, told.tier)
        sealed = seal_one(
            context,
            address,
            run=run.identity.name,
            step=told.step,
            node=tier.node if tier.scope is Scope.NODE else None,
            metrics=metrics,
            dry_run=told.dry_run,
        )
    return document({"dry_run": told.dry_run, **documents.sealed(sealed)})


def _check_within(
    call: Call[requests.Query, requests.Commit], context: Context, run: RunFacts
) -> None:
    """A checkpoint lies below a root of its run: nobody makes another run's bytes one of theirs."""
    told = call.body
    tier = tier_named(context, told.tier)
    place = context.catalog.place_by_root(tier.root, node=tier.node)
    for root in context.catalog.roots_of(run.identity.run_id):
        inside = root.path == "" or told.path.startswith(root.path + "/")
        if place is not None and root.place == place.place and inside:
            return
    raise NotAllowed(
        f"{told.path} at tier {told.tier} is not below a root of run {run.identity.name}",
        hint="'ckptgov run list' shows where it lies; 'ckptgov scan' finds new places of runs",
    )


def _metrics(told: dict[str, str]) -> tuple[tuple[str, str], ...]:
    for name, value in told.items():
        try:
            float(value)
        except ValueError:
            raise UsageError(f"metric {name!r}: {value!r} is no number") from None
    return tuple(sorted(told.items()))


ENDPOINTS: tuple[AnyEndpoint, ...] = (
    tell(
        "/v1/runs/{run:run}/restarts",
        "The checkpoint of one restart: whoever gives the same id gets the same answer.",
        restart,
        body=requests.AskRestart,
        rights=(Right.RESTORE,),
        answers={200: schemas.LATEST},
        errors=(404, 409),
        cost=Cost.DECISION,
    ),
    tell(
        "/v1/runs/{run:run}/outcomes",
        "What became of a start. missing, corrupt and load-failed open the next epoch.",
        outcome,
        body=requests.TellOutcome,
        rights=(Right.COMMIT, Right.RESTORE),
        answers={200: schemas.RECORD},
        errors=(409,),
        cost=Cost.DECISION,
    ),
    tell(
        "/v1/runs/{run:run}/mark-bad",
        "Never offer a checkpoint, or a range of steps, whatever its bytes say.",
        mark_bad,
        body=requests.MarkBad,
        rights=(Right.COMMIT,),
        answers={200: schemas.RECORD},
        errors=(409,),
        cost=Cost.STORAGE,
    ),
    tell(
        "/v1/runs/{run:run}/rollback",
        "Continue the run from a step.",
        rollback,
        body=requests.RollBack,
        rights=(Right.APPLY,),
        answers={200: schemas.RECORD},
        errors=(409,),
        cost=Cost.STORAGE,
    ),
    tell(
        "/v1/runs/{run:run}/leases",
        "Keep a checkpoint for a while under a name; or let go of it.",
        claim,
        body=requests.Hold,
        rights=(Right.COMMIT,),
        answers={200: schemas.RECORD},
        errors=(409,),
        cost=Cost.STORAGE,
    ),
    tell(
        "/v1/runs/{run:run}/parts",
        "One node's part of a save, digested; the last one seals the save.",
        part,
        body=requests.Body,
        is_raw=True,
        raw_schema=schemas.POSTED,
        rights=(Right.AGENT,),
        answers={200: schemas.NOTHING},
        errors=(409,),
        most_body_bytes=MAX_MESSAGE_BYTES,
    ),
    tell(
        "/v1/runs/{run:run}/commit",
        "Seal one checkpoint that its writer knows to be complete.",
        commit,
        body=requests.Commit,
        rights=(Right.COMMIT,),
        answers={200: schemas.SEALED},
        errors=(409, 507),
        cost=Cost.STORAGE,
    ),
)
