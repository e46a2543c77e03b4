"""P1 on a disk that loses power: what is sealed verifies, though its writer never called fsync."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_defects import cut_power
from fault_disks import LoopDisk
from fault_process import Defect, Forkery
from fault_trees import Stage, require_clear

from ckptgov.testing.builders import write_dcp

DEFECTS = str(Path(__file__).with_name("fault_defects.py"))
AFTER = 10**9
STEPS = (1, 2)


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoopDisk]:
    made = LoopDisk.made(request.param, tmp_path)
    yield made
    made.destroy()


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


class Trial:
    """A run that a trainer writes without fsync, a scan of it, and a power cut."""

    def __init__(self, disk: LoopDisk, name: str, forkery: Forkery, *, home: Path | None) -> None:
        self.disk, self.forkery = disk, forkery
        self.stage = Stage(disk.root / name)
        self.home = home or self.stage.home
        for directory in (self.stage.run, self.stage.tier, self.stage.base, disk.root):
            _sync(directory)  # they stand long before the first checkpoint
        self.written: dict[str, dict[str, bytes]] = {}
        for step in STEPS:
            self._write(f"step_{step}")

    def _write(self, name: str) -> None:
        written = write_dcp(self.stage.run / name, rows=500, at_ns=None)
        self.written[name] = {file.name: file.read_bytes() for file in written.iterdir()}

    def scan_until(self, number: int, tally: Path) -> int:
        """Scan, and cut the power before its ``number``-th call; gives how many there were."""
        tally.write_text("0")
        defect = Defect(DEFECTS, "cut_power_at", (number, str(self.disk.root), str(tally)))
        self._scan(defect)
        self.disk.lose_power()
        return int(tally.read_text())

    def scan_for(self, seconds: float) -> None:
        """Scan, and cut the power while it runs."""
        child = self.forkery.held(self.home, ("scan", self.stage.tier))
        child.let_go()
        time.sleep(seconds)
        cut_power(self.disk.root)
        # What it says now depends on where it was; a page of a lost disk may even kill it.
        require_clear(list(child.wait().answers))
        self.disk.lose_power()

    def scan_unguarded(self) -> None:
        """Scan without making shards durable, and cut the power afterwards."""
        self._scan(Defect(DEFECTS, "never_sync_shards"))
        self.disk.lose_power()

    def _scan(self, defect: Defect) -> None:
        ended = self.forkery.ended(self.home, ("scan", self.stage.tier), defect=defect)
        require_clear(list(ended.answers))

    def broken(self) -> list[str]:
        """What is claimed of the checkpoints and is not so; nothing, if all went well."""
        claims = [*self._broken_manifests(), *self._broken_answers()]
        (done,) = self.forkery(self.home, ("scan", self.stage.tier))
        require_clear([done])
        if done.code != 0:
            claims.append(f"the next scan: {done}")
        return [*claims, *self._broken_manifests(), *self._broken_answers()]

    def _broken_manifests(self) -> Iterator[str]:
        for file, content in self.stage.manifests().items():
            try:
                name = json.loads(content)["name"]
            except ValueError:
                yield f"manifest {file} is no document"
                continue
            yield from self._broken_bytes(name, f"manifest {file}")
        (verified,) = self.forkery(self.home, ("verify", self.stage.run, "--dry-run"))
        require_clear([verified])
        for one in verified.json.get("checkpoints", []):
            if one["content_id"] is not None and one["findings"]:
                yield f"verify: {one}"

    def _broken_answers(self) -> Iterator[str]:
        of_directory, of_run = self.forkery(
            self.home, ("latest", self.stage.run, "--evidence", "digest"), ("latest", "run")
        )
        require_clear([of_directory, of_run])
        is_empty = not any(self.stage.run.glob("step_*")) and not self.stage.manifests()
        for one, none_codes in ((of_directory, (4,) if is_empty else (5, 9)), (of_run, (5, 9))):
            if one.code == 0:
                yield from self._broken_bytes(one.json["name"], f"latest: {one}")
            elif one.code not in none_codes:
                yield f"latest: {one}"

    def _broken_bytes(self, name: str, claim: str) -> Iterator[str]:
        for file, content in self.written[name].items():
            path = self.stage.run / name / file
            if not path.is_file() or path.read_bytes() != content:
                yield f"{claim}: {path} is not what was written"


@pytest.mark.timeout(3600)
def test_what_is_sealed_survives_a_power_cut_at_any_call(
    disk: LoopDisk, tmp_path: Path, forkery: Forkery, dice: random.Random, full_sweep: bool
) -> None:
    tally = tmp_path / "tally"
    first = Trial(disk, "first", forkery, home=tmp_path / "first-home")
    count = first.scan_until(AFTER, tally)
    assert first.broken() == []
    assert len(first.stage.manifests()) == len(STEPS)
    for number in range(100 if full_sweep else 3):
        home = dice.choice([None, tmp_path / f"home-{number}"])
        at = dice.randint(1, count + 1)
        trial = Trial(disk, f"trial-{number}", forkery, home=home)
        trial.scan_until(at, tally)
        assert trial.broken() == [], f"before call {at} of {count}"


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_what_is_sealed_survives_a_power_cut_at_any_moment(
    disk: LoopDisk, tmp_path: Path, forkery: Forkery, dice: random.Random
) -> None:
    """By the clock, so that it falls into calls and into SQLite too; no seed repeats that."""
    began = time.monotonic()
    Trial(disk, "first", forkery, home=None).scan_until(AFTER, tmp_path / "tally")
    took_s = time.monotonic() - began
    for number in range(50):
        home = dice.choice([None, tmp_path / f"home-{number}"])
        seconds = dice.random() * took_s
        trial = Trial(disk, f"trial-{number}", forkery, home=home)
        trial.scan_for(seconds)
        assert trial.broken() == [], f"after {seconds:.3f} s"


def test_without_the_guard_a_power_cut_is_seen_to_break_what_is_sealed(
    disk: LoopDisk, tmp_path: Path, forkery: Forkery
) -> None:
    """Shows that the campaign above can fail: shards are not made durable before the manifest."""
    broken = []
    for number in range(2):
        trial = Trial(disk, f"trial-{number}", forkery, home=tmp_path / f"home-{number}")
        trial.scan_unguarded()
        broken += trial.broken()
    assert [claim for claim in broken if "is not what was written" in claim]
