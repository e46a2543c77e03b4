"""Verify a run or a path, and leave in the catalog what was found."""

from __future__ import annotations

from ckptgov.model.answers import VerifyAnswer
from ckptgov.model.checkpoint import VerifyLevel
from ckptgov.model.pacing import FlowClass
from ckptgov.ops.context import Context
from ckptgov.ops.moving import paced_reading
from ckptgov.ops.record import record_look
from ckptgov.work import ask
from ckptgov.work.ask import Asked
from ckptgov.work.seal import SealSettings


def verify(context: Context, asked: Asked, *, level: VerifyLevel, dry_run: bool) -> VerifyAnswer:
    """Verify everything asked for at every place that answers."""
    settings = SealSettings(threads=context.settings.digest_threads, progress=context.progress)
    what = f"verify {asked.run or asked.looks[0].place.root}"
    with paced_reading(context, asked.looks, what=what, flow_class=FlowClass.BACKGROUND):
        answer = ask.verify(
            asked,
            level=level,
            clock=context.author.clock,
            settings=settings,
            write=not dry_run,
        )
    if dry_run or level is not VerifyLevel.DIGEST:
        return answer
    for look in asked.looks:
        if look.place.uuid is None or look.identity is None:
            continue
        if context.catalog.run_by_id(look.identity.run_id) is None:
            continue
        look.refresh()
        record_look(
            context.catalog,
            look,
            look.identity.run_id,
            at_ns=context.author.clock.now_ns(),
            sightings=None,
        )
    return answer
