"""What living restarts may still be reading: a decision is a lease on what was handed out.

The lease ends by itself once something newer is durable: a whole, verified copy at a shared place
that was sealed after the decision and stands above it in the run's history. Nothing is written for
it and nobody has to release it; whoever removes copies asks here first.
"""

from __future__ import annotations

from msgspec import Struct

from ckptgov.manifest.forms.manifests import decode_manifest_header
from ckptgov.model.facts import CheckpointFacts
from ckptgov.model.journal import Restart
from ckptgov.ops.context import Context
from ckptgov.ops.standing import pages
from ckptgov.ops.standing_facts import counts, facts_of
from ckptgov.ops.standing_run import StandingRun, standing_run


class StartPoint(Struct, frozen=True, kw_only=True):
    """A checkpoint that a restart was given, and that must stay."""

    content_id: str
    restart_id: str
    epoch: int
    decided_at_ns: int


def start_points(context: Context, run_name: str) -> tuple[StartPoint, ...]:
    """The start points of a run that are still leased, oldest first.

    Raises:
        UnknownRun, CouldNotLook: nothing is known; nothing may be removed.
    """
    run = standing_run(context, run_name, node=None)
    given = [
        one.record
        for one in run.records
        if isinstance(one.record, Restart) and one.record.content_id is not None
    ]
    if not given:
        return ()
    durable = _newest_durable(context, run)
    held = [one for one in given if durable is None or not _is_over(context, run, one, durable)]
    held.sort(key=lambda one: (one.stamp.at_ns, one.restart_id, one.epoch))
    return tuple(
        StartPoint(
            content_id=one.content_id,
            restart_id=one.restart_id,
            epoch=one.epoch,
            decided_at_ns=one.stamp.at_ns,
        )
        for one in held
        if one.content_id is not None
    )


class _Durable(Struct, frozen=True, kw_only=True):
    facts: CheckpointFacts
    sealed_at_ns: int


def _newest_durable(context: Context, run: StandingRun) -> _Durable | None:
    for page in pages(context.catalog, run.run_id, step=None):
        placed = context.catalog.copies_of(run.run_id, [one.content_id for one in page])
        for sealed in page:
            facts = facts_of(run, sealed, placed.get(sealed.content_id, ()))
            if facts is None or sealed.step is None:
                continue
            is_offered = run.lines.includes(sealed.line, sealed.step)
            is_durable = any(
                counts(copy) and copy.shards is None and copy.node is None for copy in facts.copies
            )
            if is_offered and is_durable:
                return _Durable(facts=facts, sealed_at_ns=sealed.sealed_at_ns)
    return None


def _is_over(context: Context, run: StandingRun, one: Restart, durable: _Durable) -> bool:
    """Clocks of nodes differ: by as much as is tolerated, in favour of the lease."""
    margin_ns = int(context.settings.clock_margin_s * 1e9)
    if durable.sealed_at_ns <= one.stamp.at_ns + margin_ns:
        return False
    assert one.content_id is not None
    try:
        raw = context.catalog.manifest_bytes(run.run_id, one.content_id)
    except FileNotFoundError:
        return True
    step = decode_manifest_header(raw, where=f"the catalog's manifest of {one.content_id}").step
    newer = durable.facts.step
    return step is None or newer is None or newer > step or _is_later_line(run, durable, one)


def _is_later_line(run: StandingRun, durable: _Durable, one: Restart) -> bool:
    """A line opened since begins below what an older restart was given."""
    opened_at_ns = run.lines.by_number[durable.facts.line].opened_at_ns
    return opened_at_ns > one.stamp.at_ns
