"""Runs as whoever pays for their bytes wants to see them: whose they are, and whether they live."""

from __future__ import annotations

import pwd
from collections.abc import Iterator, Mapping, Sequence

from ckptgov.catalog.facts import RunFacts, RunRootFacts
from ckptgov.errors import CkptgovError
from ckptgov.model.policy import Lifecycle
from ckptgov.model.settings import TierSettings
from ckptgov.model.usage import RunUsage
from ckptgov.ops.context import Context
from ckptgov.ops.lives import life_facts, life_of
from ckptgov.ops.policies import policy_of


def run_usage(
    context: Context,
    runs: Sequence[RunFacts],
    tiers: Sequence[TierSettings],
    saved_at_ns: Mapping[str, int],
) -> Iterator[RunUsage]:
    """Each run over all tiers, in the order given.

    Owners are told by the file systems of ``tiers`` that are paths here. ``saved_at_ns``: the
    newest seal by run id, where something of the run lies there; the highest step may be older,
    after a rollback.
    """
    catalog, now_ns = context.catalog, context.catalog.now_ns()
    totals, asked = catalog.totals(), catalog.signs.signs()
    for run in runs:
        run_id = run.identity.run_id
        newest = catalog.newest(run_id, before=None, limit=1)
        sightings = [one.first_seen_at_ns for one in catalog.sightings(run_id)]
        saves = [*(one.sealed_at_ns for one in newest), saved_at_ns.get(run_id, 0)]
        facts = life_facts(
            catalog.binding_records(run_id),
            met_at_ns=run.created_at_ns,
            saved_at_ns=max(saves) if newest else None,
            sighted_at_ns=max(sightings, default=None),
            asked_at_ns=asked.get(run_id),
            claims=catalog.claims.claims(run_id),
        )
        checkpoints, size = totals.get(run_id, (0, 0))
        yield RunUsage(
            run=run.identity.name,
            life=life_of(facts, _lifecycle(context, run.identity.name), now_ns=now_ns),
            owner=_owner(context, catalog.roots_of(run_id), tiers),
            alive_at_ns=facts.alive_at_ns,
            checkpoints=checkpoints,
            bytes=size,
            last_step=max((one.step for one in newest if one.step is not None), default=None),
        )


def _lifecycle(context: Context, run: str) -> Lifecycle:
    """Its policy's; while a policy is wrong, what holds without one: du only tells."""
    try:
        policy = policy_of(context, run)
    except CkptgovError:
        return Lifecycle()
    return Lifecycle() if policy is None else policy.lifecycle


def _owner(context: Context, roots: Sequence[RunRootFacts], tiers: Sequence[TierSettings]) -> str:
    """Whoever the first of its directories that can be looked at belongs to, by name or number."""
    by_place = {one.place: one.path for one in reversed(roots)}
    for tier in tiers:
        if tier.is_url or not context.is_here(tier):
            continue
        try:
            place = context.place(tier)
            if place.uuid not in by_place:
                continue
            uid = place.storage.stat(by_place[place.uuid]).uid
        except (CkptgovError, FileNotFoundError, NotADirectoryError):
            continue
        return _name_of(uid)
    return ""


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
