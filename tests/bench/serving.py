"""``latest`` over HTTP beside a constant answer from the same server stack, under the same load.

Both are served by uvicorn in a process of its own and asked by wrk with as many connections, kept
or new for each request. What ckptgov answers is checked before it is counted. A run of few and one
of very many checkpoints cost the same; so does an answer that must be computed anew.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rounds import ROOT, Cost, Plan, called, product_environ, ratios, take_turns
from serving_stage import RUN, Engine, computed, engines, filled
from table import Line

_FEW, _MANY = 1_000, 1_000_000
_CONNECTIONS = (64, 512)
_LOAD_S = 3
_START_S = 60.0
_PATH = f"/v1/runs/{RUN}/latest"
_RATE = re.compile(r"Requests/sec:\s+([0-9.]+)")
_WRONG = re.compile(r"Non-2xx or 3xx responses: (\d+)|Socket errors: (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server under load. ``base_url`` without a slash at its end."""

    base_url: str

    def asked(self) -> bytes:
        """One answer, as a launcher gets it."""
        with urllib.request.urlopen(self.base_url + _PATH, timeout=30) as answer:
            return bytes(answer.read())


def lines(plan: Plan) -> Iterator[Line]:
    """Per engine and size: the served answer by connections, then what one costs to compute."""
    if shutil.which("wrk") is None:
        yield Line(what="latest over HTTP", note="not installed here: wrk")
        return
    few, many = max(_FEW // plan.scale, 10), max(_MANY // plan.scale, 100)
    for engine in engines():
        if engine.missing is not None:
            yield Line(what=f"latest over HTTP, {engine.name}", note=engine.missing)
            continue
        yield from _engine_lines(plan, engine, few, many)


def _engine_lines(plan: Plan, engine: Engine, few: int, many: int) -> Iterator[Line]:
    with ExitStack() as stack:
        homes = {
            count: stack.enter_context(filled(engine, plan.home, count)) for count in (few, many)
        }
        for count, home in homes.items():
            yield from _load_lines(plan, f"{engine.name}, {count} checkpoints", home)
        costs = take_turns(
            3 * plan.rounds,
            {str(count): _computing(home) for count, home in homes.items()},
        )
        yield Line(
            what=f"an answer computed, {engine.name}: {many} checkpoints; {few}",
            ratios=ratios(costs[str(many)], costs[str(few)]),
            at_most=1.5,
        )


def _computing(home: Path) -> Callable[[], Cost]:
    def compute() -> Cost:
        return called(lambda: computed(home, times=20))

    return compute


def _load_lines(plan: Plan, what: str, home: Path) -> Iterator[Line]:
    environ = product_environ(plan.home) | {"CKPTGOV_HOME": str(home)}
    with serving("product", environ) as ours:
        body = ours.asked()
        with serving("constant", environ | {"CONSTANT": body.decode()}) as constant:
            if constant.asked() != body:
                raise RuntimeError("the constant answer is another one")
            for is_kept in (True, False):
                for connections in _CONNECTIONS:
                    yield _load_line(plan, what, ours, constant, connections, is_kept)


def _load_line(
    plan: Plan, what: str, ours: Server, constant: Server, connections: int, is_kept: bool
) -> Line:
    costs = take_turns(
        plan.few_rounds,
        {
            "ours": lambda: load(ours, connections, is_kept=is_kept),
            "constant": lambda: load(constant, connections, is_kept=is_kept),
        },
    )
    per_s = sorted(1 / one.wall_s for one in costs["ours"])[len(costs["ours"]) // 2]
    kept = "kept" if is_kept else "new"
    return Line(
        what=f"latest, {what}, {connections} {kept}; constant",
        ratios=ratios(costs["constant"], costs["ours"]),
        at_least=0.5,
        note=f"{per_s:.0f} answers/s",
    )


def load(server: Server, connections: int, *, is_kept: bool) -> Cost:
    """Seconds of wall time per answer under load.

    Raises:
        RuntimeError: something else than an answer came back.
    """
    argv = ["wrk", "-t1", f"-c{connections}", f"-d{_LOAD_S}s", "--timeout", "10s"]
    if not is_kept:
        argv += ["-H", "Connection: close"]
    said = subprocess.run(
        [*argv, server.base_url + _PATH], check=True, capture_output=True, text=True
    ).stdout
    wrong = _WRONG.search(said)
    # A connection that is closed after each answer counts as read error with some versions of wrk.
    if wrong is not None and (is_kept or wrong.group(1)):
        raise RuntimeError(f"{server.base_url}: {wrong.group(0)}")
    rate = _RATE.search(said)
    if rate is None:
        raise RuntimeError(f"wrk said nothing of a rate: {said}")
    return Cost(1 / max(float(rate.group(1)), 1e-9), 0.0)


@contextmanager
def serving(what: str, environ: Mapping[str, str]) -> Iterator[Server]:
    """A server process, ready to answer; ended with the block."""
    port = _free_port()
    argv = [
        sys.executable,
        "-P",
        str(Path(__file__).with_name("serving_child.py")),
        what,
        str(port),
    ]
    child = subprocess.Popen(argv, env={**environ, "PYTHONPATH": _python_path(environ)})
    try:
        server = Server(base_url=f"http://127.0.0.1:{port}")
        _await_answer(server, child)
        yield server
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()


def _python_path(environ: Mapping[str, str]) -> str:
    own = [str(ROOT / "tests" / "bench"), str(ROOT), str(ROOT / "cli")]
    return os.pathsep.join([*own, *filter(None, [environ.get("PYTHONPATH", "")])])


def _await_answer(server: Server, child: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while True:
        try:
            server.asked()
            return
        except OSError as error:
            if child.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{server.base_url} does not answer: {error}") from error
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
