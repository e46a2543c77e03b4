"""Questions about runs: which there are, what they hold, what happened, what restores."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import asdict, replace

from ckptgov.catalog.facts import EventFacts, RunFacts, SealedFacts
from ckptgov.errors import NoneRestorable, UsageError
from ckptgov.model.access import Right, team_of
from ckptgov.model.checkpoint import Evidence, Expect
from ckptgov.model.facts import Query
from ckptgov.ops import removed, standing
from ckptgov.ops.parts import doubts_of
from ckptgov.ops.runs import check_run_name, create_run, list_runs, listed_run
from ckptgov.service import schemas
from ckptgov.service.answers import WAITED_FOR_PRIORITY
from ckptgov.service.below import address_of
from ckptgov.service.calls import AnyEndpoint, Call, Cost, Reply, ask, document, tell, wants_path
from ckptgov.service.refusals import refusal
from ckptgov.service.routes_work import scans_of
from ckptgov.wire import documents, requests
from ckptgov.wire import removed as removed_documents
from ckptgov.wire import settings as settings_documents

_EVENTS_READ = 1000
_MOST_READS = 500


def runs(call: Call[requests.Query, requests.Body]) -> Reply:
    """Every run that exists for the caller."""
    with call.context() as context:
        found = [one for one in list_runs(context) if call.caller.sees(one.name)]
    return document(settings_documents.runs(found))


def run(call: Call[requests.Query, requests.Body]) -> Reply:
    """One run."""
    found = call.run()
    with call.context() as context:
        return document(settings_documents.run(listed_run(context, found)))


def new_run(call: Call[requests.Query, requests.NewRun]) -> Reply:
    """Register a run before its first checkpoint."""
    body = call.body
    check_run_name(body.name)
    if not call.caller.sees(body.name):
        raise UsageError(
            f"this token makes runs of {', '.join(call.caller.teams)} only",
            hint=f"name it {call.caller.teams[0]}/NAME",
        )
    if (body.tier is None) is not (body.path is None) and body.tier is None:
        raise UsageError("a path lies below the root of a tier: name the tier, too")
    with call.context() as context:
        root = None
        if body.tier is not None:
            below = body.path or body.name
            _check_own_room(call, below)
            root = address_of(context, body.tier, below)
        expect = None
        if body.expect is not None:
            expect = Expect(**asdict(body.expect))
        made = create_run(context, body.name, root=root, expect=expect, dry_run=body.dry_run)
    return document(settings_documents.runs([made], dry_run=body.dry_run))


def _check_own_room(call: Call[requests.Query, requests.NewRun], below: str) -> None:
    """A team's runs lie below its own name: nobody makes another team's bytes a run of theirs."""
    if call.caller.teams and below.partition("/")[0] != team_of(call.body.name):
        raise UsageError(
            f"{below}: this token makes runs below {team_of(call.body.name)}/ only",
            hint="leave the path out",
        )


def latest(call: Call[requests.LatestQuery, requests.Body]) -> Reply:
    """The newest checkpoint of a run that may be handed out."""
    run = call.run()
    reply = call.answers.latest(run.identity.name, call.query, is_plain=wants_path(call.accept))
    if reply.is_pending and call.query.wait > 0:
        _hurry(call, run)
    return reply


def _newest(call: Call[requests.LatestQuery, requests.Body]) -> object:
    """What a launcher waits to see change: the answer itself, so that other runs wake nobody."""
    reply = call.answers.latest(call.run().identity.name, call.query)
    return reply.status, reply.body


def _hurry(call: Call[requests.LatestQuery, requests.Body], run: RunFacts) -> None:
    """Somebody waits for it: what is asked of the run goes first, and a scan is asked for."""
    call.answers.hurry(run.identity.name)
    if call.caller.may(Right.PLAN) or call.caller.may(Right.RESTORE):
        with call.context() as context:
            scans_of(context, run, priority=WAITED_FOR_PRIORITY)


def checkpoints(call: Call[requests.ListQuery, requests.Body]) -> Reply:
    """The newest checkpoints of a run with their verdicts and reasons."""
    asked = call.query
    name = call.run().identity.name
    query = Query(purpose=asked.purpose, world_size=asked.world_size, min_evidence=Evidence.DIGEST)
    with call.context() as context:
        told = standing.listing(context, name, query, node=asked.node)
        doubts = doubts_of(context, told.run_id) if told.run_id is not None else ()
        return document(documents.listing(replace(told, notes=(*told.notes, *doubts))))


def removals(call: Call[requests.StepQuery, requests.Body]) -> Reply:
    """Copies of a run that a plan let go, and why."""
    name = call.run().identity.name
    with call.context() as context:
        found = removed.removed(context, name, step=call.query.step)
    return document(removed_documents.removed(name, found))


def manifest(call: Call[requests.StepQuery, requests.Body]) -> Reply:
    """The manifest of one sealed checkpoint, as it was published."""
    run = call.run()
    sealed = _sealed(call, run, call.query.step)
    if sealed is None:
        return refusal(
            NoneRestorable(
                f"{run.identity.name}: no such checkpoint is sealed",
                hint="seal it first: 'ckptgov scan' or 'ckptgov commit'",
            )
        )
    raw = call.serving.catalog.manifest_bytes(run.identity.run_id, sealed.content_id)
    return Reply(status=200, body=raw)


def _sealed(
    call: Call[requests.StepQuery, requests.Body], run: RunFacts, step: int | None
) -> SealedFacts | None:
    before = None if step is None else (step + 1, 0, 0)
    found = call.serving.catalog.newest(run.identity.run_id, before=before, limit=1)
    return found[0] if found and step in (None, found[0].step) else None


def events_of_run(call: Call[requests.EventsQuery, requests.Body]) -> Reply:
    """What happened to one run."""
    run = call.run()
    names = {run.identity.run_id: run.identity.name}
    found = call.serving.catalog.events(
        call.query.after, run_id=run.identity.run_id, limit=call.query.limit
    )
    return _told(found, names, after=found[-1].seq if found else call.query.after)


def events(call: Call[requests.EventsQuery, requests.Body]) -> Reply:
    """What happened to anything that exists for the caller."""
    names = call.names()
    seen: list[EventFacts] = []
    after = call.query.after
    for _ in range(_MOST_READS):
        read = call.serving.catalog.events(after, limit=_EVENTS_READ)
        for one in read:
            if len(seen) == call.query.limit:
                return _told(seen, names, after=after)
            after = one.seq
            if one.run_id in names or (one.run_id is None and not call.caller.teams):
                seen.append(one)
        if len(read) < _EVENTS_READ:
            break
    return _told(seen, names, after=after)


def _told(found: Iterable[EventFacts], names: dict[str, str], *, after: int) -> Reply:
    return document(
        {
            "events": [
                {
                    "seq": one.seq,
                    "at_ns": one.at_ns,
                    "kind": one.kind.value,
                    "run": None if one.run_id is None else names.get(one.run_id),
                    "content_id": one.content_id,
                    "place": one.place,
                    "detail": dict(one.detail),
                }
                for one in found
            ],
            "next": after,
        }
    )


ENDPOINTS: tuple[AnyEndpoint, ...] = (
    ask(
        "/v1/runs",
        "The registered runs.",
        runs,
        query=requests.Query,
        answers={200: schemas.RUNS},
    ),
    tell(
        "/v1/runs",
        "Register a run before its first checkpoint.",
        new_run,
        body=requests.NewRun,
        rights=(Right.COMMIT,),
        answers={200: schemas.RUNS},
        errors=(409, 507),
        cost=Cost.STORAGE,
    ),
    ask(
        "/v1/events",
        "What happened, oldest first: behind `after`, at most `limit`; go on with `next`.",
        events,
        query=requests.EventsQuery,
        answers={200: schemas.EVENTS},
    ),
    ask(
        "/v1/runs/{run:run}/latest",
        "The newest checkpoint that restores; with `Accept: text/plain` its path alone.",
        latest,
        query=requests.LatestQuery,
        answers={200: schemas.LATEST},
        errors=(404, 409),
        cost=Cost.ANSWER,
        is_plain_too=True,
        wait_s=lambda query, _body: query.wait,
        watched=_newest,
    ),
    ask(
        "/v1/runs/{run:run}/checkpoints",
        "Every checkpoint of a run, newest first, each with its state and reasons.",
        checkpoints,
        query=requests.ListQuery,
        answers={200: schemas.LISTING},
        errors=(409,),
        cost=Cost.ANSWER,
    ),
    ask(
        "/v1/runs/{run:run}/removals",
        "Copies on their way out, with reasons and how to undo it; of one step also purged ones.",
        removals,
        query=requests.StepQuery,
        answers={200: schemas.REMOVALS},
    ),
    ask(
        "/v1/runs/{run:run}/manifest",
        "The manifest of one sealed checkpoint, as it was published.",
        manifest,
        query=requests.StepQuery,
        answers={200: schemas.MANIFEST},
        errors=(409,),
    ),
    ask(
        "/v1/runs/{run:run}/events",
        "What happened to one run, oldest first.",
        events_of_run,
        query=requests.EventsQuery,
        answers={200: schemas.EVENTS},
    ),
    ask(
        "/v1/runs/{run:run}",
        "One registered run.",
        run,
        query=requests.Query,
        answers={200: schemas.RUN},
    ),
)
