"""What every request, worker and scheduled activity of one service process works with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from ckptgov.catalog.catalog import Catalog
from ckptgov.config.home import config_path
from ckptgov.config.load import load_settings
from ckptgov.errors import ConfigError
from ckptgov.model.clock import Clock
from ckptgov.model.closing import Closing
from ckptgov.model.settings import Settings
from ckptgov.ops.context import Context, open_catalog
from ckptgov.ops.flows import FlowDesk
from ckptgov.work.author import Author


def _silent(text: str) -> None:
    del text


class Serving(Closing):
    """One catalog and one flow desk for the whole process; contexts of their own for each use.

    ``here`` are the nodes whose disks this process sees as paths: none for a service in a
    cluster; None for one machine that is all nodes. ``is_open``: started without tokens on
    purpose. ``computes_grants``: agents wait for what this process, or a replica, grants them.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        *,
        clock: Clock,
        here: frozenset[str] | None = None,
        is_open: bool = False,
        computes_grants: bool = False,
        talk: Callable[[str], None] = _silent,
    ) -> None:
        self.catalog = catalog
        self.clock = clock
        self.here = here
        self.is_open = is_open
        self.talk = talk
        self._settings = settings
        self._seen: tuple[int, int, int] | None = None
        self._lock = threading.Lock()
        self.desk = FlowDesk(
            catalog,
            settings,
            clock,
            reload=self.settings,
            talk=talk,
            always_computes=computes_grants,
        )

    @classmethod
    def open(
        cls,
        home: str,
        *,
        clock: Clock,
        here: frozenset[str] | None = None,
        is_open: bool = False,
        computes_grants: bool = False,
        talk: Callable[[str], None] = _silent,
    ) -> Self:
        """Serve from the settings of a home directory.

        Raises:
            ConfigError, StorageError: as ``open_catalog``.
        """
        settings = load_settings(home)
        catalog = open_catalog(settings, clock)
        return cls(
            settings,
            catalog,
            clock=clock,
            here=here,
            is_open=is_open,
            computes_grants=computes_grants,
            talk=talk,
        )

    def settings(self) -> Settings:
        """What the file says now; while it is being edited, what it said before."""
        with self._lock:
            try:
                found = os.stat(config_path(self._settings.home))
                seen = (found.st_mtime_ns, found.st_ino, found.st_size)
                if seen != self._seen:
                    self._settings, self._seen = load_settings(self._settings.home), seen
            except (OSError, ConfigError):
                pass
            return self._settings

    @contextmanager
    def context(
        self, by: str | None = None, *, talk: Callable[[str], None] | None = None
    ) -> Iterator[Context]:
        """What an operation works with; its places are closed at the end.

        ``by`` stands in records before the host's name: ``token:<label>``; ``uid:<n>`` by default.
        """
        who = by or f"uid:{os.getuid()}"
        with ExitStack() as stack:
            yield Context(
                settings=self.settings(),
                author=Author(clock=self.clock, by=f"{who}@{os.uname().nodename}"),
                talk=talk or self.talk,
                stack=stack,
                shared=self.catalog,
                shared_desk=self.desk,
                here=self.here,
            )

    def close(self) -> None:
        """Stop the desk, then the catalog."""
        self.desk.close()
        self.catalog.close()
