"""Policies: check them, show them, explain what they do to a run."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptgov.errors import ConfigError, UnknownRun, UsageError
from ckptgov_cli.options import EXIT_CODES, Json, opened_governor

policy_app = typer.Typer(help="Policies: how long checkpoints stay where, and what may go first.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(policy_app, name="policy")


@policy_app.command("check", epilog=EXIT_CODES)
def check(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Policy files (default: those in force)."),
    ] = None,
    json: Json = False,
) -> int:
    """Find what is wrong with policies: in a file, between files, and for registered runs.

    Exit 2 names file and line of each mistake: unknown or doubled keys, impossible limits, rules
    that could never keep anything, tiers that are not configured, runs that two policies select.
    """
    from ckptgov_cli import render_policies

    if files:
        return _check_files(files, as_json=json)
    with opened_governor() as governor:
        found = governor.check_policies()
    return render_policies.checked(found, as_json=json)


def _check_files(files: list[str], *, as_json: bool) -> int:
    from ckptgov.config.policies import read_each
    from ckptgov_cli import render_policies

    with opened_governor() as governor:
        tiers = governor.tiers()
    names = frozenset(one.name for one in tiers)
    policies, errors = read_each(
        files,
        tiers=names or None,  # nothing is configured here: any name may be right
        stores=frozenset(one.name for one in tiers if one.is_url),
    )
    return render_policies.checked_files(policies, errors, knows_tiers=bool(names), as_json=as_json)


@policy_app.command("show", epilog=EXIT_CODES)
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME|RUN]", help="A policy, or a run that has one.")
    ] = None,
    json: Json = False,
) -> int:
    """Show a policy, or that of a run, with everything that holds by default.

    What is printed is itself a policy file that says the same. Without a name: every policy in
    force and what it selects.
    """
    from ckptgov_cli import render_policies

    with opened_governor() as governor:
        found = governor.policies()
        if name is None:
            return render_policies.listed(found, as_json=json)
        named = [one for one in found if one.name == name]
        if named:
            return render_policies.shown(named[0], as_json=json)
        try:
            policy = governor.policy_of(name)
        except UnknownRun as error:
            known = ", ".join(one.name for one in found) or "none"
            raise UsageError(
                f"{name}: no policy has this name, and no run is registered under it",
                hint=f"policies in force: {known}; 'ckptgov run list' shows the runs",
            ) from error
        return render_policies.shown_of_run(name, policy, as_json=json)


@policy_app.command("explain", epilog=EXIT_CODES)
def explain(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or a directory of it.")],
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="FILE", help="Judge by this file, in force or not."),
    ] = None,
    json: Json = False,
) -> int:
    """Say of each checkpoint of a run what becomes of it at every tier, and why.

    Nothing is removed and nothing is stored; capacity limits, which weigh all runs of a tier
    against each other, are for 'ckptgov plan'.
    """
    from ckptgov_cli import render_policies

    text = _read(policy) if policy is not None else None
    with opened_governor() as governor:
        verdict = governor.verdict(run, policy=text)
    return render_policies.explained(verdict, as_json=json)


def _read(path: str) -> str:
    from ckptgov.config.load import read_text

    text = read_text(path)
    if text is None:
        raise UsageError(f"--policy {path}: there is no such file")
    if not text.strip():
        raise ConfigError(f"{path}:1: says nothing", hint="a policy begins with: policy: NAME")
    return text
