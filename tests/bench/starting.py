"""How long ``ckptgov latest`` takes from start to answer, in starts of a bare Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rounds import Cost, Plan, command, product_argv, product_environ, ratios, take_turns
from table import Line

from ckptgov.testing.builders import write_dcp

_BUDGETS = {"sealed": 9.0, "structure": 15.0, "run": 40.0, "service": 9.0}
_WHAT = {
    "sealed": "latest DIR, sealed; python -c pass",
    "structure": "latest DIR, by structure; python -c pass",
    "run": "latest RUN, SQLite catalog; python -c pass",
    "service": "latest RUN, asked of a service; python -c pass",
}


def lines(plan: Plan) -> Iterator[Line]:
    """Three DCP checkpoints of four ranks in a run; the answer is the newest."""
    home = plan.home / "start"
    environ = product_environ(plan.home)
    try:
        _prepare(home, environ)
        targets = {
            "sealed": str(home / "sealed"),
            "structure": str(home / "structure"),
            "run": "sealed",
        }

        def start(target: str) -> Cost:
            return command(product_argv("latest", target), environ, cwd=plan.home)

        def bare() -> Cost:
            return command([sys.executable, "-c", "pass"], environ)

        with _service(environ, plan.home) as asking:

            def ask() -> Cost:
                return command(product_argv("latest", "sealed"), asking, cwd=plan.home)

            for target in targets.values():
                start(target)
            bare()
            ask()
            contenders = {name: lambda at=at: start(at) for name, at in targets.items()}
            costs = take_turns(3 * plan.rounds, contenders | {"service": ask, "bare": bare})
    finally:
        shutil.rmtree(home, ignore_errors=True)
    for name, budget in _BUDGETS.items():
        yield Line(what=_WHAT[name], ratios=ratios(costs[name], costs["bare"]), at_most=budget)


@contextmanager
def _service(environ: Mapping[str, str], cwd: Path) -> Iterator[Mapping[str, str]]:
    """A service over the same home, and the environment of whoever asks it from elsewhere."""
    argv = product_argv("serve", "--listen", "127.0.0.1:0", "--no-auth", "--no-scheduler")
    with subprocess.Popen(
        argv, env=environ, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            yield {**environ, "CKPTGOV_URL": url, "CKPTGOV_HOME": str(cwd / "nothing")}
        finally:
            process.terminate()


def _prepare(home: Path, environ: Mapping[str, str]) -> None:
    for run in ("sealed", "structure"):
        for step in (100, 200, 300):
            write_dcp(home / run / f"step_{step}", ranks=4)
    command(product_argv("scan", str(home / "sealed"), "--run", "sealed"), environ)
