"""What the launcher's tests share: ``ckptgov exec`` as a process of its own, beside a scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ckptgov.testing.builders import write_dcp

ROOT = Path(__file__).resolve().parents[2]
OF_SCHEDULERS = ("SLURM_", "TORCHELASTIC_", "JOBSET_", "VOLCANO_", "OMPI_", "PET_", "MASTER_")
OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX", "BATCH_JOB_UID")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A machine without a scheduler, and a state directory of this test's own."""
    (tmp_path / "home").mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((*OF_SCHEDULERS, "CKPTGOV_")) and name not in OF_RANKS
    }
    paths = os.pathsep.join((str(ROOT), str(ROOT / "cli")))
    return {**kept, "CKPTGOV_HOME": str(tmp_path / "home"), "PYTHONPATH": paths}


class Ckptgov:
    """Runs ``ckptgov`` to its end, or starts it."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ

    def start(self, *words: str | Path, **more: str) -> subprocess.Popen[str]:
        """A process whose output is read through pipes, without a terminal."""
        return subprocess.Popen(
            [sys.executable, "-m", "ckptgov_cli.main", *map(str, words)],
            env={**self.environ, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        with self.start(*words, **more) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def exec(self, run: str | Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """``exec`` with the restart id "r", unless another one is given."""
        named = () if "--restart-id" in words or more else ("--restart-id", "r")
        return self("exec", run, *named, *words, **more)


@pytest.fixture
def ckptgov(environ: dict[str, str]) -> Ckptgov:
    """The command line in processes of their own."""
    return Ckptgov(environ)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with two whole checkpoints that nobody sealed."""
    for step in (100, 200):
        write_dcp(tmp_path / f"run/step_{step}")
    return tmp_path / "run"


@pytest.fixture
def journal() -> Callable[[Path], list[dict]]:
    """The records of one kind of a run, as they lie in its journal."""

    def read(run: Path, kind: str = "outcome") -> list[dict]:
        found = sorted((run / ".ckptgov/journal").glob(f"*.{kind}.json"))
        return [json.loads(path.read_text()) for path in found]

    return read


@pytest.fixture
def python() -> Callable[[str], Sequence[str]]:
    """The words that run a few lines of Python with the standard library only."""
    return lambda code: (sys.executable, "-I", "-S", "-c", code)
