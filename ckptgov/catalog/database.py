"""Transactions on the catalog, whatever engine holds it: the seam between books and engines.

Guards read and then write. What makes that safe is that writers come one after the other, and
each engine sees to it in its own way: BEGIN IMMEDIATE in SQLite, one advisory lock in PostgreSQL.

What lives no longer than the processes it tells of (flows, grants, beats) goes through a fleeting
database: its commits wait for no disk, which is just what the flows keep busy, and a power cut may
undo the last of them. It never undoes what was committed durably before.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ckptgov.catalog.facts import REBUILD_HINT
from ckptgov.errors import CkptgovError, StorageError, TransientStorageError, UsageError

BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite puts beside a file."""


class Database(ABC):
    """Connections to one catalog; safe to use from several threads, not across a fork.

    ``name`` tells people which one it is and holds no secret.
    """

    def __init__(self, name: str, *, reader: Engine, writer: Engine) -> None:
        self.name = name
        self._local = threading.local()
        self._reader = reader
        self._writer = writer

    @abstractmethod
    def now_ns(self, connection: Connection) -> int:
        """Now, ns since the epoch, by the one clock that all users of this catalog share."""

    @abstractmethod
    def fleeting(self) -> Database:
        """The same catalog for what need not outlive a power cut; to be closed as well."""

    @abstractmethod
    def by_row(self) -> Database:
        """The same catalog, where writers that touch other rows need not wait for each other.

        Only for statements that are right on their own: no guard may read what others write.
        """

    @abstractmethod
    def join(self, connection: Connection) -> None:
        """Make a transaction of another of this catalog's databases one of this one's writers."""

    @abstractmethod
    def unhurried(self, connection: Connection) -> None:
        """Let this transaction take as long as it takes: it reads or fills a whole catalog."""

    @abstractmethod
    def _translated(self, error: StatementError) -> CkptgovError:
        """What the engine said, in our words."""

    def close(self) -> None:
        """Close every connection; further calls open new ones."""
        self._writer.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view. Inside this thread's transaction: its own, with what it wrote.

        Raises:
            UsageError: asked for text or a number that the engine cannot hold.
        """
        try:
            with self._our_errors():
                current = self._current()
                if current is not None:
                    yield current
                    return
                with self._begun(self._reader) as connection:
                    yield connection
        except (UnicodeEncodeError, OverflowError) as error:
            raise unstorable(error) from error

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """All of the block or nothing of it; inside this thread's transaction likewise.

        Raises:
            UsageError: text or a number that the engine cannot hold.
        """
        try:
            with self.transaction() as connection:
                yield connection
        except (UnicodeEncodeError, OverflowError) as error:
            raise unstorable(error) from error

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Begin one for this thread, or a part of the one that is open."""
        with self._our_errors():
            current = self._current()
            if current is not None:
                with current.begin_nested():
                    yield current
                return
            with self._begun(self._writer) as connection:
                self._local.connection = connection
                try:
                    yield connection
                finally:
                    self._local.connection = None

    def is_in_transaction(self) -> bool:
        """Whether this thread is inside a transaction of its own."""
        return self._current() is not None

    def _current(self) -> Connection | None:
        connection: Connection | None = getattr(self._local, "connection", None)
        return connection

    def _begun(self, engine: Engine) -> AbstractContextManager[Connection]:
        return engine.begin()

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except StatementError as error:
            raise self._translated(error) from error
        except PoolTimeout as error:
            message = f"{self.name}: every connection is in use"
            raise TransientStorageError(message, hint="try again") from error
        except SQLAlchemyError as error:
            raise StorageError(f"{self.name}: {error}") from error


def damaged(name: str, reason: str) -> StorageError:
    """The error for what does not hold a whole catalog."""
    return StorageError(f"{name}: {reason}", hint=REBUILD_HINT)


def unstorable(error: BaseException) -> UsageError:
    """The error for a value that no column takes."""
    return UsageError(f"the catalog cannot hold this text or number: {error}")


def set_aside(path: str, *, at_ns: int) -> tuple[str, ...]:
    """Rename a damaged catalog and its logs out of the way, for a rebuild; gives the new names.

    Nothing is deleted. To be called only while no other process has the catalog open.
    """
    moved = []
    for suffix in ("", *BESIDE):
        aside = f"{path}.damaged-{at_ns}{suffix}"
        try:
            os.rename(path + suffix, aside)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"{path}{suffix}: {error.strerror or error}") from error
        moved.append(aside)
    return tuple(moved)


def within(database: Database, otherwise: Database) -> Database:
    """The caller's own transaction where there is one, or another database of the same catalog.

    Inside it, a connection of its own would wait for itself.
    """
    return database if database.is_in_transaction() else otherwise
