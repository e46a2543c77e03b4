"""Retention: what a policy lets go of one run, and why everything else stays.

Rules decide by tier what they keep; then protections decide what must not go whatever the rules
say; then it is settled copy by copy what may go: a redundant copy of what stays (evict), or all
verified copies of what nothing keeps (prune). The meaning of every rule is written down in
``policies/README.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ckptgov.model.policy import Policy
from ckptgov.model.retention import (
    Action,
    CheckpointVerdict,
    CopyToKeep,
    CopyVerdict,
    KeepReason,
    PlanEntry,
    RunToKeep,
    RunVerdict,
    Why,
)
from ckptgov.planning.retention_protection import shields_of, stale_proof
from ckptgov.planning.retention_rulings import Rules, Ruling, not_verified
from ckptgov.planning.retention_settling import Judged, settle
from ckptgov.planning.retention_terms import Terms, terms_of
from ckptgov.planning.retention_view import AtTier, seen_of


class Decided(Struct, frozen=True, kw_only=True):
    """Everything that was decided of one run, newest checkpoint first.

    ``stale`` says why nothing of it may be pruned now; evictions have their own check.
    """

    run: RunToKeep
    terms: Terms
    judged: tuple[Judged, ...]
    stale: Why | None
    notes: tuple[str, ...]


def decide(
    run: RunToKeep, policy: Policy | None, *, now_ns: int, verify_max_age_s: float
) -> RunVerdict:
    """What becomes of every checkpoint of a run, at every tier, with every reason.

    A function of its arguments alone, in any order of what they list. Without a policy everything
    stays. ``verify_max_age_s`` is what holds where the policy says nothing of it.

    Raises:
        ConfigError: this machine does not know the policy's time zone.
    """
    return verdict_of(judge(run, policy, now_ns=now_ns, verify_max_age_s=verify_max_age_s))


def judge(
    run: RunToKeep, policy: Policy | None, *, now_ns: int, verify_max_age_s: float
) -> Decided:
    """Decide of one run, with what capacity needs beside the verdict."""
    terms = terms_of(run, policy, now_ns=now_ns, verify_max_age_s=verify_max_age_s)
    seen = seen_of(run, fresh_since_ns=terms.fresh_since_ns)
    shields = shields_of(
        seen, terms.policy.floors, now_ns=now_ns, may_be_emptied=terms.may_be_emptied
    )
    rulings, notes = Rules(run, terms, seen).applied()
    judged = tuple(
        Judged(one, rulings[index], shields.get(one.checkpoint.content_id, []))
        for index, one in enumerate(seen)
    )
    stale = None
    if not terms.may_be_emptied:
        stale = stale_proof(seen, terms.policy.floors, since_ns=terms.fresh_since_ns)
    for one in judged:
        settle(one, terms, stale)
    return Decided(
        run=run, terms=terms, judged=judged, stale=stale, notes=tuple(dict.fromkeys(notes))
    )


def verdict_of(decided: Decided) -> RunVerdict:
    """The same as a verdict for people and programs."""
    run, terms = decided.run, decided.terms
    return RunVerdict(
        run_id=run.run_id,
        run=run.name,
        policy=terms.policy.name if terms.has_policy else None,
        life=terms.life,
        checkpoints=tuple(_verdict(one) for one in decided.judged if one.rulings),
        notes=decided.notes,
    )


def _verdict(one: Judged) -> CheckpointVerdict:
    held = one.seen.checkpoint
    return CheckpointVerdict(
        content_id=held.content_id,
        name=held.name,
        step=held.step,
        line=held.line,
        tiers=tuple(each for ruling in one.rulings.values() for each in _at_tier(one, ruling)),
    )


def _at_tier(one: Judged, ruling: Ruling) -> Iterator[CopyVerdict]:
    """One for the copies that can go, and one for each kind of copy that cannot."""
    at, stays = ruling.at, [*ruling.keeps, *one.shields]
    if at.movable:
        assert ruling.drop is not None or ruling.keeps, "ruled upon"
        whys = [ruling.drop] if ruling.action and ruling.drop else [*stays, *ruling.holds]
        yield _copies(at.tier, at.movable, ruling.action, whys)
    if at.foreign:
        yield _copies(at.tier, at.foreign, None, [*stays, _other_catalog(at.tier)])
    if at.away:
        yield _copies(at.tier, at.away, None, [*stays, _unreachable(at.tier)])
    if at.unproven:
        yield _copies(at.tier, at.unproven, None, [not_verified(at), *one.shields])


def _other_catalog(tier: str) -> Why:
    return Why(KeepReason.OTHER_CATALOG, f"kept: another catalog governs {tier}")


def _unreachable(tier: str) -> Why:
    return Why(KeepReason.UNREACHABLE, f"kept: a place of {tier} cannot be looked at now")


def _copies(
    tier: str, copies: Sequence[CopyToKeep], action: Action | None, whys: Sequence[Why]
) -> CopyVerdict:
    return CopyVerdict(
        tier=tier,
        places=tuple(one.place for one in copies),
        action=action,
        why=tuple(dict.fromkeys(whys)),
        bytes=sum(one.bytes for one in copies),
        files=sum(one.files for one in copies),
    )


def entries(
    decided: Decided, known: dict[tuple[Why, ...], tuple[Why, ...]] | None = None
) -> Iterator[PlanEntry]:
    """What goes, one entry for each place, newest checkpoint first.

    Equal reasons are one object, also those of earlier runs where ``known`` is handed on.
    """
    shared = {} if known is None else known
    for one in decided.judged:
        for ruling in one.rulings.values():
            if ruling.action is not None and ruling.drop is not None:
                whys = shared.setdefault((ruling.drop,), (ruling.drop,))
                yield from entries_at(decided.run, one, ruling.at, ruling.action, whys)


def entries_at(
    run: RunToKeep, one: Judged, at: AtTier, action: Action, whys: tuple[Why, ...]
) -> Iterator[PlanEntry]:
    """One entry for each place of a tier from which a checkpoint goes."""
    held = one.seen.checkpoint
    for copy in at.movable:
        yield PlanEntry(
            run_id=run.run_id,
            run=run.name,
            content_id=held.content_id,
            checkpoint=held.name,
            step=held.step,
            place=copy.place,
            tier=copy.tier,
            node=copy.node,
            action=action,
            why=whys,
            bytes=copy.bytes,
            files=copy.files,
            size_bytes=held.bytes if copy.coverage is None else copy.bytes,
        )
