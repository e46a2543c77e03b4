"""Whether a tier takes anything more: its policies' limits, as the newest plan found them.

A plan evicts before it prunes and never touches what is protected. What it could not bring below a
limit, nothing can: writing there again would only make it worse. A policy's quota keeps out that
policy's runs only, a watermark all.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckptgov.errors import OverCapacity
from ckptgov.model.policy import CapacityRule, Policy
from ckptgov.model.retention import StoredPlan, TierOutlook
from ckptgov.model.settings import TierSettings
from ckptgov.ops.capacity import held_of, tier_fill
from ckptgov.ops.context import Context
from ckptgov.ops.policies import check_policies, policies_in_force, policy_of

COUNTS_S = 86_400.0
"""An older plan says nothing of how full a tier is now; then only what is hard limits."""

_LOOKED_AT = 20


def require_below_limit(
    context: Context, tier: TierSettings, needed_bytes: int, *, run: str | None
) -> None:
    """Refuse to write to a tier that is over a limit of its policies with nothing to evict.

    What the newest plan says is looked at again: where enough went since, it is not believed.
    ``run``: whose bytes they are; None: only limits that hold for all count.

    Raises:
        OverCapacity: nothing may be written there before something goes.
        ConfigError: a policy is wrong.
    """
    found = [one for one in standing_outlooks(context, tier) if _is_over(one[1])]
    if not found:
        return
    told = _above_mark(context, tier) or _above_quota(context, tier, run)
    if told:
        raise OverCapacity(
            f"tier {tier.name}: {needed_bytes} bytes are to be written, and {told} with nothing "
            "left that may go; nothing was written",
            hint=_what_could_go(found),
        )


def standing_outlooks(
    context: Context, tier: TierSettings
) -> tuple[tuple[StoredPlan, TierOutlook], ...]:
    """What the newest plan that tells of a tier says of it, of the place and of the tier as a
    whole; none where it is too old."""
    oldest_ns = context.catalog.now_ns() - int(COUNTS_S * 1e9)
    for stored in context.catalog.plans.plans(limit=_LOOKED_AT):
        if stored.plan.now_ns < oldest_ns:
            break
        found = tuple(
            (stored, one)
            for one in stored.plan.tiers
            if one.tier == tier.name and one.node in (None, tier.node)
        )
        if found:
            return found
    return ()


def _is_over(outlook: TierOutlook) -> bool:
    return outlook.over_bytes > 0 or outlook.over_files > 0


def _above_mark(context: Context, tier: TierSettings) -> str:
    """Whether the place is still above the lowest high mark of any policy."""
    rules = [
        one.capacity[tier.name] for one in policies_in_force(context) if tier.name in one.capacity
    ]
    mark = min((one.high_percent for one in rules if one.high_percent is not None), default=None)
    if mark is None:
        return ""
    fill = tier_fill(context, tier)
    if fill.error is not None:
        raise fill.error
    for used, whole, unit in (
        (fill.used_bytes, fill.size_bytes, "bytes"),
        (fill.files, fill.size_files, "files"),
    ):
        if whole and used is not None and used * 100 > whole * mark:
            return f"it is {used * 100 / whole:.1f}% full of {unit}, above {mark}%,"
    return ""


def _above_quota(context: Context, tier: TierSettings, run: str | None) -> str:
    """Whether the runs of the run's policy hold more there than they may."""
    policy = None if run is None else policy_of(context, run)
    rule = None if policy is None else policy.capacity.get(tier.name)
    if policy is None or rule is None or (rule.quota_bytes, rule.quota_files) == (None, None):
        return ""
    held_bytes, held_files = held_of(context, list(_runs_of(context, policy)), tier.name)
    return _beyond(policy, rule, held_bytes, held_files)


def _runs_of(context: Context, policy: Policy) -> Iterator[str]:
    names = {run for name, run in check_policies(context).runs if name == policy.name}
    for one in context.catalog.runs():
        if one.identity.name in names:
            yield one.identity.run_id


def _beyond(policy: Policy, rule: CapacityRule, held_bytes: int, held_files: int) -> str:
    for held, quota, unit in (
        (held_bytes, rule.quota_bytes, "bytes"),
        (held_files, rule.quota_files, "files"),
    ):
        if quota is not None and held > quota:
            return (
                f"the runs of policy {policy.name} hold {held} {unit} there, more than their "
                f"quota of {quota},"
            )
    return ""


def _what_could_go(found: list[tuple[StoredPlan, TierOutlook]]) -> str:
    stored, outlook = found[0]
    going = ""
    if outlook.freed_bytes:
        going = (
            f"plan {stored.plan.plan_id[:19]} frees {outlook.freed_bytes} bytes there, which is "
            "not enough; "
        )
    return (
        f"{going}'ckptgov plan' tells what is kept there and why: raise the limit, let a policy "
        "keep less, or retire runs that ended; then plan anew"
    )
