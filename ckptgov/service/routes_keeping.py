"""What people say of checkpoints and runs that are to stay or may go, and claims of readers."""

from __future__ import annotations

from ckptgov.errors import LeaseLost, UsageError
from ckptgov.model.access import Right
from ckptgov.model.retention import CheckpointLease
from ckptgov.ops import standing_history
from ckptgov.ops.claims import LEASE
from ckptgov.ops.plan import plan_of_deletion
from ckptgov.service import schemas
from ckptgov.service.calls import AnyEndpoint, B, Call, Cost, Reply, document, recorded, tell
from ckptgov.service.routes_plans import planned
from ckptgov.wire import requests
from ckptgov.wire import requests_keeping as keeping


def pin(call: Call[requests.Query, keeping.PinCheckpoint]) -> Reply:
    """Keep a checkpoint under a name, for good or for so long; or no longer."""
    told, run = call.body, call.run()
    if told.name.startswith(LEASE):
        raise UsageError(
            f"{told.name}: names that begin with {LEASE!r} belong to leases",
            hint="a lease is a claim that runs out: POST /v1/runs/{run}/leases",
        )
    if told.undo and told.ttl_s is not None:
        raise UsageError("what ends now does not last: leave 'ttl_s' out with 'undo'")
    wanted = standing_history.Claim(
        name=told.name,
        step=told.step,
        ttl_s=told.ttl_s,
        for_good=told.ttl_s is None and not told.undo,
    )
    with call.context() as context:
        record = standing_history.claim(
            context, run.identity.name, wanted, reason=told.reason, dry_run=told.dry_run
        )
    return recorded(record, dry_run=told.dry_run)


def metric(call: Call[requests.Query, keeping.TellMetric]) -> Reply:
    """Tell a metric of a checkpoint after it was sealed."""
    told, run = call.body, call.run()
    with call.context() as context:
        record = standing_history.set_metric(
            context,
            run.identity.name,
            step=told.step,
            name=told.name,
            value=told.value,
            dry_run=told.dry_run,
        )
    return recorded(record, dry_run=told.dry_run)


def finish(call: Call[requests.Query, keeping.EndRun]) -> Reply:
    """Say that a run's trainer is done."""
    return _ended(call, retire=False)


def retire(call: Call[requests.Query, keeping.EndRun]) -> Reply:
    """Say that a run is over: its policy's rules for retired runs hold from now on."""
    return _ended(call, retire=True)


def _ended(call: Call[requests.Query, keeping.EndRun], *, retire: bool) -> Reply:
    told, run = call.body, call.run()
    with call.context() as context:
        record = standing_history.end_run(
            context,
            run.identity.name,
            retire=retire,
            reason=told.reason,
            dry_run=told.dry_run,
        )
    return recorded(record, dry_run=told.dry_run)


def delete(call: Call[requests.Query, keeping.DeleteRun]) -> Reply:
    """Plan the removal of every checkpoint of a retired run."""
    told, run = call.body, call.run().identity.name
    with call.context() as context:
        made = plan_of_deletion(context, run, confirm=told.confirm, dry_run=told.dry_run)
    return planned(made, dry_run=told.dry_run)


def claim(call: Call[requests.Query, keeping.ClaimToRead]) -> Reply:
    """Hold a checkpoint while somebody reads it. No record: the catalog alone keeps it."""
    told, run = call.body, call.run()
    with call.context() as context:
        taken = context.catalog.claims.take(
            run.identity.run_id,
            told.content_id,
            owner=context.author.by,
            reason=told.reason,
            ttl_s=told.ttl_s,
        )
    return _claim(taken)


def renew(call: Call[requests.Query, keeping.RenewClaim]) -> Reply:
    """Hold it for longer."""
    _own_claim(call)
    call.serving.catalog.claims.renew(call.path["claim"], ttl_s=call.body.ttl_s)
    return _claim(_own_claim(call))


def _own_claim(call: Call[requests.Query, B]) -> CheckpointLease:
    """A standing claim on a checkpoint of the run in the path.

    Raises:
        LeaseLost: there is none of this id, of this run.
    """
    wanted, run = call.path["claim"], call.run()
    for one in call.serving.catalog.claims.claims(run.identity.run_id):
        if one.lease_id == wanted:
            return one
    raise LeaseLost(
        f"claim {wanted} was released, or ended",
        hint="claim the checkpoint anew, and see whether it is still there",
    )


def _claim(one: CheckpointLease) -> Reply:
    told = {
        "claim_id": one.lease_id,
        "content_id": one.content_id,
        "owner": one.owner,
        "reason": one.reason,
        "taken_at_ns": one.taken_at_ns,
        "ends_at_ns": one.ends_at_ns,
    }
    return document({"claim": told})


def release(call: Call[requests.Query, requests.Body]) -> Reply:
    """Hold it no longer; nothing happens where the claim has ended."""
    call.serving.catalog.claims.release(_own_claim(call).lease_id)
    return document({})


_READERS = (Right.COMMIT, Right.RESTORE)

ENDPOINTS: tuple[AnyEndpoint, ...] = (
    tell(
        "/v1/runs/{run:run}/pins",
        "Keep a checkpoint under a name, whatever policies say; or no longer.",
        pin,
        body=keeping.PinCheckpoint,
        rights=(Right.COMMIT,),
        answers={200: schemas.RECORD},
        errors=(409,),
        cost=Cost.STORAGE,
    ),
    tell(
        "/v1/runs/{run:run}/metrics",
        "Tell a metric of a checkpoint after it was sealed.",
        metric,
        body=keeping.TellMetric,
        rights=(Right.COMMIT,),
        answers={200: schemas.RECORD},
        errors=(409,),
        cost=Cost.STORAGE,
    ),
    tell(
        "/v1/runs/{run:run}/finish",
        "Say that a run's trainer is done: it is never called dead.",
        finish,
        body=keeping.EndRun,
        rights=(Right.APPLY,),
        answers={200: schemas.RECORD},
        errors=(409,),
        cost=Cost.STORAGE,
    ),
    tell(
        "/v1/runs/{run:run}/retire",
        "Say that a run is over: its policy's rules for retired runs hold from now on.",
        retire,
        body=keeping.EndRun,
        rights=(Right.APPLY,),
        answers={200: schemas.RECORD},
        errors=(409,),
        cost=Cost.STORAGE,
    ),
    tell(
        "/v1/runs/{run:run}/delete",
        "Plan the removal of every checkpoint of a retired run; removes nothing by itself.",
        delete,
        body=keeping.DeleteRun,
        rights=(Right.APPLY,),
        answers={200: schemas.PLAN},
        errors=(409,),
        cost=Cost.STORAGE,
    ),
    tell(
        "/v1/runs/{run:run}/claims",
        "Hold a checkpoint while it is read: nothing of it is moved aside meanwhile.",
        claim,
        body=keeping.ClaimToRead,
        rights=_READERS,
        answers={200: schemas.CLAIM},
    ),
    tell(
        "/v1/runs/{run:run}/claims/{claim}/renew",
        "Hold it for so long from now.",
        renew,
        body=keeping.RenewClaim,
        rights=_READERS,
        answers={200: schemas.CLAIM},
        errors=(409,),
    ),
    tell(
        "/v1/runs/{run:run}/claims/{claim}",
        "Hold it no longer.",
        release,
        method="DELETE",
        body=requests.Body,
        has_body=False,
        rights=_READERS,
        answers={200: schemas.NOTHING},
        errors=(409,),
    ),
)
