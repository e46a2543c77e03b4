"""The catalog as the rest of the project sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self
from uuid import uuid4

from sqlalchemy import delete

from ckptgov.catalog import checkpoints, copies, history, leases, runs, schema
from ckptgov.catalog.database import Database, prepare
from ckptgov.catalog.facts import (
    KEEP,
    CatalogIdentity,
    Decision,
    EventFacts,
    EventKind,
    Keep,
    PlacedCopy,
    PlaceFacts,
    RecordFacts,
    RunFacts,
    RunRootFacts,
    SealedFacts,
    SightingFacts,
)
from ckptgov.catalog.flowbook import FlowBook
from ckptgov.catalog.flowfacts import CopyLease
from ckptgov.catalog.tables import (
    CheckpointRow,
    CopyRow,
    ManifestRow,
    PlaceRow,
    RecordRow,
    RunRootRow,
    RunRow,
    SightingRow,
)
from ckptgov.model.checkpoint import Evidence, RunIdentity
from ckptgov.model.clock import Clock
from ckptgov.model.closing import Closing
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Finding, Sighting

# Children before parents.
_FACT_TABLES = (
    SightingRow,
    RecordRow,
    CopyRow,
    ManifestRow,
    CheckpointRow,
    RunRootRow,
    RunRow,
    PlaceRow,
)


def new_uuid() -> str:
    """A random UUID as text."""
    return str(uuid4())


class Catalog(Closing):
    """Facts and guarded state changes. Every call is one transaction, or part of one.

    Safe to use from several threads and, as several objects, from several processes; not across
    a fork. Any call may raise StorageError (damaged: the hint names the rebuild) or
    TransientStorageError (another process held the lock for 10 s). A fact about a run, place or
    checkpoint the catalog does not know raises UnknownRun; a number or text that SQLite cannot
    hold, UsageError.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._fleeting = Database(database.path, is_fleeting=True)
        self._clock = clock
        self.flows = FlowBook(database, self._fleeting, clock)
        """The flows that move bytes now, and their grants."""

    @classmethod
    def open(
        cls,
        path: str,
        *,
        fs_type: str,
        is_network: bool,
        clock: Clock,
        new_uuid: Callable[[], str] = new_uuid,
    ) -> Self:
        """The catalog at ``path`` (absolute); a new one where there is no file.

        Raises:
            ConfigError: on a network file system, or written by a newer ckptgov.
            StorageError: damaged, or the directory refuses.
        """

        def fill(database: Database) -> None:
            with database.write() as connection:
                schema.create(connection, uuid=new_uuid(), at_ns=clock.now_ns())

        prepare(path, fs_type=fs_type, is_network=is_network, fill=fill)
        database = Database(path)
        try:
            schema.bring_up(database, at_ns=clock.now_ns())
        except BaseException:
            database.close()
            raise
        return cls(database, clock)

    def close(self) -> None:
        """Close every connection; further calls open new ones."""
        self._fleeting.close()
        self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make this thread's calls in the block one transaction: all of it, or nothing.

        Nested, the inner block is all or nothing within the outer one. Others wait meanwhile (up
        to 10 s), so no storage is touched inside.
        """
        with self._database.transaction():
            yield

    def identity(self) -> CatalogIdentity:
        """This catalog's UUID and epoch."""
        with self._database.read() as connection:
            return schema.identity(connection, self._database.path)

    def adopt_identity(self, uuid: str, epoch: int) -> None:
        """Take over the identity found on the tiers.

        Raises:
            StaleState: the same catalog is already at a later epoch.
            ValueError: an epoch below 1.
        """
        wanted = CatalogIdentity(uuid=uuid, epoch=epoch)
        with self._database.write() as connection:
            at_ns = self._clock.now_ns()
            schema.adopt(connection, wanted, path=self._database.path, at_ns=at_ns)

    def put_place(self, place: PlaceFacts) -> None:
        """Record the place met at its root just now; it becomes the current one there.

        Known already: what changed is taken over, ``first_seen_at_ns`` stays. Another place that
        was current at the same root of the same node is current no longer.
        """
        with self._database.write() as connection:
            runs.put_place(connection, place, at_ns=self._clock.now_ns())

    def places(self) -> tuple[PlaceFacts, ...]:
        """Every place ever met, by tier and node."""
        with self._database.read() as connection:
            return runs.places(connection)

    def place_by_root(self, root: str, *, node: str | None = None) -> PlaceFacts | None:
        """The current place at a tier root; ``node`` for a node's own disk."""
        with self._database.read() as connection:
            found = runs.places_at(connection, root, node)
        return found[0] if found else None

    def put_run(self, identity: RunIdentity, at_ns: int) -> None:
        """Register a run; again with the same id and name changes nothing.

        Raises:
            UsageError: the name belongs to another run id, or the id to another name.
        """
        with self._database.write() as connection:
            runs.put_run(connection, identity, at_ns=at_ns)

    def run_by_name(self, name: str) -> RunFacts | None:
        """The run of this name."""
        with self._database.read() as connection:
            return runs.run_by_name(connection, name)

    def run_by_id(self, run_id: str) -> RunFacts | None:
        """The run of this id."""
        with self._database.read() as connection:
            return runs.run_by_id(connection, run_id)

    def runs(self) -> tuple[RunFacts, ...]:
        """Every run, by name."""
        with self._database.read() as connection:
            return runs.runs(connection)

    def put_run_root(self, root: RunRootFacts) -> None:
        """Record where a run lies; again with another sidecar replaces the sidecar.

        Raises:
            UsageError: the path at this place belongs to another run.
        """
        with self._database.write() as connection:
            runs.put_run_root(connection, root, at_ns=self._clock.now_ns())

    def roots_of(self, run_id: str) -> tuple[RunRootFacts, ...]:
        """Where a run lies, by place and path."""
        with self._database.read() as connection:
            return runs.roots_of(connection, run_id)

    def run_at(self, place: str, path: str) -> RunFacts | None:
        """The run whose root is exactly ``path`` below the tier root of ``place``."""
        with self._database.read() as connection:
            return runs.run_at(connection, place, path)

    def put_sealed(self, sealed: SealedFacts, manifest: bytes) -> bool:
        """Record a sealed checkpoint with its manifest's bytes; whether it was new.

        The first record of a content id in a run stands; a later one changes nothing.
        """
        with self._database.write() as connection:
            return checkpoints.put_sealed(connection, sealed, manifest)

    def checkpoints(self, run_id: str) -> tuple[SealedFacts, ...]:
        """A run's sealed checkpoints by step (stepless ones first), attempt and content id."""
        with self._database.read() as connection:
            return checkpoints.checkpoints(connection, run_id)

    def manifest_bytes(self, run_id: str, content_id: str) -> bytes:
        """The manifest as it was given to ``put_sealed``.

        Raises:
            FileNotFoundError: no such checkpoint is sealed in this run.
        """
        with self._database.read() as connection:
            return checkpoints.manifest_bytes(connection, run_id, content_id)

    def put_copy(self, copy: PlacedCopy, at_ns: int) -> None:
        """Record a copy at a place where this checkpoint had none.

        Raises:
            FileExistsError: there is one in some state; ``transition`` changes it.
            ValueError: VERIFIED without evidence.
        """
        with self._database.write() as connection:
            copies.put_copy(connection, copy, at_ns=at_ns)

    def copies(self, run_id: str) -> tuple[PlacedCopy, ...]:
        """A run's copies in every state, by content id and place."""
        with self._database.read() as connection:
            return copies.copies(connection, run_id)

    def transition(
        self,
        run_id: str,
        content_id: str,
        place: str,
        *,
        expected: CopyState,
        to: CopyState,
        at_ns: int,
        evidence: Evidence | None = None,
        verified_at_ns: int | None = None,
        findings: Iterable[Finding] | None = None,
        coverage: bytes | Keep | None = KEEP,
        name: str | None = None,
    ) -> None:
        """Change a copy's state, if it is still ``expected``.

        What is not given stays, save that VERIFIED clears the findings. ``evidence`` says that a
        verdict was reached, at ``verified_at_ns`` (``at_ns`` if not given: an undo gives the old
        one back).

        Raises:
            StaleState: the copy is in another state, or there is none.
            ValueError: ``to`` may not follow ``expected``; VERIFIED without evidence.
        """
        copies.check_allowed(expected, to)
        with self._database.write() as connection:
            copies.change(
                connection,
                (run_id, content_id, place),
                expected=expected,
                to=to,
                at_ns=at_ns,
                evidence=evidence,
                verified_at_ns=verified_at_ns,
                findings=findings,
                coverage=coverage,
                name=name,
            )

    def confirm(
        self,
        run_id: str,
        content_id: str,
        place: str,
        *,
        expected: CopyState,
        at_ns: int,
        evidence: Evidence,
        findings: Iterable[Finding] | None = None,
        coverage: bytes | Keep | None = KEEP,
    ) -> None:
        """Record a new verdict that leaves the state as it is (verified again, a part grew).

        Raises:
            StaleState: the copy is not ``expected``.
            ValueError: VERIFIED without evidence.
        """
        with self._database.write() as connection:
            copies.change(
                connection,
                (run_id, content_id, place),
                expected=expected,
                to=expected,
                at_ns=at_ns,
                evidence=evidence,
                verified_at_ns=None,
                findings=findings,
                coverage=coverage,
                name=None,
            )

    def put_sightings(
        self, run_id: str, place: str, sightings: Sequence[Sighting], at_ns: int
    ) -> None:
        """Replace what is known of a run's unsealed candidates at one place.

        To be called only with everything one complete look found there, each (name, variant)
        once. The first sighting's time of what was known already stays.
        """
        with self._database.write() as connection:
            checkpoints.put_sightings(connection, run_id, place, sightings, at_ns)

    def sightings(self, run_id: str) -> tuple[SightingFacts, ...]:
        """A run's unsealed candidates by place, name and variant."""
        with self._database.read() as connection:
            return checkpoints.sightings(connection, run_id)

    def put_records(self, records: Sequence[RecordFacts]) -> None:
        """Mirror journal records; one whose id is known already changes nothing."""
        with self._database.write() as connection:
            history.put_records(connection, records)

    def records(self, run_id: str) -> tuple[RecordFacts, ...]:
        """A run's journal records by number, then id."""
        with self._database.read() as connection:
            return history.records(connection, run_id)

    def events(
        self, after_seq: int = 0, *, run_id: str | None = None, limit: int = 1000
    ) -> tuple[EventFacts, ...]:
        """Up to ``limit`` events behind ``after_seq``, oldest first; of one run, or of all."""
        with self._database.read() as connection:
            return history.events(connection, after_seq, run_id, limit)

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
            stands = history.decide(connection, wanted, at_ns=self._clock.now_ns())
        return stands.content_id, stands.fresh

    def decision(self, run_id: str, restart_id: str, epoch: int) -> Decision | None:
        """How a restart's epoch was decided, if it was."""
        with self._database.read() as connection:
            return history.decision(connection, run_id, restart_id, epoch)

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
            now_ns = self._clock.now_ns()
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
            expires_at_ns = self._clock.now_ns() + ttl_ns
            leases.renew(connection, content_id, place, epoch, expires_at_ns=expires_at_ns)

    def release_copy_lease(self, content_id: str, place: str, *, epoch: int) -> None:
        """End a lease; nothing happens where it was taken over."""
        with self._database.write() as connection:
            leases.change_end(connection, content_id, place, epoch, expires_at_ns=0)

    def copy_lease(self, content_id: str, place: str) -> CopyLease | None:
        """Who brings, or last brought, a checkpoint to a place."""
        with self._database.read() as connection:
            return leases.lease(connection, content_id, place)

    def wipe_facts(self) -> None:
        """Forget whatever the tiers can tell again, before a rebuild.

        The identity, the events and the restart decisions stay: a decision was handed out to
        ranks and may be recorded nowhere else. So do flows, leases and abilities.
        """
        with self._database.write() as connection:
            for table in _FACT_TABLES:
                connection.execute(delete(table))
            history.write_event(connection, EventKind.FACTS_WIPED, at_ns=self._clock.now_ns())
