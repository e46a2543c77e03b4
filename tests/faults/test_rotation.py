"""What rotates a trainer's checkpoints, and what backs them up, must not see that we looked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_process import Forkery, Words
from fault_trees import trainers_files

from ckptgov.testing.builders import (
    write_dcp,
    write_deepspeed,
    write_hf_trainer,
    write_lightning,
    write_megatron,
)

KEPT = 3
STEPS = (100, 200, 300, 400, 500, 600)
BEST = 200
SECOND_NS = 10**9


class Trainer:
    """Saves and rotates as Hugging Face's does: by the directories' mtime, the best one kept."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.deleted: list[str] = []

    def save(self, step: int) -> None:
        directory = write_hf_trainer(self.output / f"checkpoint-{step}", step)
        # Saves lie apart in time; a test that waited for it would tell nothing more.
        at_ns = 1_700_000_000 * SECOND_NS + step * SECOND_NS
        os.utime(directory, ns=(at_ns, at_ns))
        self._rotate()

    def _rotate(self) -> None:
        found = sorted(self.output.glob("checkpoint-*"), key=os.path.getmtime)
        best = self.output / f"checkpoint-{BEST}"
        if best in found[:-1]:
            found.remove(best)
            found.insert(-1, best)
        for path in found[: max(0, len(found) - KEPT)]:
            self.deleted.append(path.name)
            shutil.rmtree(path)

    @property
    def left(self) -> set[str]:
        return {path.name for path in self.output.glob("checkpoint-*")}


def test_a_trainer_that_rotates_by_mtime_deletes_the_same_with_ckptgov_in_between(
    tmp_path: Path, forkery: Forkery
) -> None:
    alone, watched = Trainer(tmp_path / "alone"), Trainer(tmp_path / "run")
    for step in STEPS:
        alone.save(step)
        watched.save(step)
        scanned, verified, told = forkery(
            tmp_path / "home",
            ("scan", watched.output),
            ("verify", watched.output),
            ("latest", watched.output, "--restart-id", f"a.{step}"),
        )
        assert (scanned.code, verified.code, told.code) == (0, 0, 0), (scanned, verified, told)
        assert told.json["step"] == step
    assert alone.deleted == watched.deleted
    assert len(alone.deleted) == len(STEPS) - KEPT
    assert alone.left == watched.left


def _dcp(run: Path) -> None:
    for step in (1, 2):
        write_dcp(run / f"step_{step}")


def _megatron(run: Path) -> None:
    for step in (1, 2):
        write_megatron(run, step)


def _deepspeed(run: Path) -> None:
    for step in (1, 2):
        write_deepspeed(run, step, world_size=2)


def _hugging_face(run: Path) -> None:
    for step in (1, 2):
        write_hf_trainer(run / f"checkpoint-{step}", step, model_shards=2)


def _lightning(run: Path) -> None:
    run.mkdir()
    for step in (1, 2):
        write_lightning(run / f"epoch=0-step={step}.ckpt", step)
    (run / "last.ckpt").symlink_to("epoch=0-step=2.ckpt")


def _commands(run: Path) -> list[Words]:
    return [
        ("latest", run),
        ("latest", run, "--restart-id", "before.0"),
        ("verify", run),
        ("scan", run),
        ("verify", run),
        ("scan", run),
        ("latest", "run", "--restart-id", "after.0"),
        ("report", "run", "--restart-id", "after.0", "--outcome", "load-failed"),
        ("mark-bad", "run", "--step", "2", "--reason", "nan"),
        ("rollback", "run", "--to", "1"),
        ("explain", "run"),
        ("manifest", "run"),
        ("catalog", "check"),
        ("catalog", "rebuild"),
        ("doctor",),
    ]


@pytest.mark.parametrize("write", [_dcp, _megatron, _deepspeed, _hugging_face, _lightning])
def test_no_command_changes_a_byte_or_a_time_of_what_a_trainer_wrote(
    write: Callable[[Path], None], tmp_path: Path, forkery: Forkery
) -> None:
    run = tmp_path / "run"
    write(run)
    before = trainers_files(run)
    for words in _commands(run):
        (told,) = forkery(tmp_path / "home", words)
        assert told.code == 0, (words, told)
        assert trainers_files(run) == before, words
