"""Policies in force: which one a run is under, and what it says of moving, sealing and verifying.

Read anew on every call (unchanged files are not parsed again), so that a service follows what is
written. Where a run has no policy, ``ckptgov.yaml`` speaks.
"""

from __future__ import annotations

import os.path
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from ckptgov.config.policies import (
    load_policies,
    parse_policy,
    policies_dir,
    policy_files,
    policy_for,
    read_each,
)
from ckptgov.errors import ConfigError, UnknownRun
from ckptgov.model.policy import Policy
from ckptgov.model.policy_check import PolicyCheck
from ckptgov.model.settings import Link, Settings
from ckptgov.ops.context import CATALOG_FILE, Context


def policies_in_force(context: Context) -> tuple[Policy, ...]:
    """Every policy, by the names of their files.

    A process of a cluster knows the tiers that it sees alone, and takes the names of others as
    they are; ``policy check`` compares them.

    Raises:
        ConfigError: one of them is wrong; then none is in force.
    """
    return load_policies(context.settings, knows_tiers=context.here is None)


def policy_of(context: Context, run: str) -> Policy | None:
    """The policy of the run of this name; None: it has none, and nothing of it is pruned.

    Raises:
        ConfigError: a policy is wrong, or two of them select the run.
    """
    return policy_for(policies_in_force(context), run, tags_of(context.settings, run))


def policy_for_name(context: Context, run: str) -> Policy | None:
    """The policy that selects a run of this name, registered or not; None: a run without one.

    Raises:
        UnknownRun: no policy selects the name, and no run has it.
        ConfigError: as ``policy_of``.
    """
    policy = policy_of(context, run)
    if policy is None and run not in registered_runs(context):
        raise UnknownRun(
            f"no run {run!r} is registered, and no policy selects the name",
            hint="'ckptgov run list' shows the runs",
        )
    return policy


def check_policies(context: Context) -> PolicyCheck:
    """Everything wrong with the policies in force, each registered run looked at as well.

    Raises:
        ConfigError: their directory cannot be read.
    """
    tiers = context.settings.tiers
    policies, errors = read_each(
        policy_files(context.settings),
        tiers=frozenset(one.name for one in tiers),
        stores=frozenset(one.name for one in tiers if one.is_url),
    )
    runs: list[tuple[str | None, str]] = []
    twice: list[ConfigError] = []
    for run in registered_runs(context):
        try:
            policy = policy_for(policies, run, tags_of(context.settings, run))
            runs.append((policy.name if policy is not None else None, run))
        except ConfigError as error:
            twice.append(error)
    return PolicyCheck(
        directory=policies_dir(context.settings),
        policies=policies,
        errors=(*errors, *twice),
        runs=tuple(runs),
    )


def registered_runs(context: Context) -> tuple[str, ...]:
    """The names of the registered runs; a catalog is not made for this."""
    is_file = context.shared is None and context.settings.catalog_url is None
    if is_file and not os.path.lexists(os.path.join(context.settings.home, CATALOG_FILE)):
        return ()
    return tuple(sorted(one.identity.name for one in context.catalog.runs()))


def policy_from(context: Context, text: str, *, file: str = "--policy") -> Policy:
    """A policy that somebody brought along, read against the configured tiers.

    Raises:
        ConfigError: anything wrong in it, with the line.
    """
    tiers = context.settings.tiers
    return parse_policy(
        text,
        file=file,
        tiers=frozenset(one.name for one in tiers),
        stores=frozenset(one.name for one in tiers if one.is_url),
    )


def tags_of(settings: Settings, run: str) -> frozenset[str]:
    """The tags that ``ckptgov.yaml`` gives to a run: those of every entry that matches its name."""
    rules = (rule for rule in settings.rules if fnmatchcase(run, rule.run))
    return frozenset(tag for rule in rules for tag in rule.tags)


def links_of(context: Context, run: str) -> tuple[Link, ...]:
    """What flows where for one run: what its policy says of it, else ``ckptgov.yaml``. Without
    what begins or ends at a tier that this process does not see.

    Raises:
        ConfigError: a policy is wrong, or two of them select the run.
    """
    policy = policy_of(context, run)
    if policy is None or policy.links is None:
        return context.settings.links
    return _seen(context, policy.links)


def every_link(context: Context) -> tuple[Link, ...]:
    """The links of ``ckptgov.yaml`` and of every policy, for whoever asks where flows may begin.

    Raises:
        ConfigError: a policy is wrong.
    """
    told = [one for policy in policies_in_force(context) for one in policy.links or ()]
    return tuple(dict.fromkeys((*context.settings.links, *_seen(context, told))))


def _seen(context: Context, links: Iterable[Link]) -> tuple[Link, ...]:
    names = {one.name for one in context.settings.tiers}
    return tuple(one for one in links if {one.source, one.target} <= names)


def settle_s_of(context: Context, run: str) -> float | None:
    """How long a set of this run must have stood still before it is sealed; None: nothing is said.

    Sealing must not wait for somebody to mend a policy: one that is wrong is told, and passed over.
    """
    try:
        policy = policy_of(context, run)
    except ConfigError as error:
        context.talk(f"policies are passed over while sealing: {error.message}")
        return None
    return policy.settle_s if policy is not None else None


def verify_max_age_s_of(context: Context, run: str) -> float:
    """How long a comparison of this run's bytes is relied on.

    Raises:
        ConfigError: a policy is wrong, or two of them select the run.
    """
    return _max_age_s(context.settings, policy_of(context, run))


def verify_max_ages(context: Context, runs: Collection[str]) -> dict[str, float]:
    """The same of many runs at once. Comparing goes on by ``ckptgov.yaml`` where a policy is
    wrong, which is told."""
    default_s = context.settings.verify_max_age_s
    try:
        policies = policies_in_force(context)
    except ConfigError as error:
        context.talk(f"policies are passed over while comparing: {error.message}")
        return dict.fromkeys(runs, default_s)
    ages: dict[str, float] = {}
    for run in sorted(runs):
        try:
            policy = policy_for(policies, run, tags_of(context.settings, run))
            ages[run] = _max_age_s(context.settings, policy)
        except ConfigError as error:
            context.talk(f"policies are passed over while comparing: {error.message}")
            ages[run] = default_s
    return ages


def _max_age_s(settings: Settings, policy: Policy | None) -> float:
    told = policy.verify_max_age_s if policy is not None else None
    return settings.verify_max_age_s if told is None else told
