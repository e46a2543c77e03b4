"""Flush and restore under the knife: the tiers they move between, and what may be seen of it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import fault_trace
from fault_process import Answer, Defect, Ended, Forkery, Words
from fault_trees import require_clear, trainers_files

from ckptgov.testing.builders import write_dcp, write_lightning, write_torch_shards

CHANGING = (*fault_trace.CHANGING, "utimensat", "fchownat", "copy_file_range")
"""A copy carries times and owners."""

RUNS = {
    "sharded": ("step_1",),
    "single": ("epoch=0-step=10.ckpt",),
    "group": ("checkpoint_1_100", "checkpoint_2_200"),
}
"""One run for each form in which a checkpoint lies below its run's root: directory, file, group."""

RESUMABLE_ROWS = 20_000
"""Such a shard is larger than 1 MiB: what a killed mover wrote of it is taken up again."""

_STEADY = Defect(str(Path(__file__).with_name("fault_defects.py")), "same_random_names")
_OURS = ".ckptgov"
_HAS_PID = re.compile(r"\.ckptgov-tmp-\d+-")


class Haul:
    """Three runs at the tier ``near``, an empty tier ``far``, and a directory ``out`` of nobody's.

    ``behind_far`` is what ``far`` shows, where that is a file system of ours in user space.
    ``near`` is never put back: nothing may ever change there.
    """

    def __init__(
        self, base: Path, *, far: Path | None = None, behind_far: Path | None = None
    ) -> None:
        self._behind_far = behind_far
        self.base = base
        self.home = base / "home"
        self.near = base / "near"
        self.far = far or base / "far"
        self.out = base / "out"
        self._kept = base.with_name(base.name + ".kept")
        for directory in (self.near, self.far, self.out):
            directory.mkdir(parents=True, exist_ok=True)
        write_dcp(self.near / "sharded/step_1", rows=RESUMABLE_ROWS)
        for run in ("single", "group"):
            (self.near / run).mkdir()
        write_lightning(self.near / "single/epoch=0-step=10.ckpt", 10)
        for stem in RUNS["group"]:
            write_torch_shards(self.near / "group", stem, range(2))

    def prepare(self, forkery: Forkery) -> None:
        """Seal the runs, and configure the tiers so that work goes in one order."""
        done = forkery(
            self.home,
            ("tier", "add", "near", self.near, "--ingest"),
            ("tier", "add", "far", self.far),
            ("tier", "budget", "far", "--write", "1GB/s"),  # whatever a dead flow held is held
            ("scan",),
        )
        assert [one.code for one in done] == [0] * len(done), done
        with (self.home / "ckptgov.yaml").open("a") as file:
            file.write("digest_threads: 1\n")

    def keep(self) -> None:
        """Remember how everything but ``near`` stands."""
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()
        for path in self._movable():
            shutil.copytree(path, self._kept / path.name, symlinks=True)

    def reset(self, *, with_far: bool) -> None:
        """Put it back; ``far`` too where it is written to."""
        for path in self._movable():
            if path == self.far and not with_far:
                continue
            if path == self.far and self._behind_far is not None:
                _forget_hidden(self._behind_far)
            for child in path.iterdir():
                shutil.rmtree(child) if child.is_dir() else child.unlink()
            shutil.copytree(self._kept / path.name, path, symlinks=True, dirs_exist_ok=True)

    def forget(self) -> None:
        """Free the disk."""
        for path in (self.base, self._kept):
            shutil.rmtree(path, ignore_errors=True)

    def _movable(self) -> list[Path]:
        return [self.home, self.far, self.out]

    def checkpoint(self, tier: Path, run: str, name: str) -> dict[str, bytes]:
        """The files of one checkpoint as they lie below a run's root at a tier."""
        path = tier / run / name
        if path.is_file():
            return {name: path.read_bytes()}
        if path.is_dir():
            return {f"{name}/{one.name}": one.read_bytes() for one in path.iterdir()}
        files = sorted((tier / run).glob(f"{name}-shard*.pt"))
        return {one.name: one.read_bytes() for one in files}

    def left_behind(self) -> list[Path]:
        """Temporary files and staged ones, anywhere."""
        found: list[Path] = []
        for root in (self.far, self.out, self.home):
            found += root.rglob(".ckptgov-tmp-*")
            found += root.rglob("*.new-*")
            found += root.rglob("staging/*")
        return sorted(found)


def _forget_hidden(directory: Path) -> None:
    """libfuse loses track of a file that is removed while its last close is still on the way.

    It stays under a hidden name that no listing shows, and its directory could not be removed.
    """
    for left in directory.rglob(".fuse_hidden*"):
        left.unlink(missing_ok=True)


