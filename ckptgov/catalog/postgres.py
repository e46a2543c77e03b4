"""One PostgreSQL database for a cluster: its connections and transactions, its errors in our words.

A writer takes one advisory lock first, so that it sees whatever was committed before it and
nothing is committed beside it: just what BEGIN IMMEDIATE gives in SQLite. Fleeting writers take
another one and wait for no disk. Readers take none: REPEATABLE READ is one consistent view.

Time is the server's, because the clocks of its users differ. Whoever waits for a lock gives up
after 10 s, and the server ends a transaction whose owner says nothing for 20 s, so that a stopped
process holds up nobody for longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    StatementError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from ckptgov.catalog.database import Database, unstorable
from ckptgov.catalog.facts import REBUILD_HINT
from ckptgov.errors import (
    CkptgovError,
    ConfigError,
    StorageError,
    TransientStorageError,
    UnknownRun,
    UsageError,
)

LOCK_TIMEOUT_S = 10.0
FLEETING_TIMEOUT_S = 3.0
STATEMENT_TIMEOUT_S = 30.0
SILENCE_S = 20.0  # how long a transaction may stand still

_CONNECT_S = 5
_POOLED, _AT_MOST = 8, 32
_KIND = "ckptgov_kind"
_OUR_LOCKS = 0x636B7074  # "ckpt": what we lock is told apart from other programs' locks by it
_DRIVERS = frozenset({"postgresql", "postgres", "postgresql+psycopg"})
_NOW = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint")
_IS_THERE = text("SELECT to_regclass('meta') IS NOT NULL")
_ENCODING = text("SELECT current_setting('server_encoding')")


class Kind(StrEnum):
    """What a transaction is for."""

    READ = "read"
    DURABLE = "durable"
    FLEETING = "fleeting"
    BY_ROW = "by-row"


_BEGIN = {
    Kind.READ: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    # Said in full: a server may have other defaults, and a guard that reads what it saw before
    # it had the lock would be none.
    Kind.DURABLE: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
}
_FIRST = {
    Kind.DURABLE: f"SELECT pg_advisory_xact_lock({_OUR_LOCKS}, 1)",
    Kind.FLEETING: "SELECT set_config('synchronous_commit', 'off', true),"
    f" set_config('lock_timeout', '{int(FLEETING_TIMEOUT_S * 1000)}', true),"
    f" pg_advisory_xact_lock({_OUR_LOCKS}, 2)",
}
_JOIN_FLEETING = f"SELECT pg_advisory_xact_lock({_OUR_LOCKS}, 2)"
_UNHURRIED = (
    "SELECT set_config('statement_timeout', '0', true),"
    " set_config('idle_in_transaction_session_timeout', '0', true)"
)
_ON_CONNECT = (
    f"SELECT set_config('lock_timeout', '{int(LOCK_TIMEOUT_S * 1000)}', false),"
    f" set_config('statement_timeout', '{int(STATEMENT_TIMEOUT_S * 1000)}', false),"
    f" set_config('idle_in_transaction_session_timeout', '{int(SILENCE_S * 1000)}', false)"
)


class PostgresDatabase(Database):
    """Connections to one database; several of these may share them."""

    def __init__(self, name: str, engine: Engine, *, kind: Kind = Kind.DURABLE) -> None:
        self._engine = engine
        self._kind = kind
        super().__init__(
            name,
            reader=engine.execution_options(**{_KIND: Kind.READ}),
            writer=engine.execution_options(**{_KIND: kind}),
        )

    @classmethod
    def at(cls, url: str) -> PostgresDatabase:
        """The database at ``postgresql://…``; nothing is sent yet.

        Raises:
            ConfigError: no such URL, or psycopg is not installed.
        """
        place = _parsed(url)
        # Not the rest of the URL: it may hold a password in more than one way.
        name = URL.create("postgresql", host=place.host, port=place.port, database=place.database)
        return cls(name.render_as_string(), _engine(place))

    def now_ns(self, connection: Connection) -> int:
        return int(connection.execute(_NOW).scalar_one())

    def fleeting(self) -> PostgresDatabase:
        return PostgresDatabase(self.name, self._engine, kind=Kind.FLEETING)

    def by_row(self) -> PostgresDatabase:
        return PostgresDatabase(self.name, self._engine, kind=Kind.BY_ROW)

    def join(self, connection: Connection) -> None:
        if self._kind is Kind.FLEETING:
            connection.exec_driver_sql(_JOIN_FLEETING)

    def unhurried(self, connection: Connection) -> None:
        connection.exec_driver_sql(_UNHURRIED)

    @contextmanager
    def _begun(self, engine: Engine) -> Iterator[Connection]:
        with ExitStack() as stack:
            connection = stack.enter_context(engine.connect())
            try:
                transaction = connection.begin()
            except (OperationalError, InterfaceError) as error:
                if not error.connection_invalidated:
                    raise
                # It died in the pool: the server was restarted. Nothing was asked of it yet.
                connection = stack.enter_context(engine.connect())
                transaction = connection.begin()
            with transaction:
                yield connection

    def _translated(self, error: StatementError) -> CkptgovError:
        cause = error.orig
        if isinstance(cause, UnicodeEncodeError | OverflowError) or isinstance(error, DataError):
            return unstorable(cause or error)
        message = f"{self.name}: {str(cause or error).strip()}"
        if not isinstance(error, DBAPIError):
            return StorageError(message)
        state = getattr(cause, "sqlstate", None)
        if state is None:
            return _without_state(error, message)
        return _by_state(state, message)


def prepare(database: PostgresDatabase, fill: Callable[[Connection], None]) -> None:
    """Make sure that a catalog is there; the first of those who come together ``fill``s it.

    Raises:
        ConfigError: the database cannot hold all text.
    """
    with database.read() as connection:
        if connection.execute(_IS_THERE).scalar_one():
            return
    with database.transaction() as connection:
        if connection.execute(_IS_THERE).scalar_one():
            return
        encoding = connection.execute(_ENCODING).scalar_one()
        if encoding != "UTF8":
            raise ConfigError(
                f"{database.name}: its encoding is {encoding}",
                hint="create the database with ENCODING 'UTF8' TEMPLATE template0",
            )
        fill(connection)


def _parsed(url: str) -> URL:
    try:
        place = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"the catalog's URL cannot be read: {error}", hint=_HINT) from error
    if place.drivername not in _DRIVERS:
        raise ConfigError(f"a catalog cannot lie at {place.drivername}://", hint=_HINT)
    return place.set(drivername="postgresql+psycopg")


_HINT = "write it like postgresql://user:password@host:5432/database"


def _engine(place: URL) -> Engine:
    try:
        engine = create_engine(
            place,
            use_native_hstore=False,
            pool_size=_POOLED,
            max_overflow=_AT_MOST - _POOLED,
            pool_timeout=LOCK_TIMEOUT_S,
            pool_use_lifo=True,
            connect_args=_connect_args(place),
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a catalog in PostgreSQL needs {error.name}",
            hint="pip install 'ckptgov[postgres]'",
        ) from error
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _begin)
    return engine


def _connect_args(place: URL) -> dict[str, object]:
    """What the URL does not say otherwise. A server that vanished is noticed within seconds."""
    args: dict[str, object] = {
        "connect_timeout": _CONNECT_S,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": int(LOCK_TIMEOUT_S * 1000),
        "application_name": "ckptgov",
    }
    said = {name: value for name, value in args.items() if name not in place.query}
    # Transactions begin with our own words, see ``_begin``.
    return {**said, "client_encoding": "utf8", "autocommit": True}


def _on_connect(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(_ON_CONNECT)
    finally:
        cursor.close()


def _begin(connection: Connection) -> None:
    # SQLAlchemy's own first look at a server has no kind.
    kind = connection.get_execution_options().get(_KIND, Kind.BY_ROW)
    connection.exec_driver_sql(_BEGIN.get(kind, _BEGIN[Kind.DURABLE]))
    first = _FIRST.get(kind)
    if first is not None:
        connection.exec_driver_sql(first)


def _without_state(error: DBAPIError, message: str) -> CkptgovError:
    """What the driver says itself: it could not connect, or lost the connection."""
    if isinstance(error, ProgrammingError):
        return ConfigError(message, hint=_HINT)
    refusals = ("does not exist", "authentication failed", "no pg_hba.conf entry")
    if any(each in message for each in refusals):
        return StorageError(message, hint="check the catalog's URL, and that its database exists")
    return TransientStorageError(message, hint="is PostgreSQL running? try again")


def _by_state(state: str, message: str) -> CkptgovError:
    """By SQLSTATE: PostgreSQL's appendix A."""
    match state:
        case "23503":
            return UnknownRun(
                "the catalog does not know the run, place or checkpoint this belongs to"
            )
        case "54000":
            return UsageError(f"the catalog cannot hold a text of this length: {message}")
        case "42P01" | "42703" | "42883":
            return StorageError(message, hint=REBUILD_HINT)
        case "42P07" | "42723":
            return StorageError(
                message, hint="give the catalog a database, or a schema, of its own"
            )
        case "55P03" | "57014":
            return TransientStorageError(message, hint="another ckptgov holds it; try again")
        case "53100":
            return StorageError(message, hint="free some space on the server's disk")
    # Connection lost, conflict, out of resources, told to stop, transaction timed out, standby.
    if state[:2] in {"08", "40", "53", "57"} or state in {"25P03", "25006", "25P02"}:
        return TransientStorageError(message, hint="try again")
    return StorageError(message)
