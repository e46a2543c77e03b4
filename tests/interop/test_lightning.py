"""Lightning: its callback saves and rotates, and ``ckpt_path="last"`` resumes, beside our files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
lightning = pytest.importorskip("lightning", reason="lightning is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


class Tiny(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def train_dataloader(self):
        return torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.ones(16, 64)), batch_size=4
        )


class Scanning(lightning.Callback):
    """Lets ckptgov seal while the training goes on."""

    def __init__(self, scan: Callable[[], object]) -> None:
        self._scan = scan

    def on_train_epoch_end(self, trainer, module) -> None:
        self._scan()


def fit(
    run: Path,
    epochs: int,
    *,
    ckpt_path: str | None = None,
    scan: Callable[[], object] | None = None,
) -> lightning.Trainer:
    saver = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=run, save_top_k=2, monitor="step", mode="max", save_last=True, every_n_train_steps=4
    )
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saver, *([Scanning(scan)] if scan is not None else [])],
    )
    trainer.fit(Tiny(), ckpt_path=ckpt_path)
    return trainer


def kept(run: Path) -> set[str]:
    return {path.name for path in run.iterdir() if path.suffix == ".ckpt"}


def test_lightning_keeps_the_same_and_resumes_from_last(cli, tmp_path: Path) -> None:
    alone, beside = tmp_path / "alone", tmp_path / "run"
    fit(alone, 3)
    fit(beside, 3, scan=lambda: cli.scan(beside))
    assert kept(beside) == kept(alone)
    assert "restorable" in set(cli.scan(beside).values())
    assert cli("verify", beside).code == 0
    assert fit(beside, 4, ckpt_path="last", scan=lambda: cli.scan(beside)).global_step == 16


def test_lightning_loads_what_latest_hands_out_and_a_flip_in_it_is_caught(
    cli, run: Path, flip: Callable[[Path], Path]
) -> None:
    fit(run, 3)
    cli.scan(run)
    newest = cli.latest(run, "--evidence", "digest")
    assert torch.load(newest, weights_only=False)["global_step"] == 12
    assert cli("verify", run).code == 0
    verified = cli("verify", flip(newest), "--json")
    assert verified.code == 5
    (found,) = verified.json["checkpoints"][0]["findings"]
    assert (found["reason"], found["path"]) == ("corrupt", newest.name)
    assert cli.latest(run, "--evidence", "digest") != newest