class MoverCampaign:
    """One command that moves bytes, undisturbed once, and the same with one call tampered with."""

    def __init__(self, haul: Haul, forkery: Forkery, words: Words) -> None:
        self.haul, self.words = haul, words
        self._forkery = forkery
        self._writes_far = words[0] == "flush"
        self._source = everything(haul.near)
        self._far = {} if self._writes_far else everything(haul.far)
        haul.keep()

    def calls(self, *roots: Path) -> list[fault_trace.Call]:
        """Run the command undisturbed; its calls that change something beneath a directory."""
        found, ended = fault_trace.calls(
            self._forkery,
            self.haul.home,
            self.words,
            beneath=self.haul.base,
            names=CHANGING,
            defect=_STEADY,
        )
        require_clear(list(ended.answers))
        assert [one.code for one in ended.answers] == [0], ended
        self.require_arrived()
        tops = tuple(f"{root}" for root in roots)
        return [_found_again(call) for call in found if call.path.startswith(tops)]

    def reset(self) -> None:
        """Back to before the command."""
        self.haul.reset(with_far=self._writes_far)

    def run(self) -> Answer:
        """The command as it stands."""
        (answer,) = self._forkery(self.haul.home, self.words)
        return answer

    def disturbed(self, options: Sequence[str]) -> Ended:
        """Run the command from the start with strace's ``options``."""
        self.reset()
        return fault_trace.run_tampered(
            self._forkery,
            self.haul.home,
            self.words,
            options,
            log=self.haul.base / "strace.log",
            names=CHANGING,
            defect=_STEADY,
        )

    def require_nothing_false(self) -> None:
        """Whatever is offered has every byte right, and no source was touched."""
        self._require_sources_intact()
        self._require_whole_or_absent()
        haul = self.haul
        questions: list[Words] = []
        for run in RUNS:
            questions += [
                ("latest", haul.far / run, "--evidence", "digest"),
                ("latest", haul.far / run),
                ("latest", run),
            ]
        answers = self._forkery(haul.home, *questions)
        require_clear(answers)
        for question, answer in zip(questions, answers, strict=True):
            self._require_right(question, answer)

    def _require_right(self, question: Words, answer: Answer) -> None:
        target = question[1]
        if isinstance(target, str):  # by its name: near stands whole, whatever happens far away
            assert answer.code == 0, (question, answer)
        if answer.code != 0:
            assert answer.code in (4, 5, 9), (question, answer)
            return
        run = str(target).rpartition("/")[2]
        tier = haul_tier(answer, run)
        name = answer.json["name"]
        wanted = self.haul.checkpoint(self.haul.near, run, name)
        assert self.haul.checkpoint(tier, run, name) == wanted, (question, answer)

    def _require_whole_or_absent(self) -> None:
        """A framework that only looks at names finds nothing half either (a group has no name)."""
        haul = self.haul
        for run, names in RUNS.items():
            for name in names:
                for tier in (haul.far, haul.out):
                    there = haul.checkpoint(tier, run, name)
                    wanted = haul.checkpoint(haul.near, run, name)
                    if run == "group":
                        wanted = {file: wanted[file] for file in there}
                    assert there in ({}, wanted), f"{tier}/{run}/{name} is half there"

    def _require_sources_intact(self) -> None:
        assert everything(self.haul.near) == self._source, "the source was touched"
        if not self._writes_far:
            assert everything(self.haul.far) == self._far, "the source was touched"

    def require_convergence(self, *, within_s: float = 20.0) -> Answer:
        """The command again, undisturbed: everything arrives, at once, and nothing is left over."""
        began = time.monotonic()
        again = self.run()
        took_s = time.monotonic() - began
        assert again.code == 0, again
        assert took_s < within_s, f"took {took_s:.0f} s: it waited for what the dead one held"
        self.require_arrived()
        self._require_sources_intact()
        (cleared,) = self._forkery(self.haul.home, ("reconcile", "--older-than", "0s"))
        assert cleared.code == 0, cleared
        assert self.haul.left_behind() == []
        self.require_arrived()
        return again

    def require_arrived(self) -> None:
        """Bytes, modes and times are the source's; at a tier it is restorable from there alone."""
        haul = self.haul
        for run, names in RUNS.items():
            for name in names:
                target = self._target(run, name)
                if target is None:
                    continue
                wanted = _seen(haul.near / run, haul.checkpoint(haul.near, run, name))
                assert _seen(target, haul.checkpoint(target.parent, run, name)) == wanted
        if self._writes_far:
            alone = haul.base / "no-catalog"
            answers = self._forkery(
                alone, *(("latest", haul.far / run, "--evidence", "digest") for run in RUNS)
            )
            assert [one.code for one in answers] == [0] * len(RUNS), answers

    def _target(self, run: str, name: str) -> Path | None:
        """The run's root that the command brings this checkpoint to."""
        if self._writes_far:
            return self.haul.far / run
        brought = {"restore": self.words[1], "latest": self.words[1]}[str(self.words[0])]
        is_newest = name == RUNS[run][-1]
        return self.haul.out / run if run == brought and is_newest else None


def _found_again(call: fault_trace.Call) -> fault_trace.Call:
    """By its path, where that is the same in every process: other threads work at other paths."""
    return call if _HAS_PID.search(call.path) else replace(call, is_main=False)


def haul_tier(answer: Answer, run: str) -> Path:
    """The tier that an answer leads to."""
    path = Path(answer.json["path"])
    while path.name != run:
        path = path.parent
    return path.parent


def everything(root: Path) -> dict[str, tuple[object, ...]]:
    """All files beneath a tier's root, ours too, as far as nobody may change them."""
    seen = trainers_files(root)
    for path in root.rglob("*"):
        if _OURS in str(path.relative_to(root)) and path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            seen[str(path.relative_to(root))] = (path.stat().st_ino, digest)
    return seen


def _seen(root: Path, files: dict[str, bytes]) -> dict[str, tuple[bytes, int, int]]:
    found = {}
    for name, content in files.items():
        at = os.stat(root / name)
        found[name] = (content, at.st_mode, at.st_mtime_ns)
    return found
