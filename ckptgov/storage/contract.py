"""The contract every backend keeps; ``ckptgov.testing.storage_contract`` tests it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from ckptgov.model.files import FileStat, Reader

if TYPE_CHECKING:
    from ckptgov.storage.mounts import FileSystem

TEMP_PREFIX = ".ckptgov-tmp-"
"""Names of files being written begin like this. A process that was killed leaves them behind;
they are listed like any other name, and no published file is ever called so."""


class Storage(Reader, Protocol):
    """A tree of files beneath one root, safe against whoever changes it meanwhile.

    Paths are relative and ``/``-separated, ``""`` is the root; an absolute path, an empty, ``.``
    or ``..`` part, a NUL or text that is no file name raises ``PathEscapes``. Only ``open``
    follows symlinks, and only beneath the root; for every other call a symlink in the place of a
    directory on the way raises ``PathEscapes``. Its last part is never followed.

    ``FileNotFoundError``, ``FileExistsError``, ``NotADirectoryError`` and ``IsADirectoryError``
    mean what the built-ins say. All else the tier does not do raises ``StorageError``, or
    ``TransientStorageError`` where the same call may succeed later; where an ``OSError`` is
    behind it, that is the ``__cause__``.
    """

    @property
    def root(self) -> str:
        """Absolute path of the root, or the name of a tree that has no path."""
        ...

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> list[FileStat | None]:
        """lstat of many names in one directory, aligned with ``names``; None for absent ones.

        The directory is resolved once. ``btime_ns`` may stay None unless ``birth`` is set.
        """
        ...

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        """Store ``chunks`` under ``path``: all of it becomes visible and durable, or none.

        Missing parent directories are created, each durable, with the process's default mode;
        they stay when the publishing fails. The file is never executable. Of several publishers
        of one path exactly one wins. An error, also one raised by ``chunks`` (it passes through
        unchanged), leaves nothing under ``path`` and no temporary file where that can be helped.
        What became visible may still vanish until this call returned.

        Raises:
            FileExistsError: ``path`` is taken, by whatever kind of entry, and was not touched.
        """
        ...

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        """Put ``chunks`` in the place of the file ``path``, atomically and durably.

        Mode, and where allowed owner and group, stay those of the old file. After an error
        either the old bytes or the new ones are there, whole. Only for the tier identity's
        epoch: everything else is published once.

        Raises:
            FileNotFoundError: there is no such file; this call never makes a new one.
            PathEscapes: ``path`` is a symlink.
        """
        ...

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        """Make the missing directories of ``path``, each durable in its parent.

        With ``like``, an existing directory, new ones take its mode and group, and its owner
        where this process may give files away. What exists keeps its mode and owner.

        Raises:
            NotADirectoryError: something else has one of the names.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a regular file, or a symlink itself and never what it leads to; durable."""
        ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory, durably; one that holds anything raises StorageError."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable. Their bytes need ``OpenFile.sync``."""
        ...

    def filesystem(self) -> FileSystem:
        """What the root lies on."""
        ...

    def close(self) -> None:
        """Give back what is held open; nothing is called after it."""
        ...
