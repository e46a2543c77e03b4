"""The commands that only a service can answer: tokens, nodes, tasks, events; work just begun."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ckptgov.errors import UsageError
from ckptgov_cli.options import EXIT_CODES, DryRun, Json, opened_service, parsed

if TYPE_CHECKING:
    pass

FOLLOW_S = 1.0

token_app = typer.Typer(help="Tokens: who may ask a service, for what.")
node_app = typer.Typer(help="Nodes, and what is said of them.")
task_app = typer.Typer(help="What a service and its agents were asked to do.")

Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; it is shown with the node.")
]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="As its agent calls itself.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for name, group in (("token", token_app), ("node", node_app), ("task", task_app)):
        app.add_typer(group, name=name)
    app.command("events", epilog=EXIT_CODES)(events)


@token_app.command("add", epilog=EXIT_CODES)
def token_add(
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Whose it is, for people.")],
    right: Annotated[
        list[str],
        typer.Option(
            "--right",
            metavar="R",
            help="read, commit, restore, plan, apply, agent or admin; may be given often.",
        ),
    ],
    team: Annotated[
        list[str] | None,
        typer.Option("--team", metavar="T", help="Only runs of this team; may be given often."),
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="N", help="For the agent of this node only.")
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="D", help="After so long, such as 90d. Default: never."),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Make a token and print its text: it is shown this once and kept nowhere."""
    from ckptgov.config.units import parse_duration
    from ckptgov.model.access import Right
    from ckptgov_cli import render_service

    unknown = [one for one in right if one not in tuple(Right)]
    if unknown:
        raise UsageError(f"--right {unknown[0]}: write one of {', '.join(Right)}")
    with opened_service("token add") as client:
        made = client.service.new_token(
            label,
            rights=tuple(dict.fromkeys(right)),
            teams=tuple(team or ()),
            node=node,
            ttl_s=parsed("--expires", expires, parse_duration),
            dry_run=dry_run,
        )
    return render_service.made_token(made, as_json=json, dry_run=dry_run)


@token_app.command("list", epilog=EXIT_CODES)
def token_list(json: Json = False) -> int:
    """List the tokens; their texts are kept nowhere."""
    from ckptgov_cli import render_service

    with opened_service("token list") as client:
        found = client.service.tokens()
    return render_service.tokens(found, as_json=json)


