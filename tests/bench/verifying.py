"""Verifying a sealed checkpoint beside the public tools that compare files with known hashes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from files import MIB, drop_cached, warm, write_shards, write_sums
from rounds import (
    Cost,
    Plan,
    best_of,
    called,
    command,
    product_argv,
    product_environ,
    ratios,
    take_turns,
)
from table import Line

from ckptgov.manifest.compare import ShardState, compare
from ckptgov.manifest.forms.manifests import decode_manifest
from ckptgov.model.checkpoint import Manifest, VerifyLevel
from ckptgov.model.settings import Settings
from ckptgov.storage.posix import PosixStorage

_SHAPES = (("8 x 256 MiB", 8, 256 * MIB), ("16384 x 64 KiB", 16_384, MIB // 16))
_NAME = "step_1"
_PEERS = ("xxhsum", "b3sum", "rclone")


def lines(plan: Plan) -> Iterator[Line]:
    """Per shape, cold and warm: the process, and in it the comparing alone."""
    missing = [peer for peer in _PEERS if shutil.which(peer) is None]
    if missing:
        yield Line(what="verify", note=f"not installed here: {', '.join(missing)}")
    if len(missing) == len(_PEERS):
        return
    for shape, count, size_bytes in _SHAPES:
        run = plan.home / f"verify-{count}"
        if size_bytes > MIB:
            size_bytes = max(size_bytes // plan.scale, MIB)
        else:
            count = max(count // plan.scale, 2)
        try:
            yield from _shape_lines(plan, run, shape, count, size_bytes)
        finally:
            shutil.rmtree(run, ignore_errors=True)


def _shape_lines(plan: Plan, run: Path, shape: str, count: int, size_bytes: int) -> Iterator[Line]:
    paths = write_shards(run / _NAME, count=count, size_bytes=size_bytes)
    environ = product_environ(plan.home)
    command(product_argv("commit", str(run / _NAME), "--run", "bench"), environ)
    contenders = _contenders(run, paths, environ)
    for temperature in ("cold", "warm"):
        is_cold = temperature == "cold"
        warm(paths)
        costs = take_turns(
            plan.rounds,
            {name: _prepared(run_it, paths, is_cold) for name, run_it in contenders.items()},
        )
        yield from _lines_of(f"{shape}, {temperature}", costs)


def _prepared(
    run_it: Callable[[], Cost], paths: Sequence[Path], is_cold: bool
) -> Callable[[], Cost]:
    def prepared() -> Cost:
        if is_cold:
            drop_cached(paths)
        return run_it()

    return prepared


def _lines_of(shape: str, costs: Mapping[str, list[Cost]]) -> Iterator[Line]:
    peers = [name for name in costs if name not in ("process", "compare")]
    best = best_of(costs, peers)
    for name, what in (("process", "verify"), ("compare", "  comparing alone")):
        yield Line(
            what=f"{what}, {shape}: wall; {best}",
            ratios=ratios(costs[name], costs[best]),
            at_most=1.0,
        )
        if "xxhsum -c" in costs:
            yield Line(
                what=f"{what}, {shape}: CPU; xxhsum -c",
                ratios=ratios(costs[name], costs["xxhsum -c"], of="cpu_s"),
                at_most=0.5,
            )


def _contenders(
    run: Path, paths: Sequence[Path], environ: Mapping[str, str]
) -> dict[str, Callable[[], Cost]]:
    directory = run / _NAME
    manifest = _manifest_of(run)

    def compare_here() -> Cost:
        with PosixStorage(run) as storage:
            return called(lambda: _compared(manifest, storage))

    found: dict[str, Callable[[], Cost]] = {
        "process": lambda: command(product_argv("verify", str(run)), environ),
        "compare": compare_here,
    }
    for name, argv in _peer_commands(directory, paths).items():
        found[name] = lambda argv=argv: command(argv, os.environ, cwd=directory)
    return found


def _compared(manifest: Manifest, storage: PosixStorage) -> None:
    threads = Settings(home="").digest_threads
    reports = compare(manifest, storage, _NAME, level=VerifyLevel.DIGEST, threads=threads)
    wrong = [one.path for one in reports if one.state is not ShardState.MATCHES]
    if wrong:
        raise RuntimeError(f"{wrong[0]} does not match")


def _manifest_of(run: Path) -> Manifest:
    (path,) = (run / ".ckptgov" / "manifests").iterdir()
    return decode_manifest(path.read_bytes(), where=str(path))


def _peer_commands(directory: Path, paths: Sequence[Path]) -> dict[str, list[str]]:
    """Each installed peer with a list of hashes that it made itself.

    rclone compares a directory with MD5 sums, the strongest hash it shares with a local disk by
    default; b3sum uses all cores by itself, xxhsum one.
    """
    commands: dict[str, list[str]] = {}
    sums = directory.parent
    names = [path.name for path in paths]
    if (xxhsum := shutil.which("xxhsum")) is not None:
        write_sums(sums / "sums.xxh", [xxhsum, "-q", "-H2"], names, directory)
        commands["xxhsum -c"] = [xxhsum, "-q", "-c", str(sums / "sums.xxh")]
    if (b3sum := shutil.which("b3sum")) is not None:
        write_sums(sums / "sums.b3", [b3sum], names, directory)
        commands["b3sum -c"] = [b3sum, "--quiet", "--check", str(sums / "sums.b3")]
    if (rclone := shutil.which("rclone")) is not None:
        plain = [rclone, "--config", os.devnull, "--quiet"]
        write_sums(sums / "sums.md5", [*plain, "md5sum", "."], [], directory)
        commands["rclone check"] = [
            *plain,
            "check",
            "--checkfile",
            "md5",
            str(sums / "sums.md5"),
            ".",
        ]
    return commands
