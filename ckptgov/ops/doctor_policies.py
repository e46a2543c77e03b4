"""What doctor finds of retention: runs nobody judges, plans nobody makes, trainers that rotate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptgov.catalog.facts import RunFacts
from ckptgov.errors import CkptgovError
from ckptgov.layouts.torch_zip import torch_facts
from ckptgov.layouts.tree import Tree, join
from ckptgov.model.answers import Check
from ckptgov.model.copies import CopyState
from ckptgov.model.policy import Policy
from ckptgov.model.settings import TierSettings
from ckptgov.ops.context import Context
from ckptgov.ops.policies import check_policies
from ckptgov.work.look import look_settings
from ckptgov.work.tier import Place

MOST_RUNS = 200
"""Trainers' own settings are read of so many runs, those that saved last."""

LOOKED_BACK = 200
"""Of each, so many of its newest checkpoints are asked about."""

PLANNED_S = 7 * 86_400.0
_HUGGING_FACE = "hf-trainer"
_ARGUMENTS = "training_args.bin"
_LIMIT = "save_total_limit"
_NAMED = 5


def policies_of(context: Context) -> tuple[tuple[Policy, ...], list[Check]]:
    """The policies that can be read, and what is wrong with them and with runs under them."""
    try:
        found = check_policies(context)
    except CkptgovError as error:
        return (), [
            Check(name="policies", severity="failure", text=error.message, fix=error.hint or "")
        ]
    checks = [
        Check(name="policies", severity="failure", text=one.message, fix=one.hint or "")
        for one in found.errors
    ]
    without = [run for policy, run in found.runs if policy is None]
    if found.policies and without:
        more = f" and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
        checks.append(
            Check(
                name="policies",
                severity="warning",
                text=f"{len(without)} runs have no policy, so nothing of them ever goes: "
                f"{', '.join(without[:_NAMED])}{more}",
                fix="let a policy's \"runs\" match them; 'ckptgov policy check' shows all",
            )
        )
    return found.policies, checks


def retention_checks(context: Context, policies: Sequence[Policy]) -> Iterator[Check]:
    """Activities that are late, policies that nobody plans by, trainers' own rotation."""
    now_ns = context.catalog.now_ns()
    activities = context.catalog.activities.activities()
    for one in activities:
        if one.every_s > 0 and one.is_late(now_ns):
            hours = (now_ns - one.succeeded_at_ns) / 3.6e12
            since = f"for {hours:.0f} h" if one.succeeded_at_ns else "ever"
            yield Check(
                name=f"activity {one.name}",
                severity="warning",
                text=f"did not succeed {since}" + (f": {one.error}" if one.error else ""),
                fix="does the service run? its log tells more",
            )
    if policies and not any(one.name == "plan" for one in activities):
        yield from _unplanned(context, now_ns)
    if policies:
        yield from _trainers(context, policies)


def _unplanned(context: Context, now_ns: int) -> Iterator[Check]:
    newest = context.catalog.plans.plans(limit=1)
    if newest and now_ns - newest[0].plan.now_ns < PLANNED_S * 1e9:
        return
    yield Check(
        name="plans",
        severity="warning",
        text="there are policies, and nothing was planned by them in a week",
        fix="'ckptgov plan' tells what would go; let a timer run it",
    )


def _trainers(context: Context, policies: Sequence[Policy]) -> Iterator[Check]:
    """Runs whose trainer removes checkpoints by itself, by its own settings or by what is gone."""
    rules = {one.name: one for one in policies}
    under = {run: rules[name] for name, run in check_policies(context).runs if name in rules}
    runs = [one for one in context.catalog.runs() if one.identity.name in under]
    for run in _last_saved(context, runs)[:MOST_RUNS]:
        policy = under[run.identity.name]
        for tier, place, root in _where_written(context, run):
            keeps = policy.keep.get(tier.name)
            if keeps is None or keeps.is_empty:
                continue
            limit = _total_limit(context, run, place, root)
            gone = _lost(context, run, place) if limit is None else 0
            if limit is not None:
                text = f"its trainer keeps the newest {limit} itself (save_total_limit)"
            elif gone >= 2:
                text = f"{gone} of its newest {LOOKED_BACK} checkpoints were removed by others"
            else:
                continue
            yield Check(
                name=f"run {run.identity.name} trainer-retention",
                severity="warning",
                text=f"{text} on {tier.name}: what policy {policy.name} keeps beyond is gone by "
                "then",
                fix='let the trainer keep all, or flush with "hold" before it rotates',
            )


def _last_saved(context: Context, runs: Sequence[RunFacts]) -> list[RunFacts]:
    newest: list[tuple[int, RunFacts]] = []
    for run in runs:
        found = context.catalog.newest(run.identity.run_id, before=None, limit=1)
        newest += [(found[0].sealed_at_ns, run)] if found else []
    return [run for _at, run in sorted(newest, key=lambda one: -one[0])]


def _where_written(context: Context, run: RunFacts) -> Iterator[tuple[TierSettings, Place, str]]:
    roots = {one.place: one.path for one in context.catalog.roots_of(run.identity.run_id)}
    for tier in context.settings.tiers:
        if not tier.ingest or not context.is_here(tier):
            continue
        try:
            place = context.place(tier)
        except CkptgovError:
            continue  # told with the tier
        if place.uuid in roots:
            yield tier, place, roots[place.uuid]


def _total_limit(context: Context, run: RunFacts, place: Place, root: str) -> int | None:
    """What the newest checkpoint's ``training_args.bin`` says; None: no limit, or not to be told.

    It is a pickle: read for that one number, and never loaded.
    """
    settings = look_settings(
        place, context.author.clock, clock_margin_s=context.settings.clock_margin_s
    )
    for sealed in context.catalog.newest(run.identity.run_id, before=None, limit=1):
        if sealed.layout != _HUGGING_FACE:
            return None
        try:
            with Tree(place.storage, root, settings) as tree:
                found = torch_facts(tree, join(sealed.name, _ARGUMENTS), (_LIMIT,)).scalars
        except (CkptgovError, FileNotFoundError, NotADirectoryError):
            return None
        limit = found.get(_LIMIT)
        return limit if isinstance(limit, int) and limit > 0 else None
    return None


def _lost(context: Context, run: RunFacts, place: Place) -> int:
    run_id = run.identity.run_id
    newest = context.catalog.newest(run_id, before=None, limit=LOOKED_BACK)
    copies = context.catalog.copies_of(run_id, [one.content_id for one in newest])
    return sum(
        copy.place == place.uuid and copy.state is CopyState.LOST
        for those in copies.values()
        for copy in those
    )
