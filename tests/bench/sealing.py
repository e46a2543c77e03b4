"""Sealing when the digests are there already: all that is not reading, and its memory.

Measured in a process of its own (``python sealing.py DIR COUNT ROUNDS``), which prints one JSON
document: the ratios, and the greatest resident size it had.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from files import write_shards
from rounds import Plan, called, product_environ, ratios, take_turns
from table import Line

from ckptgov.manifest.build import build_manifest
from ckptgov.manifest.forms.manifests import encode_manifest
from ckptgov.model.checkpoint import Evidence, Manifest, Purpose, Shard, StepKind
from ckptgov.storage.posix import PosixStorage
from ckptgov.work.copyproof import stat_shards
from ckptgov.work.runstore import RunStore
from ckptgov.work.seal import publish_receipt

_COUNT = 16_384
_SIZE_BYTES = 64
_NAME = "step_1"


def lines(plan: Plan) -> Iterator[Line]:
    """Stat, build, encode, publish manifest and receipt; beside a stat and parse of the same."""
    count = max(_COUNT // plan.scale, 1)
    run = plan.home / "seal"
    try:
        write_shards(run / _NAME, count=count, size_bytes=_SIZE_BYTES)
        argv = [sys.executable, __file__, str(run), str(count), str(plan.rounds)]
        environ = product_environ(plan.home)
        done = subprocess.run(argv, env=environ, check=True, stdout=subprocess.PIPE)
    finally:
        shutil.rmtree(run, ignore_errors=True)
    told = json.loads(done.stdout)
    what = f"seal {count} shards, digests given"
    yield Line(what=f"{what}; stat and parse", ratios=told["ratios"], at_most=3.0)
    yield Line(what=f"{what}; memory", ratios=[told["rss_mb"]], at_most=200.0, unit="MB")


def _measure(run: Path, count: int, rounds: int) -> dict[str, object]:
    # As a part or a cooperative writer gives them.
    shards = [Shard(f"shard_{n:05d}.dat", _SIZE_BYTES, f"xxh3_128:{n:032x}") for n in range(count)]
    with PosixStorage(run) as storage:
        turn = iter(range(10**6))

        def seal() -> None:
            store = RunStore(storage, "", sidecar=f".ckptgov/{next(turn)}")
            stats = stat_shards(storage, _NAME, shards)
            manifest = _manifest(shards)
            store.publish_manifest(manifest)
            tokens = [(path, stat.token) for path, stat in stats.items() if stat is not None]
            publish_receipt(
                store,
                manifest,
                place="00000000-0000-4000-8000-000000000000",
                tokens=tokens,
                evidence=Evidence.DIGEST,
                at_ns=1,
            )

        raw = encode_manifest(_manifest(shards))
        names = [f"{run}/{_NAME}/{shard.path}" for shard in shards]

        def stat_and_parse() -> None:
            for name in names:
                os.lstat(name)
            json.loads(raw)

        costs = take_turns(
            rounds,
            {"ours": lambda: called(seal), "theirs": lambda: called(stat_and_parse)},
        )
    return {"ratios": ratios(costs["ours"], costs["theirs"]), "rss_mb": _most_resident_mb()}


def _manifest(shards: list[Shard]) -> Manifest:
    return build_manifest(
        name=_NAME,
        step=1,
        step_kind=StepKind.STEP,
        layout="declared",
        world_size=None,
        purposes=(Purpose.RESUME,),
        shards=shards,
    )


def _most_resident_mb() -> float:
    # Not getrusage: its figure outlives exec, so a large parent would be counted.
    status = Path("/proc/self/status").read_text()
    line = next(one for one in status.splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    json.dump(_measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), sys.stdout)
