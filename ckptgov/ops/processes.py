"""Which process a flow or a lease belongs to, and whether that process has surely ended."""

from __future__ import annotations

import os

from ckptgov.catalog.flowfacts import FlowOwner

_ENDED_STATES = frozenset({"Z", "X", "x"})


def this_process() -> FlowOwner:
    """This process, told apart from every other one there was or will be."""
    seen = _stat(os.getpid())
    return FlowOwner(
        host=os.uname().nodename,
        boot=f"{_boot()}/{_pid_namespace()}",
        pid=os.getpid(),
        started=seen[1] if seen is not None else 0,
    )


def has_surely_ended(owner: FlowOwner, me: FlowOwner) -> bool:
    """Whether a process moves nothing any more; False where that cannot be told.

    It can be told on this machine: no such process, a zombie, another process under its number,
    or one from before the machine was last started.
    """
    if owner.boot != me.boot:
        return owner.host == me.host and owner.boot.split("/")[0] != me.boot.split("/")[0]
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # there is one, of another user
    seen = _stat(owner.pid)
    if seen is None:
        return False  # hidden from us, or just gone: the next look will tell
    state, started = seen
    return state in _ENDED_STATES or started != owner.started


def holder_of(process: FlowOwner) -> str:
    """The process as the holder of a lease; ``process_of`` reads it back."""
    return f"{process.host}:{process.pid}:{process.started}:{process.boot}"


def process_of(holder: str) -> FlowOwner | None:
    """The process that ``holder_of`` wrote; None for any other text."""
    match holder.split(":", 3):
        case [host, pid, started, boot] if _is_number(pid) and _is_number(started):
            return FlowOwner(host=host, boot=boot, pid=int(pid), started=int(started))
        case _:
            return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _stat(pid: int) -> tuple[str, int] | None:
    """State and start time from proc(5); None where it is not shown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("ascii", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return (fields[0], int(fields[19])) if len(fields) > 19 else None


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "unknown"
