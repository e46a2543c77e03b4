"""What is in force of policies, and what is wrong with it."""

from __future__ import annotations

from msgspec import Struct

from ckptgov.errors import ConfigError
from ckptgov.model.policy import Policy


class PolicyCheck(Struct, frozen=True, kw_only=True):
    """What is in force and what is wrong; ``runs``: (policy or None, run) of each registered run
    that at most one policy selects."""

    directory: str
    policies: tuple[Policy, ...]
    errors: tuple[ConfigError, ...]
    runs: tuple[tuple[str | None, str], ...] = ()
