"""A dump becomes a catalog: into an empty one, all of it or nothing.

Whatever was done after the dump was made is not in it, and there may be processes that go on from
there. So every number that fences or continues something leaps ahead of what it can have reached:
epochs, leases, the sequence of events and of changes.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, select, text, update

from ckptgov.catalog import schema
from ckptgov.catalog.changes import leap
from ckptgov.catalog.database import Database
from ckptgov.catalog.ddl import EVENTS_MAY_GO, EVENTS_STAY
from ckptgov.catalog.dump import Heading, Read, read
from ckptgov.catalog.dumptables import ABILITIES, CHANGES, EVENTS, PLACES, TABLES, TASKS
from ckptgov.catalog.facts import CatalogIdentity, EventKind
from ckptgov.catalog.history import write_event
from ckptgov.errors import UsageError

LEAP = 2**20

_GIVE_WAY = (EVENTS, CHANGES, ABILITIES, PLACES)
"""What an empty catalog has by being made, or asked about its tiers; children before parents."""
_FENCES = ("copy_leases", "allocator", "leader")
_CONTINUE = {
    "sqlite": text("UPDATE sqlite_sequence SET seq = :seq WHERE name = 'events'"),
    "postgresql": text("SELECT setval(pg_get_serial_sequence('events', 'seq'), :seq)"),
}


def load(database: Database, connection: Connection, source: Read) -> CatalogIdentity:
    """Fill an empty catalog; it is the dumped one from here on, at the next epoch.

    Raises:
        UsageError: the catalog holds facts already.
        Malformed: damaged, cut, or no dump at all; the caller's transaction must be given up.
    """
    _check_empty(database, connection)
    engine = connection.dialect.name
    # Events take their numbers along.
    for statement in EVENTS_MAY_GO[engine]:
        connection.exec_driver_sql(statement)
    for table in _GIVE_WAY:
        connection.execute(delete(table))
    heading = read(connection, source)
    for statement in EVENTS_STAY[engine]:
        connection.exec_driver_sql(statement)
    _leap(connection)
    wanted = CatalogIdentity(uuid=heading.catalog, epoch=heading.epoch + 1)
    schema.put_identity(connection, wanted)
    _tell(connection, heading, at_ns=database.now_ns(connection))
    return wanted


def _check_empty(database: Database, connection: Connection) -> None:
    for table in TABLES:
        if table in _GIVE_WAY:
            continue
        if connection.execute(select(table).limit(1)).first() is not None:
            raise UsageError(
                f"{database.name}: holds {table.name} already",
                hint="stop whoever uses it, and load into a new one",
            )


def _leap(connection: Connection) -> None:
    newest = connection.execute(select(func.coalesce(func.max(EVENTS.c.seq), 0))).scalar_one()
    connection.execute(_CONTINUE[connection.dialect.name], {"seq": newest + LEAP})
    leap(connection, LEAP)
    for table in (each for each in TABLES if each.name in _FENCES):
        connection.execute(update(table).values(epoch=table.c.epoch + LEAP, expires_at_ns=0))
    held = update(TASKS).where(TASKS.c.lease > 0)
    connection.execute(held.values(lease=TASKS.c.lease + LEAP, lease_ends_at_ns=0))


def _tell(connection: Connection, heading: Heading, *, at_ns: int) -> None:
    detail = (
        ("catalog", heading.catalog),
        ("epoch", str(heading.epoch + 1)),
        ("dumped_at_ns", str(heading.at_ns)),
    )
    write_event(connection, EventKind.LOADED, at_ns=at_ns, detail=detail)
