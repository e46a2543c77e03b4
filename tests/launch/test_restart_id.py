"""The name of a restart: one for all its ranks, another for every other restart."""

from __future__ import annotations

import pytest

from ckptgov.errors import UsageError
from ckptgov.integrations.restart_id import compose, is_first_rank

TORCH = {
    "TORCHELASTIC_RUN_ID": "t",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "4711",
    "WORLD_SIZE": "8",
}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}
JOBSET = {"JOBSET_UID": "5f0c-uid", "JOBSET_RESTART_ATTEMPT": "0"}
UID = "754cca77-ac95-4b00-8f8b-f2d39f4e4804"
VOLCANO = {"VOLCANO_POD_GROUP": f"train-{UID}", "VOLCANO_JOB_VERSION": "0"}


def name(environ: dict[str, str]) -> str:
    return compose(environ).restart_id


@pytest.mark.parametrize("environ", [TORCH, SLURM, JOBSET, VOLCANO])
def test_ranks_of_one_restart_compose_the_same_name(environ: dict[str, str]) -> None:
    ranks = [{**environ, "RANK": rank, "SLURM_PROCID": rank, "LOCAL_RANK": rank} for rank in "01"]
    assert name(ranks[0]) == name(ranks[1])


@pytest.mark.parametrize(
    ("environ", "changed"),
    [
        (TORCH, {"TORCHELASTIC_RESTART_COUNT": "1"}),
        (TORCH, {"TORCHELASTIC_RUN_ID": "u"}),
        (TORCH, {"MASTER_PORT": "4712"}),
        (TORCH, {"MASTER_ADDR": "node1"}),
        (TORCH, {"WORLD_SIZE": "4"}),
        (SLURM, {"SLURM_RESTART_COUNT": "1"}),
        (SLURM, {"SLURM_STEP_ID": "2"}),
        (SLURM, {"SLURM_JOB_ID": "8"}),
        (SLURM, {"SLURM_CLUSTER_NAME": "east"}),
        (JOBSET, {"JOBSET_RESTART_ATTEMPT": "1"}),
        (JOBSET, {"JOBSET_UID": "6f0c-uid"}),
        (VOLCANO, {"VOLCANO_JOB_VERSION": "1"}),
        (SLURM | TORCH, {"SLURM_RESTART_COUNT": "1"}),
        (SLURM | TORCH, {"TORCHELASTIC_RESTART_COUNT": "1"}),
        (JOBSET | TORCH, {"MASTER_PORT": "4712"}),
        (SLURM, {"CKPTGOV_RESTART_ID": "mine"}),
        ({"CKPTGOV_RESTART_ID": "mine"} | TORCH, {"TORCHELASTIC_RESTART_COUNT": "1"}),
        ({"BATCH_JOB_UID": "a"} | TORCH, {"BATCH_JOB_UID": "b"}),
    ],
)
def test_another_restart_has_another_name(environ: dict[str, str], changed: dict[str, str]) -> None:
    assert name(environ) != name(environ | changed)


def test_slurm_sets_no_count_before_the_first_requeue() -> None:
    assert name(SLURM) == name(SLURM | {"SLURM_RESTART_COUNT": "0"})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        TORCH | {"TORCHELASTIC_RUN_ID": "none"},
        {"JOBSET_NAME": "train", "JOBSET_RESTART_ATTEMPT": "0"},
        {"JOBSET_UID": "5f0c-uid"},
        VOLCANO | {"VOLCANO_POD_GROUP": "train"},
        {"BATCH_JOB_UID": "a"},
        {"SLURM_JOB_ID": " "},
        SLURM | {"OMPI_COMM_WORLD_SIZE": "2"},
    ],
)
def test_what_does_not_name_one_restart_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        compose(environ)
    assert "--restart-id" in (caught.value.hint or "")


def test_the_default_run_id_of_torchrun_is_enough_inside_an_srun() -> None:
    assert compose(SLURM | TORCH | {"TORCHELASTIC_RUN_ID": "none"}).restart_id


@pytest.mark.parametrize("missing", ["TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"])
def test_half_of_what_torchrun_says_is_refused_even_under_slurm(missing: str) -> None:
    told = {key: value for key, value in (SLURM | TORCH).items() if key != missing}
    with pytest.raises(UsageError, match=missing):
        compose(told)


def test_mpirun_s_ranks_go_by_a_name_they_are_given() -> None:
    given = SLURM | {"OMPI_COMM_WORLD_SIZE": "2", "CKPTGOV_RESTART_ID": "7.0.a"}
    assert compose(given).restart_id.startswith("7.0.a/")


def test_a_batch_script_asks_alone_and_an_srun_s_ranks_do_not() -> None:
    assert compose({"SLURM_JOB_ID": "7"}).is_alone
    assert not compose(SLURM).is_alone
    assert not compose({"SLURM_JOB_ID": "7"} | TORCH).is_alone


def test_the_first_rank_speaks() -> None:
    assert is_first_rank({})
    assert is_first_rank({"RANK": "0", "SLURM_PROCID": "3"})
    assert not is_first_rank({"SLURM_PROCID": "3"})
