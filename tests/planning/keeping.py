"""Builders for retention: one line a checkpoint, one line a policy."""

from __future__ import annotations

from collections.abc import Iterable

from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.copies import CopyState
from ckptgov.model.policy import Floors, KeepRules, Policy, Safety
from ckptgov.model.retention import CheckpointToKeep, CopyToKeep, RunToKeep, RunVerdict
from ckptgov.planning.retention import decide

HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
NOW = 20_780 * DAY_NS  # 2026-11-23, a Monday
TIB = 2**40
WEEK_S = 7 * 86400.0


def copy(
    tier: str = "lustre",
    *,
    node: str | None = None,
    state: CopyState = CopyState.VERIFIED,
    size: int = 100,
    shards: set[int] | None = None,
    compared_ns: int | None = NOW - DAY_NS,
    **facts: bool,
) -> CopyToKeep:
    """A copy; ``shards`` are those that lie there, where not all do."""
    bits = sum(1 << each for each in shards or ())
    return CopyToKeep(
        place=tier if node is None else f"{tier}@{node}",
        tier=tier,
        node=node,
        state=state,
        coverage=None if shards is None else bits.to_bytes(1, "little"),
        bytes=size,
        files=2,
        verified_at_ns=compared_ns,
        **facts,
    )


def checkpoint(
    step: int | None,
    *copies: CopyToKeep,
    name: str | None = None,
    saved_ns: int | None = None,
    loss: str | None = None,
    weights_only: bool = False,
    **facts: object,
) -> CheckpointToKeep:
    """A checkpoint at lustre, or where ``copies`` say; saved a day a hundred steps before 2000."""
    lying = copies or (copy(),)
    kind = StepKind.NONE if step is None else StepKind.STEP
    shown = name or f"step-{step}"
    made = {
        "content_id": f"sha256:{shown}",
        "name": shown,
        "step": step,
        "step_kind": kind,
        "line": 1,
        "purposes": (Purpose.WEIGHTS,) if weights_only else (Purpose.RESUME, Purpose.WEIGHTS),
        "bytes": max(one.bytes for one in lying),
        "shard_count": 2,
        "saved_at_ns": NOW - (2000 - (step or 0)) * DAY_NS // 100 if saved_ns is None else saved_ns,
        "metrics": () if loss is None else (("eval_loss", loss),),
        "copies": lying,
    }
    return CheckpointToKeep(**(made | facts))


def run(*checkpoints: CheckpointToKeep, name: str = "lm/llama", **facts: object) -> RunToKeep:
    """A run that was met long ago and lives."""
    made = {"run_id": f"id-of-{name}", "name": name, "met_at_ns": 0, "alive_at_ns": NOW}
    return RunToKeep(checkpoints=checkpoints, **(made | facts))


def policy(
    keep: KeepRules | dict[str, KeepRules] | None = None, *, name: str = "p", **facts: object
) -> Policy:
    """Rules for lustre, or by tier; one restorable checkpoint and no age are its floors."""
    rules = {"lustre": keep} if isinstance(keep, KeepRules) else keep or {}
    made = {
        "floors": Floors(min_restorable=1, min_age_s=0),
        "safety": Safety(adoption_grace_s=0),
        "digest": f"sha256:{name}",
        "file": f"{name}.yaml",
        "keep": rules,
    }
    return Policy(name=name, **(made | facts))


def decided(the_run: RunToKeep, by: Policy | None, *, now_ns: int = NOW) -> RunVerdict:
    """The verdict, proofs being good for a week."""
    return decide(the_run, by, now_ns=now_ns, verify_max_age_s=WEEK_S)


def gone(verdict: RunVerdict) -> dict[str, set[str]]:
    """Action to ``name tier`` of what goes."""
    found: dict[str, set[str]] = {}
    for one in verdict.checkpoints:
        for at in one.tiers:
            if at.action is not None:
                found.setdefault(at.action.value, set()).add(f"{one.name} {at.tier}")
    return found


def pruned(verdict: RunVerdict) -> set[int | None]:
    """Steps of checkpoints that go for good."""
    return {
        one.step
        for one in verdict.checkpoints
        if any(at.action is not None and at.action.value == "prune" for at in one.tiers)
    }


def kept(verdict: RunVerdict) -> list[int | None]:
    """Steps of checkpoints that stay, lowest first."""
    stay = {one.step for one in verdict.checkpoints} - pruned(verdict)
    return sorted(stay, key=lambda step: -1 if step is None else step)


def words(verdict: RunVerdict, name: str, tier: str = "lustre") -> list[str]:
    """Every reason of one checkpoint at one tier."""
    return [
        why.text
        for one in verdict.checkpoints
        if one.name == name
        for at in one.tiers
        if at.tier == tier
        for why in at.why
    ]


def reasons(verdict: RunVerdict, name: str, tier: str = "lustre") -> set[str]:
    """The same as codes."""
    return {
        str(why.reason)
        for one in verdict.checkpoints
        if one.name == name
        for at in one.tiers
        if at.tier == tier
        for why in at.why
    }


def lustre(steps: Iterable[int], **facts: object) -> list[CheckpointToKeep]:
    """Checkpoints that lie on lustre alone."""
    return [checkpoint(step, **facts) for step in steps]
