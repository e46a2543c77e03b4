"""What the end-to-end tests share: the command line in this process, and places of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ckptgov.testing.builders import write_hf_trainer
from ckptgov_cli.main import main


@dataclass(frozen=True)
class Answer:
    """What a user gets from one command."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one document on stdout; anything beside it fails the test."""
        return json.loads(self.out)

    @property
    def path(self) -> Path:
        """The path that is alone on stdout."""
        assert self.code == 0, self
        assert self.out.endswith("\n"), self
        return Path(self.out.removesuffix("\n"))

    @property
    def chosen(self) -> Path:
        """The path in the document."""
        assert self.code == 0, self
        return Path(self.json["path"])

    def reasons(self, name: str) -> list[str]:
        """Reasons given for the checkpoint ``name`` in a list of passed over or listed ones."""
        return [finding["reason"] for finding in self.findings(name)]

    def findings(self, name: str) -> list[dict]:
        """Findings about the checkpoint ``name``, wherever the document lists checkpoints."""
        return [f for entry in self.entries(name) for f in entry.get("findings", [])]

    def entries(self, name: str) -> list[dict]:
        """Every entry about the checkpoint ``name``."""
        return [entry for entry in _checkpoints(self.json) if entry["name"] == name]

    @property
    def names(self) -> list[str]:
        """Names of all checkpoints the document lists."""
        return [entry["name"] for entry in _checkpoints(self.json)]

    @property
    def notes(self) -> str:
        """All notes of the document, of its runs and checkpoints, as one text."""
        document = self.json
        holders = [document, *document.get("runs", []), *_checkpoints(document)]
        notes = [note for holder in holders for note in holder.get("notes", [])]
        return "\n".join(f"{note['path']}: {note['text']}" for note in notes)


def _checkpoints(document: dict) -> list[dict]:
    found = [*document.get("checkpoints", []), *document.get("passed_over", [])]
    for run in document.get("runs", []):
        found += run.get("checkpoints", [])
    return found


class Cli:
    """Runs ``ckptgov`` commands in this process."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def __call__(self, *words: str | Path) -> Answer:
        self._capture.readouterr()
        code = main([str(word) for word in words])
        captured = self._capture.readouterr()
        return Answer(code=code, out=os.fsdecode(captured.out), err=os.fsdecode(captured.err))

    def json(self, *words: str | Path) -> Answer:
        """The same with ``--json``; stdout holds exactly one document, whatever the exit."""
        answer = self(*words, "--json")
        assert isinstance(answer.json, dict), answer
        return answer

    def done(self, *words: str | Path) -> Answer:
        """The same, for a command that the test relies on."""
        answer = self(*words)
        assert answer.code == 0, (words, answer)
        return answer


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of this test's own."""
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("CKPTGOV_HOME", str(directory))
    return directory


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """The command line in this process."""
    return Cli(capsysbinary)


@pytest.fixture(params=["directory", "run"])
def latest(request: pytest.FixtureRequest, cli: Cli) -> Callable[..., Answer]:
    """``latest`` of a directory as it lies there, and of the run after a scan."""

    def ask(run: Path, *options: str) -> Answer:
        if request.param == "directory":
            return cli.json("latest", run, *options)
        cli.done("scan", run)
        return cli.json("latest", run.name, *options)

    return ask


@pytest.fixture
def spawn(home: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts ``ckptgov`` as a process of its own, stdout and stderr piped."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def start(*words: str | bytes | Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ckptgov_cli.main", *words]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    return start


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """An empty directory that stands for a tier's root."""
    directory = tmp_path / "tier"
    directory.mkdir()
    return directory


@pytest.fixture
def sample(samples: Path, tier: Path) -> Callable[[str], Path]:
    """Copies one real sample below the tier, times, modes and links kept."""

    def copy(name: str) -> Path:
        target = tier / Path(name).name
        shutil.copytree(samples / name, target, symlinks=True)
        return target

    return copy


@pytest.fixture
def forget_catalog(home: Path) -> Callable[[], None]:
    """Deletes everything below the state directory but the configuration."""

    def delete() -> None:
        for path in sorted(home.rglob("*"), reverse=True):
            if path.name != "ckptgov.yaml":
                with contextlib.suppress(OSError):
                    path.rmdir() if path.is_dir() else path.unlink()

    return delete


@pytest.fixture
def linked(cli: Cli, tier: Path, tmp_path: Path) -> Path:
    """The tier ``nfs``, to which a link has brought steps 100, 200 and 300 of run ``hf``."""
    nfs = tmp_path / "nfs"
    nfs.mkdir()
    for step in (100, 200, 300):
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("tier", "add", "nfs", nfs)
    cli.done("tier", "link", "lustre", "nfs", "--every", "1")
    cli.done("scan")
    cli.done("flush", "hf")
    return nfs


@pytest.fixture
def time_is_over(home: Path) -> Callable[[], None]:
    """As if the time of every removal had run out."""

    def pass_() -> None:
        with contextlib.closing(sqlite3.connect(home / "catalog.sqlite")) as catalog:
            catalog.execute("UPDATE removals SET due_at_ns = 1")
            catalog.commit()

    return pass_
