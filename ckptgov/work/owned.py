"""Directories of our own beside a run's checkpoints: what they are called, counted, removed.

Each holds what belongs to one content id: copies on their way in, held ones, links for a restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from ckptgov.errors import CkptgovError
from ckptgov.model.checkpoint import digits_of
from ckptgov.model.files import Entry, EntryKind, FileStat
from ckptgov.storage.contract import TEMP_PREFIX, Storage

STAGING = "staging"
HELD = "held"
LINKED = "linked"
TRASH = "trash"


def directory_of(sidecar: str, kind: str, content_id: str) -> str:
    """Where a run keeps what belongs to one content id: ``<sidecar>/<kind>/<64 hex>``."""
    return f"{sidecar}/{kind}/{digits_of(content_id)}"


def contents_in(storage: Storage, sidecar: str, kind: str) -> frozenset[str]:
    """Content ids of which something is kept."""
    return frozenset(f"sha256:{name}" for name in names_in(storage, f"{sidecar}/{kind}"))


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


def remove_below(
    storage: Storage, directory: str, *, keeps: Callable[[Entry], bool] | None = None
) -> CkptgovError | OSError | None:
    """``Storage.remove_tree``, where what is no directory counts as gone; what resisted first."""
    try:
        return storage.remove_tree(directory, keeps=keeps).error
    except (FileNotFoundError, NotADirectoryError):
        return None
    except CkptgovError as error:
        return error


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
