"""Where the service is and what opens it: ``CKPTGOV_URL``, ``CKPTGOV_TOKEN``, and their checks."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from ckptgov.errors import ConfigError

URL_VARIABLE = "CKPTGOV_URL"
TOKEN_VARIABLE = "CKPTGOV_TOKEN"  # noqa: S105  (its name)
TOKEN_FILE_VARIABLE = "CKPTGOV_TOKEN_FILE"  # noqa: S105  (its name)
_MOST_TOKEN_BYTES = 4096
_OF_OTHERS = stat.S_IRWXO


class Replica(Struct, frozen=True, kw_only=True):
    """One process of the service. ``prefix``: what stands before every path, without a last /."""

    is_tls: bool
    host: str
    port: int
    prefix: str = ""

    def __str__(self) -> str:
        scheme = "https" if self.is_tls else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{self.prefix}"


class ServiceAddress(Struct, frozen=True, kw_only=True):
    """The replicas, in the order they are tried, and the token that all of them know."""

    replicas: tuple[Replica, ...]
    token: str | None = None


def is_named(environ: Mapping[str, str]) -> bool:
    """Whether commands are to ask a service; an empty variable counts as unset."""
    return bool(environ.get(URL_VARIABLE, "").strip())


def address_from(environ: Mapping[str, str]) -> ServiceAddress:
    """The service that the environment names.

    Raises:
        ConfigError: there is none, a URL is impossible, or the token cannot be used.
    """
    texts = [part.strip() for part in environ.get(URL_VARIABLE, "").split(",") if part.strip()]
    if not texts:
        raise ConfigError(f"{URL_VARIABLE} names no service")
    return ServiceAddress(
        replicas=tuple(replica_of(text) for text in texts), token=token_from(environ)
    )


def replica_of(text: str) -> Replica:
    """``http(s)://host[:port][/prefix]``.

    Raises:
        ConfigError: it is something else; what may be a password in it is not repeated.
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"{URL_VARIABLE} is not a URL", hint=_URL_HINT) from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"{URL_VARIABLE} holds a name or password", hint=f"give a token: {TOKEN_VARIABLE}"
        )
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{URL_VARIABLE}: {text!r} is no http or https URL", hint=_URL_HINT)
    if parts.query or parts.fragment or not _is_plain(text):
        raise ConfigError(f"{URL_VARIABLE}: {text!r} is more than an address", hint=_URL_HINT)
    is_tls = parts.scheme == "https"
    return Replica(
        is_tls=is_tls,
        host=host,
        port=port or (443 if is_tls else 80),
        prefix=parts.path.rstrip("/"),
    )


_URL_HINT = "write http://host:port, several separated by commas"


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def token_from(environ: Mapping[str, str]) -> str | None:
    """The token in the variable, or in the file that the other variable names.

    Raises:
        ConfigError: the file cannot be read, is open to others, or holds no token.
    """
    token = environ.get(TOKEN_VARIABLE, "").strip()
    path = environ.get(TOKEN_FILE_VARIABLE, "")
    if token:
        return _usable(token, TOKEN_VARIABLE)
    if not path:
        return None
    return _usable(_read_private(path), path)


def _usable(token: str, where: str) -> str:
    """A header must not be able to end in a token."""
    if not token or not _is_plain(token):
        raise ConfigError(f"{where}: holds no token", hint="one line, as 'ckptgov token add' gave")
    return token


def _read_private(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{path}: is no file")
            if found.st_mode & _OF_OTHERS:
                raise ConfigError(
                    f"{path}: the token in it is open to everyone on this machine",
                    hint=f"chmod 600 {path}",
                )
            raw = os.read(descriptor, _MOST_TOKEN_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"{path}: the token cannot be read: {error.strerror}") from error
    if len(raw) > _MOST_TOKEN_BYTES:
        raise ConfigError(f"{path}: is too long for a token")
    return raw.decode("ascii", "replace").strip()


def is_run_name(target: str) -> bool:
    """Whether a word is a run's name rather than a path or URL.

    A word with a slash that is a directory here is that directory; a bare word is a run's name
    first, so that a directory that happens to lie here cannot stand in for it.
    """
    if target.startswith(("/", ".", "~")) or "://" in target:
        return False
    return "/" not in target or not os.path.isdir(target)
