"""One SQLite file: how it comes to be, its connections and transactions, its errors in our words.

WAL with ``synchronous=FULL``: a committed transaction survives a power cut, and readers see the
last committed state while one writer works. Writers begin with BEGIN IMMEDIATE; sqlite3's own
deferred transactions would read before they hold the lock and lose updates.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

from sqlalchemy import Connection, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError, IntegrityError, StatementError

from ckptgov.catalog.database import BESIDE, Database, damaged, unstorable
from ckptgov.catalog.facts import REBUILD_HINT
from ckptgov.errors import (
    CkptgovError,
    ConfigError,
    StorageError,
    TransientStorageError,
    UnknownRun,
)
from ckptgov.model.clock import Clock

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
_ROOM_HINT = "free room there by hand, or move CKPTGOV_HOME to another file system"
_SMALLEST_BYTES = 512  # SQLite takes a file below its smallest page for a new one, and fills it


class _Opened(sqlite3.Connection):
    """A connection that knows which file it has open."""

    file: tuple[int, int] | None = None


class SqliteDatabase(Database):
    """Connections to one existing file. Its users are on one machine and share its clock.

    What stands at the path is the catalog: a file that was lost is an error to whoever had it
    open, too, and one that took its place is what they go on with.
    """

    def __init__(self, path: str, clock: Clock, *, is_fleeting: bool = False) -> None:
        self.path = path
        self._clock = clock
        self._is_fleeting = is_fleeting
        engine = create_engine(
            "sqlite://", creator=self._connect, poolclass=QueuePool, pool_size=4, max_overflow=-1
        )
        event.listen(engine, "begin", _begin)
        event.listen(engine, "checkout", self._check_file)
        reader = engine.execution_options(**{_IS_READ: True})
        super().__init__(path, reader=reader, writer=engine)

    def now_ns(self, connection: Connection) -> int:
        return self._clock.now_ns()

    def fleeting(self) -> SqliteDatabase:
        return SqliteDatabase(self.path, self._clock, is_fleeting=True)

    def by_row(self) -> SqliteDatabase:
        return self  # SQLite has one lock for all rows

    def join(self, connection: Connection) -> None:
        """Every writer holds the one lock already."""

    def unhurried(self, connection: Connection) -> None:
        """Nothing limits how long a transaction takes."""

    def _connect(self) -> sqlite3.Connection:
        file = _file_at(self.path)
        # mode=rw: a file that vanished is an error, not a new and empty catalog.
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(self.path))}?mode=rw",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            factory=_Opened,
        )
        connection.file = file
        try:
            for pragma in (*_PRAGMAS, *(_FLEETING_PRAGMAS if self._is_fleeting else ())):
                connection.execute(pragma).close()
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_file(self, connection: _Opened, *about: object) -> None:
        """SQLite goes on with a deleted file, which nobody else sees any more."""
        del about
        if connection.file != _file_at(self.path):
            raise DisconnectionError(f"{self.path}: is another file now")

    def _translated(self, error: StatementError) -> CkptgovError:
        cause = error.orig
        if isinstance(cause, UnicodeEncodeError | OverflowError):
            return unstorable(cause)
        if isinstance(error, IntegrityError) and "FOREIGN KEY" in str(cause):
            return UnknownRun(
                "the catalog does not know the run, place or checkpoint this belongs to"
            )
        code = getattr(cause, "sqlite_errorcode", None)
        if not isinstance(error, DBAPIError) or code is None:
            return StorageError(f"{self.path}: {cause or error}")
        return _by_code(code & 0xFF, f"{self.path}: {cause}")


def prepare(
    path: str,
    *,
    fs_type: str,
    is_network: bool,
    clock: Clock,
    fill: Callable[[SqliteDatabase], None],
) -> None:
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
            _create(path, clock, fill)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


def _is_there(path: str) -> bool:
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        for suffix in BESIDE:
            # Opened with a new file, an old log would be replayed into it.
            if suffix != "-shm" and os.path.lexists(path + suffix):
                raise damaged(path, f"missing, though its log {path}{suffix} is there") from None
        return False
    if not stat.S_ISREG(seen.st_mode):
        raise StorageError(f"{path}: not a regular file")
    if seen.st_size < _SMALLEST_BYTES:
        raise damaged(path, "cut off after it was made")
    return True


def _create(path: str, clock: Clock, fill: Callable[[SqliteDatabase], None]) -> None:
    directory, name = os.path.split(path)
    if not os.path.isdir(directory):
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
    descriptor, draft = tempfile.mkstemp(prefix=f"{name}.new-", dir=directory)
    try:
        database = SqliteDatabase(draft, clock)
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
        for suffix in ("", *BESIDE):
            with suppress(FileNotFoundError):
                os.unlink(draft + suffix)
    _sync_directory(directory)


def _file_at(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None  # opening it says why
    return found.st_dev, found.st_ino


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _begin(connection: Connection) -> None:
    is_read = connection.get_execution_options().get(_IS_READ, False)
    connection.exec_driver_sql("BEGIN" if is_read else "BEGIN IMMEDIATE")


def _by_code(code: int, message: str) -> CkptgovError:
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return TransientStorageError(message, hint="another ckptgov holds it; try again")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR:
            # SQLITE_ERROR: a table or column is not there; our statements themselves are tested.
            return StorageError(message, hint=REBUILD_HINT)
        case sqlite3.SQLITE_FULL:
            return StorageError(message, hint=f"its file system is full: {_ROOM_HINT}")
        case sqlite3.SQLITE_IOERR:
            # Also what a full file system makes of the log's index, which is mapped, not written.
            return StorageError(message, hint=f"where its file system is full: {_ROOM_HINT}")
        case _:
            return StorageError(message)
