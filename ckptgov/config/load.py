"""Reading ``ckptgov.yaml``."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping

from msgspec.structs import replace

from ckptgov.config.home import config_path
from ckptgov.errors import ConfigError
from ckptgov.model.settings import Settings

MAX_FILE_BYTES = 2**20


def load_settings(home: str, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of ``home`` (absolute); an absent file means the defaults.

    ``CKPTGOV_CATALOG`` in ``environ`` (of this process by default) wins over the file: there a
    password can be kept out of it.

    Raises:
        ConfigError: the file cannot be read, or what it says is wrong; names file and line.
    """
    settings = _settings_of_file(home)
    url = (os.environ if environ is None else environ).get("CKPTGOV_CATALOG")
    if not url:
        return settings
    from ckptgov.config.serving import catalog_from

    return replace(settings, catalog_url=catalog_from(url))


def _settings_of_file(home: str) -> Settings:
    path = config_path(home)
    text = read_text(path)
    if text is None:
        return Settings(home=home)
    # Only here: the YAML parser costs more than the rest of a start.
    from ckptgov.config.parse import parse_settings

    return parse_settings(text, home=home, path=path)


def read_text(path: str) -> str | None:
    """The file's text (UTF-8, a byte order mark kept), or None where there is no such file.

    Raises:
        ConfigError: unreadable, not a regular file, over 1 MiB, or not UTF-8.
    """
    raw = _read_bytes(path)
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from error


def _read_bytes(path: str) -> bytes | None:
    try:
        # Non-blocking: a FIFO in the file's place must not hang the caller.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if os.path.islink(path):
            raise ConfigError(f"{path}: a symlink to a file that does not exist") from None
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{path}: not a regular file")
        return _read_capped(path, descriptor)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)


def _read_capped(path: str, descriptor: int) -> bytes:
    raw = bytearray()
    while block := os.read(descriptor, MAX_FILE_BYTES + 1 - len(raw)):
        raw += block
        if len(raw) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    return bytes(raw)


def _unreadable(path: str, error: OSError) -> ConfigError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    hint = "set CKPTGOV_HOME to a directory you may read" if error.errno == errno.EACCES else None
    return ConfigError(f"{path}: cannot be read: {reason}", hint=hint)
