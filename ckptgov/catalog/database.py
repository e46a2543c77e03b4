"""One SQLite file: how it comes to be, its connections and transactions, its errors in our words.

WAL with ``synchronous=FULL``: a committed transaction survives a power cut, and readers see the
last committed state while one writer works. Writers begin with BEGIN IMMEDIATE; sqlite3's own
deferred transactions would read before they hold the lock and lose updates.

What lives no longer than the processes it tells of (flows and their grants) goes through fleeting
connections: their commits wait for no disk, which is just what the flows keep busy, and a power
cut may undo the last of them. It never undoes what was committed durably before.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote

from sqlalchemy import Connection, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from ckptgov.catalog.facts import REBUILD_HINT
from ckptgov.errors import (
    CkptgovError,
    ConfigError,
    StorageError,
    TransientStorageError,
    UnknownRun,
    UsageError,
)

BUSY_TIMEOUT_S = 10.0
FLEETING_TIMEOUT_S = 3.0

_IS_READ = "ckptgov_is_read"
_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_S * 1000)}",
)
_FLEETING_PRAGMAS = (
    "PRAGMA synchronous=NORMAL",
    f"PRAGMA busy_timeout={int(FLEETING_TIMEOUT_S * 1000)}",
)
_SMALLEST_BYTES = 512  # SQLite takes a file below its smallest page for a new one, and fills it
_BESIDE = ("-wal", "-shm", "-journal")


class Database:
    """Connections to one existing file; safe to use from several threads, not across a fork."""

    def __init__(self, path: str, *, is_fleeting: bool = False) -> None:
        self.path = path
        self._is_fleeting = is_fleeting
        self._local = threading.local()
        self._engine = create_engine(
            "sqlite://", creator=self._connect, poolclass=QueuePool, pool_size=4, max_overflow=-1
        )
        event.listen(self._engine, "begin", _begin)
        self._reader = self._engine.execution_options(**{_IS_READ: True})

    def close(self) -> None:
        """Close every connection. The last one of all processes folds the WAL into the file."""
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view. Inside this thread's transaction: its own, with what it wrote."""
        with self._our_errors():
            current = self._current()
            if current is not None:
                yield current
                return
            with self._reader.begin() as connection:
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """All of the block or nothing of it; inside this thread's transaction likewise.

        Raises:
            UsageError: text or a number that SQLite cannot hold.
        """
        try:
            with self.transaction() as connection:
                yield connection
        except (UnicodeEncodeError, OverflowError) as error:
            raise _unstorable(error) from error

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Begin one for this thread, or a part of the one that is open."""
        with self._our_errors():
            current = self._current()
            if current is not None:
                with current.begin_nested():
                    yield current
                return
            with self._engine.begin() as connection:
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

    def _connect(self) -> sqlite3.Connection:
        # mode=rw: a file that vanished is an error, not a new and empty catalog.
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(self.path))}?mode=rw",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            for pragma in (*_PRAGMAS, *(_FLEETING_PRAGMAS if self._is_fleeting else ())):
                connection.execute(pragma).close()
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except StatementError as error:
            raise _translated(error, self.path) from error
        except SQLAlchemyError as error:
            raise StorageError(f"{self.path}: {error}") from error


def prepare(path: str, *, fs_type: str, is_network: bool, fill: Callable[[Database], None]) -> None:
    """Make sure a catalog file stands at ``path``; a new one is ``fill``-ed before it appears.

    So an existing file is never a half-made one, and whatever is empty or cut was damaged later.
    The directory is made with mode 0700 where it is absent, the file with 0600.

    Raises:
        ConfigError: the directory lies on a network file system.
        StorageError: damaged, not a regular file, or the directory refuses.
    """
    if is_network:
        raise ConfigError(
            f"{path}: on a network file system ({fs_type}), where SQLite's locks cannot be relied "
            "on",
            hint="set CKPTGOV_HOME to a directory on a local disk",
        )
    try:
        if not _is_there(path):
            _create(path, fill)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


def set_aside(path: str, *, at_ns: int) -> tuple[str, ...]:
    """Rename a damaged catalog and its logs out of the way, for a rebuild; gives the new names.

    Nothing is deleted. To be called only while no other process has the catalog open.
    """
    moved = []
    for suffix in ("", *_BESIDE):
        aside = f"{path}.damaged-{at_ns}{suffix}"
        try:
            os.rename(path + suffix, aside)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"{path}{suffix}: {error.strerror or error}") from error
        moved.append(aside)
    return tuple(moved)


def damaged(path: str, reason: str) -> StorageError:
    """The error for a file that does not hold a whole catalog."""
    return StorageError(f"{path}: {reason}", hint=REBUILD_HINT)


def _is_there(path: str) -> bool:
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        for suffix in _BESIDE:
            # Opened with a new file, an old log would be replayed into it.
            if suffix != "-shm" and os.path.lexists(path + suffix):
                raise damaged(path, f"missing, though its log {path}{suffix} is there") from None
        return False
    if not stat.S_ISREG(seen.st_mode):
        raise StorageError(f"{path}: not a regular file")
    if seen.st_size < _SMALLEST_BYTES:
        raise damaged(path, "cut off after it was made")
    return True


def _create(path: str, fill: Callable[[Database], None]) -> None:
    directory, name = os.path.split(path)
    if not os.path.isdir(directory):
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
    descriptor, draft = tempfile.mkstemp(prefix=f"{name}.new-", dir=directory)
    try:
        database = Database(draft)
        try:
            fill(database)
        finally:
            database.close()
        if os.path.exists(draft + "-wal"):
            raise StorageError(f"{path}: SQLite could not write all of a new catalog")
        os.fsync(descriptor)
        # link, not rename: whoever comes first wins, and everyone uses the winner's file.
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(descriptor)
        for suffix in ("", *_BESIDE):
            with suppress(FileNotFoundError):
                os.unlink(draft + suffix)
    _sync_directory(directory)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _begin(connection: Connection) -> None:
    is_read = connection.get_execution_options().get(_IS_READ, False)
    connection.exec_driver_sql("BEGIN" if is_read else "BEGIN IMMEDIATE")


def _unstorable(error: Exception) -> UsageError:
    return UsageError(f"the catalog cannot hold this text or number: {error}")


def _translated(error: StatementError, path: str) -> CkptgovError:
    cause = error.orig
    if isinstance(cause, UnicodeEncodeError | OverflowError):
        return _unstorable(cause)
    if isinstance(error, IntegrityError) and "FOREIGN KEY" in str(cause):
        return UnknownRun("the catalog does not know the run, place or checkpoint this belongs to")
    code = getattr(cause, "sqlite_errorcode", None)
    if not isinstance(error, DBAPIError) or code is None:
        return StorageError(f"{path}: {cause or error}")
    return _by_code(code & 0xFF, f"{path}: {cause}")


def _by_code(code: int, message: str) -> CkptgovError:
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return TransientStorageError(message, hint="another ckptgov holds it; try again")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR:
            # SQLITE_ERROR: a table or column is not there; our statements themselves are tested.
            return StorageError(message, hint=REBUILD_HINT)
        case sqlite3.SQLITE_FULL:
            return StorageError(message, hint="free some space on the disk of CKPTGOV_HOME")
        case _:
            return StorageError(message)
