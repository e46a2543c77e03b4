"""Which names carry a step, and which are temporary."""

from __future__ import annotations

import pytest

from ckptgov.layouts.names import is_debris, is_staging, last_integer, step_of_name, step_of_path
from ckptgov.model.checkpoint import StepKind

STEPS = {
    "step_100": 100,
    "step-100": 100,
    "step100": 100,
    "Step=7": 7,
    "global_step100": 100,
    "global_step_50": 50,
    "checkpoint-9000": 9000,
    "checkpoint_5": 5,
    "iter_0000100": 100,
    "iter_12345678": 12345678,
    "iteration_7": 7,
    "ckpt_00000002": 2,
    "020000": 20000,
    "0900000": 900000,
    "0": 0,
    "epoch=1-step=200.ckpt": 200,
    "epoch=1-step=200-v1.ckpt": 200,
    "epoch=1-step=100-val": 100,
    "epoch_3_iter_2000.pth": 2000,
    "acc_step_250.pth": 250,
    "foo-step-12": 12,
    "foo-step-12-old": 12,
    "checkpoint-step-100": 100,
    "step_1-rank_0.pt": 1,
}

ORDINALS = {"epoch418": 418, "epoch=3.ckpt": 3, "checkpoint_epoch_4": 4, "checkpoint_5_100": 100}

STEPLESS = [
    "ddp2",
    "zero2",
    "best_top10",
    "v1",
    "2rank",
    "fsdp2-4rank",
    "checkpoint-handpicked",
    "release",
    "handpicked",
    "run_1",
    "node0",
    "tmp-checkpoint-50",
    "checkpoint_last",
    "last-v1.ckpt",
    "last.ckpt",
    "loss=0.41.ckpt",
    "step=1.5",
    "step_10k",
    "footstep5",
    "200.orbax-checkpoint-tmp",
    "step_100.tmp",
    "1234567890123456789",
    "rank_0.pt",
]

STAGING = [
    "tmp-checkpoint-50",
    "tmp-checkpoint-s0yubqtr",
    "2.orbax-checkpoint-tmp",
    "200.orbax-checkpoint-tmp-1700000000",
    "state.orbax-checkpoint-tmp",
    ".tmptsu7mC",
    ".metadata.tmp",
    "__3.metadata.tmp",
    "checkpoint_5_200-shard2.pt.tmp",
    "x.partial",
    "x.incomplete",
    "iter_0000100_0_local.dirty.pt",
    "manifest.ocdbt.__lock",
    ".nfs0000000012ab34cd",
    ".ckptgov",
    ".ckptgov-tier.json",
    "megatron_gpt-unfinished",
]

NO_STAGING = [
    "step_100",
    "tmp",
    "template",
    ".tmpabc",
    "checkpoint-50",
    "partial",
    "lasting.pt",
    "tmp-logs",
]


@pytest.mark.parametrize(("name", "step"), STEPS.items())
def test_a_name_with_a_step_word_or_a_bare_number_carries_its_step(name: str, step: int) -> None:
    assert step_of_name(name) == (step, StepKind.STEP)


@pytest.mark.parametrize(("name", "step"), ORDINALS.items())
def test_epochs_and_two_numbers_give_an_ordinal(name: str, step: int) -> None:
    assert step_of_name(name) == (step, StepKind.ORDINAL)


@pytest.mark.parametrize("name", STEPLESS)
def test_other_names_carry_no_step(name: str) -> None:
    assert step_of_name(name) is None


def test_the_last_component_that_carries_a_step_decides() -> None:
    assert step_of_path("run/epoch=1-step=100-val/loss=0.41.ckpt") == (100, StepKind.STEP)
    assert step_of_path("step_5/step_7/model") == (7, StepKind.STEP)
    assert step_of_path("best/model") is None


def test_a_step_above_an_ordinal_wins() -> None:
    assert step_of_path("step_100/epoch_3.pt") == (100, StepKind.STEP)
    assert step_of_path("epoch_2/epoch_3.pt") == (3, StepKind.ORDINAL)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model_12.pt", (12, StepKind.ORDINAL)),
        ("save-3-of-9.pt", (9, StepKind.ORDINAL)),
        ("acc_0.93_step_250.pth", (250, StepKind.STEP)),
        ("clip.mp4", None),
        ("loss=0.41.ckpt", None),
        ("best.pt", None),
    ],
)
def test_the_last_integer_of_a_generic_name_is_an_ordinal(
    name: str, expected: tuple[int, StepKind] | None
) -> None:
    assert last_integer(name) == expected


@pytest.mark.parametrize("name", STAGING)
def test_temporary_names_are_staging_and_carry_no_step(name: str) -> None:
    assert is_staging(name)
    assert step_of_name(name) is None


@pytest.mark.parametrize("name", NO_STAGING)
def test_other_names_are_not_staging(name: str) -> None:
    assert not is_staging(name)


@pytest.mark.parametrize("name", ["x-unfinished", ".nfs00000001", ".ckptgov", ".ckptgov-tier.json"])
def test_what_must_not_be_cleaned_away_is_skipped_but_no_debris(name: str) -> None:
    assert is_staging(name)
    assert not is_debris(name)
