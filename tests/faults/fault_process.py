"""Commands of ckptgov in processes that may be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).with_name("fault_child.py")

Words = Sequence[str | Path]


@dataclass(frozen=True)
class Answer:
    """What a user gets from one command with ``--json``."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one document on stdout."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document


@dataclass(frozen=True)
class Ended:
    """How a process ended. Commands it did not finish have no answer."""

    status: int
    answers: tuple[Answer, ...]

    @property
    def was_killed(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL


@dataclass(frozen=True)
class Defect:
    """A change of the program: a function of a file and its arguments, called in the child."""

    file: str
    name: str
    arguments: tuple[str | int, ...] = ()


@dataclass(frozen=True)
class Held:
    """A child that waits at its start."""

    pid: int
    let_go: Callable[[], None]
    wait: Callable[[], Ended]


class Forkery:
    """Runs commands in fresh processes that start quickly, because they are forked."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-B", str(_SCRIPT), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            # Names and sizes of what a command writes must not depend on the trial.
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
        )
        theirs.close()
        self._control = ours
        self._lines = ours.makefile("r", encoding="ascii")

    def close(self) -> None:
        self._lines.close()
        self._control.close()
        assert self._process.wait(60) == 0

    def __call__(self, home: Path, *commands: Words, defect: Defect | None = None) -> list[Answer]:
        """Run commands one after the other in one process, each with ``--json``."""
        self._begin(home, commands, defect, held=False)
        answers = self._end().answers
        assert len(answers) == len(commands)
        return list(answers)

    def ended(self, home: Path, *commands: Words, defect: Defect | None = None) -> Ended:
        """The same for commands that may not come to their end."""
        self._begin(home, commands, defect, held=False)
        return self._end()

    def held(self, home: Path, *commands: Words, defect: Defect | None = None) -> Held:
        """The same in a process that waits to be let go; it must be waited for."""
        return self._begin(home, commands, defect, held=True)

    def _begin(
        self, home: Path, commands: Sequence[Words], defect: Defect | None, *, held: bool
    ) -> Held:
        request = {
            "commands": [[*map(str, words), "--json"] for words in commands],
            "home": str(home),
            "defect": None if defect is None else [defect.file, defect.name, defect.arguments],
            "held": held,
        }
        self._control.sendall(json.dumps(request).encode("ascii") + b"\n")
        return Held(
            pid=json.loads(self._lines.readline())["pid"],
            let_go=lambda: self._control.sendall(b"\n"),
            wait=self._end,
        )

    def _end(self) -> Ended:
        told = json.loads(self._lines.readline())
        return Ended(told["status"], tuple(Answer(**one) for one in told["answers"]))
