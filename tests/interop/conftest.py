"""Real frameworks write, ckptgov seals, the frameworks go on: what these tests share.

Optional: each file is skipped where its framework is not installed. The command line runs in a
process of its own, as beside a trainer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {".ckptgov", ".ckptgov-tier.json"}


@dataclass(frozen=True)
class Answer:
    """What one command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """The one document on stdout."""
        return json.loads(self.out)


class Cli:
    """Runs ``ckptgov`` beside the framework that this process holds."""

    def __init__(self, home: Path) -> None:
        self._environ = os.environ | {
            "CKPTGOV_HOME": str(home),
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "cli"))),
        }

    def __call__(self, *words: str | Path) -> Answer:
        done = subprocess.run(
            [sys.executable, "-m", "ckptgov_cli.main", *map(str, words)],
            env=self._environ,
            capture_output=True,
            text=True,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def latest(self, run: Path, *words: str) -> Path:
        """The path that is handed out."""
        answer = self("latest", run, *words)
        assert answer.code == 0, answer
        return Path(answer.out.removesuffix("\n"))

    def scan(self, run: Path) -> dict[str, str]:
        """Seal what is whole; name -> state of every checkpoint there, after our files came."""
        answer = self("scan", run, "--json")
        assert answer.code == 0, answer
        # Beside the checkpoints, or above them where the framework wants the directory alone.
        assert any(set(os.listdir(at)) >= OURS for at in (run, run.parent))
        (told,) = answer.json["runs"]
        return {one["name"]: one["state"] for one in told["checkpoints"]}

    def assert_whole(self, run: Path, newest: str) -> None:
        """Every byte of the newest compares, and it is what ``latest`` hands out."""
        assert self("verify", run).code == 0
        assert self.latest(run, "--evidence", "digest") == run / newest

    def assert_caught(self, run: Path, shard: Path, *, instead: str | None) -> None:
        """A flipped bit in ``shard`` is named by verify, and ``latest`` goes to ``instead``."""
        verified = self("verify", run, "--json")
        assert verified.code == 5, verified
        found = [each for one in verified.json["checkpoints"] for each in one["findings"]]
        assert [(each["reason"], each["path"]) for each in found] == [
            ("corrupt", str(shard.relative_to(run)))
        ]
        if instead is None:
            assert self("latest", run, "--evidence", "digest").code == 5
        else:
            assert self.latest(run, "--evidence", "digest") == run / instead


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command line with a state directory of this test's own."""
    return Cli(tmp_path / "home")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Where the framework saves."""
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


@pytest.fixture
def flip() -> Callable[[Path], Path]:
    """Flips one bit in the middle of a file, and puts its times back as a bad disk would."""

    def flip_middle(path: Path) -> Path:
        stat = path.stat()
        body = bytearray(path.read_bytes())
        body[len(body) // 2] ^= 0x10
        with path.open("r+b") as file:
            file.write(body)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        return path

    return flip_middle
