"""What a look at one file tells, and the seam through which layouts and digests read."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from msgspec import Struct


class EntryKind(StrEnum):
    """What a directory entry is; a symlink is never followed to find out."""

    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"
    OTHER = "other"


class Entry(Struct, frozen=True):
    """One name in a directory."""

    name: str
    kind: EntryKind


class Token(Struct, frozen=True):
    """The cheap proof that a file did not change.

    On a file system it holds while size, mtime and inode are equal. A change of ctime alone
    (link, chmod, rename, touch back) asks for a new verification but does not re-open the shard.
    On an object store it holds while size and ``etag`` are equal, and ``version_id`` where both
    know one (a listing tells none); the other members are 0 there. An etag is never a digest: it
    only names one state of one key.
    """

    bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    etag: str | None = None
    version_id: str | None = None

    def same_content(self, other: Token) -> bool:
        """Whether ``other`` may stand for the same bytes (ctime aside)."""
        if self.etag is not None or other.etag is not None:
            return (self.bytes, self.etag) == (other.bytes, other.etag) and (
                self.version_id == other.version_id or None in (self.version_id, other.version_id)
            )
        return (self.bytes, self.mtime_ns, self.inode) == (
            other.bytes,
            other.mtime_ns,
            other.inode,
        )


class Attributes(Struct, frozen=True, kw_only=True):
    """What travels with a shard from place to place. Only the nine permission bits of a mode do."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int


class FileStat(Struct, frozen=True, kw_only=True):
    """lstat or fstat of one file; ``btime_ns`` is None where the file system tells no birth.

    On an object store ``mtime_ns`` is when the object was stored, ``inode`` and ``ctime_ns`` are
    0, and ``etag`` (without quotes) is set; ``version_id`` where it is versioned and was asked
    for by name.
    """

    kind: EntryKind
    bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int
    mode: int
    uid: int
    gid: int
    links: int = 1
    btime_ns: int | None = None
    etag: str | None = None
    version_id: str | None = None

    @property
    def token(self) -> Token:
        """The part that proves whether the bytes may have changed."""
        if self.etag is not None:
            return Token(self.bytes, 0, 0, 0, self.etag, self.version_id)
        return Token(self.bytes, self.mtime_ns, self.ctime_ns, self.inode)


class OpenFile(Protocol):
    """An open file for reading. Positions are explicit, so threads may share it."""

    def stat(self) -> FileStat:
        """fstat of the open file, not of its name. ``btime_ns`` may be None here."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; shorter only at the end of the file."""
        ...

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset``; the count is less than its size only at the end."""
        ...

    def sync(self) -> None:
        """Make the file's bytes durable (fsync). Never call twice after a failure."""
        ...

    def drop_cache(self, offset: int, length: int) -> None:
        """Advise that these bytes are not needed again (page cache); may do nothing."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Reader(Protocol):
    """Read-only look at a tree. ``""`` is its root; every path is beneath it.

    Raises ``FileNotFoundError`` for an absent path, ``NotADirectoryError`` and
    ``IsADirectoryError`` as the built-ins mean them, ``PathEscapes`` for a path with ``..`` or
    one that a symlink leads out of the root, ``StorageError`` for everything else (permission
    denied included: not being allowed to look is not "none").
    """

    def list(self, path: str) -> Sequence[Entry]:
        """All entries of a directory, sorted by raw name bytes; complete, or it raises."""
        ...

    def stat(self, path: str) -> FileStat:
        """lstat: a symlink is reported, not followed. ``btime_ns`` filled where it is known."""
        ...

    def read_link(self, path: str) -> str:
        """The text of a symlink, as it stands."""
        ...

    def open(self, path: str) -> OpenFile:
        """Open a regular file for reading.

        A symlink is followed only while it resolves beneath the root; otherwise PathEscapes. A
        FIFO, device or socket raises StorageError without being opened for real (never blocks).
        """
        ...
