"""What doctor finds of room: how full tiers are, what fills them, and who else removes there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from ckptgov.errors import CkptgovError
from ckptgov.model.answers import Check
from ckptgov.model.copies import CopyState
from ckptgov.model.policy import Policy
from ckptgov.model.retention import Removal
from ckptgov.model.settings import TierSettings
from ckptgov.ops.admission import standing_outlooks
from ckptgov.ops.capacity import TierFill, growth_at, tier_fill
from ckptgov.ops.context import CATALOG_FILE, Context
from ckptgov.work.abilities import ObjectProbes

SOON_DAYS = 7.0
MUCH_TRASH_PERCENT = 10
RESISTS_S = 86_400.0

_TAKES = {
    "Expiration": "deletes",
    "Transition": "archives",
    "Transitions": "archives",
    "NoncurrentVersionExpiration": "deletes older versions of",
    "NoncurrentVersionTransition": "archives older versions of",
    "NoncurrentVersionTransitions": "archives older versions of",
}
"""What a lifecycle rule does with objects (PutBucketLifecycleConfiguration of the S3 API)."""


def room_checks(context: Context, policies: Sequence[Policy]) -> Iterator[Check]:
    """Fullness, limits, growth, trash and lifecycle rules of every tier that can be looked at.

    Why one cannot be looked at is told by the checks of the tiers themselves.
    """
    for tier in context.settings.tiers:
        name = f"tier {tier.name}" + (f"@{tier.node}" if tier.node else "")
        fill = tier_fill(context, tier)
        if fill.error is not None:
            continue
        yield from _around_catalog(context, tier, name)
        yield from _over(context, tier, name)
        yield from _watermarks(policies, fill, name)
        yield from _growing(context, fill, name)
        removals = context.catalog.removals.removals(place=fill.place)
        yield from _trash(removals, fill, name, now_ns=context.catalog.now_ns())
        yield from _lifecycle(context, tier, name)


def _around_catalog(context: Context, tier: TierSettings, name: str) -> Iterator[Check]:
    """A removal is written down before it begins, which takes room where the catalog lies."""
    settings = context.settings
    if settings.catalog_url is not None or tier.is_url or not context.is_here(tier):
        return
    if _device(os.path.join(settings.home, CATALOG_FILE)) == _device(tier.root):
        yield Check(
            name=f"{name} catalog",
            severity="warning",
            text=f"the catalog in {settings.home} lies on the same file system: when the tier is "
            "full, it cannot be written and nothing can be freed",
            fix="keep the home elsewhere: move it and set CKPTGOV_HOME",
        )


def _device(path: str) -> int | str:
    """The file system that a path lies on; of one that is away, one of its own."""
    try:
        return os.stat(path).st_dev
    except OSError:
        return path


def _over(context: Context, tier: TierSettings, name: str) -> Iterator[Check]:
    found = [one for _stored, one in standing_outlooks(context, tier)]
    over_bytes = max((one.over_bytes for one in found), default=0)
    over_files = max((one.over_files for one in found), default=0)
    if not (over_bytes or over_files):
        return
    yield Check(
        name=f"{name} limit",
        severity="failure",
        text=f"over a limit by {over_bytes} bytes and {over_files} files that nothing lets go; "
        "flushes that it is about are refused",
        fix="'ckptgov plan' tells what is kept and why; raise the limit or let a policy keep less",
    )


def _watermarks(policies: Sequence[Policy], fill: TierFill, name: str) -> Iterator[Check]:
    size = fill.size_bytes
    for policy in policies:
        rule = policy.capacity.get(fill.tier)
        if rule is None or rule.high_percent is None or not size:
            continue
        percent = 100 * fill.used_bytes / size
        if percent > rule.high_percent:
            yield Check(
                name=f"{name} watermark",
                severity="warning",
                text=f"{percent:.0f} % full, above the {rule.high_percent} % of policy "
                f"{policy.name}",
                fix="'ckptgov plan' tells what may go, 'ckptgov apply' removes it",
            )


def _growing(context: Context, fill: TierFill, name: str) -> Iterator[Check]:
    told = growth_at(context, fill)
    if told is None or told.full_in_days is None:
        return
    text = f"grows {told.bytes_per_day / 1e9:.1f} GB a day: full in {told.full_in_days:.0f} days"
    if told.full_in_days >= SOON_DAYS:
        yield Check(name=f"{name} growth", severity="ok", text=text)
        return
    fix = "'ckptgov du --by run' tells whose it is"
    yield Check(name=f"{name} growth", severity="warning", text=text, fix=fix)


def _trash(
    removals: Sequence[Removal], fill: TierFill, name: str, *, now_ns: int
) -> Iterator[Check]:
    waiting = [one for one in removals if one.state is not CopyState.CONDEMNED]
    size = sum(one.bytes for one in waiting)
    if fill.size_bytes and 100 * size > MUCH_TRASH_PERCENT * fill.size_bytes:
        yield Check(
            name=f"{name} trash",
            severity="warning",
            text=f"{size} bytes, {100 * size / fill.size_bytes:.0f} % of the tier, are in the "
            "trash",
            fix="'ckptgov apply' purges what is due; a shorter 'trash' in the policy keeps less",
        )
    late = [one for one in removals if now_ns - one.due_at_ns > RESISTS_S * 1e9]
    resisting = [one for one in late if one.error]
    if resisting:
        first = resisting[0]
        yield Check(
            name=f"{name} removals",
            severity="warning",
            text=f"{len(resisting)} removals resist for more than a day; first {first.name}: "
            f"{first.error}",
            fix="what is in the way is named; 'ckptgov apply' tries again",
        )
    elif late:
        yield Check(
            name=f"{name} removals",
            severity="warning",
            text=f"{len(late)} removals are due for more than a day; first {late[0].name}",
            fix="'ckptgov apply' goes on with them; let a timer run it",
        )


def _lifecycle(context: Context, tier: TierSettings, name: str) -> Iterator[Check]:
    """The bucket's own rules, asked for now: people change them behind everybody's back."""
    if not context.is_here(tier):
        return
    try:
        storage = context.place(tier).storage
        rules = storage.lifecycle_rules() if isinstance(storage, ObjectProbes) else ()
    except CkptgovError as error:
        yield Check(
            name=f"{name} lifecycle-rules",
            severity="warning",
            text=f"the bucket's lifecycle rules are not told: {error.message}",
            fix="allow s3:GetLifecycleConfiguration, or look at them yourself",
        )
        return
    for rule in rules:
        for what in _what_it_takes(rule):
            yield Check(
                name=f"{name} lifecycle-rules",
                severity="warning",
                text=f"rule {rule.get('ID') or 'without a name'} {what} objects that may be of "
                "checkpoints, whatever a policy says",
                fix="take the tier's prefix out of the rule",
            )


def _what_it_takes(rule: Mapping[str, object]) -> list[str]:
    if rule.get("Status") == "Disabled":
        return []
    return list(dict.fromkeys(word for key, word in _TAKES.items() if rule.get(key)))
