"""The schema's version, the catalog's identity, and how an older catalog is brought up."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, insert, select
from sqlmodel import col

from ckptgov.catalog.cluster_tables import NodeRow
from ckptgov.catalog.database import Database, damaged
from ckptgov.catalog.ddl import BESIDE_TABLES
from ckptgov.catalog.dialect import put
from ckptgov.catalog.facts import SCHEMA_VERSION, CatalogIdentity, EventKind
from ckptgov.catalog.history import add_event, write_event
from ckptgov.catalog.removal_tables import RemovalRow
from ckptgov.catalog.tables import ALEMBIC, MetaRow
from ckptgov.errors import ConfigError, RefusedBySafety, StaleState, UsageError

OLDEST_VERSION = 1

_VERSION, _UUID, _EPOCH = "schema_version", "catalog_uuid", "epoch"
_VALUE = select(col(MetaRow.value)).where(col(MetaRow.key) == bindparam("key"))
_IDENTITY = select(col(MetaRow.key), col(MetaRow.value)).where(
    col(MetaRow.key).in_((_UUID, _EPOCH))
)
# Of the room's every table: each module of theirs is asked.
(_TABLES,) = {row.metadata for row in (MetaRow, NodeRow, RemovalRow)}


def create(connection: Connection, *, uuid: str, at_ns: int) -> None:
    """Make every table of the newest version in an empty database, with a new identity."""
    # Not checkfirst: a table that stands already is another program's.
    _TABLES.create_all(connection, checkfirst=False)
    for statement in BESIDE_TABLES[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    connection.execute(insert(ALEMBIC), {"version_num": str(SCHEMA_VERSION)})
    _put(connection, _VERSION, str(SCHEMA_VERSION))
    put_identity(connection, CatalogIdentity(uuid=uuid, epoch=1))
    write_event(connection, EventKind.CREATED, at_ns=at_ns, detail=(("catalog", uuid),))


def bring_up(database: Database) -> None:
    """See that the catalog has the newest version; migrate an older one in one transaction.

    Raises:
        ConfigError: it is newer than this ckptgov, or too old to be migrated.
        StorageError: it is no catalog, or damaged.
    """
    with database.read() as connection:
        if _version(connection, database.name) == SCHEMA_VERSION:
            return
    migrate(database, SCHEMA_VERSION)


def downgrade(database: Database, target: int) -> None:
    """Bring a catalog back to an older version, for the ckptgov that knows only that.

    Facts stay; what the older version has no place for (nodes, tasks, tokens, ...) is dropped, and
    with it the events of kinds that it cannot read.

    Raises:
        UsageError: there is no such older version.
    """
    with database.read() as connection:
        version = _version(connection, database.name)
    if not OLDEST_VERSION <= target <= version:
        raise UsageError(f"{database.name}: version {version} cannot be brought down to {target}")
    migrate(database, target)


def migrate(database: Database, target: int) -> None:
    """Bring a catalog of any version from the oldest up or down to ``target``."""
    from ckptgov.catalog.migrations.run import run  # Alembic: dear to import

    with database.transaction() as connection:
        database.unhurried(connection)
        # Read again: another process may have migrated it in between.
        version = _version(connection, database.name)
        if version < OLDEST_VERSION:
            raise ConfigError(
                f"{database.name}: schema version {version} cannot be brought up to {target}",
                hint="open it once with the ckptgov version in between",
            )
        at_ns = database.now_ns(connection)

        def reached(before: int, now: int) -> None:
            _put(connection, _VERSION, str(now))
            detail = (("from", str(before)), ("to", str(now)))
            add_event(connection, EventKind.MIGRATED, at_ns=at_ns, detail=detail)

        run(connection, version, target, reached)


def identity(connection: Connection, name: str) -> CatalogIdentity:
    """This catalog's UUID and epoch, in one statement: it is asked for many times a second."""
    found = {row.key: row.value for row in connection.execute(_IDENTITY)}
    return CatalogIdentity(
        uuid=_there(found.get(_UUID), _UUID, name),
        epoch=_as_number(_there(found.get(_EPOCH), _EPOCH, name), _EPOCH, name),
    )


def adopt(connection: Connection, wanted: CatalogIdentity, *, name: str, at_ns: int) -> None:
    """Take over an identity found on the tiers; the same catalog's epoch never goes down.

    Raises:
        StaleState: this catalog already has a later epoch.
        ValueError: an epoch below 1.
    """
    if wanted.epoch < 1:
        raise ValueError(f"epoch {wanted.epoch} is below 1")
    now = identity(connection, name)
    if now == wanted:
        return
    if now.uuid == wanted.uuid and wanted.epoch < now.epoch:
        raise StaleState(f"catalog {now.uuid} is at epoch {now.epoch}, not {wanted.epoch}")
    put_identity(connection, wanted)
    detail = (("catalog", wanted.uuid), ("epoch", str(wanted.epoch)), ("was", now.uuid))
    write_event(connection, EventKind.IDENTITY_ADOPTED, at_ns=at_ns, detail=detail)


def put_identity(connection: Connection, wanted: CatalogIdentity) -> None:
    _put(connection, _UUID, wanted.uuid)
    _put(connection, _EPOCH, str(wanted.epoch))


def _version(connection: Connection, name: str) -> int:
    version = _number(connection, _VERSION, name)
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"{name}: has schema version {version}, and this ckptgov knows up to {SCHEMA_VERSION}",
            hint="use the newer ckptgov, or set CKPTGOV_HOME to a directory of its own",
        )
    return version


def require_current(connection: Connection, name: str) -> None:
    """Refuse where another ckptgov has migrated the catalog since this process opened it: there
    may be facts in it that this one does not see.

    Raises:
        RefusedBySafety: nothing may be removed by what this process knows.
    """
    version = _number(connection, _VERSION, name)
    if version != SCHEMA_VERSION:
        raise RefusedBySafety(
            f"{name}: was migrated to schema version {version} meanwhile, and this process knows "
            f"{SCHEMA_VERSION}: it removes nothing",
            hint="restart it with the ckptgov that migrated the catalog",
        )


def _number(connection: Connection, key: str, name: str) -> int:
    return _as_number(_get(connection, key, name), key, name)


def _as_number(value: str, key: str, name: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise damaged(name, f"its {key} is no number")
    return int(value)


def _get(connection: Connection, key: str, name: str) -> str:
    return _there(connection.execute(_VALUE, {"key": key}).scalar_one_or_none(), key, name)


def _there(value: str | None, key: str, name: str) -> str:
    if value is None:
        raise damaged(name, f"holds no {key}")
    return value


def _put(connection: Connection, key: str, value: str) -> None:
    put(connection, MetaRow, {"key": key}, {"value": value})
