"""Where configuration and catalog lie."""

from __future__ import annotations

import os.path
from collections.abc import Mapping

from ckptgov.errors import ConfigError

CONFIG_FILE = "ckptgov.yaml"


def home_dir(environ: Mapping[str, str]) -> str:
    """The absolute directory of configuration and catalog; it need not exist yet.

    ``CKPTGOV_HOME``, else ``$XDG_STATE_HOME/ckptgov``, else ``~/.local/state/ckptgov``. An empty
    variable counts as unset, and a relative ``XDG_STATE_HOME`` is ignored (XDG Base Directory
    specification 0.8).

    Raises:
        ConfigError: ``CKPTGOV_HOME`` is relative, or there is no home directory to fall back on.
    """
    own = environ.get("CKPTGOV_HOME", "")
    if own:
        if not os.path.isabs(own):
            raise ConfigError(
                f"CKPTGOV_HOME is {own!r}, a relative path: it would mean another catalog in each "
                "directory",
                hint="set CKPTGOV_HOME to an absolute path",
            )
        return os.path.normpath(own)
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(_user_home(environ), ".local", "state")
    return os.path.normpath(os.path.join(state, "ckptgov"))


def config_path(home: str) -> str:
    """The configuration file of a home directory."""
    return os.path.join(home, CONFIG_FILE)


def _user_home(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME", "")
    if os.path.isabs(home):
        return home
    raise ConfigError(
        "HOME is not set, so there is no default place for ckptgov's state",
        hint="set CKPTGOV_HOME to a directory on a local disk",
    )
