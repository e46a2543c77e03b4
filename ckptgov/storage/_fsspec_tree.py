"""The reading half of an fsspec file system as a tree: connection, listings, looks, open files."""

from __future__ import annotations

import builtins
import errno
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from ckptgov.errors import StorageError, TransientStorageError
from ckptgov.model.files import Attributes, Entry, EntryKind, FileStat
from ckptgov.storage._fsspec_file import FsspecFile
from ckptgov.storage._fsspec_look import file_stat, kind_of, told_as_storage
from ckptgov.storage._keyed import directory_stat
from ckptgov.storage._paths import printable, raw, require_name, split, split_file
from ckptgov.storage._s3_keys import decode, encode

_FEW = 3  # so many names are looked at one by one, more by a listing

EXCLUSIVE = frozenset(("memory", "gs", "gcs", "abfs", "abfss", "az", "adl"))
"""Create-once in one call (``mode="create"``: a precondition of the store, or a lock of ours)."""

FLAT = EXCLUSIVE | {"s3", "s3a", "oss", "oci", "tos", "hf"}
"""No directories that would have to be made, or could be left behind empty."""


class _Level(Struct, frozen=True):
    """One directory: what names of ours are, and last names of keys that no path of ours has."""

    ours: dict[str, Mapping[str, Any]]
    others: set[str]

    def add(self, last: str, told: Mapping[str, Any]) -> None:
        name = decode(last)
        if name is None:
            self.others.add(last)
        else:
            self.ours[name] = told


