"""Planning over very many checkpoints: how time grows, and how much memory it takes.

Each plan is made in a process of its own, over runs that are made up one by one as they are asked
for, so that only what planning itself remembers adds up. The times include making them up.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

from rounds import ROOT, Plan, product_environ
from table import Line

sys.path.insert(0, str(ROOT))

from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.copies import CopyState
from ckptgov.model.policy import ALL, Best, Calendar, CapacityRule, KeepRules, Policy
from ckptgov.model.retention import CheckpointToKeep, CopyToKeep, RunToKeep
from ckptgov.planning.capacity import Fill
from ckptgov.planning.retention_plan import plan_of

RUNS = 10_000
FEW, MANY = 100_000, 1_000_000
_HOUR_NS = 3600 * 10**9
_NOW_NS = 498_720 * _HOUR_NS
_TB = 10**12


def lines(plan: Plan) -> Iterator[Line]:
    """Growth and memory, with room on every tier, and with one that is too full."""
    for is_full in (False, True):
        ratios, megabytes, told = [], [], {}
        for _ in range(max(1, plan.few_rounds // 3)):
            few = _measured(plan, FEW, is_full)
            many = _measured(plan, MANY, is_full)
            ratios.append(many["cpu_s"] / few["cpu_s"])
            megabytes.append(many["peak_mb"])
            told = many
        what = "plan 10^6 checkpoints in 10^4 runs" + (", one tier too full" if is_full else "")
        note = (
            f"{told['cpu_s']:.0f} s of one core, of which {told['making_s']:.0f} s to make up the "
            f"runs; {told['entries']:.0f} copies go"
        )
        yield Line(what=f"{what}: time, against 10^5", ratios=ratios, at_most=11, note=note)
        yield Line(what=f"{what}: memory", ratios=megabytes, at_most=250, unit="MB")


def _measured(plan: Plan, checkpoints: int, is_full: bool) -> dict[str, float]:
    """What one plan costs, in a process of its own."""
    runs = max(1, RUNS // plan.scale)
    argv = [sys.executable, __file__, str(runs), str(checkpoints // RUNS), str(int(is_full))]
    environ = product_environ(plan.home)
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _policy() -> Policy:
    return Policy(
        name="long-pretrain",
        digest="sha256:" + 64 * "0",
        file="long-pretrain.yaml",
        timezone="Europe/Berlin",
        keep={
            "nvme": KeepRules(last=2),
            "lustre": KeepRules(
                last=2,
                within_s=86400.0,
                buckets=((Calendar.DAILY, 2), (Calendar.WEEKLY, 1)),
                every_steps=10_000,
                best=(Best(metric="eval_loss", count=2),),
            ),
            "s3": KeepRules(last=3, buckets=((Calendar.MONTHLY, ALL),)),
        },
        capacity={"lustre": CapacityRule(high_percent=90, low_percent=80)},
    )


def _runs(count: int, checkpoints: int) -> Iterator[tuple[RunToKeep, Policy]]:
    """Runs of which about one checkpoint in ten is to go, whatever their length."""
    policy = _policy()
    for number in range(count):
        points = tuple(_point(number, index, checkpoints) for index in range(checkpoints))
        facts = RunToKeep(
            run_id=f"00000000-0000-4000-8000-{number:012}",
            name=f"lm/llama-{number}",
            met_at_ns=0,
            alive_at_ns=_NOW_NS,
            checkpoints=points,
        )
        yield facts, policy


def _point(run: int, index: int, count: int) -> CheckpointToKeep:
    step = 10_000 * index - (5_000 if index % 10 == 5 else 0)
    tiers = (
        ["lustre"] + (["s3"] if index % 10 == 0 else []) + (["nvme"] if index + 3 >= count else [])
    )
    return CheckpointToKeep(
        content_id=f"sha256:{run:032x}{index:032x}",
        name=f"checkpoint-{step}",
        step=step,
        step_kind=StepKind.STEP,
        line=1,
        purposes=(Purpose.RESUME, Purpose.WEIGHTS),
        bytes=_TB,
        shard_count=256,
        saved_at_ns=_NOW_NS - 24 * (count - index) * _HOUR_NS - run,
        metrics=(("eval_loss", f"{2 + (index * 7919 % 1000) / 1000}"),),
        copies=tuple(_copy(tier, run) for tier in tiers),
    )


def _copy(tier: str, run: int) -> CopyToKeep:
    node = f"node{run % 500}" if tier == "nvme" else None
    return CopyToKeep(
        place=tier if node is None else f"{tier}@{node}",
        tier=tier,
        node=node,
        state=CopyState.VERIFIED,
        bytes=_TB,
        files=256,
        verified_at_ns=_NOW_NS - _HOUR_NS,
    )


def main(argv: list[str]) -> None:
    """Make one plan and tell what it cost."""
    runs, checkpoints, is_full = (int(each) for each in argv)
    begun = time.process_time()
    for _ in _runs(runs, checkpoints):
        pass
    making_s = time.process_time() - begun
    size = runs * checkpoints * _TB
    lustre = Fill(
        place="lustre",
        tier="lustre",
        node=None,
        used_bytes=size,
        total_bytes=size * 9 // 10 if is_full else 3 * size,
    )
    begun = time.process_time()
    made = plan_of(
        lambda: _runs(runs, checkpoints),
        fills=[lustre],
        now_ns=_NOW_NS,
        change_seq=1,
        verify_max_age_s=7 * 86400.0,
    )
    told = {
        "cpu_s": time.process_time() - begun,
        "making_s": making_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "entries": len(made.entries),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1:])
