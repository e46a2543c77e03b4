"""What can be asked and told of history: records, events, decisions, parts, leases."""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.catalog import changes, history, leases, parts
from ckptgov.catalog.database import Database
from ckptgov.catalog.facts import Decision, EventFacts, RecordFacts
from ckptgov.catalog.flowfacts import CopyLease
from ckptgov.model.cluster import PartFacts, RunChange


class HistoryCalls:
    """Part of ``Catalog``."""

    _database: Database

    def put_records(self, records: Sequence[RecordFacts]) -> None:
        """Mirror journal records; one whose id is known already changes nothing."""
        with self._database.write() as connection:
            history.put_records(connection, records)

    def records(self, run_id: str) -> tuple[RecordFacts, ...]:
        """A run's journal records by number, then id."""
        with self._database.read() as connection:
            return history.records(connection, run_id)

    def binding_records(self, run_id: str) -> tuple[RecordFacts, ...]:
        """Those of a run's journal records that decide about ``latest``, by number, then id.

        Every kind but ``sealed`` and ``metric``: few, however many checkpoints there are.
        """
        with self._database.read() as connection:
            return history.binding_records(connection, run_id)

    def events(
        self, after_seq: int = 0, *, run_id: str | None = None, limit: int = 1000
    ) -> tuple[EventFacts, ...]:
        """Up to ``limit`` events behind ``after_seq``, oldest first; of one run, or of all."""
        with self._database.read() as connection:
            return history.events(connection, after_seq, run_id, limit)

    def copy_changes(self, run_id: str, content_ids: Sequence[str]) -> tuple[EventFacts, ...]:
        """Changes of state of the copies of some checkpoints of a run, oldest first of each."""
        with self._database.read() as connection:
            return history.copy_changes(connection, run_id, content_ids)

    def decide(
        self, run_id: str, restart_id: str, epoch: int, content_id: str | None, fresh: bool
    ) -> tuple[str | None, bool]:
        """Decide a restart's epoch, or learn how it was decided: the first caller's wish stands.

        Returns the standing (content id, fresh).

        Raises:
            ValueError: not exactly one of a content id and ``fresh``.
        """
        if (content_id is None) is not fresh:
            raise ValueError("a decision is either a content id or a fresh start")
        wanted = Decision(
            run_id=run_id, restart_id=restart_id, epoch=epoch, content_id=content_id, fresh=fresh
        )
        with self._database.write() as connection:
            stands = history.decide(connection, wanted, at_ns=self._database.now_ns(connection))
        return stands.content_id, stands.fresh

    def decision(self, run_id: str, restart_id: str, epoch: int) -> Decision | None:
        """How a restart's epoch was decided, if it was."""
        with self._database.read() as connection:
            return history.decision(connection, run_id, restart_id, epoch)

    def changes(self, after: int) -> tuple[RunChange, ...]:
        """What changed behind ``after``, oldest first: one for each run, at most 10,000.

        Whatever can change an answer about a run is told in its own transaction. Numbers only
        grow, in the order in which they are committed.
        """
        with self._database.read() as connection:
            return changes.changes(connection, after)

    def change_seq(self) -> int:
        """The number of the newest change."""
        with self._database.read() as connection:
            return changes.newest_change(connection)

    def put_part(self, part: PartFacts) -> None:
        """Keep a node's part of a save, posted just now; again replaces what was posted before."""
        with self._database.write() as connection:
            parts.put_part(connection, part, at_ns=self._database.now_ns(connection))

    def parts(self, run_id: str, name: str) -> tuple[PartFacts, ...]:
        """The parts of one save, by place."""
        with self._database.read() as connection:
            return parts.parts(connection, run_id, name)

    def parts_of(self, run_id: str) -> tuple[PartFacts, ...]:
        """A run's parts, by save and place."""
        with self._database.read() as connection:
            return parts.parts_of(connection, run_id)

    def drop_parts(self, run_id: str, name: str) -> None:
        """Forget the parts of a save: they are merged, or will never be."""
        with self._database.write() as connection:
            parts.drop_parts(connection, run_id, name)

    def put_abilities(self, place: str, text: str, at_ns: int) -> None:
        """Record what a place was seen to be able to do, instead of what was known before."""
        with self._database.write() as connection:
            leases.put_abilities(connection, place, text, at_ns)

    def abilities(self, place: str) -> str | None:
        """What a place was last seen to be able to do, as it was given; None: never checked."""
        with self._database.read() as connection:
            return leases.abilities(connection, place)

    def take_copy_lease(self, content_id: str, place: str, *, holder: str, ttl_ns: int) -> int:
        """Become the only one to bring a checkpoint to a place; the epoch of the lease.

        It ends ``ttl_ns`` from now by this catalog's clock. Its own holder takes it anew, at a
        new epoch like everybody else: whatever it did under the old one is fenced.

        Raises:
            LeaseLost: someone else holds it; the message names the holder.
        """
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            wanted = CopyLease(
                content_id=content_id,
                place=place,
                holder=holder,
                epoch=0,
                expires_at_ns=now_ns + ttl_ns,
            )
            return leases.take(connection, wanted, at_ns=now_ns)

    def renew_copy_lease(self, content_id: str, place: str, *, epoch: int, ttl_ns: int) -> None:
        """Prolong a lease; one that ended is prolonged as well while nobody took it over.

        Raises:
            LeaseLost: it was taken over; the message names the holder.
        """
        with self._database.write() as connection:
            expires_at_ns = self._database.now_ns(connection) + ttl_ns
            leases.renew(connection, content_id, place, epoch, expires_at_ns=expires_at_ns)

    def release_copy_lease(self, content_id: str, place: str, *, epoch: int) -> None:
        """End a lease; nothing happens where it was taken over."""
        with self._database.write() as connection:
            leases.change_end(connection, content_id, place, epoch, expires_at_ns=0)

    def copy_lease(self, content_id: str, place: str) -> CopyLease | None:
        """Who brings, or last brought, a checkpoint to a place."""
        with self._database.read() as connection:
            return leases.lease(connection, content_id, place)
