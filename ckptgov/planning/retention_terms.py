"""A policy as it stands for one run at one moment, its lifecycle taken into account."""

from __future__ import annotations

from msgspec import Struct

from ckptgov.model.checkpoint import Purpose
from ckptgov.model.policy import KeepRules, Lifecycle, Policy
from ckptgov.model.retention import RunLife, RunToKeep
from ckptgov.planning.retention_words import nanoseconds

_NO_POLICY = Policy(name="", digest="", file="")
_NO_RULES = KeepRules()


class Terms(Struct, frozen=True, kw_only=True):
    """A policy as it stands for one run now: its lifecycle taken into account."""

    policy: Policy
    life: RunLife
    is_retired: bool  # long enough for what the policy says of retired runs
    now_ns: int
    fresh_since_ns: int
    adopted_at_ns: int
    has_policy: bool = True

    @property
    def may_be_emptied(self) -> bool:
        """Whether the last checkpoints may go as well."""
        return self.is_retired and self.policy.lifecycle.retired_may_be_emptied

    @property
    def is_adopting(self) -> bool:
        """Whether the run was met too lately for anything of it to go."""
        return self.now_ns < self.adopted_at_ns

    @property
    def least_copies(self) -> int:
        """How many durable copies a checkpoint keeps that loses a shared one."""
        return max(1, self.policy.floors.min_durable_copies)

    def rules(self, tier: str, purpose: Purpose) -> KeepRules:
        """The keep rules of a tier; empty ones keep everything."""
        if purpose is Purpose.WEIGHTS:
            return self.policy.weights.get(tier, _NO_RULES)
        retired = self.policy.lifecycle.retired_keep
        if self.is_retired and retired is not None:
            return retired
        return self.policy.keep.get(tier, _NO_RULES)


def terms_of(
    run: RunToKeep, policy: Policy | None, *, now_ns: int, verify_max_age_s: float
) -> Terms:
    """The terms under which a run stands; without a policy everything of it stays."""
    used = policy or _NO_POLICY
    life, since_ns = life_of(run, used.lifecycle, now_ns=now_ns)
    age_s = verify_max_age_s if used.verify_max_age_s is None else used.verify_max_age_s
    after_ns = nanoseconds(used.lifecycle.retired_after_s)
    return Terms(
        policy=used,
        life=life,
        is_retired=since_ns is not None and now_ns >= since_ns + after_ns,
        now_ns=now_ns,
        fresh_since_ns=now_ns - nanoseconds(age_s),
        adopted_at_ns=run.met_at_ns + nanoseconds(used.safety.adoption_grace_s),
        has_policy=policy is not None,
    )


def life_of(run: RunToKeep, lifecycle: Lifecycle, *, now_ns: int) -> tuple[RunLife, int | None]:
    """Where a run stands, and since when it counts as retired.

    Finished runs are never dead. A dead one is retired only by a policy that says so.
    """
    if run.retired_at_ns is not None:
        return RunLife.RETIRED, run.retired_at_ns
    if run.finished_at_ns is not None:
        return RunLife.FINISHED, None
    if now_ns - run.alive_at_ns < nanoseconds(lifecycle.dead_after_s):
        return RunLife.LIVE, None
    if lifecycle.retire_dead_after_s is not None:
        after_s = max(lifecycle.retire_dead_after_s, lifecycle.dead_after_s)
        since_ns = run.alive_at_ns + nanoseconds(after_s)
        if since_ns <= now_ns:
            return RunLife.RETIRED, since_ns
    return RunLife.DEAD, None
