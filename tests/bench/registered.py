"""A sealed checkpoint of a registered run, and the product moving it.

Sealing comes before any clock. Every turn has a target and a state of its own: a copy of the state
after sealing, so that no turn knows of another's copies.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from files import MIB, drop_cached, write_shards
from rounds import Cost, Plan, called, command, product_argv, product_environ

from ckptgov.governor import open_governor
from ckptgov.model.movement import FlushState

RUN, NAME = "bench", "step_1"
TIER = "target"
_LOADED = (
    "ckptgov.catalog.catalog",
    "ckptgov.ops.flush",
    "ckptgov.ops.restore",
    "ckptgov.storage.posix",
    "ckptgov.storage.s3",
)

Environ = Mapping[str, str]
Timed = Callable[[], Cost]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """Where it lies; ``state`` is what the product knows after sealing, and nothing else."""

    directory: Path
    paths: list[Path]
    bytes: int
    state: Path
    environ: Environ

    def known_to(self, state: Path, root: str, *flags: str) -> Environ:
        """The environment of a product that knows this run and one more tier."""
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(self.state, state)
        environ = {**self.environ, "CKPTGOV_HOME": str(state)}
        command(product_argv("tier", "add", TIER, root, *flags), environ)
        return environ

    def from_disk(self, timed: Timed) -> Cost:
        """Run it with this checkpoint on the disk and not in memory, and nothing left to write."""
        os.sync()
        drop_cached(self.paths)
        return timed()


@contextmanager
def sealed(plan: Plan, home: Path, *, count: int, size_bytes: int) -> Iterator[Sealed]:
    """A checkpoint of so many shards, or a smaller one in a try-out; gone at the end."""
    if size_bytes > MIB:
        size_bytes = max(size_bytes // plan.scale, MIB)
    else:
        count = max(count // plan.scale, 2)
    directory = home / "run" / NAME
    environ = {**product_environ(plan.home), "CKPTGOV_HOME": str(home / "state")}
    try:
        paths = write_shards(directory, count=count, size_bytes=size_bytes)
        command(product_argv("commit", str(directory), "--run", RUN), environ)
        yield Sealed(
            directory=directory,
            paths=paths,
            bytes=count * size_bytes,
            state=home / "state",
            environ=environ,
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)


def load_product() -> None:
    """Import now what a turn in this process would otherwise be the first to import."""
    for module in _LOADED:
        importlib.import_module(module)


def flush_process(environ: Environ) -> Cost:
    """``ckptgov flush`` from start to end."""
    return command(product_argv("flush", RUN, "--to", TIER), environ)


def flush_here(environ: Environ) -> Cost:
    """The same in this process: settings, catalog, plan, mover, publishing."""
    return called(lambda: _flush(environ))


def _flush(environ: Environ) -> None:
    with open_governor(environ=environ) as governor:
        answer = governor.flush(RUN, to=TIER)
    states = [one.state for one in answer.checkpoints]
    if answer.error is not None or states not in ([FlushState.FLUSHED], [FlushState.UNPROVEN]):
        raise RuntimeError(f"flush: {answer.error or states}")


def restore_process(environ: Environ, to: Path) -> Cost:
    """``ckptgov restore`` from start to end."""
    return command(product_argv("restore", RUN, "--from", TIER, "--to", str(to)), environ)


def restore_here(environ: Environ, to: Path) -> Cost:
    """The same in this process."""
    return called(lambda: _restore(environ, to))


def _restore(environ: Environ, to: Path) -> None:
    with open_governor(environ=environ) as governor:
        governor.restore(RUN, to=str(to), from_tier=TIER)
