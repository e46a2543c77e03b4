"""A reader's claim on a checkpoint, held through the service while bytes come from its places."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ckptgov.client.transport import Transport, path_of
from ckptgov.errors import CkptgovError, LeaseLost, NotAllowed
from ckptgov.wire.members import Members

if TYPE_CHECKING:
    from ckptgov.model.clock import Clock

READ_TTL_S = 60.0
READ_RENEW_S = 15.0
_ANSWER_S = 5.0
"""No restore waits longer than this for a claim: it would be slower than without one."""


class ReadClaim:
    """Renewed whenever ``keep`` is asked and it is time, by whichever thread asks first.

    Nothing here ends a restore: a service that is away, or has no such claims, costs the
    protection for a while. Then ``talk`` is told, once.
    """

    def __init__(
        self,
        transport: Transport,
        run: str,
        content_id: str,
        *,
        reason: str,
        clock: Clock,
        talk: Callable[[str], None],
    ) -> None:
        self._transport = transport
        self._path = path_of("runs", run, "claims")
        self._body = {"content_id": content_id, "ttl_s": READ_TTL_S, "reason": reason}
        self._clock = clock
        self._talk = talk
        self._lock = threading.Lock()
        self._claim_id: str | None = None
        self._is_told = False
        self._is_refused = False
        self._renewed = clock.monotonic()
        self._take()

    def keep(self) -> bool:
        """Renew it if it is time; always False, for a mover that asks whether to stop."""
        if self._clock.monotonic() - self._renewed < READ_RENEW_S or self._is_refused:
            return False
        if self._lock.acquire(blocking=False):
            try:
                self._renewed = self._clock.monotonic()
                self._renew()
            finally:
                self._lock.release()
        return False

    def release(self) -> None:
        """Let go of it."""
        with self._lock, suppress(CkptgovError):
            if self._claim_id is not None:
                self._transport.send("DELETE", self._path_of(self._claim_id), is_repeatable=True)

    def _path_of(self, claim_id: str) -> str:
        return f"{self._path}/{claim_id}"

    def _renew(self) -> None:
        if self._claim_id is None:
            self._take()
            return
        path = f"{self._path_of(self._claim_id)}/renew"
        try:
            self._transport.send("POST", path, {"ttl_s": READ_TTL_S}, is_repeatable=True)
        except LeaseLost:  # it ran out while this process was stopped
            self._take()
        except CkptgovError:
            pass  # the next piece tries again

    def _take(self) -> None:
        self._claim_id = None
        try:
            # Sent twice it is two claims, of which one runs out by itself.
            told = self._transport.send("POST", self._path, self._body, is_repeatable=True)
            self._claim_id = Members(told).member("claim").text("claim_id")
        except CkptgovError as error:
            self._is_refused = isinstance(error, NotAllowed)
            if not self._is_told:
                self._is_told = True
                self._talk(f"the checkpoint is not held while it is read: {error.message}")


@contextmanager
def reading(
    transport: Transport,
    run: str,
    content_id: str,
    *,
    reason: str,
    clock: Clock,
    talk: Callable[[str], None],
) -> Iterator[ReadClaim]:
    """Hold a reader's claim for the block, over a connection of its own."""
    own = transport.another(patience_s=0.0, answer_s=_ANSWER_S)
    try:
        claim = ReadClaim(own, run, content_id, reason=reason, clock=clock, talk=talk)
        try:
            yield claim
        finally:
            claim.release()
    finally:
        own.close()
