"""torch itself: distributed checkpoints (DCP), and plain ``torch.save`` a rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dcp = pytest.importorskip("torch.distributed.checkpoint")

pytestmark = pytest.mark.filterwarnings("ignore")

TITAN = re.compile(r"step-(\d+)")
"""How torchtitan finds its steps: unanchored, over every name of the folder
(torchtitan/components/checkpointer, ``_find_load_step``)."""

TWO_RANKS = """
import sys, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
weight = distribute_tensor(torch.arange(4096.0).reshape(64, 64), mesh, [Shard(0)])
dcp.save({"weight": weight}, checkpoint_id=sys.argv[1])
dist.destroy_process_group()
"""


def state(step: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((64, 64), float(step)), "bias": torch.arange(64.0) + step}


def save_dcp(run: Path, step: int) -> Path:
    dcp.save(state(step), checkpoint_id=run / f"step-{step}", no_dist=True)
    return run / f"step-{step}"


def test_dcp_loads_what_ckptgov_sealed(cli, run: Path) -> None:
    for step in (1, 2):
        save_dcp(run, step)
    assert cli.scan(run) == {"step-1": "restorable", "step-2": "restorable"}
    cli.assert_whole(run, "step-2")
    loaded = state(0)
    dcp.load(loaded, checkpoint_id=cli.latest(run), no_dist=True)
    assert torch.equal(loaded["weight"], state(2)["weight"])
    assert torch.equal(loaded["bias"], state(2)["bias"])


def test_a_bit_flip_in_a_dcp_shard_is_caught(cli, run: Path, flip: Callable[[Path], Path]) -> None:
    for step in (1, 2):
        save_dcp(run, step)
    cli.scan(run)
    cli.assert_caught(run, flip(run / "step-2" / "__0_0.distcp"), instead="step-1")


def test_two_ranks_of_dcp_are_one_checkpoint(
    cli, run: Path, tmp_path: Path, flip: Callable[[Path], Path]
) -> None:
    script = tmp_path / "save.py"
    script.write_text(TWO_RANKS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run(
        [*launch, str(script), str(run / "step_1")],
        check=True,
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert cli.scan(run) == {"step_1": "restorable"}
    cli.assert_whole(run, "step_1")
    cli.assert_caught(run, flip(run / "step_1" / "__1_0.distcp"), instead=None)


def test_an_async_save_is_seen_whole_when_it_is_done(cli, run: Path) -> None:
    dcp.async_save(state(1), checkpoint_id=run / "step_1", no_dist=True).result()
    assert cli.scan(run) == {"step_1": "restorable"}
    cli.assert_whole(run, "step_1")


def test_torchtitan_s_search_sees_its_own_steps_only(cli, run: Path) -> None:
    for step in (1, 2):
        save_dcp(run, step)
    cli.scan(run)
    found = {name for name in os.listdir(run) if TITAN.search(name)}
    assert found == {"step-1", "step-2"}


def test_plain_saves_a_rank_need_a_commit_and_then_are_compared(
    cli, run: Path, flip: Callable[[Path], Path]
) -> None:
    for rank in range(2):
        (run / "step_1").mkdir(exist_ok=True)
        torch.save(state(rank), run / "step_1" / f"rank_{rank}.pt")
    assert cli.scan(run) == {"step_1": "unproven"}
    assert cli("commit", run / "step_1").code == 0
    cli.assert_whole(run, "step_1")
    hurt = flip(run / "step_1" / "rank_1.pt")
    # torch checks no CRC: only the comparison tells.
    assert not torch.equal(torch.load(hurt)["weight"], state(1)["weight"])
    cli.assert_caught(run, hurt, instead=None)
