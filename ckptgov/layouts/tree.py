"""A caching look at one run root: what layouts see of a reader."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ckptgov.errors import Malformed
from ckptgov.layouts.pickles import PickleReader
from ckptgov.model.checkpoint import Expect
from ckptgov.model.closing import Closing
from ckptgov.model.files import Entry, EntryKind, FileStat, OpenFile, Reader

MAX_ENTRIES = 2_000_000
"""Entries one recursive look may list before it gives up instead of filling the memory."""


class LookSettings(Struct, frozen=True, kw_only=True):
    """What a look is told from outside.

    ``now_ns`` is the wall clock, used only to note times in the future beyond
    ``clock_margin_ns``. ``marker_margin_ns`` is how much later than its marker a shard may look
    before it is refused: 0 on a local file system, more where nodes stamp times with their own
    clocks. ``rules`` are the declared rules of this run.
    """

    now_ns: int
    clock_margin_ns: int = 300 * 10**9
    marker_margin_ns: int = 0
    rules: tuple[Expect, ...] = ()


class Tree(Closing):
    """One look at a run root. Every path is below ``run_root``; ``""`` is the run root itself.

    Listings and stats are read once and remembered, so all layouts see the same moment. Errors
    are those of ``Reader``; nothing is ever remembered of a look that failed. Symlinks are
    reported, not followed. Close it (or use ``with``) to end the pickle child, if one was started.
    """

    def __init__(self, reader: Reader, run_root: str, settings: LookSettings) -> None:
        self.reader = reader
        self.run_root = run_root
        self.settings = settings
        self._lists: dict[str, tuple[Entry, ...]] = {}
        self._kinds: dict[str, dict[str, EntryKind]] = {}
        self._names: dict[tuple[str, EntryKind | None], tuple[str, ...]] = {}
        self._stats: dict[str, FileStat] = {}
        self._missed: set[str] = set()  # could not be listed: not there
        self._phantoms: set[str] = set()
        self._listed = 0
        self._pickles: PickleReader | None = None

    def close(self) -> None:
        """End the pickle child; the tree may not be used after it."""
        if self._pickles is not None:
            self._pickles.close()
            self._pickles = None

    @property
    def pickles(self) -> PickleReader:
        """The child that reads pickles for facts; started by its first question."""
        if self._pickles is None:
            self._pickles = PickleReader()
        return self._pickles

    def list(self, path: str) -> tuple[Entry, ...]:
        """All entries of a directory, sorted by raw name bytes.

        Raises:
            FileNotFoundError, NotADirectoryError, StorageError: as ``Reader.list``.
        """
        known = self._lists.get(path)
        if known is None:
            known = tuple(e for e in self._list(path) if not self._is_phantom(path, e))
            self._count(len(known))
            self._lists[path] = known
        return known

    def _list(self, path: str) -> Sequence[Entry]:
        try:
            return self.reader.list(join(self.run_root, path))
        except (FileNotFoundError, NotADirectoryError):
            self._missed.add(path)
            raise

    def _is_phantom(self, directory: str, entry: Entry) -> bool:
        is_dir = entry.kind is EntryKind.DIR
        return is_dir and bool(self._phantoms) and join(directory, entry.name) in self._phantoms

    def kinds(self, path: str) -> dict[str, EntryKind]:
        """Name to kind of every entry of a directory; treat it as read-only."""
        known = self._kinds.get(path)
        if known is None:
            known = {entry.name: entry.kind for entry in self.list(path)}
            self._kinds[path] = known
        return known

    def names(self, path: str, kind: EntryKind | None = None) -> tuple[str, ...]:
        """Names in a directory, only those of ``kind`` where one is given."""
        known = self._names.get((path, kind))
        if known is None:
            known = tuple(e.name for e in self.list(path) if kind is None or e.kind is kind)
            self._names[path, kind] = known
        return known

    def files(self, path: str) -> tuple[str, ...]:
        """Names of the regular files in a directory."""
        return self.names(path, EntryKind.FILE)

    def dirs(self, path: str) -> tuple[str, ...]:
        """Names of the real directories (no symlinks) in a directory."""
        return self.names(path, EntryKind.DIR)

    def kind(self, path: str) -> EntryKind | None:
        """What ``path`` is, or None when it is absent. No symlink is followed on the way."""
        if path == "":
            return EntryKind.DIR
        parent, name = split(path)
        if parent and self.kind(parent) is not EntryKind.DIR:
            return None
        return self.kinds(parent).get(name)

    def exists(self, path: str) -> bool:
        """Whether there is an entry of this name, of any kind."""
        return self.kind(path) is not None

    def is_file(self, path: str) -> bool:
        """Whether ``path`` is a regular file."""
        return self.kind(path) is EntryKind.FILE

    def is_dir(self, path: str) -> bool:
        """Whether ``path`` is a real directory."""
        return self.kind(path) is EntryKind.DIR

    def stat(self, path: str) -> FileStat:
        """lstat, remembered.

        Raises:
            FileNotFoundError, StorageError: as ``Reader.stat``.
        """
        known = self._stats.get(path)
        if known is None:
            known = self.reader.stat(join(self.run_root, path))
            self._stats[path] = known
        return known

    def is_gone(self, path: str) -> bool:
        """Whether there is no directory at ``path`` any more; looks anew.

        Raises:
            StorageError: as ``Reader.stat``.
        """
        try:
            return self.reader.stat(join(self.run_root, path)).kind is not EntryKind.DIR
        except (FileNotFoundError, NotADirectoryError):
            return True

    def leave_out_gone(self) -> bool:
        """Tell no more of directories that were listed and are not there; whether any is new.

        Their trainer removed them meanwhile, or the store still lists a beginning that no key has
        any more (SeaweedFS, for a while after the last key went). The listings that told of them
        are read again.

        Raises:
            StorageError: as ``Reader.stat``.
        """
        gone = {path for path in self._missed if path and self.is_gone(path)} - self._phantoms
        self._missed.clear()
        self._phantoms |= gone
        for above in {split(path)[0] for path in gone}:
            self._drop(above)
        return bool(gone)

    def forget(self, directory: str) -> None:
        """Drop what is remembered of a directory and all beneath it."""
        beneath = f"{directory}/" if directory else ""
        for path in self._lists.keys() | self._kinds.keys() | self._stats.keys():
            if path == directory or path.startswith(beneath):
                self._drop(path)

    def _drop(self, path: str) -> None:
        self._listed -= len(self._lists.pop(path, ()))
        self._kinds.pop(path, None)
        self._stats.pop(path, None)
        self._names.clear()

    def read_link(self, path: str) -> str:
        """The text of a symlink, as it stands."""
        return self.reader.read_link(join(self.run_root, path))

    def open(self, path: str) -> OpenFile:
        """Open a regular file for reading; the caller closes it."""
        return self.reader.open(join(self.run_root, path))

    def read_whole(self, path: str, cap_bytes: int) -> bytes:
        """The bytes of a small file.

        Raises:
            Malformed: it is larger than ``cap_bytes``.
            FileNotFoundError, StorageError: as ``Reader.open``.
        """
        with self.open(path) as file:
            size = file.stat().bytes
            if size > cap_bytes:
                raise Malformed(f"{path}: {size} bytes, more than the {cap_bytes} allowed")
            return file.read_at(0, size)

    def files_below(self, path: str) -> tuple[str, ...]:
        """Every regular file beneath a directory, as paths below *that directory*.

        Symlinks and special files are left out and never followed; ``.ckptgov*`` directories are
        skipped. Sorted by raw bytes.
        """
        return self.entries_below(path, EntryKind.FILE)

    def entries_below(self, path: str, kind: EntryKind) -> tuple[str, ...]:
        """Like ``files_below`` for another kind of entry."""
        found: list[str] = []
        todo = [""]
        while todo:
            below = todo.pop()
            for entry in self.list(join(path, below)):
                here = join(below, entry.name)
                if entry.kind is kind:
                    found.append(here)
                if entry.kind is EntryKind.DIR and not entry.name.startswith(".ckptgov"):
                    todo.append(here)
        return tuple(sort_paths(found))

    def _count(self, entries: int) -> None:
        self._listed += entries
        if self._listed > MAX_ENTRIES:
            raise Malformed(
                f"{self.run_root or '.'}: more than {MAX_ENTRIES} entries in one look",
                hint="name a directory nearer to the checkpoints",
            )


def join(parent: str, name: str) -> str:
    """``parent/name``, where either may be ``""``."""
    if not parent or not name:
        return parent or name
    return f"{parent}/{name}"


def split(path: str) -> tuple[str, str]:
    """(parent, last component); the parent of a top-level name is ``""``."""
    parent, _, name = path.rpartition("/")
    return parent, name


def sort_paths(paths: Sequence[str]) -> list[str]:
    """Sorted by raw bytes, as manifests list them."""
    return sorted(paths, key=lambda path: path.encode("utf-8", "surrogateescape"))
