"""What :class:`~ckptgov.storage.memory.MemoryStorage` is made of, and how paths resolve in it."""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass, field

from ckptgov.model.closing import Closing
from ckptgov.model.files import FileStat
from ckptgov.storage._oserrors import os_error
from ckptgov.storage._paths import MAX_LINKS, kind_of

DIR_MODE = stat.S_IFDIR | 0o755
FILE_MODE = stat.S_IFREG | 0o644
LINK_MODE = stat.S_IFLNK | 0o777
FIFO_MODE = stat.S_IFIFO | 0o644


@dataclass(slots=True, kw_only=True)
class Node:
    """One inode. ``content`` is a file's bytes, ``text`` a symlink's, ``children`` a directory's.

    Directories know their parent, as ``..`` in a link's text leads there.
    """

    mode: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    btime_ns: int | None
    uid: int = 0
    gid: int = 0
    links: int = 1
    content: bytes = b""
    text: str = ""
    children: dict[str, Node] = field(default_factory=dict)
    parent: Node | None = None

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    def look(self) -> FileStat:
        return FileStat(
            kind=kind_of(self.mode),
            bytes=len(self.text.encode("utf-8", "surrogateescape")) or len(self.content),
            mtime_ns=self.mtime_ns,
            ctime_ns=self.ctime_ns,
            inode=self.inode,
            device=0,
            mode=self.mode,
            uid=self.uid,
            gid=self.gid,
            links=self.links,
            btime_ns=self.btime_ns,
        )


def child(directory: Node, name: str) -> Node:
    """An entry of a directory, a symlink itself."""
    require_dir(directory)
    if name not in directory.children:
        raise os_error(errno.ENOENT)
    return directory.children[name]


def require_dir(node: Node) -> None:
    """Raise OSError unless the node is a directory: ELOOP for a symlink, else ENOTDIR."""
    if node.is_link:
        raise os_error(errno.ELOOP)
    if not node.is_dir:
        raise os_error(errno.ENOTDIR)


def follow(root: Node, parts: tuple[str, ...]) -> Node:
    """Resolve like an open for reading: symlinks count while they stay beneath the root."""
    pending, here, links = list(reversed(parts)), root, 0
    while pending:
        name = pending.pop()
        if name == "..":
            if here.parent is None:
                raise os_error(errno.EXDEV)
            here = here.parent
            continue
        found = child(here, name)
        if not found.is_link:
            here = found
            continue
        links += 1
        if links > MAX_LINKS:
            raise os_error(errno.ELOOP)
        if found.text.startswith("/"):
            raise os_error(errno.EXDEV)
        pending.extend(part for part in reversed(found.text.split("/")) if part not in ("", "."))
    return here


class MemoryFile(Closing):
    """``OpenFile`` on a node, which it keeps also when its name goes."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def stat(self) -> FileStat:
        return self._node.look()

    def read_at(self, offset: int, length: int) -> bytes:
        return self._node.content[offset : offset + length]

    def read_into(self, buffer: memoryview, offset: int) -> int:
        piece = self.read_at(offset, buffer.nbytes)
        buffer.cast("B")[: len(piece)] = piece
        return len(piece)

    def sync(self) -> None:
        """Memory is as durable as it gets."""

    def drop_cache(self, offset: int, length: int) -> None:
        """There is none."""

    def close(self) -> None:
        """Nothing to give back."""
