"""Who answers a command: the service that the environment names, or this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from ckptgov.client.address import is_named
from ckptgov.model.verbs import Admin, Keeper, Launcher, Mover


class Verbs(Launcher, Mover, Admin, Keeper, Protocol):
    """Everything that can be asked for, whoever answers."""


@contextmanager
def open_verbs(
    environ: Mapping[str, str],
    *,
    talk: Callable[[str], None],
    progress: Callable[[int], None] | None = None,
) -> Iterator[Verbs]:
    """The service's verbs where ``CKPTGOV_URL`` is set, else those of this process."""
    if is_named(environ):
        from ckptgov.governor.served import open_served

        with open_served(environ=environ, talk=talk, progress=progress) as served:
            yield served
        return
    from ckptgov.governor import open_governor

    with open_governor(environ=environ, talk=talk, progress=progress) as governor:
        yield governor
