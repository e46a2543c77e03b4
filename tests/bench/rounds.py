"""Taking turns: run things interleaved, and time what each costs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where to write, how many turns, and by what to divide the sizes."""

    home: Path
    rounds: int
    scale: int

    @property
    def few_rounds(self) -> int:
        """Turns of a row whose every turn writes a checkpoint: half as many."""
        return max(self.rounds // 2, 1)


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall and CPU time of one run; CPU covers all its threads and children."""

    wall_s: float
    cpu_s: float

    def __add__(self, other: Cost) -> Cost:
        """One after the other."""
        return Cost(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


def take_turns(rounds: int, contenders: Mapping[str, Callable[[], Cost]]) -> dict[str, list[Cost]]:
    """Every contender once a round; who begins changes from round to round."""
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            costs[name].append(contenders[name]())
    return costs


def ratios(ours: Sequence[Cost], theirs: Sequence[Cost], *, of: str = "wall_s") -> list[float]:
    """Ours over theirs, turn by turn."""
    return [
        getattr(one, of) / max(getattr(other, of), 1e-9)
        for one, other in zip(ours, theirs, strict=True)
    ]


def best_of(
    costs: Mapping[str, Sequence[Cost]], names: Iterable[str], *, of: str = "wall_s"
) -> str:
    """Whose median is the least."""
    return min(names, key=lambda name: median(costs[name], of=of))


def median(costs: Sequence[Cost], *, of: str = "wall_s") -> float:
    """The middle turn's."""
    return float(statistics.median(getattr(one, of) for one in costs))


def command(argv: Sequence[str], environ: Mapping[str, str], *, cwd: Path | None = None) -> Cost:
    """Run a program to its end.

    Raises:
        RuntimeError: it failed; what it cost then says nothing.
    """
    begun = time.perf_counter()
    child = subprocess.Popen(
        argv, env=environ, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert child.stderr is not None
    with child.stderr as stderr:
        said = stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - begun
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(f"{argv[0]}: exit {child.returncode}: {said.decode(errors='replace')}")
    return Cost(wall_s, usage.ru_utime + usage.ru_stime)


def called(work: Callable[[], object]) -> Cost:
    """Call a function in this process."""
    cpu, begun = time.process_time(), time.perf_counter()
    work()
    return Cost(time.perf_counter() - begun, time.process_time() - cpu)


def product_environ(home: Path) -> dict[str, str]:
    """The environment of a measured ckptgov: this source, its own state, bytecode cached.

    An installed package has its bytecode beside it. Here it is kept apart, so that a shell that
    forbids writing bytecode does not turn a start into a compilation.
    """
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CKPTGOV_") and name != "PYTHONDONTWRITEBYTECODE"
    }
    return environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "cli"))),
        "PYTHONPYCACHEPREFIX": str(home / "bytecode"),
        "CKPTGOV_HOME": str(home / "state"),
    }


def product_argv(*arguments: str) -> list[str]:
    """What the installed script does."""
    code = "import sys; from ckptgov_cli.main import main; sys.exit(main())"
    return [sys.executable, "-P", "-c", code, *arguments]
