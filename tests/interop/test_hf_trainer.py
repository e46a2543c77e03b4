"""Hugging Face's Trainer keeps, deletes and resumes from the same beside ckptgov as alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


class Scanning(transformers.TrainerCallback):
    """Lets ckptgov seal after every save, before the Trainer's next rotation."""

    def __init__(self, scan: Callable[[], object]) -> None:
        self._scan = scan

    def on_save(self, args, state, control, **others) -> None:
        self._scan()


def train(
    run: Path,
    steps: int,
    *,
    scan: Callable[[], object] | None = None,
    resume: bool | str = False,
) -> int:
    """Train a tiny model, a save a step, two kept; tells the global step it ended at."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=16, vocab_size=32)
    arguments = transformers.TrainingArguments(
        output_dir=str(run),
        max_steps=steps,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=2,
        per_device_train_batch_size=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    tokens = torch.arange(8)
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=[{"input_ids": tokens, "labels": tokens}] * 8,
        callbacks=[Scanning(scan)] if scan is not None else [],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer.state.global_step


def kept(run: Path) -> set[str]:
    return {path.name for path in run.iterdir() if path.name.startswith("checkpoint-")}


def test_the_trainer_keeps_the_same_checkpoints_with_scans_in_between(cli, tmp_path: Path) -> None:
    alone, beside = tmp_path / "alone", tmp_path / "run"
    train(alone, 5)
    train(beside, 5, scan=lambda: cli.scan(beside))
    assert kept(beside) == kept(alone) == {"checkpoint-4", "checkpoint-5"}
    assert cli.scan(beside) == {"checkpoint-4": "restorable", "checkpoint-5": "restorable"}
    cli.assert_whole(beside, "checkpoint-5")


def test_the_trainer_resumes_from_what_it_finds_and_from_what_latest_hands_out(
    cli, run: Path
) -> None:
    train(run, 2)
    cli.scan(run)
    last = transformers.trainer_utils.get_last_checkpoint(str(run))
    assert last == str(run / "checkpoint-2") == str(cli.latest(run, "--evidence", "digest"))
    assert train(run, 3, resume=True) == 3
    cli.scan(run)
    assert train(run, 4, resume=str(cli.latest(run))) == 4
    assert cli.scan(run) == {"checkpoint-3": "restorable", "checkpoint-4": "restorable"}


@pytest.mark.parametrize("use_mtime", [True, False])
def test_rotation_deletes_the_same_with_and_without_a_scan(
    cli, tmp_path: Path, use_mtime: bool
) -> None:
    left = {}
    for name in ("alone", "run"):
        directory = tmp_path / name
        train(directory, 2)
        # By time checkpoint-1 is the newest: rotation by mtime and by step must differ.
        stat = (directory / "checkpoint-2").stat()
        os.utime(directory / "checkpoint-1", ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))
        if name == "run":
            cli.scan(directory)
            assert cli("verify", directory).code == 0
        transformers.trainer_utils.rotate_checkpoints(
            output_dir=str(directory), save_total_limit=1, use_mtime=use_mtime
        )
        left[name] = kept(directory)
    assert left["run"] == left["alone"] == {"checkpoint-1" if use_mtime else "checkpoint-2"}


def test_a_bit_flip_in_the_weights_or_the_optimizer_is_caught(
    cli, run: Path, flip: Callable[[Path], Path]
) -> None:
    train(run, 2)
    cli.scan(run)
    cli.assert_caught(run, flip(run / "checkpoint-2" / "model.safetensors"), instead="checkpoint-1")
