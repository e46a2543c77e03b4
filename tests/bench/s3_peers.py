"""Public S3 clients: where they are, and the commands that move a directory with them.

Flags are those of integrity equal to ours: the server compares what arrives with a checksum of the
client's. Everything else is as each program comes.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Argvs = list[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Peer:
    """``upload`` and ``download`` take a directory and a bucket with a prefix, in this order of
    their going, and the endpoint; ``told_…`` is what a reader needs to know of them."""

    name: str
    upload: Callable[[Path, str, str], Argvs]
    download: Callable[[str, Path, str], Argvs]
    told_upload: str
    told_download: str


def found() -> tuple[list[S3Peer], list[str]]:
    """Those that run here, and the names of the others."""
    makers = {"s5cmd": _s5cmd, "rclone": _rclone, "aws": _aws}
    peers, missing = [], []
    for name, make in makers.items():
        path = _program(name)
        if path is None:
            missing.append(name)
        else:
            peers.append(make(path))
    return peers, missing


def _program(name: str) -> str | None:
    """The program itself, not what a wheel or pyenv put before it: that one's start costs CPU."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:
        within = Path(spec.origin).parent / "bin" / name
        if within.is_file():
            return _working(str(within))
    path = shutil.which(name)
    if path is not None and Path(path).parent.name == "shims" and shutil.which("pyenv"):
        told = subprocess.run(["pyenv", "which", name], capture_output=True, text=True, check=False)
        path = told.stdout.strip() or None
    return _working(path) if path is not None else None


def _working(path: str) -> str | None:
    for ask in ("version", "--version"):  # each program knows one of them
        try:
            done = subprocess.run([path, ask], capture_output=True, check=False, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode == 0:
            return path
    return None


def _s5cmd(path: str) -> S3Peer:
    def argv(endpoint: str, source: str, target: str) -> Argvs:
        return [[path, "--log", "error", "--endpoint-url", endpoint, "cp", source, target]]

    return S3Peer(
        name="s5cmd",
        upload=lambda source, to, endpoint: argv(endpoint, f"{source}/", f"s3://{to}/"),
        download=lambda at, target, endpoint: argv(endpoint, f"s3://{at}/*", f"{target}/"),
        told_upload="s5cmd cp DIR/ s3://… (payloads signed, Content-MD5)",
        told_download="s5cmd cp 's3://…/*' DIR/",
    )


def _rclone(path: str) -> S3Peer:
    def argv(endpoint: str, verb: str, source: str, target: str) -> list[str]:
        store = ["--s3-provider", "Other", "--s3-env-auth", "--s3-region", "us-east-1"]
        store += ["--s3-endpoint", endpoint, "--s3-no-check-bucket"]
        return [path, "--config", "/dev/null", "--quiet", verb, *store, source, target]

    return S3Peer(
        name="rclone",
        upload=lambda source, to, endpoint: [
            argv(endpoint, verb, str(source), f":s3:{to}/") for verb in ("copy", "check")
        ],
        download=lambda at, target, endpoint: [argv(endpoint, "copy", f":s3:{at}", str(target))],
        told_upload="rclone copy DIR :s3:… --s3-provider Other --s3-no-check-bucket; rclone check",
        told_download="rclone copy :s3:… DIR --s3-provider Other",
    )


def _aws(path: str) -> S3Peer:
    def argv(endpoint: str, source: str, target: str) -> Argvs:
        return [
            [
                *(path, "s3", "cp", "--endpoint-url", endpoint),
                *("--recursive", "--only-show-errors", source, target),
            ]
        ]

    return S3Peer(
        name="aws",
        upload=lambda source, to, endpoint: argv(endpoint, str(source), f"s3://{to}/"),
        download=lambda at, target, endpoint: argv(endpoint, f"s3://{at}/", str(target)),
        told_upload="aws s3 cp --recursive DIR s3://… (its default checksums)",
        told_download="aws s3 cp --recursive s3://… DIR",
    )
