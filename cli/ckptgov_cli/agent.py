"""``ckptgov agent``: the agent of one node, as a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ckptgov.errors import CouldNotLook, UsageError
from ckptgov_cli import output
from ckptgov_cli.options import EXIT_CODES

if TYPE_CHECKING:
    from ckptgov.service.agent import Agent
    from ckptgov.service.serving import Serving

_SIGNAL_S = 0.2


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("agent", epilog=EXIT_CODES)(agent)


def agent(
    node: Annotated[
        str, typer.Option("--node", metavar="N", help="The node this is, as its tiers name it.")
    ],
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Where to serve this node's shards to others (default: nowhere).",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="One turn: look, tell, work, flush; then end.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="The service (default: CKPTGOV_URL)."),
    ] = None,
) -> int:
    """Watch and move what only this node sees: its own disks.

    Seals what lies whole on them, digests its part of saves that several nodes share, tells the
    service, carries out its tasks and flushes along the links that begin here. While the service
    is away it works on within its fallback limits and tells later. CKPTGOV_HOME is this node's
    own; ckptgov.yaml there names its disk ('scope: node', 'node: N') and what is shared. SIGTERM
    gives back what is under way and exits 0.
    """
    try:
        import ckptgov.service.agent_run  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the agent needs {error.name}", hint="pip install 'ckptgov[server]'"
        ) from error
    from ckptgov_cli.stopping import stopping

    with stopping() as asked, ExitStack() as stack:
        stop = threading.Event()
        opened = stack.enter_context(_opened(node, listen, url, lambda: stop.is_set() or asked()))
        return _once(opened) if once else _on(opened, stop, asked)


class _Opened:
    """The agent with what it stands on."""

    def __init__(self, agent: Agent, serving: Serving) -> None:
        self.agent = agent
        self.serving = serving


def _once(opened: _Opened) -> int:
    from ckptgov.service.agent_run import one_turn

    if not one_turn(opened.agent, talk=output.talk):
        raise CouldNotLook(
            "the service did not answer: what it has to know is told the next time",
            hint="is CKPTGOV_URL right, and the service running?",
        )
    return 0


def _on(opened: _Opened, stop: threading.Event, asked: Callable[[], bool]) -> int:
    """Work until a signal; it may come while the main thread waits for anything."""
    from ckptgov.service.agent_run import run_agent

    threading.Thread(target=_tell_stop, args=(stop, asked), name="signals", daemon=True).start()
    run_agent(opened.agent, clock=opened.serving.clock, stop=stop, talk=output.talk)
    return 0


def _tell_stop(stop: threading.Event, asked: Callable[[], bool]) -> None:
    while not asked() and not stop.wait(_SIGNAL_S):
        continue
    stop.set()


@contextmanager
def _opened(
    node: str, listen: str | None, url: str | None, stop: Callable[[], bool]
) -> Iterator[_Opened]:
    from ckptgov.client.address import URL_VARIABLE, address_from
    from ckptgov.config.home import home_dir
    from ckptgov.model.clock import SystemClock
    from ckptgov.service.agent import Agent
    from ckptgov.service.agent_cluster import HttpCluster
    from ckptgov.service.agent_run import ask_for_grants, identity_of
    from ckptgov.service.serving import Serving
    from ckptgov.storage.watching import yield_to_others

    environ = dict(os.environ)
    if url is not None:
        environ[URL_VARIABLE] = url
    clock = SystemClock()
    address = address_from(environ)
    with ExitStack() as stack:
        cluster = stack.enter_context(HttpCluster(address, clock=clock))
        serving = stack.enter_context(
            Serving.open(home_dir(environ), clock=clock, here=frozenset({node}), talk=output.talk)
        )
        if not any(one.node == node for one in serving.settings().tiers):
            raise UsageError(
                f"no tier of node {node} is configured in {serving.settings().home}",
                hint=f"'ckptgov tier add NAME DIR --scope node --node {node} --ingest'",
            )
        yield_to_others()
        ask_for_grants(serving, cluster, node, stop=stop)
        peer_url = stack.enter_context(_peers(serving, node, listen)) if listen else None
        identity = identity_of(node, peer_url=peer_url)
        yield _Opened(Agent(serving, cluster, identity, stop=stop, talk=output.talk), serving)


@contextmanager
def _peers(serving: Serving, node: str, listen: str) -> Iterator[str]:
    """Serve this node's disks to others, within their budgets; where they find them.

    After ``ask_for_grants``: that changes the desk the flows are opened at.
    """
    from ckptgov.service.peer_flows import serving_peers
    from ckptgov.service.serve import parse_listen
    from ckptgov.storage.peer import peer_tokens
    from ckptgov.work.author import Author

    tokens = peer_tokens(os.environ)
    if not tokens:
        raise UsageError(
            "--listen: no token is set, so nobody could read a shard",
            hint="set CKPTGOV_PEER_TOKEN or CKPTGOV_PEER_TOKEN_FILE to the cluster's secret",
        )
    host, port = parse_listen(listen)
    with serving_peers(
        node,
        desk=serving.desk,
        settings=serving.settings,
        new_id=Author(clock=serving.clock, by=node).new_id,
        tokens=lambda: tokens,
        host=host,
        port=port,
    ) as server:
        at, number = server.address
        shown = os.uname().nodename if at in ("0.0.0.0", "::") else at  # noqa: S104 (compared)
        yield f"http://{f'[{shown}]' if ':' in shown else shown}:{number}"
