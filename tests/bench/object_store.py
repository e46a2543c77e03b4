"""Flushing to an S3 server on loopback and restoring from it, beside public tools on the same.

The server is SeaweedFS, which refuses wrong checksums. Every flush goes to a bucket of its own; all
restores read the objects that one flush wrote. Client CPU is that of the client's processes: the
server's is its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import s3_peers
from files import MIB, write_sums
from moving import xxhsum_cold
from registered import (
    NAME,
    RUN,
    Sealed,
    Timed,
    flush_here,
    flush_process,
    load_product,
    restore_here,
    restore_process,
    sealed,
)
from rounds import Cost, Plan, best_of, command, median, ratios, take_turns
from s3_peers import S3Peer
from table import Line

from ckptgov.testing.seaweedfs import WeedServer, reason_to_skip, weed_s3

_SHAPE, _COUNT, _SIZE_BYTES = "8 x 128 MiB", 8, 128 * MIB
_OURS = ("process", "in-process")
_GIB = 1024 * MIB


def lines(plan: Plan) -> Iterator[Line]:
    """Flush, then restore: CPU and wall beside the best peer in each."""
    if reason := reason_to_skip():
        yield Line(what="S3", note=reason)
        return
    peers, missing = s3_peers.found()
    if missing:
        yield Line(what="S3", note=f"not installed here: {', '.join(missing)}")
    load_product()
    base = plan.home / "weed"
    base.mkdir()
    try:
        with (
            weed_s3(base) as server,
            _environment(server),
            sealed(plan, plan.home / "s3", count=_COUNT, size_bytes=_SIZE_BYTES) as source,
        ):
            yield from _flush_lines(plan, server, source, peers)
            yield from _restore_lines(plan, server, source, peers)
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextmanager
def _environment(server: WeedServer) -> Iterator[None]:
    """Everyone finds the server, and nothing of this machine's own for AWS."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("AWS_") or name == "PYTHONPATH"]:
        del os.environ[name]
    os.environ.update(server.environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _flush_lines(
    plan: Plan, server: WeedServer, source: Sealed, peers: Sequence[S3Peer]
) -> Iterator[Line]:
    """Ours compares the source with its manifest besides; what peers do is in the notes."""
    state = source.state.with_name("state-of-turn")

    def ours(flush: Callable[[Mapping[str, str]], Cost]) -> Callable[[str], Timed]:
        def prepared(bucket: str) -> Timed:
            environ = _with_tier(source, state, server, bucket)
            return lambda: flush(environ)

        return prepared

    def theirs(peer: S3Peer) -> Callable[[str], Timed]:
        def prepared(bucket: str) -> Timed:
            argvs = peer.upload(source.directory, bucket, server.endpoint)
            return lambda: _run(argvs)

        return prepared

    contenders = {"process": ours(flush_process), "in-process": ours(flush_here)}
    contenders |= {peer.name: theirs(peer) for peer in peers}
    turns = iter(range(10**6))

    def turn(prepared: Callable[[str], Timed]) -> Cost:
        with _bucket(server, f"turn-{next(turns)}") as bucket:
            return source.from_disk(prepared(bucket))

    costs = take_turns(
        plan.few_rounds, {name: partial(turn, one) for name, one in contenders.items()}
    )
    notes = [f"{peer.name}: {peer.told_upload}" for peer in peers]
    yield from _lines_of("flush to S3", costs, source, notes)


def _restore_lines(
    plan: Plan, server: WeedServer, source: Sealed, peers: Sequence[S3Peer]
) -> Iterator[Line]:
    """Ours compares with the manifest, syncs, and reads back; so do peers, with ``xxhsum -c``."""
    if shutil.which("xxhsum") is None:
        yield Line(what="restore from S3", note="not installed here: xxhsum")
        return
    sums = source.directory.parent / "sums.xxh"
    names = [path.name for path in source.paths]
    write_sums(sums, ["xxhsum", "-q", "-H2"], names, source.directory)
    target = source.state.with_name("target")
    with _bucket(server, "restored-from") as bucket:
        environ = _with_tier(source, source.state.with_name("state-of-turn"), server, bucket)
        flush_process(environ)

        def theirs(peer: S3Peer) -> Cost:
            argvs = peer.download(f"{bucket}/{RUN}/{NAME}", target, server.endpoint)
            return _run([*argvs, ["sync"]]) + xxhsum_cold(sums, target)

        def turn(timed: Timed) -> Cost:
            target.mkdir()
            try:
                return source.from_disk(timed)
            finally:
                shutil.rmtree(target)

        contenders: dict[str, Timed] = {
            "process": lambda: restore_process(environ, target),
            "in-process": lambda: restore_here(environ, target),
        }
        contenders |= {peer.name: partial(theirs, peer) for peer in peers}
        costs = take_turns(
            plan.few_rounds, {name: partial(turn, one) for name, one in contenders.items()}
        )
    notes = [f"{peer.name}: {peer.told_download}; sync; cold xxhsum -c" for peer in peers]
    yield from _lines_of("restore from S3", costs, source, notes)


def _lines_of(
    what: str, costs: Mapping[str, list[Cost]], source: Sealed, notes: Sequence[str]
) -> Iterator[Line]:
    peers = [name for name in costs if name not in _OURS]
    cpu = ", ".join(
        f"{name} {median(each, of='cpu_s') * _GIB / source.bytes:.2f}"
        for name, each in costs.items()
    )
    told = "\n    ".join([f"client CPU s per GiB: {cpu}", *notes])
    if not peers:
        yield Line(what=f"{what}, {_SHAPE}", note=told)
        return
    for name in _OURS:
        titled = f"{what}, {_SHAPE}" if name == "process" else f"  {name}, {_SHAPE}"
        for measure, of, at_most in (("client CPU", "cpu_s", 1.0), ("wall", "wall_s", 1.1)):
            best = best_of(costs, peers, of=of)
            is_last = (name, of) == (_OURS[-1], "wall_s")
            yield Line(
                what=f"{titled}: {measure}; {best}",
                ratios=ratios(costs[name], costs[best], of=of),
                at_most=at_most,
                note=told if is_last else "",
            )


def _with_tier(source: Sealed, state: Path, server: WeedServer, bucket: str) -> Mapping[str, str]:
    return source.known_to(
        state, f"s3://{bucket}", "--endpoint", server.endpoint, "--proof", "arrival-checksum"
    )


@contextmanager
def _bucket(server: WeedServer, name: str) -> Iterator[str]:
    """An empty bucket; its room on the disk is free again at the end."""
    client = server.client()
    try:
        client.create_bucket(Bucket=name)
        try:
            yield name
        finally:
            client.delete_bucket(Bucket=name)  # SeaweedFS lets go of what is in it, too
    finally:
        client.close()


def _run(argvs: Sequence[Sequence[str]]) -> Cost:
    first, *others = [command(argv, os.environ) for argv in argvs]
    return sum(others, first)
