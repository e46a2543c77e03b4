"""A real torchrun restarts its workers; each asks through ``ckptgov exec`` where to go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("torch.distributed.checkpoint")

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).resolve().parents[2]

TRAIN = """
import os, shutil, sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

run, log, resumed = sys.argv[1], sys.argv[2], sys.argv[3:]
dist.init_process_group("gloo")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
weight = distribute_tensor(torch.zeros(64, 64), mesh, [Shard(0)])
state, step = {"weight": weight, "step": torch.zeros(())}, 0
if resumed:
    dcp.load(state, checkpoint_id=resumed[1])
    step = int(state["step"].item())
with open(f"{log}.{rank}", "a") as file:
    file.write(f"{step} {float(state['weight'].to_local().sum())}\\n")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
last = 30 if attempt == 0 else 40
while step < last:
    step += 10
    state["weight"] = distribute_tensor(torch.full((64, 64), float(step)), mesh, [Shard(0)])
    state["step"] = torch.tensor(float(step))
    dcp.save(state, checkpoint_id=f"{run}/step_{step}")
    dist.barrier()
if attempt == 0:
    if rank == 0:  # the newest one was not whole when the machine went
        os.truncate(f"{run}/step_{step}/__1_0.distcp", 100)
    dist.barrier()
    if rank == 1:
        os._exit(9)
    dist.barrier()  # the others hang until torchrun ends them
dist.destroy_process_group()
"""


@pytest.fixture
def torchrun(tmp_path: Path, run: Path):
    """Starts two workers that ask for themselves; gives what the process came to."""
    (tmp_path / "train.py").write_text(TRAIN)
    environ = os.environ | {
        "CKPTGOV_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "cli"))),
        "OMP_NUM_THREADS": "1",
        # A store shared by all starts keeps the addresses of ranks that are gone.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }

    def start(*options: str) -> subprocess.CompletedProcess[str]:
        launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
        ask = ("-m", "ckptgov_cli.main", "exec", str(run), *options)
        train = (sys.executable, str(tmp_path / "train.py"), str(run), str(tmp_path / "log"))
        words = (*launch, "--max-restarts=1", "--no-python", sys.executable, *ask, "--", *train)
        return subprocess.run(
            [sys.executable, *words], env=environ, capture_output=True, text=True, timeout=240
        )

    return start


def test_restarted_workers_go_on_from_the_newest_whole_checkpoint(
    torchrun, run: Path, tmp_path: Path, cli
) -> None:
    done = torchrun("--allow-fresh", "--resume-args", "--resume {path}")
    assert done.returncode == 0, done.stderr
    # Each began from nothing, and went on from 20: 30 lies there, and one of its shards is torn.
    for rank in range(2):
        told = (tmp_path / f"log.{rank}").read_text().splitlines()
        assert told == ["0 0.0", f"20 {20.0 * 32 * 64}"]
    assert cli.latest(run) == run / "step_40"
    decisions = list((run / ".ckptgov/journal").glob("restart.*.json"))
    assert len(decisions) == 2  # one for each start, not for each rank


def test_without_leave_to_start_fresh_no_worker_starts(torchrun, tmp_path: Path) -> None:
    done = torchrun("--resume-args", "--resume {path}")
    assert done.returncode != 0
    assert not (tmp_path / "log.0").exists()
    assert "there never was a checkpoint" in done.stderr
