"""accelerate's automatic checkpoint naming takes every entry of ``checkpoints/`` for a save."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


def accelerator(project: Path, *, total_limit: int | None = None) -> accelerate.Accelerator:
    naming = accelerate.utils.ProjectConfiguration(
        project_dir=str(project), automatic_checkpoint_naming=True, total_limit=total_limit
    )
    made = accelerate.Accelerator(cpu=True, project_config=naming)
    model = torch.nn.Linear(64, 64)
    made.prepare(model, torch.optim.AdamW(model.parameters()))
    return made


def test_a_save_is_seen_whole_and_a_flip_in_it_is_caught(
    cli, tmp_path: Path, flip: Callable[[Path], Path]
) -> None:
    made = accelerator(tmp_path)
    made.save_state()
    made.save_state()
    run = tmp_path / "checkpoints"
    assert cli.scan(run) == {"checkpoint_0": "restorable", "checkpoint_1": "restorable"}
    cli.assert_whole(run, "checkpoint_1")
    cli.assert_caught(run, flip(run / "checkpoint_1" / "model.safetensors"), instead="checkpoint_0")


@pytest.mark.parametrize("scanned", ["checkpoints", "."])
def test_accelerate_saves_rotates_and_loads_after_a_scan(cli, tmp_path: Path, scanned: str) -> None:
    made = accelerator(tmp_path, total_limit=2)
    made.save_state()
    assert cli("scan", tmp_path / scanned).code == 0
    made.save_state()
    made.save_state()
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("checkpoint_*")) == [
        "checkpoint_1",
        "checkpoint_2",
    ]
    made.load_state()
