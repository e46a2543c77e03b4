"""The commands that remove and bring back: apply, undelete."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptgov_cli.options import EXIT_CODES, DryRun, Json, opened_governor
from ckptgov_cli.stopping import stopping


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for name, command in (("apply", apply), ("undelete", undelete)):
        app.command(name, epilog=EXIT_CODES)(command)


def apply(
    plan: Annotated[
        str | None,
        typer.Argument(
            metavar="[PLAN]",
            help="A stored plan's id, or the beginning of it (default: none; only go on with what "
            "earlier plans condemned).",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Do nothing at all where one entry has changed.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Carry a plan out: condemn what it lists, then go on with whatever is due.

    A condemned copy is no longer offered; once its grace is over it is moved to the trash beside
    its run, and purged when its time there is over. Until then 'ckptgov undelete' brings it back.
    What changed since the plan was made is skipped and named. Killed or stopped at any point, the
    same command goes on from there.
    """
    from ckptgov_cli import render_removing

    with stopping() as stop, opened_governor() as governor:
        answer = governor.apply(plan, strict=strict, dry_run=dry_run, stop=stop)
    return render_removing.applied(answer, as_json=json)


def undelete(
    run: Annotated[
        str, typer.Argument(metavar="RUN|DIR|URL", help="A run's name, or where it lies.")
    ],
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", min=0, help="This step only.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Bring back what is condemned or in the trash; every byte from there is compared again."""
    from ckptgov_cli import render_removing

    with opened_governor() as governor:
        answer = governor.undelete(run, step=step, dry_run=dry_run)
    return render_removing.undeleted(answer, as_json=json)
