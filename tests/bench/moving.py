"""Flushing from one directory to another, beside copying and comparing with public tools.

The source is not in the page cache, the target is empty, and nothing waits to be written when a
turn begins.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from files import MIB, drop_cached, write_sums
from registered import Sealed, Timed, flush_here, flush_process, load_product, sealed
from rounds import Cost, Plan, command, ratios, take_turns
from table import Line

SHAPES = (("8 x 128 MiB", 8, 128 * MIB), ("4096 x 64 KiB", 4096, MIB // 16))
_PEERS = ("xxhsum", "rclone", "rsync")
_OURS = (("process", "flush"), ("here", "  in-process"))

Prepared = Callable[[Path], Timed]
"""Given an empty target directory, what to time."""


def lines(plan: Plan) -> Iterator[Line]:
    """Per shape: publishing without proof, and with everything read back."""
    missing = [peer for peer in _PEERS if shutil.which(peer) is None]
    if missing:
        yield Line(what="flush, read back", note=f"not installed here: {', '.join(missing)}")
    load_product()
    for shape, count, size_bytes in SHAPES:
        with sealed(plan, plan.home / "flush", count=count, size_bytes=size_bytes) as source:
            yield from _publish_lines(plan, source, shape)
            yield from _read_back_lines(plan, source, shape)


def _publish_lines(plan: Plan, source: Sealed, shape: str) -> Iterator[Line]:
    read: list[float] = []

    def counted(environ: Mapping[str, str]) -> Cost:
        before = _bytes_read()
        cost = flush_here(environ)
        read.append((_bytes_read() - before) / source.bytes)
        return cost

    contenders = {
        "process": _ours(source, "none", flush_process),
        "here": _ours(source, "none", counted),
        "cp": lambda target: lambda: _copied(source, target),
    }
    costs = _measured(plan, source, contenders)
    for name, what in _OURS:
        yield Line(
            what=f"{what}, {shape}, publish only: wall; cp -r + sync",
            ratios=ratios(costs[name], costs["cp"]),
            at_most=1.0,
        )
    yield Line(
        what=f"  in-process, {shape}: bytes read; its bytes",
        ratios=read,
        at_most=1.05,
        note="by all system calls that read, of /proc/self/io; the source, state and records",
    )


def _read_back_lines(plan: Plan, source: Sealed, shape: str) -> Iterator[Line]:
    peers = dict(_peers(source))
    contenders = {
        "process": _ours(source, "readback", flush_process),
        "here": _ours(source, "readback", flush_here),
    }
    costs = _measured(plan, source, contenders | peers)
    if "cp" in costs:
        for name, what in _OURS:
            yield Line(
                what=f"{what}, {shape}, read back: wall; cp+sync+xxhsum",
                ratios=ratios(costs[name], costs["cp"]),
                at_most=1.0,
            )
    if "rclone" in costs:
        yield Line(
            what=f"rclone copy + check, {shape}: wall; flush, read back",
            ratios=ratios(costs["rclone"], costs["process"]),
            at_least=3.0,
            note="rclone copy; rclone check --download: neither synced nor read from the disk",
        )
    if "rsync" in costs:
        yield Line(
            what=f"rsync twice, {shape}: wall; flush, read back",
            ratios=ratios(costs["rsync"], costs["process"]),
            note="rsync -a -c; sync; the same again from the disk",
        )


def _peers(source: Sealed) -> Iterator[tuple[str, Prepared]]:
    if shutil.which("xxhsum") is not None:
        sums = source.directory.parent / "sums.xxh"
        names = [path.name for path in source.paths]
        write_sums(sums, ["xxhsum", "-q", "-H2"], names, source.directory)
        yield (
            "cp",
            lambda target: lambda: _copied(source, target) + xxhsum_cold(sums, target / "copy"),
        )
    if shutil.which("rclone") is not None:
        yield "rclone", lambda target: lambda: _rclone(source, target)
    if shutil.which("rsync") is not None:
        yield "rsync", lambda target: lambda: _rsync(source, target)


def xxhsum_cold(sums: Path, directory: Path) -> Cost:
    """``xxhsum -c`` on files that are on the disk and not in memory."""
    drop_cached(directory.iterdir())
    return command(["xxhsum", "-q", "-c", str(sums)], os.environ, cwd=directory)


def _copied(source: Sealed, target: Path) -> Cost:
    return _run(["cp", "-r", str(source.directory), str(target / "copy")]) + _run(["sync"])


def _rclone(source: Sealed, target: Path) -> Cost:
    plain = ["rclone", "--config", os.devnull, "--quiet"]
    both = [str(source.directory), str(target / "copy")]
    return _run([*plain, "copy", *both]) + _run([*plain, "check", "--download", *both])


def _rsync(source: Sealed, target: Path) -> Cost:
    copy = ["rsync", "-a", "-c", f"{source.directory}/", f"{target}/copy/"]
    cost = _run(copy) + _run(["sync"])
    drop_cached([*source.paths, *(target / "copy").iterdir()])
    return cost + _run(copy)


def _run(argv: Sequence[str]) -> Cost:
    return command(argv, os.environ)


def _ours(source: Sealed, proof: str, flush: Callable[[Mapping[str, str]], Cost]) -> Prepared:
    def prepared(target: Path) -> Timed:
        state = source.state.with_name("state-of-turn")
        environ = source.known_to(state, str(target), "--proof", proof)
        return lambda: flush(environ)

    return prepared


def _measured(
    plan: Plan, source: Sealed, contenders: Mapping[str, Prepared]
) -> dict[str, list[Cost]]:
    def turn(prepared: Prepared) -> Cost:
        target = source.state.with_name("target")
        target.mkdir()
        try:
            return source.from_disk(prepared(target))
        finally:
            shutil.rmtree(target)

    return take_turns(
        plan.few_rounds, {name: partial(turn, one) for name, one in contenders.items()}
    )


def _bytes_read() -> int:
    """What this process has read by system calls, wherever the bytes were."""
    told = Path("/proc/self/io").read_text().split()
    return int(told[told.index("rchar:") + 1])
