"""What lies at a path that is none of ours, and since when it has been seen to lie there so."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator

from msgspec import Struct

from ckptgov.errors import CkptgovError
from ckptgov.model.files import EntryKind, FileStat
from ckptgov.storage.contract import Storage

OURS = ".ckptgov"
"""Whatever of ours lies in a directory begins so."""

_KEPT = 100_000
"""So many paths of one place are remembered; of more, some are always new."""


class Lying(Struct, frozen=True, kw_only=True):
    """Everything at a path, itself included; no symlink is followed.

    ``mark`` changes with any name, size, time or identity in it. ``newest_ns`` is the newest time
    a content changed at. ``ours``: the first thing in it whose name is one of ours. ``inodes`` are
    (device, inode) of all, ``devices`` those of directories.
    """

    files: tuple[tuple[str, int], ...]  # path and bytes of each regular file, in order
    newest_ns: int
    mark: str
    ours: str = ""
    inodes: frozenset[tuple[int, int]] = frozenset()
    devices: frozenset[int] = frozenset()

    @property
    def bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(size for _path, size in self.files)


def lying_at(storage: Storage, path: str) -> Lying | None:
    """Walk what lies at a path; None where nothing does (any more).

    Raises:
        CouldNotLook: a part of it cannot be looked at.
    """
    found = dict(_walk(storage, path))
    if not found:
        return None
    digest = hashlib.sha256()
    for each in sorted(found, key=os.fsencode):
        stat = found[each]
        told = (stat.kind.value, stat.bytes, stat.mtime_ns, stat.ctime_ns, stat.inode, stat.etag)
        digest.update(os.fsencode(each) + b"\0" + repr(told).encode("ascii") + b"\n")
    files = [(each, one.bytes) for each, one in found.items() if one.kind is EntryKind.FILE]
    return Lying(
        files=tuple(sorted(files)),
        newest_ns=max(one.mtime_ns for one in found.values()),
        mark=digest.hexdigest(),
        ours=min((each for each in found if _name(each).startswith(OURS)), default=""),
        inodes=frozenset((one.device, one.inode) for one in found.values() if one.inode),
        devices=frozenset(
            one.device for one in found.values() if one.kind is EntryKind.DIR and one.inode
        ),
    )


def _walk(storage: Storage, path: str) -> Iterator[tuple[str, FileStat]]:
    try:
        top = storage.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    yield path, top
    waiting = [path] if top.kind is EntryKind.DIR else []
    while waiting:
        directory = waiting.pop()
        try:
            names = [entry.name for entry in storage.list(directory)]
            stats = storage.stat_many(directory, names)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it went away meanwhile
        for name, stat in zip(names, stats, strict=True):
            if stat is None:
                continue
            below = f"{directory}/{name}"
            yield below, stat
            if stat.kind is EntryKind.DIR:
                waiting.append(below)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


class SeenBook:
    """When things at one place were first seen as they are, by the catalog's clock.

    A cache in the home. Lost, damaged or of another home, everything is new again: that only puts
    off what waits for time to pass.
    """

    def __init__(self, home: str, place: str, *, now_ns: int) -> None:
        self._path = os.path.join(home, "seen", f"{place}.json")
        self._now_ns = now_ns
        self._before = _read(self._path)
        self._now: dict[str, tuple[str, int]] = {}

    def unchanged_s(self, path: str, mark: str) -> float:
        """For how long ``path`` has been seen with this mark; 0 for the first time."""
        known, since_ns = self._before.get(path, ("", self._now_ns))
        if known != mark or since_ns > self._now_ns:  # changed, or the clock was set back
            since_ns = self._now_ns
        self._now[path] = (mark, since_ns)
        return (self._now_ns - since_ns) / 1e9

    def keep(self) -> None:
        """Remember what was asked about since it was opened, and nothing else."""
        kept = dict(sorted(self._now.items())[:_KEPT])
        if kept == self._before:
            return
        temporary = f"{self._path}.{os.getpid()}.tmp"
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            with open(temporary, "w", encoding="ascii") as file:
                json.dump({"version": 1, "seen": kept}, file)
            os.replace(temporary, self._path)
        except OSError:
            return  # the home is full or away: all is new again next time


def _read(path: str) -> dict[str, tuple[str, int]]:
    try:
        with open(path, encoding="ascii") as file:
            told = json.load(file)
        return {
            str(key): (str(mark), int(since_ns)) for key, (mark, since_ns) in told["seen"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def open_files() -> frozenset[tuple[int, int]]:
    """(device, inode) of every file that a process of this host has open, as far as it shows.

    proc(5): the files of other users' processes show to root only, those of other PID namespaces
    not at all. So a file that is not among them may be open all the same.
    """
    found: set[tuple[int, int]] = set()
    for pid in _names("/proc"):
        if not pid.isdigit():
            continue
        for link in (*_fds(pid), f"/proc/{pid}/cwd"):
            try:
                stat = os.stat(link)
            except OSError:
                continue  # closed meanwhile, or hidden from us
            found.add((stat.st_dev, stat.st_ino))
    return frozenset(found)


def _fds(pid: str) -> list[str]:
    return [f"/proc/{pid}/fd/{name}" for name in _names(f"/proc/{pid}/fd")]


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def could_not(error: CkptgovError | OSError) -> str:
    """An error in words."""
    return error.message if isinstance(error, CkptgovError) else str(error)
