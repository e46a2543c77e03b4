"""One process of the service: API, workers and schedule, started and stopped together."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

import uvicorn
from msgspec import Struct
from starlette.types import ASGIApp

from ckptgov.config.load import load_settings
from ckptgov.errors import StorageError, UsageError
from ckptgov.model.clock import Clock, SystemClock
from ckptgov.service import access, logs
from ckptgov.service.alerts import Notifier
from ckptgov.service.app import create_app
from ckptgov.service.census import Census
from ckptgov.service.metrics import Metrics
from ckptgov.service.notify import sd_notify, watchdog_s
from ckptgov.service.scheduler import Scheduler
from ckptgov.service.serving import Serving
from ckptgov.service.workers import Workers

PORT = 8270
REQUESTS_GRACE_S = 10.0
"""How long requests under way may take once the process was told to stop."""
TASKS_GRACE_S = 30.0
"""And tasks, before they are given back."""
_BACKLOG = 2048
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ServeOptions(Struct, frozen=True, kw_only=True):
    """How to serve. ``node``: the one node whose disks this machine has.

    Without it this machine is every node where the catalog is SQLite in the home (one machine
    does all), and none where the catalog is a cluster's: then agents do what lies on nodes.
    """

    home: str
    host: str = "127.0.0.1"
    port: int = PORT
    no_auth: bool = False
    with_schedule: bool = True
    node: str | None = None


class Announced(Struct, frozen=True, kw_only=True):
    """What a person needs to know of a service that just began; ``token`` is shown once."""

    url: str
    token: str | None


def parse_listen(text: str) -> tuple[str, int]:
    """``HOST:PORT``, ``[V6]:PORT``, ``HOST`` or ``:PORT`` (every address).

    Raises:
        UsageError: it is none of these.
    """
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT)
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if (
        not port.isascii()
        or not port.isdigit()
        or int(port) > 65535
        or (":" in host) != _is_v6(host)
    ):
        raise UsageError(
            f"{text!r} is no address to listen on", hint="write HOST:PORT, such as 0.0.0.0:8270"
        )
    return host or "0.0.0.0", int(port)  # noqa: S104


def _is_v6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def serve(
    options: ServeOptions,
    *,
    announce: Callable[[Announced], None],
    clock: Clock | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; the exit code.

    Raises:
        UsageError: without tokens on an address that other machines reach.
        ConfigError, StorageError: the settings or the catalog cannot be used, or the address.
    """
    access.check_listen(options.host, no_auth=options.no_auth)
    clock = clock or SystemClock()
    with ExitStack() as stack:
        listening = stack.enter_context(_listening(options.host, options.port))
        serving = stack.enter_context(
            Serving.open(
                options.home,
                clock=clock,
                here=_here(options),
                is_open=options.no_auth,
                computes_grants=True,
                talk=logs.talk(),
            )
        )
        token = None if options.no_auth else _first_token(serving)
        parts = _Parts(serving, options, stack)
        url = _url(options.host, listening)
        server = _Server(
            uvicorn.Config(
                parts.app(),
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(REQUESTS_GRACE_S),
                backlog=_BACKLOG,
            ),
            on_ready=lambda: parts.begin(Announced(url=url, token=token), announce),
            on_stop=parts.ask_to_stop,
        )
        server.run(sockets=[listening])
        parts.end()
    logs.tell("stopped")
    return 0


class _Parts:
    """What runs beside the API in one process."""

    def __init__(self, serving: Serving, options: ServeOptions, stack: ExitStack) -> None:
        holder = f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}"
        census = Census(serving)
        self._serving = serving
        self._scheduler: Scheduler | None = None
        self.metrics = Metrics(serving, census=census, leads=self._leads)
        self._api = create_app(serving, metrics=self.metrics)
        self._workers = Workers(serving, holder=holder, on_end=self.metrics.task_ended)
        if options.with_schedule:
            notifier = stack.enter_context(
                Notifier(lambda: serving.settings().service.notify_url, clock=serving.clock)
            )
            self._scheduler = Scheduler(
                serving,
                holder=holder,
                census=census,
                notifier=notifier,
                on_tasks=self._workers.wake,
            )

    def app(self) -> ASGIApp:
        """The API, with every request counted."""
        return self.metrics.requests.around(self._api)

    def begin(self, announced: Announced, announce: Callable[[Announced], None]) -> None:
        logs.tell("serving", announced.url)
        announce(announced)
        self._workers.start()
        if self._scheduler is not None:
            self._scheduler.start()
        sd_notify("READY=1")

    async def ask_to_stop(self) -> None:
        """Told to stop: nothing new is begun, and who waits for something is answered now."""
        sd_notify("STOPPING=1")
        self._workers.ask_to_stop()
        await self._api.end_waits()

    def end(self) -> None:
        """Leadership goes first: another replica need not wait for tasks of this one."""
        if self._scheduler is not None:
            self._scheduler.close()
        self._workers.close(grace_s=TASKS_GRACE_S)

    def _leads(self) -> int | None:
        return None if self._scheduler is None else self._scheduler.leads()


class _Server(uvicorn.Server):
    """uvicorn on a socket of ours, that tells when it is ready and stops without raising again."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_ready: Callable[[], None],
        on_stop: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._signs_of_life: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if not self.should_exit:
            self._on_ready()
            self._signs_of_life = asyncio.create_task(_keep_telling())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._on_stop()
        await super().shutdown(sockets=sockets)
        if self._signs_of_life is not None:
            self._signs_of_life.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM is how a service ends: exit 0, and no handler of others is called for it."""

        def ask(signum: int, frame: FrameType | None) -> None:
            del frame
            if self.should_exit:  # asked twice: at once
                signal.signal(signum, signal.SIG_DFL)
                signal.raise_signal(signum)
            self.should_exit = True

        previous = [(signum, signal.signal(signum, ask)) for signum in _SIGNALS]
        try:
            yield
        finally:
            for signum, handler in previous:
                signal.signal(signum, handler if signum == signal.SIGINT else ask)


async def _keep_telling() -> None:
    """From the loop itself: one that hangs tells nothing, and is restarted."""
    every_s = watchdog_s()
    while every_s is not None:
        sd_notify("WATCHDOG=1")
        await asyncio.sleep(every_s)


def _here(options: ServeOptions) -> frozenset[str] | None:
    if options.node is not None:
        return frozenset({options.node})
    is_one_machine = load_settings(options.home).catalog_url is None
    return None if is_one_machine else frozenset()


def _first_token(serving: Serving) -> str | None:
    """The text of an admin's token, where the catalog has no token yet."""
    catalog = serving.catalog
    with catalog.transaction():  # two replicas begin at once: one of them makes it
        if catalog.tokens.tokens():
            return None
        return access.bootstrap(catalog, now_ns=serving.clock.now_ns()).text


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to the address, so that a taken one is told before anything is begun.

    Raises:
        StorageError: it cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.set_inheritable(False)
        yield listening
    except OSError as error:
        raise StorageError(
            f"{host}:{port}: cannot be listened on: {error.strerror or error}",
            hint="is another service running there? --listen HOST:PORT names another address",
        ) from error
    finally:
        with suppress(OSError):
            listening.close()


def _url(host: str, listening: socket.socket) -> str:
    port = listening.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def log_to_stderr() -> None:
    """Structured logs of this process."""
    logs.set_up(stream=sys.stderr)
