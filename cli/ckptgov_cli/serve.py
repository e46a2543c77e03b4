"""``ckptgov serve``: the API, the workers and the schedule as one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ckptgov.errors import UsageError
from ckptgov_cli import output
from ckptgov_cli.options import EXIT_CODES

if TYPE_CHECKING:
    from ckptgov.service.serve import Announced


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("serve", epilog=EXIT_CODES)(serve)


def serve(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen.")
    ] = "127.0.0.1:8270",
    no_auth: Annotated[
        bool,
        typer.Option("--no-auth", help="Ask nobody for a token; on a loopback address only."),
    ] = False,
    no_scheduler: Annotated[
        bool,
        typer.Option("--no-scheduler", help="Answer and work, but never lead the schedule."),
    ] = False,
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="N",
            help="The node this machine is, whose own disks it sees. Default: every node with "
            "a catalog of its own (SQLite), none with a cluster's (PostgreSQL).",
        ),
    ] = None,
) -> int:
    """Serve the API and run what is scheduled, from scans to removals and back-ups.

    The catalog is SQLite in CKPTGOV_HOME, or the PostgreSQL that 'catalog:' in ckptgov.yaml (or
    CKPTGOV_CATALOG) names; any number of replicas may share that one. The first start makes an
    admin token and shows it once. SIGTERM finishes requests, gives tasks back and exits 0.
    """
    import os

    from ckptgov.config.home import home_dir

    try:
        from ckptgov.service import serve as service
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the service needs {error.name}", hint="pip install 'ckptgov[server]'"
        ) from error
    host, port = service.parse_listen(listen)
    options = service.ServeOptions(
        home=home_dir(os.environ),
        host=host,
        port=port,
        no_auth=no_auth,
        with_schedule=not no_scheduler,
        node=node,
    )
    service.log_to_stderr()
    return service.serve(options, announce=_announce)


def _announce(told: Announced) -> None:
    """The address is the result; the token goes where people look, and nowhere else."""
    if told.token is not None:
        output.talk(f"a first admin token was made and is shown this once: {told.token}")
        output.talk("  hint: export CKPTGOV_TOKEN=...; 'ckptgov token add' makes others")
    output.line(told.url)
