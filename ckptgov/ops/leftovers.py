"""Bytes beneath a directory of ours: counted, and removed from the leaves up."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ckptgov.model.files import EntryKind, FileStat
from ckptgov.storage.contract import TEMP_PREFIX, Storage

STAGING = "staging"
TRASH = "trash"


class Below(Struct, frozen=True):
    """What lies beneath a directory, temporary files of running deliveries left out.

    ``own_bytes`` are those of files that have no name elsewhere.
    """

    files: int
    bytes: int
    own_bytes: int
    newest_ns: int


def names_in(storage: Storage, directory: str) -> tuple[str, ...]:
    """Names of the directories in a directory; none where it is absent."""
    try:
        entries = storage.list(directory)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(entry.name for entry in entries if entry.kind is EntryKind.DIR)


def below(storage: Storage, directory: str) -> Below:
    """Count what lies beneath; nothing where the directory is absent. Follows no symlink.

    The directories' own times count as signs of life too.
    """
    files = size = own = newest_ns = 0
    for stat in _walk(storage, directory):
        newest_ns = max(newest_ns, stat.mtime_ns)
        if stat.kind is EntryKind.FILE:
            files, size = files + 1, size + stat.bytes
            own += stat.bytes if stat.links <= 1 else 0
    return Below(files, size, own, newest_ns)


def remove_below(storage: Storage, directory: str) -> None:
    """Remove a directory and all beneath it; gone already is no error.

    A symlink is removed itself. Something else than files, directories and symlinks is left, and
    the directories around it with it.

    Raises:
        StorageError: something did not go.
    """
    try:
        entries = storage.list(directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        path = f"{directory}/{entry.name}"
        if entry.kind is EntryKind.DIR:
            remove_below(storage, path)
            continue
        try:
            storage.remove(path)
        except FileNotFoundError:
            continue
    if storage.traits.has_directories:
        try:
            storage.remove_dir(directory)
        except FileNotFoundError:
            return


def _walk(storage: Storage, top: str) -> Iterator[FileStat]:
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        try:
            if storage.traits.has_directories:
                yield storage.stat(directory)
            entries = storage.list(directory)
            waiting += [f"{directory}/{one.name}" for one in entries if one.kind is EntryKind.DIR]
            names = [
                one.name
                for one in entries
                if one.kind is not EntryKind.DIR and not one.name.startswith(TEMP_PREFIX)
            ]
            stats = storage.stat_many(directory, names)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it went away meanwhile
        yield from (stat for stat in stats if stat is not None)
