"""What lies at a place and belongs to nobody: no run, no known layout, no name of ours.

Only told. Somebody put it there, and nothing here knows what it is worth.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from ckptgov.errors import CkptgovError, StorageError
from ckptgov.layouts.names import is_debris
from ckptgov.layouts.tree import join
from ckptgov.model.files import EntryKind
from ckptgov.model.usage import Orphan
from ckptgov.ops.lying import OURS, SeenBook, could_not, lying_at
from ckptgov.ops.staging import Foreign
from ckptgov.storage.contract import Storage

TOLD = 100
"""So many orphans of one place are told, the largest."""

_OF_THE_FILE_SYSTEM = frozenset({"lost+found", ".snapshot", ".snapshots", ".zfs"})


class Strays(Struct, frozen=True, kw_only=True):
    """Orphans, the largest first, and ``more`` that are not told; temporary names outside runs;
    what could not be looked at."""

    orphans: tuple[Orphan, ...]
    more: int
    foreign: tuple[Foreign, ...]
    failures: tuple[tuple[str, CkptgovError], ...]


def strays(storage: Storage, *, roots: Collection[str], book: SeenBook, now_ns: int) -> Strays:
    """Walk what lies outside of run roots (paths below the place's root).

    A directory without a run root in it is one orphan with all that it holds, save for temporary
    names of frameworks, which are told apart. Symlinks hold no bytes and are passed over.
    """
    if "" in roots:
        return Strays(orphans=(), more=0, foreign=(), failures=())
    ways = {path for root in roots for path in _ways(root)}
    orphans: list[Orphan] = []
    foreign: list[Foreign] = []
    failures: list[tuple[str, CkptgovError]] = []
    waiting = ["", *sorted(ways - {""})]
    for directory in waiting:
        try:
            entries = storage.list(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except CkptgovError as error:
            failures.append((directory or ".", error))
            continue
        for entry in entries:
            path = join(directory, entry.name)
            if path in ways or path in roots or _is_nobodys(entry.name, entry.kind):
                continue
            if is_debris(entry.name):
                foreign.append(Foreign(path, ""))
                continue
            try:
                orphans += _orphan(storage, path, foreign, book, now_ns)
            except (CkptgovError, OSError) as error:
                told = error if isinstance(error, CkptgovError) else StorageError(could_not(error))
                failures.append((path, told))
    largest = sorted(orphans, key=lambda one: (-one.bytes, one.path))
    return Strays(
        orphans=tuple(largest[:TOLD]),
        more=max(0, len(largest) - TOLD),
        foreign=tuple(foreign),
        failures=tuple(failures),
    )


def _ways(root: str) -> Sequence[str]:
    """The directories that lead to a run root, the place's own among them."""
    parts = root.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts))]


def _is_nobodys(name: str, kind: EntryKind) -> bool:
    """Neither an orphan nor a run: ours, the file system's, or without bytes."""
    is_file_system = name in _OF_THE_FILE_SYSTEM or name.startswith(".nfs")
    is_plain = kind in (EntryKind.FILE, EntryKind.DIR)
    return name.startswith(OURS) or is_file_system or not is_plain


def _orphan(
    storage: Storage, path: str, foreign: list[Foreign], book: SeenBook, now_ns: int
) -> list[Orphan]:
    lying = lying_at(storage, path)
    if lying is None:
        return []
    temporary = _temporary(path, [each for each, _size in lying.files])
    foreign += [Foreign(each, "") for each in temporary]
    files = [
        (each, size)
        for each, size in lying.files
        if not any(each == one or each.startswith(f"{one}/") for one in temporary)
        and not each.rpartition("/")[2].startswith(OURS)
    ]
    if not files:
        return []
    return [
        Orphan(
            path=path,
            files=len(files),
            bytes=sum(size for _each, size in files),
            age_s=max(0.0, (now_ns - lying.newest_ns) / 1e9),
            unchanged_s=book.unchanged_s(path, lying.mark),
        )
    ]


def _temporary(top: str, files: Sequence[str]) -> list[str]:
    """The outermost temporary names of frameworks beneath ``top`` that files lie at."""
    found = set()
    for path in files:
        parts = path.removeprefix(f"{top}/").split("/") if path != top else []
        for count, name in enumerate(parts, 1):
            if is_debris(name):
                found.add("/".join((top, *parts[:count])))
                break
    return sorted(found)
