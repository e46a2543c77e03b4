"""Removing very many small shards for good, beside ``rm -rf`` of an equal tree.

Ours decides, writes down and looks before and after: ``ckptgov plan``, then ``ckptgov apply`` of
the plan under a policy without grace and trash time, which condemns, moves aside and purges. What
is removed was sealed before any clock. Both trees were written just before, and are cached.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from rounds import Cost, Plan, command, product_argv, product_environ, ratios, take_turns
from table import Line

from ckptgov.governor import open_governor

RUN = "bench"
_TIER = "near"
_SHARDS, _CHECKPOINTS = 100_000, 100
_SIZE_BYTES = 1024
_POLICY = f"""\
policy: bench
runs: ["*"]
keep: {{{_TIER}: {{last: 1}}}}
floors: {{min_restorable: 1, min_age: 0s}}
safety: {{max_fraction: 100%, grace: 0s, trash: 0s, adoption_grace: 0s}}
"""


def lines(plan: Plan) -> Iterator[Line]:
    """So many shards in a hundred checkpoints, then in one."""
    shards = max(_SHARDS // plan.scale, 100)
    for checkpoints in (max(_CHECKPOINTS // plan.scale, 2), 1):
        many = f"{checkpoints} checkpoints" if checkpoints > 1 else "one checkpoint"
        yield _line(plan, shards, checkpoints, f"remove {shards} shards in {many}, against rm -rf")


def _line(plan: Plan, shards: int, checkpoints: int, what: str) -> Line:
    home = plan.home / "remove"
    told: dict[str, list[Cost]] = {"plan": [], "apply": []}

    def ours() -> Cost:
        environ = _sealed(plan, home, checkpoints, shards // checkpoints)
        os.sync()
        told["plan"].append(command(product_argv("plan"), environ))
        told["apply"].append(command(product_argv("apply", _plan_id(environ)), environ))
        left = [path.name for path in (home / "tier" / RUN).glob("step_*")]
        shutil.rmtree(home)
        if left != [f"step_{checkpoints + 1}"]:
            raise RuntimeError(f"remove: {len(left)} checkpoints are left")
        return told["plan"][-1] + told["apply"][-1]

    def theirs() -> Cost:
        _write(home, checkpoints, shards // checkpoints)
        os.sync()
        try:
            return command(["rm", "-rf", str(home)], os.environ)
        finally:
            shutil.rmtree(home, ignore_errors=True)

    try:
        costs = take_turns(max(1, plan.few_rounds // 3), {"ours": ours, "theirs": theirs})
    finally:
        shutil.rmtree(home, ignore_errors=True)
    rm, *_ = costs["theirs"]
    note = (
        f"first turn: plan {told['plan'][0].wall_s:.1f} s, apply {told['apply'][0].wall_s:.1f} s "
        f"({told['apply'][0].cpu_s:.1f} s of CPU), rm -rf {rm.wall_s:.1f} s"
    )
    return Line(what=what, ratios=ratios(costs["ours"], costs["theirs"]), at_most=5.0, note=note)


def _sealed(plan: Plan, home: Path, checkpoints: int, shards: int) -> Mapping[str, str]:
    """What is to go, and a newer small one that stays, sealed; the environment that knows them."""
    environ = {**product_environ(plan.home), "CKPTGOV_HOME": str(home / "state")}
    (home / "state/policies").mkdir(parents=True)
    (home / "state/policies/bench.yaml").write_text(_POLICY)
    _write(home, checkpoints, shards)
    command(product_argv("tier", "add", _TIER, str(home / "tier"), "--ingest"), environ)
    with open_governor(environ=environ) as governor:
        for step in range(1, checkpoints + 2):
            governor.commit(str(home / f"tier/{RUN}/step_{step}"), run=RUN)
    return environ


def _write(home: Path, checkpoints: int, shards: int) -> None:
    """All of them in one directory each, and one more of one shard."""
    filler = bytes(_SIZE_BYTES)
    for step in range(1, checkpoints + 2):
        directory = home / f"tier/{RUN}/step_{step}"
        directory.mkdir(parents=True)
        for number in range(shards if step <= checkpoints else 1):
            head = f"{step:08d}{number:08d}".encode()
            (directory / f"shard_{number:05d}.dat").write_bytes(head + filler[len(head) :])


def _plan_id(environ: Mapping[str, str]) -> str:
    argv = product_argv("plans", "--limit", "1", "--json")
    done = subprocess.run(argv, env=environ, check=True, capture_output=True)
    (stored,) = json.loads(done.stdout)["plans"]
    return str(stored["plan_id"])