class FsspecTree:
    """A tree at a URL. What the calls promise stands in the contract."""

    def __init__(self, url: str, *, filesystem: Any) -> None:
        self._url = url
        self._root = _without_password(url.rstrip("/"))
        self._protocol = urlsplit(url).scheme
        self._is_flat = self._protocol in FLAT
        self._is_given = filesystem is not None
        with told_as_storage(self._root):
            self._fs, self._base = _connect(url, filesystem)
        is_parallel = getattr(self._fs, "async_impl", False)
        self._turn: AbstractContextManager[object] = (
            nullcontext() if is_parallel else threading.RLock()
        )
        self._is_lost = self._is_closed = False

    @property
    def root(self) -> str:
        return self._root

    def close(self) -> None:
        """The file system is let go; connections end with its last user."""
        self._fs, self._is_closed = None, True

    def list(self, path: str) -> Sequence[Entry]:
        found = self._level(path)
        kinds = dict.fromkeys(found.others, EntryKind.OTHER)
        kinds |= {name: kind_of(told) for name, told in found.ours.items()}
        return [Entry(name, kinds[name]) for name in sorted(kinds, key=raw)]

    def stat(self, path: str) -> FileStat:
        if not split(path):
            self._level("")
            return directory_stat()
        return self._stat_of(path, self._ask_about(path))

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        for name in names:
            require_name(name)
        split(directory)
        paths = [f"{directory}/{name}" if directory else name for name in names]
        if len(names) <= _FEW:
            found = [self._stat_or_none(path) for path in paths]
            if not any(found):
                self._level(directory)
            return found
        there = self._level(directory).ours
        return [
            self._stat_of(path, there[name]) if name in there else None
            for name, path in zip(names, paths, strict=True)
        ]

    def read_link(self, path: str) -> str:
        split_file(path)
        self._require_file(path)
        raise StorageError(f"{self._where(path)}: not a symlink; none is followed here")

    def open(self, path: str) -> FsspecFile:
        split_file(path)
        found = self._require_file(path)
        return FsspecFile(self, path, found)

    def attributes(self, path: str) -> Attributes:
        split_file(path)
        found = self._require_file(path)
        return Attributes(mode=0o644, uid=0, gid=0, mtime_ns=found.mtime_ns)

    @contextmanager
    def calling(self, path: str) -> Iterator[Any]:
        """The file system, for one call at a time where it serves one at a time."""
        where = self._where(path)
        with self._turn, told_as_storage(where):
            self._reconnect(where)
            self._fs.invalidate_cache()  # what others did since must be seen
            try:
                yield self._fs
            except (ConnectionError, EOFError, TimeoutError):
                self._is_lost = True
                raise

    def _reconnect(self, where: str) -> None:
        """A connection that broke stays broken: the next call begins with a new one."""
        if self._is_closed:
            raise StorageError(f"{where}: this storage was closed")
        if self._is_lost and not self._is_given:
            self._fs, _ = _connect(self._url, None)
        self._is_lost = False

    def key(self, path: str) -> str:
        """What the file system calls a path of ours."""
        return f"{self._base}/{encode(path)}" if path else self._base or "/"

    def _where(self, path: str) -> str:
        return printable(f"{self._root}/{path}" if path else self._root)

    def _ask_about(self, path: str) -> Mapping[str, Any]:
        with self.calling(path) as fs:
            found: Mapping[str, Any] = fs.info(self.key(path))
        return found

    def _stat_of(self, path: str, told: Mapping[str, Any]) -> FileStat:
        kind = kind_of(told)
        if kind is EntryKind.DIR:
            return directory_stat()
        if kind is not EntryKind.FILE:
            raise StorageError(f"{self._where(path)}: neither a file nor a directory; left alone")
        modified = None
        with suppress(StorageError, FileNotFoundError), self.calling(path) as fs:
            modified = None if _tells_time(told) else fs.modified(self.key(path))
        return file_stat(told, modified, self._where(path))

    def _stat_or_none(self, path: str) -> FileStat | None:
        try:
            return self.stat(path)
        except FileNotFoundError:
            return None

    def _require_file(self, path: str) -> FileStat:
        found = self.stat(path)
        if found.kind is EntryKind.DIR:
            raise os_error_at(errno.EISDIR, self._where(path))
        return found

    def _level(self, path: str) -> _Level:
        """Everything right in a directory."""
        split(path)
        key = self.key(path).rstrip("/")
        try:
            with self.calling(path) as fs:
                listed: Sequence[Mapping[str, Any]] = fs.ls(key or "/", detail=True)
        except FileNotFoundError:
            if path or not self._is_root_there():
                raise
            return _Level({}, set())
        found = _Level({}, set())
        for told in listed:
            name = str(told["name"]).rstrip("/")
            if name.strip("/") != key.strip("/"):
                found.add(name.rpartition("/")[2], told)
            elif kind_of(told) is EntryKind.FILE and told.get("size"):
                raise os_error_at(errno.ENOTDIR, self._where(path))
            # else a marker of the directory itself
        if path and self._is_flat and not (found.ours or found.others):
            raise os_error_at(errno.ENOENT, self._where(path))
        return found

    def _is_root_there(self) -> bool:
        """Whether a prefix without keys is an empty tree, not one that is missing."""
        if not self._is_flat:
            return False
        bucket = self._base.strip("/").partition("/")[0]
        with self.calling("") as fs:
            return self._protocol == "memory" or bool(fs.exists(bucket))


def _connect(url: str, filesystem: Any) -> tuple[Any, str]:
    """The file system and what it calls the root."""
    import fsspec  # dear to import

    if filesystem is not None:
        return filesystem, str(filesystem._strip_protocol(url)).rstrip("/")
    try:
        made, base = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        missing = getattr(error.__cause__ or error, "name", None)
        raise StorageError(
            f"{_without_password(url)}: {error}",
            hint=f"pip install {missing}" if missing else "install the scheme's library",
        ) from error
    except ValueError as error:
        raise StorageError(
            f"{_without_password(url)}: {error}", hint="fsspec knows no such scheme or address"
        ) from error
    except OSError as error:
        raise TransientStorageError(f"{_without_password(url)}: {error}") from error
    return made, str(base).rstrip("/")


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}{at}{host}{slash}{path}"


def _tells_time(told: Mapping[str, Any]) -> bool:
    try:
        file_stat(told, None, "")
    except StorageError:
        return False
    return True


def os_error_at(code: int, where: str) -> OSError:
    return OSError(code, os.strerror(code), where)
