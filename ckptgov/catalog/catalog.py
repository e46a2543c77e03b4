"""The catalog as the rest of the project sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self
from uuid import uuid4

from sqlalchemy import Connection, delete

from ckptgov.catalog import changes, history, schema, ticks
from ckptgov.catalog.activities import ActivityBook
from ckptgov.catalog.checkpoint_calls import CheckpointCalls
from ckptgov.catalog.claims import ClaimBook
from ckptgov.catalog.database import Database
from ckptgov.catalog.facts import CatalogIdentity, EventKind
from ckptgov.catalog.flowbook import FlowBook
from ckptgov.catalog.history_calls import HistoryCalls
from ckptgov.catalog.nodes import NodeBook
from ckptgov.catalog.place_calls import PlaceCalls
from ckptgov.catalog.plans import PlanBook
from ckptgov.catalog.removal_tables import RemovalRow, TickRow
from ckptgov.catalog.removals import RemovalBook
from ckptgov.catalog.samples import SampleBook
from ckptgov.catalog.signs import SignBook
from ckptgov.catalog.sqlite import SqliteDatabase, prepare
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
from ckptgov.catalog.tasks import TaskBook
from ckptgov.catalog.tokens import TokenBook
from ckptgov.model.clock import Clock
from ckptgov.model.closing import Closing

# Children before parents.
_FACT_TABLES = (
    SightingRow,
    RecordRow,
    RemovalRow,
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


class Catalog(PlaceCalls, CheckpointCalls, HistoryCalls, Closing):
    """Facts and guarded state changes. Every call is one transaction, or part of one.

    Safe to use from several threads and, as several objects, from several processes; not across
    a fork. Any call may raise StorageError (damaged: the hint names the rebuild) or
    TransientStorageError (another process held the lock for 10 s, or the server does not answer:
    what was in flight then may have been committed). A fact about a run, place or checkpoint the
    catalog does not know raises UnknownRun; a number or text that no column can hold, UsageError.
    """

    def __init__(self, database: Database, new_uuid: Callable[[], str] = new_uuid) -> None:
        self._database = database
        self._fleeting = database.fleeting()
        self.flows = FlowBook(database, self._fleeting)
        """The flows that move bytes now, and their grants."""
        self.nodes = NodeBook(database, self._fleeting)
        """The nodes of the cluster."""
        self.tasks = TaskBook(database, database.by_row(), new_uuid)
        """What nodes, or the service, are asked to do."""
        self.tokens = TokenBook(database)
        """Who may ask for what."""
        self.activities = ActivityBook(database)
        """What runs on a schedule, and who leads."""
        self.plans = PlanBook(database)
        """What retention and capacity decided."""
        self.removals = RemovalBook(database)
        """Copies on their way out."""
        self.claims = ClaimBook(database, new_uuid)
        """Who reads which checkpoint now."""
        self.signs = SignBook(database, self._fleeting)
        """Which runs somebody asked about."""
        self.samples = SampleBook(database, self._fleeting)
        """How full places were."""

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

        def fill(new: SqliteDatabase) -> None:
            with new.write() as connection:
                schema.create(connection, uuid=new_uuid(), at_ns=clock.now_ns())

        prepare(path, fs_type=fs_type, is_network=is_network, clock=clock, fill=fill)
        database = SqliteDatabase(path, clock)
        try:
            schema.bring_up(database)
        except BaseException:
            database.close()
            raise
        return cls(database, new_uuid)

    @classmethod
    def connect(cls, url: str, *, clock: Clock, new_uuid: Callable[[], str] = new_uuid) -> Self:
        """The catalog in the PostgreSQL database at ``url``; a new one where there is none.

        ``clock`` is asked for nothing here: time is the server's, which all users share.

        Raises:
            ConfigError: no such URL, psycopg is missing, or written by a newer ckptgov.
            StorageError: no catalog, or the server refuses; TransientStorageError: no answer.
        """
        from ckptgov.catalog import postgres  # not what SQLite needs

        database = postgres.PostgresDatabase.at(url)

        def fill(connection: Connection) -> None:
            schema.create(connection, uuid=new_uuid(), at_ns=database.now_ns(connection))

        try:
            postgres.prepare(database, fill)
            schema.bring_up(database)
        except BaseException:
            database.close()
            raise
        return cls(database, new_uuid)

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
            return schema.identity(connection, self._database.name)

    def pulse(self) -> tuple[CatalogIdentity, int]:
        """This catalog's identity and the number of its newest change, at one moment."""
        with self._database.read() as connection:
            identity = schema.identity(connection, self._database.name)
            return identity, changes.newest_change(connection)

    def adopt_identity(self, uuid: str, epoch: int) -> None:
        """Take over the identity found on the tiers.

        Raises:
            StaleState: the same catalog is already at a later epoch.
            ValueError: an epoch below 1.
        """
        wanted = CatalogIdentity(uuid=uuid, epoch=epoch)
        with self._database.write() as connection:
            at_ns = self._database.now_ns(connection)
            schema.adopt(connection, wanted, name=self._database.name, at_ns=at_ns)

    def now_ns(self) -> int:
        """Now by the clock that leases and beats are measured with, ns since the epoch."""
        with self._database.read() as connection:
            return self._database.now_ns(connection)

    def require_current(self) -> None:
        """Refuse where another ckptgov has migrated the catalog since it was opened.

        Raises:
            RefusedBySafety: nothing may be removed by what this process knows.
        """
        with self._database.read() as connection:
            schema.require_current(connection, self._database.name)

    def tick(self) -> int:
        """Now, to decide a removal by; every call is remembered.

        Raises:
            RefusedBySafety: the clock went back by more than 5 min since it was last asked, or
                another ckptgov has migrated the catalog meanwhile.
        """
        with self._database.write() as connection:
            schema.require_current(connection, self._database.name)
            now_ns = self._database.now_ns(connection)
            ticks.tick(connection, now_ns)
            return now_ns

    def dump(self, write: Callable[[bytes], object]) -> None:
        """Tell everything but flows and ended tasks, as it is at one moment, piece by piece.

        The form is one for both engines; it is compressed and carries a checksum.
        """
        from ckptgov.catalog import dump  # once in hours, if ever

        with self._database.read() as connection:
            self._database.unhurried(connection)
            identity = schema.identity(connection, self._database.name)
            dump.write(self._database, connection, identity, write)

    def load(self, read: Callable[[int], bytes]) -> CatalogIdentity:
        """Become the catalog that a dump tells of, at the next epoch; all of it or nothing.

        ``read`` gives up to so many bytes, and none at the end. Others wait meanwhile.

        Raises:
            UsageError: this catalog holds facts already.
            Malformed: damaged, cut, or no dump at all; nothing was loaded.
            ConfigError: it was made by a ckptgov of another version.
        """
        from ckptgov.catalog import loading

        with self._database.write() as connection:
            self._database.unhurried(connection)
            return loading.load(self._database, connection, read)

    def wipe_facts(self) -> None:
        """Forget whatever the tiers can tell again, before a rebuild.

        The identity, the events and the restart decisions stay: a decision was handed out to
        ranks and may be recorded nowhere else. So do flows, leases, claims, plans and abilities.
        What was condemned is so no more; the last time that ``tick`` saw is forgotten, too: a
        clock that was wrong then would keep anything from being removed ever again.
        """
        with self._database.write() as connection:
            self._database.unhurried(connection)  # the tiers are read in the same transaction
            for table in (*_FACT_TABLES, TickRow):
                connection.execute(delete(table))
            history.write_event(
                connection, EventKind.FACTS_WIPED, at_ns=self._database.now_ns(connection)
            )
