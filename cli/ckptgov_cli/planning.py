"""The commands that decide what stays: plan, plans."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptgov.errors import ConfigError, RefusedBySafety, UsageError
from ckptgov_cli.options import EXIT_CODES, DryRun, Json, opened_governor

plans_app = typer.Typer(
    help="Plans that are stored: list them, read one, let one go beyond a cap.",
    invoke_without_command=True,
)

PlanId = Annotated[
    str, typer.Argument(metavar="PLAN", help="Its id, or a beginning that no other has.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("plan", epilog=EXIT_CODES)(plan)
    app.add_typer(plans_app, name="plans")


def plan(
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Only this run (default: every).")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", metavar="FILE", help="Judge by this file; the plan is only looked at."
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Carry the plan out at once, unless it is refused.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="List each checkpoint that stays, too.")
    ] = False,
    detailed: Annotated[
        bool, typer.Option("--detailed-exitcode", help="Exit 20 when something would go.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Decide what may go, by the policies and limits in force, and say why of each.

    Removes nothing: the plan is stored, and 'ckptgov apply PLAN' carries it out. What goes beyond
    a cap of its policy waits until a person approves it (exit 6).
    """
    from ckptgov.wire.plans import error_of_plan
    from ckptgov_cli import render_plans

    if apply and policy is not None:
        raise UsageError("--apply does not go with --policy", hint="put the policy in force first")
    if apply and every:
        raise UsageError("--apply does not go with --all")
    text = _read(policy) if policy is not None else None
    with opened_governor() as governor:
        stored = governor.plan(run=run, policy=text, dry_run=dry_run)
        if apply and not dry_run and not isinstance(error_of_plan(stored), RefusedBySafety):
            plan_id = stored.plan.plan_id if stored.plan.entries else None
            answer = governor.apply(plan_id)
            return render_plans.planned_and_applied(stored, answer, as_json=json)
        stays = None
        if every:
            runs = [run] if run is not None else [one.name for one in governor.runs()]
            stays = [governor.verdict(one, policy=text) for one in runs]
    return render_plans.plan(stored, as_json=json, dry_run=dry_run, detailed=detailed, stays=stays)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


@plans_app.callback(epilog=EXIT_CODES)
def plans(
    context: typer.Context,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1000, help="The newest N.")
    ] = 20,
    json: Json = False,
) -> int:
    """List stored plans, newest first; 'plans show' and 'plans approve' are about one."""
    if context.invoked_subcommand is not None:
        return 0
    from ckptgov_cli import render_plans

    with opened_governor() as governor:
        found = governor.plans(limit=limit)
    return render_plans.plans(found, as_json=json)


@plans_app.command("show", epilog=EXIT_CODES)
def show(plan_id: PlanId, json: Json = False) -> int:
    """Show one plan with everything that goes and why."""
    from ckptgov_cli import render_plans

    with opened_governor() as governor:
        stored = governor.stored_plan(plan_id)
    return render_plans.shown(stored, as_json=json)


@plans_app.command("approve", epilog=EXIT_CODES)
def approve(
    plan_id: PlanId,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why it may; it is recorded.")
    ] = "",
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Let a plan that goes beyond a cap be applied."""
    from ckptgov_cli import render_plans

    if not reason.strip():
        raise UsageError("plans approve: say why with --reason TEXT")
    with opened_governor() as governor:
        stored = governor.approve(plan_id, reason=reason, dry_run=dry_run)
    return render_plans.approved(stored, as_json=json, dry_run=dry_run)