@token_app.command("revoke", epilog=EXIT_CODES)
def token_revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="As 'ckptgov token list' shows it.")],
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Take a token back: the next request with it fails."""
    from ckptgov_cli import render_service

    with opened_service("token revoke") as client:
        told = client.service.revoke_token(token, dry_run=dry_run)
    return render_service.revoked(told, as_json=json, dry_run=dry_run)


@node_app.command("list", epilog=EXIT_CODES)
def node_list(json: Json = False) -> int:
    """List the nodes whose agents were ever heard of."""
    from ckptgov_cli import render_service

    with opened_service("node list") as client:
        found = client.service.nodes()
    return render_service.nodes(found, as_json=json)


@node_app.command("drain", epilog=EXIT_CODES)
def node_drain(
    node: NodeName, reason: Reason = "", dry_run: DryRun = False, json: Json = False
) -> int:
    """Flush what only this node has first, and bring nothing new there."""
    return _said("drained", node, reason, dry_run, json)


@node_app.command("cordon", epilog=EXIT_CODES)
def node_cordon(
    node: NodeName, reason: Reason = "", dry_run: DryRun = False, json: Json = False
) -> int:
    """Flush what only this node has first; else it goes on as before."""
    return _said("cordoned", node, reason, dry_run, json)


@node_app.command("dead", epilog=EXIT_CODES)
def node_dead(
    node: NodeName, reason: Reason = "", dry_run: DryRun = False, json: Json = False
) -> int:
    """Count its copies as out of reach, until its agent is heard of again."""
    return _said("dead", node, reason, dry_run, json)


@node_app.command("activate", epilog=EXIT_CODES)
def node_activate(
    node: NodeName, reason: Reason = "", dry_run: DryRun = False, json: Json = False
) -> int:
    """Take back what was said of it."""
    return _said("active", node, reason, dry_run, json)


def _said(state: str, node: str, reason: str, dry_run: bool, json: bool) -> int:
    from ckptgov_cli import render_service

    with opened_service("node") as client:
        told = client.service.set_node(node, state, reason=reason, dry_run=dry_run)
    return render_service.node_changed(told, as_json=json, dry_run=dry_run)


@task_app.command("list", epilog=EXIT_CODES)
def task_list(
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Of this run.")] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="N", help="Of this node.")] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="S", help="queued, claimed, done or failed."),
    ] = None,
    json: Json = False,
) -> int:
    """List tasks that are open or ended lately."""
    from ckptgov.model.cluster import TaskState
    from ckptgov_cli import render_service

    if state is not None and state not in tuple(TaskState):
        raise UsageError(f"--state {state}: write {', '.join(TaskState)}")
    with opened_service("task list") as client:
        found = client.service.tasks(run=run, node=node, state=state)
    return render_service.tasks(found, as_json=json)


@task_app.command("show", epilog=EXIT_CODES)
def task_show(
    task: Annotated[str, typer.Argument(metavar="ID", help="As 'ckptgov task list' shows it.")],
    json: Json = False,
) -> int:
    """Show one task, with its outcome once it has ended."""
    from ckptgov_cli import render_service

    with opened_service("task show") as client:
        told = client.service.task(task)
    return render_service.task(told, as_json=json)


def events(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Of this run only.")] = None,
    after: Annotated[
        int, typer.Option("--after", metavar="N", min=0, help="Behind this number.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on: print what happens from now on, too.")
    ] = False,
    json: Json = False,
) -> int:
    """Print what happened, oldest first; with --json one document, all of it so far."""
    from ckptgov_cli import render_service

    if follow and json:
        raise UsageError("--follow goes without --json, which is one document")
    with opened_service("events") as client:
        if json:
            return render_service.events(client.service.all_events(run, after=after))
        while True:
            for page in client.service.events(run, after=after):
                render_service.event_lines(page)
                after = render_service.next_of(page)
            if not follow:
                return 0
            time.sleep(FOLLOW_S)


def begin_flush(
    run: str | None, step: int | None, to: str | None, *, other: bool, as_json: bool
) -> int:
    """``flush --no-wait``."""
    from ckptgov.client import tasks

    with opened_service("flush --no-wait") as client:
        _only_begun(other)
        names = [_run_named(run)] if run is not None else [one.name for one in client.runs()]
        begun = [tasks.begin_flush(client.transport, one, step=step, to=to) for one in names]
    return _begun(begun, as_json=as_json)


def begin_verify(target: str, level: str, *, other: bool, as_json: bool) -> int:
    """``verify --no-wait``."""
    from ckptgov.client import tasks

    with opened_service("verify --no-wait") as client:
        _only_begun(other)
        begun = tasks.begin_verify(client.transport, _run_named(target), level=level)
    return _begun([begun], as_json=as_json)


def begin_scan(directories: Sequence[str], run: str | None, *, other: bool, as_json: bool) -> int:
    """``scan --no-wait``."""
    from ckptgov.client import tasks

    with opened_service("scan --no-wait") as client:
        _only_begun(other or bool(directories))
        begun = tasks.begin_scan(client.transport, run=run)
    return _begun([begun], as_json=as_json)


def begin_reconcile(
    tiers: Sequence[str],
    older_than_s: float,
    staging_older_than_s: float | None,
    *,
    other: bool,
    as_json: bool,
) -> int:
    """``reconcile --no-wait``."""
    from ckptgov.client import tasks

    with opened_service("reconcile --no-wait") as client:
        _only_begun(other)
        begun = tasks.begin_reconcile(
            client.transport,
            tuple(tiers),
            older_than_s=older_than_s,
            staging_older_than_s=staging_older_than_s,
        )
    return _begun([begun], as_json=as_json)


def _run_named(target: str) -> str:
    from ckptgov.client.address import is_run_name

    if not is_run_name(target):
        raise UsageError(f"{target}: --no-wait goes with a run's name")
    return target


def _only_begun(other: bool) -> None:
    if other:
        raise UsageError(
            "--no-wait only begins what the service does",
            hint="leave out directories, --node, --watch and --dry-run",
        )


def _begun(documents: Sequence[dict[str, object]], *, as_json: bool) -> int:
    from ckptgov_cli import render_service

    return render_service.begun(documents, as_json=as_json)
