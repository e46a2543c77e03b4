"""A run under a policy whose removal is stopped in the middle, while others are at work on it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import fault_trace
from fault_process import Answer, Ended, Forkery, Words
from fault_trees import require_clear

from ckptgov.testing.builders import write_hf_trainer

POLICY = """\
policy: tight
runs: ["*"]
keep: {near: {last: 2}}
floors: {min_restorable: 1, min_age: 0s}
safety: {max_fraction: 99%%, grace: 0s, trash: %s, adoption_grace: 0s}
"""
RUN = "hf"
TRACED = (*fault_trace.CHANGING, "getdents64")
"""A directory that was listed is open, and what is done beneath it next goes where it goes."""
GOING, KEPT = (100, 200, 300), (400, 500)

Files = Mapping[str, bytes]


class Field:
    """The home, a tier with one run, and what its trainer saved last under each step."""

    def __init__(self, base: Path, forkery: Forkery, others: Forkery) -> None:
        self.base, self.home, self.tier = base, base / "home", base / "near"
        self.run = self.tier / RUN
        self._forkery, self._others = forkery, others
        self.saved: dict[int, Files] = {}
        self.first: dict[int, Files] = {}
        self._saves = 0

    def prepare(self) -> None:
        """Five sealed checkpoints, of which the policy keeps two."""
        self.home.mkdir()
        for step in (*GOING, *KEPT):
            self.save(step)
        done = self.ask(("tier", "add", "near", self.tier, "--ingest"), ("scan",))
        assert [one.code for one in done] == [0, 0], done
        self.first = dict(self.saved)

    def save(self, step: int) -> None:
        """As a trainer does that saves this step again: what stands under the name goes."""
        self._saves += 1
        path = self.run / f"checkpoint-{step}"
        shutil.rmtree(path, ignore_errors=True)
        write_hf_trainer(path, step, state={"save": self._saves}, at_ns=None)
        self.saved[step] = self.lies(step)

    def govern(self, trash: str) -> None:
        """Put the policy in force; what is moved aside stays so long."""
        (self.home / "policies").mkdir(exist_ok=True)
        (self.home / "policies/tight.yaml").write_text(POLICY % trash)

    def keep(self, name: str = "first") -> None:
        """Remember how all of it stands."""
        kept = self.base / f"kept-{name}"
        shutil.rmtree(kept, ignore_errors=True)
        for path in (self.home, self.tier):
            shutil.copytree(path, kept / path.name, copy_function=self._copying(path))

    def reset(self, name: str = "first") -> None:
        """Back to what was remembered."""
        for path in (self.home, self.tier):
            shutil.rmtree(path)
            kept = self.base / f"kept-{name}" / path.name
            shutil.copytree(kept, path, copy_function=self._copying(path))
        self.saved = dict(self.first)

    def _copying(self, path: Path) -> Callable[[str, str], object]:
        # Links, where files are never written in place: the same inodes come back.
        return os.link if path == self.tier else shutil.copy2

    # What is asked

    def ask(self, *commands: Words) -> list[Answer]:
        """Commands of other processes, whatever the one that is held is doing."""
        answers = self._others(self.home, *commands)
        require_clear(answers)
        return answers

    def done(self, *words: str) -> Answer:
        """One that the test relies on."""
        (answer,) = self.ask(words)
        assert answer.code == 0, (words, answer)
        return answer

    def plan(self) -> str:
        """The id of a plan."""
        return str(self.done("plan").json["plan_id"])

    def calls(self, *words: str) -> list[fault_trace.Call]:
        """Run a command undisturbed; its calls that change something at the tier."""
        found, ended = fault_trace.calls(
            self._forkery, self.home, words, beneath=self.base, names=TRACED
        )
        assert [one.code for one in ended.answers] == [0], ended
        return [one for one in found if str(self.tier) in one.text and "clock" not in one.text]

    @contextmanager
    def stopped(self, words: Words, call: fault_trace.Call) -> Iterator[list[Ended]]:
        """A command stopped right behind one of its calls for the block, past all its leases.

        How it ended is in the list afterwards.
        """
        log, ends = self.base / "strace.log", list[Ended]()
        log.unlink(missing_ok=True)
        child = self._forkery.held(self.home, words)
        traced = "trace=" + ",".join(f"?{name}" for name in TRACED)
        options = call.tampered("signal=SIGSTOP")
        argv = ["strace", "-f", "-y", "-s0", "-o", log, "-e", traced, *options]
        argv += ["-p", str(child.pid)]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None
            assert "attached" in tracer.stderr.readline()
            child.let_go()
            _wait_until_stopped(log)
            try:
                self._end_leases()
                yield ends
            finally:
                os.kill(child.pid, signal.SIGCONT)
                ends.append(child.wait())
                tracer.communicate(timeout=60)
        require_clear(list(ends[0].answers))

    def _end_leases(self) -> None:
        self._change("UPDATE copy_leases SET expires_at_ns = 1")

    def time_is_over(self) -> None:
        """As if the time of every removal had run out."""
        self._change("UPDATE removals SET due_at_ns = 1")

    def _change(self, statement: str) -> None:
        # Nobody holds a transaction over a call of storage's: this need not wait.
        with closing(sqlite3.connect(self.home / "catalog.sqlite", timeout=1)) as catalog:
            catalog.execute(statement)
            catalog.commit()

    def states(self) -> dict[int, str]:
        """What the catalog says of the copy of each step's first save."""
        ask = "SELECT step, state FROM copies JOIN checkpoints USING (run_id, content_id)"
        with closing(sqlite3.connect(self.home / "catalog.sqlite", timeout=1)) as catalog:
            return dict(catalog.execute(ask).fetchall())

    # What is seen

    def lies(self, step: int) -> dict[str, bytes]:
        """What lies under a step's name."""
        return _files(self.run / f"checkpoint-{step}")

    def in_trash(self) -> dict[int, list[Files]]:
        """What lies in the trash, by step."""
        found: dict[int, list[Files]] = {}
        for path in self.run.glob(".ckptgov/trash/*/*/files/checkpoint-*"):
            found.setdefault(int(path.name.rpartition("-")[2]), []).append(_files(path))
        return found

    def offered(self) -> set[int]:
        """Steps that are handed out; fails unless each is what was saved, to the byte."""
        listed, latest = self.ask(("list", RUN), ("latest", self.run, "--evidence", "digest"))
        assert (listed.code, latest.code) == (0, 0), (listed, latest)
        told = listed.json["checkpoints"]
        steps = {one["step"] for one in told if not one["findings"]}
        for step in {*steps, latest.json["step"]}:
            assert self.lies(step) == self.saved[step], f"step {step} is offered"
        return steps


def _files(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir()} if path.is_dir() else {}


def _wait_until_stopped(log: Path) -> None:
    until = time.monotonic() + 120
    while "stopped by SIGSTOP" not in log.read_text(errors="replace"):
        assert time.monotonic() < until, "the call was not reached"
        time.sleep(0.005)  # a process of its own: there is nothing to be told by
