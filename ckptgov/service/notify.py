"""Telling systemd how the service stands: sd_notify(3) and its watchdog, without a library."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


def sd_notify(state: str, *, environ: Mapping[str, str] | None = None) -> bool:
    """Send one state (``READY=1``) to whoever started us as a unit; whether there was anybody."""
    address = (os.environ if environ is None else environ).get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.setblocking(False)  # whoever does not read must not hold the service up
        sending.connect("\0" + address[1:] if address[0] == "@" else address)
        sending.sendall(state.encode("ascii"))
        return True
    return False


def watchdog_s(environ: Mapping[str, str] | None = None) -> float | None:
    """How often a sign of life is wanted: half of what systemd waits; None: not at all."""
    found = os.environ if environ is None else environ
    usec = found.get("WATCHDOG_USEC", "")
    if not usec.isdigit() or int(usec) == 0:
        return None
    if found.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(usec) / 2e6
