"""Digest of a warm file in one thread, beside ``xxhsum -H2`` on the same file.

xxhsum's own loop is the time of the program on the file, less its time on an empty one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from files import MIB, warm, write_shards
from rounds import Cost, Plan, called, command, ratios, take_turns
from table import Line

from ckptgov.manifest.digest import digest_file
from ckptgov.storage.posix import PosixStorage


def lines(plan: Plan) -> Iterator[Line]:
    """Below 64 MiB a file has one digest; above, each 64 MiB chunk has another of its own."""
    for size_mib, times, kind in ((64, 16, "one digest"), (1024, 1, "with chunk digests")):
        size_bytes = max(size_mib * MIB // plan.scale, 1)
        what = f"digest a warm file, {size_mib} MiB, {kind}; xxhsum's loop"
        ours, theirs = _measured(plan, size_bytes, times)
        if not theirs:
            yield Line(what=what, at_least=0.9, note="xxhsum is not installed")
            continue
        yield Line(what=what, ratios=ratios(theirs, ours), at_least=0.9)


def _measured(plan: Plan, size_bytes: int, times: int) -> tuple[list[Cost], list[Cost]]:
    xxhsum = shutil.which("xxhsum")
    if xxhsum is None:
        return [], []
    directory = plan.home / "digest"
    (path,) = write_shards(directory, count=1, size_bytes=size_bytes)
    empty = directory / "empty"
    empty.touch()
    warm([path])

    def program(*on: Path) -> Cost:
        return command([xxhsum, "-q", "-H2", *map(str, on)], os.environ)

    def loop() -> Cost:
        whole, start = program(*[path] * times), program(*[empty] * times)
        return Cost(max(whole.wall_s - start.wall_s, 1e-9), max(whole.cpu_s - start.cpu_s, 1e-9))

    def ours() -> Cost:
        with storage.open(path.name) as file:
            return called(lambda: [digest_file(file) for _ in range(times)])

    try:
        with PosixStorage(directory) as storage:
            ours()
            costs = take_turns(plan.rounds, {"ours": ours, "theirs": loop})
    finally:
        shutil.rmtree(directory)
    return costs["ours"], costs["theirs"]
