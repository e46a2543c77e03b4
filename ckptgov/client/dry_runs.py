"""Dry runs of what a service does in its own time: answered at once, from what it reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptgov.client.tasks import reconcile_body
from ckptgov.client.transport import Transport, path_of, whole
from ckptgov.model.verbs import LONGEST_LOOK_S
from ckptgov.wire import decode

if TYPE_CHECKING:
    from ckptgov.model.answers import ScanAnswer, VerifyAnswer
    from ckptgov.model.movement import FlushAnswer
    from ckptgov.model.usage import ReconcileAnswer
    from ckptgov.wire.documents import Document

LOOK_S = LONGEST_LOOK_S + 10.0
"""How long to wait for such an answer: where the service gives up, it says so first."""


def ask(transport: Transport, path: str, body: Document, member: str) -> Document:
    """An answer that the service looks at storage for, and that changes nothing.

    ``member`` is what every such answer has, whatever error it tells of beside it.
    """
    reply = transport.ask("POST", path, body=body, is_repeatable=True, wait_s=LOOK_S)
    return whole(reply, member)


class DryRuns:
    """What would be done. Disks that only agents reach are left out, and that is told."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def scan(self, run: str | None) -> ScanAnswer:
        """What a scan of a run, or of every tier that is scanned, would find."""
        body = {"runs": None if run is None else [run], "dry_run": True}
        return decode.scan(ask(self._transport, path_of("scan"), body, "runs"))

    def verify(self, run: str, *, level: str) -> VerifyAnswer:
        """How a run's checkpoints compare; nothing of it is written down."""
        path = path_of("runs", run, "verify")
        body = {"level": level, "dry_run": True}
        return decode.verify(ask(self._transport, path, body, "checkpoints"))

    def flush(self, run: str, *, step: int | None, to: str | None) -> FlushAnswer:
        """What would be copied where."""
        from ckptgov.wire.decode_movement import flushed

        path = path_of("runs", run, "flush")
        body = {"step": step, "to": to, "dry_run": True}
        return flushed(ask(self._transport, path, body, "checkpoints"))

    def reconcile(
        self, tiers: tuple[str, ...], *, older_than_s: float, staging_older_than_s: float | None
    ) -> ReconcileAnswer:
        """What would be recorded and cleared."""
        from ckptgov.wire.decode_movement import reconciled

        body = reconcile_body(tiers, older_than_s, staging_older_than_s) | {"dry_run": True}
        return reconciled(ask(self._transport, path_of("reconcile"), body, "tiers"))
