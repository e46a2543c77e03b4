"""The path rules, the same for every backend."""

from __future__ import annotations

import errno
import os
import stat

from ckptgov.errors import PathEscapes
from ckptgov.model.files import EntryKind

_NEVER = frozenset(("", ".", ".."))

MAX_LINKS = 40
"""Symlinks followed for one open; as the kernel counts (path_resolution(7))."""


def split(path: str) -> tuple[str, ...]:
    """The parts of a relative path; none for the root. Raises PathEscapes."""
    if not path:
        return ()
    parts = tuple(path.split("/"))
    if not _NEVER.isdisjoint(parts):
        raise PathEscapes(f"{printable(path)}: not a plain path below the root")
    if not path.isascii() or "\0" in path:
        _require_encodable(path)
    return parts


def split_file(path: str) -> tuple[str, ...]:
    """Like :func:`split`, for calls that need a name of their own; never the root."""
    parts = split(path)
    if not parts:
        raise IsADirectoryError(errno.EISDIR, "the root is a directory")
    return parts


def require_name(name: str) -> None:
    """Raise PathEscapes unless ``name`` is one plain name."""
    if name.isascii() and "/" not in name and "\0" not in name and name not in _NEVER:
        return  # asked once per shard
    if len(split(name)) != 1:
        raise PathEscapes(f"{printable(name)!r}: not a plain name")


def _require_encodable(path: str) -> None:
    if "\0" in path:
        raise PathEscapes(f"{printable(path)}: a NUL stands in the path")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise PathEscapes(f"{printable(path)}: no file can have this name") from error


def printable(path: str) -> str:
    """The path as text any terminal takes: bytes that are not UTF-8 and controls escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in path)


def raw(name: str) -> bytes:
    """Sort key: the name's bytes as the kernel has them."""
    return os.fsencode(name)


_KINDS = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFDIR: EntryKind.DIR,
    stat.S_IFLNK: EntryKind.SYMLINK,
}


def kind_of(mode: int) -> EntryKind:
    """The kind of entry that ``st_mode`` tells."""
    return _KINDS.get(stat.S_IFMT(mode), EntryKind.OTHER)
