"""Orbax: its manager writes, counts, rotates and restores beside our files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ocp = pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed")
numpy = pytest.importorskip("numpy")

pytestmark = pytest.mark.filterwarnings("ignore")


def tree(step: int) -> dict:
    return {"weight": numpy.full((64, 64), step, dtype=numpy.float32), "step": step}


def manager(run: Path, **options) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(run, options=ocp.CheckpointManagerOptions(**options))


def save(to: ocp.CheckpointManager, step: int) -> None:
    to.save(step, args=ocp.args.StandardSave(tree(step)))
    to.wait_until_finished()


def test_orbax_counts_rotates_and_restores_its_own_steps_only(cli, run: Path) -> None:
    with manager(run, max_to_keep=2) as first:
        for step in (1, 2, 3):
            save(first, step)
            cli.scan(run)
        assert list(first.all_steps()) == [2, 3]
    assert cli.scan(run) == {"2": "restorable", "3": "restorable"}
    cli.assert_whole(run, "3")
    with manager(run, max_to_keep=2) as again:
        assert list(again.all_steps()) == [2, 3]
        assert again.latest_step() == 3
        restored = again.restore(3, args=ocp.args.StandardRestore(tree(0)))
        assert (restored["weight"] == 3).all()
        save(again, 4)
        assert list(again.all_steps()) == [3, 4]
    assert cli.scan(run) == {"3": "restorable", "4": "restorable"}


def test_orbax_prefixed_names_are_seen_the_same(cli, run: Path) -> None:
    options = {"step_prefix": "ckpt", "step_format_fixed_length": 8}
    with manager(run, **options) as saver:
        for step in (1, 2):
            save(saver, step)
    assert set(cli.scan(run).values()) == {"restorable"}
    cli.assert_whole(run, "ckpt_00000002")
    with manager(run, **options) as again:
        assert list(again.all_steps()) == [1, 2]


def test_a_bit_flip_in_the_arrays_is_caught(cli, run: Path, flip: Callable[[Path], Path]) -> None:
    with manager(run) as saver:
        for step in (1, 2):
            save(saver, step)
    cli.scan(run)
    arrays = max((run / "2").rglob("d/*"), key=lambda path: path.stat().st_size)
    cli.assert_caught(run, flip(arrays), instead="1")
