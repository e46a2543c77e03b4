"""Dry runs of what is otherwise done later: answered at once, and nothing is changed.

Only what this process reaches is looked at; what lies on disks that only the agents of nodes
reach is named. A dry run that takes too long is ended: nobody hears its answer any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from ckptgov.catalog.facts import RunFacts
from ckptgov.errors import PartlyDone, TimedOut
from ckptgov.model.answers import ScanAnswer, VerifyAnswer
from ckptgov.model.movement import FlushAnswer
from ckptgov.model.verbs import LONGEST_LOOK_S
from ckptgov.ops.context import Context
from ckptgov.ops.flush import FlushRequest
from ckptgov.ops.flush import flush as flush_
from ckptgov.ops.reconcile import reconcile as reconcile_
from ckptgov.ops.scan import preview
from ckptgov.ops.verify import verify as verify_
from ckptgov.service.activities import seen_from
from ckptgov.service.calls import B, Call, Cost, Reply, document, unknown
from ckptgov.service.reach import nodes_of
from ckptgov.service.refusals import status_of_answer
from ckptgov.service.runners import only_ingest, roots_of
from ckptgov.wire import documents, movement, requests, usage
from ckptgov.wire.documents import Document

A = TypeVar("A", ScanAnswer, VerifyAnswer, FlushAnswer)
Asked = requests.AskFlush | requests.AskVerify | requests.AskScan | requests.AskReconcile


def cost_of(told: Asked) -> Cost:
    """A task is only written down; a dry run looks at storage."""
    return Cost.STORAGE if told.dry_run else Cost.CATALOG


def flush(call: Call[requests.Query, requests.AskFlush], run: RunFacts) -> Reply:
    """What would be copied where."""
    told = call.body
    request = FlushRequest(run=run.identity.name, step=told.step, target=told.to, dry_run=True)
    with _seen(call) as context:
        answer = _without_nodes(context, [run], flush_(context, request))
    return _answered(movement.flushed(answer))


def verify(call: Call[requests.Query, requests.AskVerify], run: RunFacts) -> Reply:
    """How a run's checkpoints compare; nothing of it is written down."""
    with _seen(call) as context:
        asked = context.asked(run.identity.name)
        if asked is None:
            raise unknown(run.identity.name)
        compared = verify_(context, asked, level=call.body.level, dry_run=True)
        answer = _without_nodes(context, [run], compared)
    return _answered(documents.verify(answer))


def scan(
    call: Call[requests.Query, requests.AskScan],
    runs: Sequence[RunFacts],
    tiers: Sequence[str] | None,
) -> Reply:
    """What a scan of runs, or of tiers, would find."""
    with _seen(call) as context:
        where = [one for run in runs for one in roots_of(context, run.identity.name)]
        if not runs:
            kept = only_ingest(context.settings.tiers, tiers)
            context.settings = replace(context.settings, tiers=kept)
        answer = _without_nodes(context, runs, preview(context, where))
    return _answered(documents.scan(answer))


def reconcile(call: Call[requests.Query, requests.AskReconcile], tiers: Sequence[str]) -> Reply:
    """What would be recorded and cleared."""
    told = call.body
    with _seen(call) as context:
        answer = reconcile_(
            context,
            tiers=tiers or None,
            older_than_s=told.older_than_s,
            staging_older_than_s=told.staging_older_than_s if told.staging else None,
            dry_run=True,
        )
    return _answered(usage.reconciled(answer))


@contextmanager
def _seen(call: Call[requests.Query, B]) -> Iterator[Context]:
    """What this process reaches, as its workers see it, for as long as somebody waits."""
    clock = call.serving.clock
    until = clock.monotonic() + LONGEST_LOOK_S

    def count(count_bytes: int = 0) -> None:
        del count_bytes
        if clock.monotonic() > until:
            raise TimedOut(
                f"a dry run of more than {LONGEST_LOOK_S:g} s",
                hint="compare less ('--level size'), or leave --dry-run out",
            )

    with call.context() as context:
        context.settings = seen_from(context.settings, call.serving.here)
        context.progress = count
        yield context
    count()  # what was told until then may have been taken for a copy that could not be read


def _without_nodes(context: Context, runs: Sequence[RunFacts], answer: A) -> A:
    """The answer, with what was not looked at for it."""
    away = sorted({node for run in runs for node in nodes_of(context, run) if node is not None})
    if not away or answer.error is not None:
        return answer
    return replace(
        answer,
        error=PartlyDone(
            f"what lies on the disks of {', '.join(away)} was not looked at",
            hint="their agents do that; without --dry-run they are asked",
        ),
    )


def _answered(shown: Document) -> Reply:
    return document(shown, status_of_answer(shown))
