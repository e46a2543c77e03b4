"""How good a checkpoint is: told by its trainer's files at the seal, and by anyone later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptgov.catalog.catalog import Catalog
from ckptgov.model.clock import SystemClock
from ckptgov.model.journal import NumberedRecord
from ckptgov.ops.metrics_of import metrics_of
from ckptgov.ops.standing_run import decoded
from ckptgov.testing.builders import write_hf_trainer, write_lightning


class Metrics:
    """Metrics of the one run's checkpoints, by name."""

    def __init__(self, home: Path) -> None:
        self._file = str(home / "catalog.sqlite")

    @property
    def records(self) -> tuple[NumberedRecord, ...]:
        clock = SystemClock()
        with Catalog.open(self._file, fs_type="ext4", is_network=False, clock=clock) as catalog:
            (known,) = catalog.runs()
            return decoded(catalog.records(known.identity.run_id))

    @property
    def by_name(self) -> dict[str, dict[str, str]]:
        clock = SystemClock()
        found = metrics_of(self.records)
        with Catalog.open(self._file, fs_type="ext4", is_network=False, clock=clock) as catalog:
            (known,) = catalog.runs()
            sealed = catalog.checkpoints(known.identity.run_id)
            return {one.name: found.get(one.content_id, {}) for one in sealed}


@pytest.fixture
def metrics(home: Path) -> Metrics:
    return Metrics(home)


def write_hf(run: Path, step: int, state: str) -> None:
    """A Trainer's checkpoint whose state file has this text for the evaluation of its step."""
    directory = write_hf_trainer(run / f"checkpoint-{step}", step)
    log = f'[{{"step": {step}, {state}}}]' if state else "[]"
    (directory / "trainer_state.json").write_text(
        f'{{"global_step": {step}, "log_history": {log}}}'
    )


def test_states_with_nan_and_infinity_are_read_and_kept_as_they_are_spelled(
    cli, tier: Path, metrics
) -> None:
    """Field report A16."""
    spelled = {100: "NaN", 200: "0.50", 300: "Infinity", 400: "4e-1", 500: "-Infinity"}
    for step, value in spelled.items():
        write_hf(tier / "run", step, f'"eval_loss": {value}')
    write_hf(tier / "run", 600, "")
    cli.done("scan", tier / "run")
    assert metrics.by_name == {
        "checkpoint-100": {"eval_loss": "nan"},
        "checkpoint-200": {"eval_loss": "0.50"},
        "checkpoint-300": {"eval_loss": "inf"},
        "checkpoint-400": {"eval_loss": "4e-1"},
        "checkpoint-500": {"eval_loss": "-inf"},
        "checkpoint-600": {},
    }
    assert cli.json("latest", "run").json["step"] == 600


def test_an_evaluation_too_long_for_a_record_is_sealed_all_the_same(cli, tier, metrics) -> None:
    subjects = ", ".join(f'"eval_{"ä" * 40}_{number:04}": 0.5' for number in range(2000))
    write_hf(tier / "run", 100, subjects)
    cli.done("scan", tier / "run")
    (kept,) = metrics.by_name.values()
    assert 10 < len(kept) < 2000


def test_a_name_that_no_record_can_hold_is_left_out(cli, tier, metrics) -> None:
    write_hf(tier / "run", 100, '"eval_\\ud800": 1.0, "eval_\\n": 1.0, "eval_loss": 0.5')
    cli.done("scan", tier / "run")
    assert metrics.by_name == {"checkpoint-100": {"eval_loss": "0.5"}}


def test_what_is_told_later_outweighs_the_seal_and_the_last_word_counts(cli, tier, metrics) -> None:
    write_hf(tier / "run", 100, '"eval_loss": 0.5, "eval_n": 1')
    cli.done("scan", tier / "run")
    for value in ("0.7", "0.6"):
        cli.done("metric", "run", "100", f"eval_loss={value}")
    told = cli.done("metric", tier / "run", "100", "val/acc=x=.9")
    assert told.out.startswith("told of step 100 (sha256:")
    assert metrics.by_name["checkpoint-100"] == {
        "eval_loss": "0.6",
        "eval_n": "1",
        "val/acc=x": ".9",
    }


def test_it_outweighs_the_seal_also_where_a_rebuild_numbers_the_records_anew(
    cli, tier, metrics
) -> None:
    write_hf(tier / "run", 100, '"eval_loss": 0.5')
    cli.done("scan", tier / "run")
    cli.done("metric", "run", "100", "eval_loss=0.7")
    backwards = [NumberedRecord(100 - one.number, one.record) for one in metrics.records]
    assert list(metrics_of(backwards).values()) == [{"eval_loss": "0.7"}]


def test_metrics_survive_a_rebuild_of_the_catalog(cli, tier, metrics, forget_catalog) -> None:
    write_hf(tier / "run", 100, '"eval_loss": 0.5')
    cli.done("scan", tier / "run")
    cli.done("metric", "run", "100", "score=1e3")
    before = metrics.by_name
    forget_catalog()
    cli.done("catalog", "rebuild")
    assert metrics.by_name == before == {"checkpoint-100": {"eval_loss": "0.5", "score": "1e3"}}


def test_a_slash_in_a_metrics_name_is_part_of_it(cli, tier, metrics) -> None:
    """Field report A13."""
    write_lightning(tier / "run/epoch=1-step=100-val/loss=0.41.ckpt", 100)
    write_lightning(tier / "run/epoch=2-step=200-val/loss=0.31.ckpt", 200)
    cli.done("scan", tier / "run")
    assert metrics.by_name == {
        "epoch=1-step=100-val/loss=0.41.ckpt": {"val/loss": "0.41"},
        "epoch=2-step=200-val/loss=0.31.ckpt": {"val/loss": "0.31"},
    }


def test_what_commit_is_told_stands_in_the_place_of_the_files_own(cli, tier, metrics) -> None:
    write_hf(tier / "run", 100, '"eval_loss": 0.5')
    cli.done("commit", tier / "run/checkpoint-100", "--metric", "score=2")
    assert metrics.by_name == {"checkpoint-100": {"score": "2"}}
    records = [json.loads(p.read_bytes()) for p in (tier / "run/.ckptgov/journal").iterdir()]
    assert [one["metrics"] for one in records if one["kind"] == "sealed"] == [{"score": "2"}]
