"""What the fixtures that run servers and mounts share: programs, ports, waiting, ending."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_POLL_S = 0.02
_READY_S = 60.0
_STOP_S = 10.0


class FixtureFailed(Exception):
    """A program of a fixture did not come up; the message ends with what it said."""


def program(name: str) -> str | None:
    """The path of a program: on PATH, or beside this interpreter (a wheel put it there)."""
    beside = Path(sys.executable).parent / name
    return shutil.which(name) or (str(beside) if os.access(beside, os.X_OK) else None)


def required(name: str) -> str:
    """Like :func:`program`, for what ``reason_to_skip`` has looked for already."""
    found = program(name)
    if found is None:
        raise FixtureFailed(f"{name} is not installed")
    return found


def no_fuse() -> str | None:
    """Why this process cannot mount a FUSE file system; None where it can."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    if os.geteuid() != 0 and program("fusermount3") is None:
        return "neither root nor fusermount3"
    return None


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listened on just now, each another one."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]


def own_environment(home: Path) -> dict[str, str]:
    """This process's environment with another home and without its cloud credentials."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    return {**kept, "HOME": str(home)}


def wait_for_mount(process: subprocess.Popen[bytes], mountpoint: Path, log: Path) -> None:
    """Return when something is mounted there; raise FixtureFailed when that will not happen."""
    until = time.monotonic() + _READY_S
    while not os.path.ismount(mountpoint):
        if process.poll() is not None or time.monotonic() > until:
            raise FixtureFailed(f"{mountpoint} was not mounted:\n{tail(log)}")
        time.sleep(_POLL_S)


def tail(log: Path) -> str:
    """The end of what a program said."""
    return log.read_text(errors="replace")[-3000:] if log.exists() else ""


@contextlib.contextmanager
def mounted(
    command: list[str], mountpoint: Path, log: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that mounts something and stays; unmounted and ended on the way out."""
    mountpoint.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,  # a Ctrl-C of the test run must not end it before its files
        )
    try:
        wait_for_mount(process, mountpoint, log)
        yield process
    finally:
        unmount(mountpoint)
        end(process)


def unmount(mountpoint: Path) -> None:
    """Unmount; where files are still open, at least take it out of everyone's sight."""
    root = os.geteuid() == 0
    plain = ["umount"] if root else [required("fusermount3"), "-u"]
    lazy = ["umount", "-l"] if root else [required("fusermount3"), "-u", "-z"]
    for command in (plain, lazy):
        if not _is_mount(mountpoint):
            return
        subprocess.run([*command, str(mountpoint)], check=False, capture_output=True)


def _is_mount(mountpoint: Path) -> bool:
    try:
        return os.path.ismount(mountpoint)
    except OSError:
        return True  # its server is gone: "transport endpoint is not connected"


def end(process: subprocess.Popen[bytes]) -> None:
    """Let a program end by itself, ask it, kill it: in this order, each with its time."""
    if process.stdin is not None:
        process.stdin.close()
    for push in (None, process.terminate, process.kill):
        if push is not None:
            push()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
            return
