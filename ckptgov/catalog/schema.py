"""The schema's version, the catalog's identity, and how an older file is brought up."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, bindparam, select
from sqlalchemy.dialects.sqlite import insert
from sqlmodel import col

from ckptgov.catalog.database import Database, damaged
from ckptgov.catalog.facts import SCHEMA_VERSION, CatalogIdentity, EventKind
from ckptgov.catalog.history import write_event
from ckptgov.catalog.migrations import add_moving
from ckptgov.catalog.tables import TRIGGERS, MetaRow, Row
from ckptgov.errors import ConfigError, StaleState

Migration = Callable[[Connection], None]
MIGRATIONS: Mapping[int, Migration] = {1: add_moving}
"""What turns a schema of version n into version n + 1."""

_VERSION, _UUID, _EPOCH = "schema_version", "catalog_uuid", "epoch"
_VALUE = select(col(MetaRow.value)).where(col(MetaRow.key) == bindparam("key"))


def create(connection: Connection, *, uuid: str, at_ns: int) -> None:
    """Make every table of the newest version in an empty file, with a new identity."""
    Row.metadata.create_all(connection)
    for trigger in TRIGGERS:
        connection.exec_driver_sql(trigger)
    _put(connection, _VERSION, str(SCHEMA_VERSION))
    _put(connection, _UUID, uuid)
    _put(connection, _EPOCH, "1")
    write_event(connection, EventKind.CREATED, at_ns=at_ns, detail=(("catalog", uuid),))


def bring_up(
    database: Database,
    *,
    at_ns: int,
    target: int = SCHEMA_VERSION,
    migrations: Mapping[int, Migration] = MIGRATIONS,
) -> None:
    """See that the file has version ``target``; migrate an older one in one transaction.

    Raises:
        ConfigError: the file is newer, or too old to be migrated.
        StorageError: the file is no catalog, or damaged.
    """
    with database.read() as connection:
        if _version(connection, database.path, target) == target:
            return
    with database.transaction() as connection:
        # Read again: another process may have migrated it in between.
        version = _version(connection, database.path, target)
        for step in range(version, target):
            migrate = migrations.get(step)
            if migrate is None:
                raise ConfigError(
                    f"{database.path}: schema version {version} cannot be brought up to {target}",
                    hint="open it once with the ckptgov version in between",
                )
            migrate(connection)
            _put(connection, _VERSION, str(step + 1))
            detail = (("from", str(step)), ("to", str(step + 1)))
            write_event(connection, EventKind.MIGRATED, at_ns=at_ns, detail=detail)


def identity(connection: Connection, path: str) -> CatalogIdentity:
    """This catalog's UUID and epoch."""
    return CatalogIdentity(
        uuid=_get(connection, _UUID, path), epoch=_number(connection, _EPOCH, path)
    )


def adopt(connection: Connection, wanted: CatalogIdentity, *, path: str, at_ns: int) -> None:
    """Take over an identity found on the tiers; the same catalog's epoch never goes down.

    Raises:
        StaleState: this catalog already has a later epoch.
        ValueError: an epoch below 1.
    """
    if wanted.epoch < 1:
        raise ValueError(f"epoch {wanted.epoch} is below 1")
    now = identity(connection, path)
    if now == wanted:
        return
    if now.uuid == wanted.uuid and wanted.epoch < now.epoch:
        raise StaleState(f"catalog {now.uuid} is at epoch {now.epoch}, not {wanted.epoch}")
    _put(connection, _UUID, wanted.uuid)
    _put(connection, _EPOCH, str(wanted.epoch))
    detail = (("catalog", wanted.uuid), ("epoch", str(wanted.epoch)), ("was", now.uuid))
    write_event(connection, EventKind.IDENTITY_ADOPTED, at_ns=at_ns, detail=detail)


def _version(connection: Connection, path: str, target: int) -> int:
    version = _number(connection, _VERSION, path)
    if version > target:
        raise ConfigError(
            f"{path}: has schema version {version}, and this ckptgov knows up to {target}",
            hint="use the newer ckptgov, or set CKPTGOV_HOME to a directory of its own",
        )
    return version


def _number(connection: Connection, key: str, path: str) -> int:
    value = _get(connection, key, path)
    if not (value.isascii() and value.isdigit()):
        raise damaged(path, f"its {key} is no number")
    return int(value)


def _get(connection: Connection, key: str, path: str) -> str:
    value = connection.execute(_VALUE, {"key": key}).scalar_one_or_none()
    if value is None:
        raise damaged(path, f"holds no {key}")
    return value


def _put(connection: Connection, key: str, value: str) -> None:
    statement = insert(MetaRow).values(key=key, value=value)
    connection.execute(
        statement.on_conflict_do_update(index_elements=["key"], set_={"value": value})
    )
