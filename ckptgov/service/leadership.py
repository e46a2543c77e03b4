"""One leader over all replicas, fenced: what a former one still means to write is refused.

The lease and its clock are the catalog's. A process that was stopped past its lease finds out in
two ways: by its own monotonic clock before it begins anything, and, where it was stopped in
between, inside the very transaction that would have written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from ckptgov.errors import CkptgovError, LeaseLost
from ckptgov.model.clock import Clock
from ckptgov.model.closing import Closing
from ckptgov.model.cluster import Leader
from ckptgov.service import logs

if TYPE_CHECKING:
    from ckptgov.catalog.catalog import Catalog

LEASE_S = 15.0


class Lead(Struct, frozen=True, kw_only=True):
    """A leadership as whatever is written under it names it: catalog epoch, then leader epoch."""

    leader: Leader
    catalog_epoch: int


class Leadership(Closing):
    """This process's claim to lead. ``step`` is to be called about three times in ``ttl_s``."""

    def __init__(
        self, catalog: Catalog, *, holder: str, clock: Clock, ttl_s: float = LEASE_S
    ) -> None:
        self._catalog = catalog
        self._holder = holder
        self._clock = clock
        self._lock = threading.Lock()
        self._stepping = threading.Lock()
        self._lead: Lead | None = None
        self._ends_at = 0.0
        self._is_closed = False
        self.ttl_s = ttl_s

    def step(self) -> Lead | None:
        """Take or renew the lease; what this process leads now. Once closed, it takes none.

        A catalog that does not answer is no error here: the lease runs out by itself.
        """
        with self._stepping:
            if self._is_closed:
                return None
            asked_at = self._clock.monotonic()
            try:
                with self._catalog.transaction():
                    leader = self._catalog.activities.take_leader(self._holder, self.ttl_s)
                    epoch = self._catalog.identity().epoch
            except CkptgovError as error:
                logs.tell("leader-unknown", level=logging.WARNING, error=error)
                return self.lead()
            with self._lock:
                before = self._lead
                self._lead = None if leader is None else Lead(leader=leader, catalog_epoch=epoch)
                self._ends_at = asked_at + self.ttl_s
            self._tell_of_change(before)
            return self.lead()

    def lead(self) -> Lead | None:
        """What this process leads, as far as it can tell without asking."""
        with self._lock:
            return self._lead if self._clock.monotonic() < self._ends_at else None

    @contextmanager
    def writing(self) -> Iterator[Lead]:
        """One transaction of the catalog, refused unless this process still leads in it.

        Raises:
            LeaseLost: another process leads, or the catalog went on to another epoch.
        """
        lead = self.lead()
        if lead is None:
            raise LeaseLost("this process does not lead")
        with self._catalog.transaction():
            self._catalog.activities.require_leader(lead.leader)
            epoch = self._catalog.identity().epoch
            if epoch != lead.catalog_epoch:
                raise LeaseLost(f"the catalog is at epoch {epoch}, not {lead.catalog_epoch}")
            yield lead

    def close(self) -> None:
        """Let another process lead at once."""
        with self._stepping:
            self._is_closed = True
            with self._lock:
                lead, self._lead = self._lead, None
            if lead is not None:
                with suppress(CkptgovError):  # else it runs out
                    self._catalog.activities.release_leader(lead.leader)
                    logs.tell("leader-released", f"epoch {lead.leader.epoch}")

    def _tell_of_change(self, before: Lead | None) -> None:
        now = self._lead
        if now is not None and (before is None or before.leader.epoch != now.leader.epoch):
            logs.tell("leader", f"this process leads, epoch {now.leader.epoch}")
        elif now is None and before is not None:
            logs.tell("leader-lost", f"epoch {before.leader.epoch}", level=logging.WARNING)
