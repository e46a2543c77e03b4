"""The calls by which a command changes files, and the same command with one of them tampered with.

Both through strace. It counts calls per thread and by name, and only those it was asked to trace.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fault_process import Defect, Ended, Forkery, Words

CHANGING = (
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "fsync",
    "fdatasync",
    "ftruncate",
    "fallocate",
    "fchmod",
    "fchown",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "mkdir",
    "mkdirat",
    "unlink",
    "unlinkat",
    "rmdir",
    "symlink",
    "symlinkat",
)
"""A file that was made and never written looks as it did before the next of these."""

_CALL = re.compile(r"(\d+) +(\w+)\((.*)")
_PATH = re.compile(r'<(/[^>]*)>|"(/[^"]*)"')


@dataclass(frozen=True)
class Call:
    """One call of one thread: the ``number``-th of this name there, from 1."""

    name: str
    number: int
    path: str
    text: str
    number_at_path: int
    is_main: bool

    def tampered(self, how: str, *, sticky: bool = False) -> list[str]:
        """strace's options that do ``how`` to this call, or to it and all later ones."""
        plus = "+" if sticky else ""
        if self.is_main:
            return ["-e", f"inject={self.name}:{how}:when={self.number}{plus}"]
        # Which thread does it is chance; what it does it to is not.
        by_path = f"inject={self.name}:{how}:when={self.number_at_path}{plus}"
        return ["-P", self.path, "-e", by_path]


def calls(
    forkery: Forkery,
    home: Path,
    words: Words,
    *,
    beneath: Path,
    names: Sequence[str] = CHANGING,
    defect: Defect | None = None,
) -> tuple[list[Call], Ended]:
    """Run a command undisturbed; every call that changes something beneath ``beneath``."""
    log = beneath / "strace.log"
    ended, pid = _traced(forkery, home, words, log, names, [], defect)
    found = _read(log.read_text(errors="replace"), pid, beneath)
    return [one for one in found if str(log) not in one.text], ended


def run_tampered(
    forkery: Forkery,
    home: Path,
    words: Words,
    options: Sequence[str],
    *,
    log: Path,
    names: Sequence[str] = CHANGING,
    defect: Defect | None = None,
) -> Ended:
    """Run a command with one of its calls tampered with."""
    ended, _ = _traced(forkery, home, words, log, names, options, defect)
    return ended


@cache
def why_not() -> str | None:
    """Why nothing can be traced here, if so."""
    try:
        done = subprocess.run(
            ["strace", "-f", "-qq", "-o", os.devnull, "-e", "inject=chdir:error=EIO", "true"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except FileNotFoundError:
        return "strace is not installed"
    return f"strace may not trace: {done.stderr.strip()}" if done.returncode else None


def _traced(
    forkery: Forkery,
    home: Path,
    words: Words,
    log: Path,
    names: Sequence[str],
    options: Sequence[str],
    defect: Defect | None,
) -> tuple[Ended, int]:
    child = forkery.held(home, words, defect=defect)
    # "?": not every machine has every call.
    traced = "trace=" + ",".join(f"?{name}" for name in names)
    tracer = subprocess.Popen(
        ["strace", "-f", "-y", "-s0", "-o", log, "-e", traced, *options, "-p", str(child.pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    first = tracer.stderr.readline()
    child.let_go()
    ended = child.wait()
    _, rest = tracer.communicate(timeout=60)
    assert "attached" in first, first + rest
    return ended, child.pid


def _read(log: str, main: int, beneath: Path) -> list[Call]:
    found: list[Call] = []
    by_name: Counter[tuple[str, str]] = Counter()
    by_path: Counter[tuple[str, str, str]] = Counter()
    for line in log.splitlines():
        matched = _CALL.match(line)
        if matched is None:
            continue
        thread, name, rest = matched.groups()
        by_name[thread, name] += 1
        paths = [one or other for one, other in _PATH.findall(rest)]
        for path in set(paths):
            by_path[thread, name, path] += 1
        if not any(path.startswith(f"{beneath}/") for path in paths):
            continue
        found.append(
            Call(
                name=name,
                number=by_name[thread, name],
                path=paths[0],
                text=f"{name}({rest}",
                number_at_path=by_path[thread, name, paths[0]],
                is_main=int(thread) == main,
            )
        )
    return found
